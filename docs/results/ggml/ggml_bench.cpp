// Times ggml_mul_mat on the CPU backend with cold weights.
//
//   ggml_bench THREADS SECONDS_PER_CASE [repack]
//
// One line per case on stdout (GB/s are those of the median):
//   ggml <variant> <plain|repack|amx> <type> <M> best_us median_us gb_s
// With `repack`, each type is measured plain and then in every extra buffer type of the CPU backend that takes it.
// Notes (number of products, means of whole turns over the copies, error against a reference) go to stderr.
//
// Environment: GGML_BENCH_TYPES=Q8_0,Q4_0  GGML_BENCH_M=1,8
//              GGML_BENCH_HUGE=1 (madvise the weights onto huge pages; ggml itself does not)
//              GGML_BENCH_PIN=1  (one thread per allowed CPU; ggml and llama.cpp leave that to the kernel)
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int64_t SIDE = 4096;
constexpr size_t COLD = 640'000'000; // bytes of weights to pass through before a copy comes again

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

[[noreturn]] void fail(const char * why) {
    fprintf(stderr, "ggml_bench: %s\n", why);
    exit(1);
}

// Uniform in [-1, 1).
struct Random {
    uint64_t state;
    float next() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return (float) ((double) (state >> 11) * 0x1p-52 - 1.0);
    }
};

std::vector<std::string> list(const char * name, const char * otherwise) {
    const char * text = getenv(name) ? getenv(name) : otherwise;
    std::vector<std::string> parts(1);
    for (; *text; ++text) {
        if (*text == ',') {
            parts.emplace_back();
        } else {
            parts.back() += *text;
        }
    }
    return parts;
}

bool asked(const char * name) { return getenv(name) && strcmp(getenv(name), "0") != 0; }

struct Case {
    const char * name;
    ggml_type type;
};

const Case CASES[] = {
    { "F32", GGML_TYPE_F32 },   { "BF16", GGML_TYPE_BF16 }, { "F16", GGML_TYPE_F16 },   { "Q8_0", GGML_TYPE_Q8_0 },
    { "Q6_K", GGML_TYPE_Q6_K }, { "Q4_0", GGML_TYPE_Q4_0 }, { "Q4_K", GGML_TYPE_Q4_K },
};

// The matrix quantized once, on all threads.
std::vector<uint8_t> quantize(ggml_type type, int threads) {
    const size_t row = ggml_row_size(type, SIDE);
    std::vector<uint8_t> bytes(row * SIDE);
    ggml_quantize_init(type);
    std::vector<std::thread> workers;
    for (int t = 0; t < threads; ++t) {
        workers.emplace_back([&, t] {
            std::vector<float> values(SIDE);
            for (int64_t r = t; r < SIDE; r += threads) {
                Random random{ 0x9E3779B97F4A7C15ull * (uint64_t) (r + 1) };
                for (float & value : values) {
                    value = random.next();
                }
                ggml_quantize_chunk(type, values.data(), bytes.data() + r * row, 0, 1, SIDE, nullptr);
            }
        });
    }
    for (auto & worker : workers) {
        worker.join();
    }
    return bytes;
}

int64_t source_row(size_t copy, int64_t row) { return (row + (int64_t) copy * 37) % SIDE; }

struct Bench {
    int threads;
    double seconds;
    ggml_threadpool_t pool;
    std::vector<int64_t> rows;
    bool wrong = false;

    void measure(const Case & which, const std::vector<uint8_t> & master, ggml_backend_buffer_type_t buft, const char * mode);
    double error(const Case & which, const std::vector<uint8_t> & master, size_t copy, const float * x, const float * y, int64_t m);
};

// Root mean square of the error, relative to that of the product with the dequantized weights in double precision.
double Bench::error(const Case & which, const std::vector<uint8_t> & master, size_t copy, const float * x, const float * y,
                    int64_t m) {
    const size_t size = ggml_row_size(which.type, SIDE);
    const auto to_float = ggml_get_type_traits(which.type)->to_float;
    std::vector<float> w(SIDE);
    double off = 0, all = 0;
    for (int64_t r = 0; r < SIDE; r += 61) {
        const uint8_t * from = master.data() + source_row(copy, r) * size;
        if (to_float) {
            to_float(from, w.data(), SIDE);
        } else {
            memcpy(w.data(), from, size);
        }
        for (int64_t i = 0; i < m; ++i) {
            double sum = 0;
            for (int64_t k = 0; k < SIDE; ++k) {
                sum += (double) w[k] * x[i * SIDE + k];
            }
            const double difference = y[i * SIDE + r] - sum;
            off += difference * difference;
            all += sum * sum;
        }
    }
    return std::sqrt(off / all);
}

void Bench::measure(const Case & which, const std::vector<uint8_t> & master, ggml_backend_buffer_type_t buft, const char * mode) {
    const size_t row = ggml_row_size(which.type, SIDE), bytes = row * SIDE;
    const size_t copies = COLD / bytes + 1;

    // The weights, each copy with its rows in another order.
    ggml_init_params of_weights = { ggml_tensor_overhead() * (copies + 1), nullptr, true };
    ggml_context * weights = ggml_init(of_weights);
    std::vector<ggml_tensor *> w;
    for (size_t c = 0; c < copies; ++c) {
        w.push_back(ggml_new_tensor_2d(weights, which.type, SIDE, SIDE));
    }
    ggml_backend_buffer_t store = ggml_backend_alloc_ctx_tensors_from_buft(weights, buft);
    if (!store) {
        fail("no memory for the weights");
    }
    ggml_backend_buffer_set_usage(store, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    if (asked("GGML_BENCH_HUGE")) {
        const uintptr_t start = ((uintptr_t) ggml_backend_buffer_get_base(store) + 4095) & ~(uintptr_t) 4095;
        const uintptr_t end = (uintptr_t) ggml_backend_buffer_get_base(store) + ggml_backend_buffer_get_size(store);
        if (madvise((void *) start, end - start, MADV_HUGEPAGE) != 0) {
            perror("madvise");
        }
    }
    std::vector<uint8_t> turned(bytes);
    for (size_t c = 0; c < copies; ++c) {
        for (int64_t r = 0; r < SIDE; ++r) {
            memcpy(turned.data() + r * row, master.data() + source_row(c, r) * row, row);
        }
        ggml_backend_tensor_set(w[c], turned.data(), 0, bytes);
    }

    for (int64_t m : rows) {
        ggml_init_params of_graphs = { (ggml_tensor_overhead() * 2 + ggml_graph_overhead_custom(4, false)) * (copies + 1), nullptr, true };
        ggml_context * graphs = ggml_init(of_graphs);
        const size_t part = (size_t) (m * SIDE) * sizeof(float);
        ggml_backend_buffer_t values = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), 2 * part + 4096);
        uint8_t * base = (uint8_t *) ggml_backend_buffer_get_base(values);
        ggml_tensor * x = ggml_new_tensor_2d(graphs, GGML_TYPE_F32, SIDE, m);
        ggml_backend_tensor_alloc(values, x, base);
        float * xs = (float *) x->data;
        Random random{ 12345 };
        for (int64_t i = 0; i < m * SIDE; ++i) {
            xs[i] = random.next();
        }
        // One graph and one plan per copy; x, y and the work buffer are shared.
        std::vector<ggml_cgraph *> graph;
        std::vector<ggml_cplan> plan;
        size_t work = 0;
        for (size_t c = 0; c < copies; ++c) {
            ggml_tensor * y = ggml_mul_mat(graphs, w[c], x);
            ggml_backend_tensor_alloc(values, y, base + part);
            graph.push_back(ggml_new_graph_custom(graphs, 4, false));
            ggml_build_forward_expand(graph.back(), y);
            plan.push_back(ggml_graph_plan(graph.back(), threads, pool));
            work = std::max(work, plan.back().work_size);
        }
        std::vector<uint8_t> scratch(work + 64);
        uint8_t * aligned = (uint8_t *) (((uintptr_t) scratch.data() + 63) & ~(uintptr_t) 63);
        for (auto & p : plan) {
            p.work_data = aligned;
        }
        const auto compute = [&](size_t c) {
            if (ggml_graph_compute(graph[c], &plan[c]) != GGML_STATUS_SUCCESS) {
                fail("ggml_graph_compute failed");
            }
        };

        // Once through all copies untimed; the first and the last against the reference.
        float * ys = (float *) (base + part);
        double worst = 0;
        for (size_t c = 0; c < copies; ++c) {
            memset(ys, 0xFF, part);
            compute(c);
            if (c == 0 || c + 1 == copies) {
                const double e = error(which, master, c, xs, ys, m);
                worst = std::isfinite(e) ? std::max(worst, e) : INFINITY;
            }
        }

        std::vector<double> times, turns;
        const auto start = Clock::now();
        do {
            double sum = 0;
            for (size_t c = 0; c < copies; ++c) {
                const auto before = Clock::now();
                compute(c);
                times.push_back(since(before));
                sum += times.back();
            }
            turns.push_back(sum / (double) copies);
        } while (since(start) < seconds);
        std::sort(times.begin(), times.end());
        std::sort(turns.begin(), turns.end());
        const double best = times[0], median = times[times.size() / 2];
        printf("ggml %s %s %s %d %.1f %.1f %.2f\n", VARIANT, mode, which.name, (int) m, best * 1e6, median * 1e6,
               (double) bytes / median / 1e9);
        fflush(stdout);
        fprintf(stderr,
                "# %s %s %s m=%d: %zu products over %zu copies of %zu bytes, best %.2f GB/s, mean of a turn best %.1f us "
                "median %.1f us, error %.1e%s\n",
                VARIANT, mode, which.name, (int) m, times.size(), copies, bytes, (double) bytes / best / 1e9, turns[0] * 1e6,
                turns[turns.size() / 2] * 1e6, worst, worst < 0.05 ? "" : " WRONG");
        wrong = wrong || !(worst < 0.05);
        ggml_backend_buffer_free(values);
        ggml_free(graphs);
    }
    ggml_backend_buffer_free(store);
    ggml_free(weights);
}

// Whether the CPU backend multiplies weights of this type kept in this buffer type (asked as llama.cpp does).
bool takes(ggml_backend_dev_t device, ggml_backend_buffer_type_t buft, ggml_type type) {
    ggml_init_params params = { ggml_tensor_overhead() * 4, nullptr, true };
    ggml_context * context = ggml_init(params);
    ggml_tensor * w = ggml_new_tensor_2d(context, type, SIDE, SIDE);
    ggml_tensor * x = ggml_new_tensor_2d(context, GGML_TYPE_F32, SIDE, 512);
    ggml_tensor * y = ggml_mul_mat(context, w, x);
    w->buffer = ggml_backend_buft_alloc_buffer(buft, 0);
    const bool yes = ggml_backend_dev_supports_op(device, y);
    ggml_backend_buffer_free(w->buffer);
    ggml_free(context);
    return yes;
}

} // namespace

int main(int count, char ** arguments) {
    const bool repack = count == 4 && strcmp(arguments[3], "repack") == 0;
    if (count < 3 || count > 4 || (count == 4 && !repack) || atoi(arguments[1]) < 1 || atof(arguments[2]) <= 0) {
        fprintf(stderr, "usage: ggml_bench THREADS SECONDS_PER_CASE [repack]\n");
        return 2;
    }
    const int threads = atoi(arguments[1]);
    ggml_log_set([](ggml_log_level level, const char * text, void *) {
        if (level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR) {
            fputs(text, stderr);
        }
    }, nullptr);
    ggml_backend_t backend = ggml_backend_cpu_init(); // sets up ggml's tables, and AMX where built in
    ggml_backend_dev_t device = ggml_backend_get_device(backend);

    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    if (asked("GGML_BENCH_PIN")) {
        cpu_set_t allowed;
        sched_getaffinity(0, sizeof allowed, &allowed);
        for (int cpu = 0, left = threads; cpu < GGML_MAX_N_THREADS && left > 0; ++cpu) {
            if (CPU_ISSET(cpu, &allowed)) {
                params.cpumask[cpu] = true;
                --left;
            }
        }
        params.strict_cpu = true;
    }
    Bench bench{ threads, atof(arguments[2]), ggml_threadpool_new(&params), {} };
    for (const std::string & m : list("GGML_BENCH_M", "1,8")) {
        bench.rows.push_back(std::max(1, atoi(m.c_str())));
    }

    std::vector<ggml_backend_buffer_type_t> extra;
    const auto find = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device),
                                                                                            "ggml_backend_dev_get_extra_bufts");
    if (find && repack) {
        for (ggml_backend_buffer_type_t * buft = find(device); buft && *buft; ++buft) {
            extra.push_back(*buft);
        }
    }

    fprintf(stderr, "# ggml %s (%s), %s, %d threads, %ld x %ld, %zu MB of copies;", ggml_version(), ggml_commit(), VARIANT, threads,
            (long) SIDE, (long) SIDE, COLD / 1'000'000);
    const auto features = (ggml_backend_get_features_t) ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device),
                                                                                         "ggml_backend_get_features");
    for (ggml_backend_feature * f = features ? features(ggml_backend_dev_backend_reg(device)) : nullptr; f && f->name; ++f) {
        fprintf(stderr, " %s=%s", f->name, f->value);
    }
    fprintf(stderr, "\n");

    const auto wanted = list("GGML_BENCH_TYPES", "F32,BF16,F16,Q8_0,Q6_K,Q4_0,Q4_K");
    for (const Case & which : CASES) {
        if (std::find(wanted.begin(), wanted.end(), which.name) == wanted.end()) {
            continue;
        }
        const auto master = quantize(which.type, threads);
        bench.measure(which, master, ggml_backend_cpu_buffer_type(), "plain");
        for (ggml_backend_buffer_type_t buft : extra) {
            if (takes(device, buft, which.type)) {
                const std::string name = ggml_backend_buft_name(buft);
                bench.measure(which, master, buft, name == "CPU_REPACK" ? "repack" : name == "AMX" ? "amx" : name.c_str());
            } else {
                fprintf(stderr, "# %s does not take %s\n", ggml_backend_buft_name(buft), which.name);
            }
        }
    }
    ggml_threadpool_free(bench.pool);
    ggml_backend_free(backend);
    return bench.wrong ? 1 : 0;
}
