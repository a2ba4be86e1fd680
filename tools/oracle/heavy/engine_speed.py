"""Times whole models on the processor against llama.cpp, in one run on one machine with the same threads.

    python engine_speed.py --roofline BINARY --folder FOLDER --threads 2 --models llama-3.2-1b --formats f16,q8_0,q4_0,q4_k_m --out FILE.md

Models are random (`engine_models.py`) and stay in FOLDER. For each format, ours and theirs take turns, each in a process of its own: all tokens of
the prompt in one pass, then one token at a time behind them. The median of a turn's tokens is its time per token, the median of the turns counts, and
all are printed. Peak memory is what the kernel reports when a process ends: pages of the file that were read are part of it. llama.cpp runs as it does
by itself: it repacks weights where that is faster, unless `--as-stored` is given. The table is written again after every format. Without `--roofline`
only theirs is timed.
"""

import argparse
import ctypes
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import engine_models

# What `roofline measure model --json` calls what we show: names with dots lead into objects and lists.
OURS = {
    "prefill_us": "passes.0.ttft_us",
    "token_us": "passes.0.tpot_us",
    "predicted_prefill_us": "passes.0.predicted_ttft_us",
    "predicted_token_us": "passes.0.predicted_tpot_us",
}


class Turn(NamedTuple):
    """One process: microseconds of the prompt and of a token behind it, what was predicted of them, and the most bytes it held."""

    prefill_us: float
    token_us: float
    predicted_prefill_us: float | None
    predicted_token_us: float | None
    peak: int


def run(command):
    """What a process prints as JSON, and its peak bytes."""
    # What it says goes to a file: a full pipe would stop it.
    with tempfile.TemporaryFile("w+") as talk:
        process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=talk, text=True)
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        talk.seek(0)
        if process.returncode:
            sys.exit(f"{' '.join(map(str, command))} ends with {process.returncode}: {talk.read()[-600:]}")
    return json.loads(out), usage.ru_maxrss * 1024


def found(answer, name):
    for part in name.split("."):
        if isinstance(answer, list) and part.isdigit() and int(part) < len(answer):
            answer = answer[int(part)]
            continue
        if not isinstance(answer, dict) or part not in answer:
            sys.exit(f"the program's JSON has no {name!r}; it has {list(answer)}. Name it in OURS")
        answer = answer[part]
    return answer


def ours(options, path):
    command = [options.roofline, "measure", "model", path, "--backend", "cpu", "--threads", options.threads, "--json"]
    answer, peak = run([*command, "--prompt", options.prompt, "--generate", options.generate])
    return Turn(**{field: found(answer, name) for field, name in OURS.items()}, peak=peak)


def theirs(options, path):
    command = [sys.executable, __file__, "--llama-cpp", path, "--threads", options.threads]
    command += ["--as-stored"] * options.as_stored
    answer, peak = run([*command, "--prompt", options.prompt, "--generate", options.generate])
    return Turn(answer["prefill_us"], answer["token_us"], None, None, peak)


def llama_cpp_turn(options):
    """The process of `theirs`."""
    import llama_cpp
    import numpy as np

    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    settings = llama_cpp.llama_model_default_params()
    settings.use_extra_bufts = not options.as_stored
    model = llama_cpp.llama_model_load_from_file(str(options.llama_cpp).encode(), settings)
    if not model:
        sys.exit(f"llama.cpp does not load {options.llama_cpp}")
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = options.prompt + options.generate
    settings.n_batch = settings.n_ubatch = options.prompt
    settings.n_threads = settings.n_threads_batch = options.threads
    context = llama_cpp.llama_init_from_model(model, settings)
    if not context:
        sys.exit("llama.cpp makes no context")
    size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    drawn = np.random.default_rng(1).integers(3, size, options.prompt + options.generate)
    tokens = (llama_cpp.llama_token * len(drawn))(*drawn.tolist())

    def decode(begin, count):
        """Microseconds until the last token's logits are there."""
        part = (llama_cpp.llama_token * count)(*tokens[begin : begin + count])
        start = time.perf_counter()
        code = llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(part, count))
        llama_cpp.llama_synchronize(context)
        if code:
            sys.exit(f"llama_decode ends with {code}")
        return (time.perf_counter() - start) * 1e6

    # The first pass brings the weights into memory.
    decode(0, min(8, options.prompt))
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    prefill = decode(0, options.prompt)
    steps = [decode(options.prompt + at, 1) for at in range(options.generate)]
    print(json.dumps({"prefill_us": prefill, "token_us": statistics.median(steps)}))


def middle(turns, field):
    """The median of the turns, or nothing where there is none."""
    values = [getattr(turn, field) for turn in turns if getattr(turn, field) is not None]
    return statistics.median(values) if values else None


def rate(tokens, us):
    return None if us is None else tokens / us * 1e6


def row(options, model, name, path, a, b):
    """A line of the table: tokens per second, and how many times theirs ours are."""
    cells = [model, name]
    for tokens, field in ((options.prompt, "prefill_us"), (1, "token_us")):
        us, they, predicted = rate(tokens, middle(a, field)), rate(tokens, middle(b, field)), rate(tokens, middle(a, f"predicted_{field}"))
        cells += [shown(us), shown(they), shown(us and us / they, 2), shown(predicted)]
    needed = path.stat().st_size + engine_models.MODELS[model].cache_bytes(options.prompt + options.generate)
    cells += [shown(peak and peak / 1e9, 2) for peak in (max((turn.peak for turn in a), default=None), max(turn.peak for turn in b), needed)]
    return f"| {' | '.join(cells)} |"


def shown(value, digits=1):
    return "not timed" if value is None else f"{value:.{digits}f}"


def processor():
    """The processor's name, as the kernel has it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def head(options):
    import llama_cpp

    version = "not run"
    if options.roofline:
        version = subprocess.run([options.roofline, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    features = llama_cpp.llama_print_system_info().decode().strip(" |")
    return f"""{processor()}, {options.threads} threads. A prompt of {options.prompt} tokens in one pass, then {options.generate} one at a time.
Ours: {version}. Theirs: llama.cpp of llama-cpp-python {llama_cpp.__version__} ({features}){", weights as stored" if options.as_stored else ""}.
Medians of {options.rounds} turns each, in tokens per second; memory in GB; "needed" is the file and the cache.

| model | format | prefill, ours | theirs | ratio | predicted | decode, ours | theirs | ratio | predicted | peak, ours | theirs | needed |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|
"""


def made(options, model, name):
    """The model's file. Another process makes it: the kernel counts what this one held, before it started another, as the other's peak."""
    command = [sys.executable, engine_models.__file__, options.folder, model, name, options.threads]
    done = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True)
    return Path(done.stdout.strip())


def compare(options):
    lines = head(options)
    for model in options.models:
        for name in options.formats:
            path = made(options, model, name)
            a, b = [], []
            for _ in range(options.rounds):
                a += [ours(options, path)] if options.roofline else []
                b.append(theirs(options, path))
            said = {who: [(round(turn.prefill_us), round(turn.token_us)) for turn in turns] for who, turns in (("ours", a), ("theirs", b))}
            print(f"{model} {name}, us of the prompt and of a token: {said}", file=sys.stderr, flush=True)
            lines += row(options, model, name, path, a, b) + "\n"
            if options.out:
                options.out.write_text(lines)
    print(lines, end="")


def one_of(allowed):
    def check(text):
        for part in text.split(","):
            if part not in allowed:
                raise argparse.ArgumentTypeError(f"{part!r} is none of {', '.join(allowed)}")
        return text.split(",")

    return check


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--roofline", type=Path, help="a release build of the program")
    parser.add_argument("--folder", type=Path, help="where models lie; 14 GB for the four formats of the 3B")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--models", type=one_of(engine_models.MODELS), default=["llama-3.2-1b", "llama-3.2-3b"])
    parser.add_argument("--formats", type=one_of(["f16", *engine_models.FORMATS]), default=["f16", "q8_0", "q4_0", "q4_k_m"])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--as-stored", action="store_true", help="llama.cpp does not repack weights: some virtual machines announce instructions that they refuse")
    parser.add_argument("--out", type=Path, help="a file for the table")
    parser.add_argument("--llama-cpp", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.llama_cpp:
        return llama_cpp_turn(options)
    if not options.folder:
        parser.error("--folder is needed: the models are made there")
    compare(options)


if __name__ == "__main__":
    main()
