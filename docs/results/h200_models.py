"""Whole models on the GPU that is there: the program's engine beside PyTorch in the same run.

    python3 docs/results/h200_models.py path/to/roofline OUT_FOLDER [--quick]

Models of random weights, made on the GPU by both. Decode: one step at a context of 2048 tokens, PyTorch as a CUDA graph over a
static cache (torch.nn.functional's own kernels, fused QKV and gate/up products, scaled_dot_product_attention). Prefill: 2048
tokens, PyTorch eager. Medians by the device's clock on both sides. Writes models.csv, and prints what was asked for beside
what was found.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F

ROOFLINE, OUT, QUICK = sys.argv[1], sys.argv[2], "--quick" in sys.argv
os.makedirs(OUT, exist_ok=True)
CONTEXT, GENERATED = 2048, 32
# layers, hidden, heads, kv heads, head width, inner, vocabulary
SHAPES = {
    "llama-3-8b": (32, 4096, 32, 8, 128, 14336, 128256),
    "qwen2.5-1.5b": (28, 1536, 12, 2, 128, 8960, 151936),
    "llama-2-13b": (40, 5120, 40, 40, 128, 13824, 32000),
}
# What one step of Llama-3 8B may take, in milliseconds.
FLOORS = {"bf16": 4.0, "w8a16": 2.4, "fp8a16": 2.4, "fp8": 2.4, "w4a16": 1.75, "w4a16,head=w4a16": 1.5}
torch.manual_seed(0)
config = tempfile.mkdtemp()


class Model:
    """The same products and attention as a Llama, with fused projections."""

    def __init__(self, shape, batch):
        self.shape, self.batch = shape, batch
        layers, hidden, heads, kv, width, inner, vocabulary = shape
        new = lambda n, k: torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * k**-0.5
        self.embedding = new(vocabulary, hidden)
        self.head = new(vocabulary, hidden)
        self.layers = [(new((heads + 2 * kv) * width, hidden), new(hidden, heads * width), new(2 * inner, hidden), new(hidden, inner),
                        torch.ones(hidden, device="cuda", dtype=torch.bfloat16)) for _ in range(layers)]
        room = CONTEXT + GENERATED + 1
        self.cache = [torch.randn(2, batch, kv, room, width, device="cuda", dtype=torch.bfloat16) for _ in range(layers)]
        angles = torch.outer(torch.arange(room, device="cuda"), 5e5 ** (-torch.arange(0, width, 2, device="cuda") / width))
        self.cosine, self.sine = angles.cos().bfloat16(), angles.sin().bfloat16()

    def turned(self, x, first, new):
        low, high = x.chunk(2, -1)
        cosine, sine = self.cosine[first : first + new], self.sine[first : first + new]
        return torch.cat([low * cosine - high * sine, high * cosine + low * sine], -1)

    def run(self, tokens, first):
        layers, hidden, heads, kv, width, inner, _ = self.shape
        batch, new = tokens.shape
        x = F.embedding(tokens, self.embedding)
        for (qkv, out, up, down, norm), cache in zip(self.layers, self.cache):
            y = F.linear(F.rms_norm(x, (hidden,), norm), qkv).view(batch, new, heads + 2 * kv, width).transpose(1, 2)
            q, k = self.turned(y[:, : heads + kv], first, new).split([heads, kv], 1)
            cache[0, :, :, first : first + new] = k
            cache[1, :, :, first : first + new] = y[:, heads + kv :]
            keys, values = cache[0, :, :, : first + new], cache[1, :, :, : first + new]
            y = F.scaled_dot_product_attention(q, keys, values, is_causal=new > 1, enable_gqa=heads != kv)
            x = x + F.linear(y.transpose(1, 2).reshape(batch, new, heads * width), out)
            gate, value = F.linear(F.rms_norm(x, (hidden,), norm), up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * value, down)
        return F.linear(F.rms_norm(x[:, -1:], (hidden,), norm), self.head)


def clocked(call, repeats):
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    samples = []
    for _ in range(repeats):
        start.record()
        call()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end))
    return sorted(samples)[len(samples) // 2]


@torch.no_grad()
def theirs(shape, batch):
    """One step as a graph, and a prompt as it is run, in milliseconds."""
    model = Model(shape, batch)
    token = torch.randint(0, shape[-1], (batch, 1), device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            model.run(token, CONTEXT)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            model.run(token, CONTEXT)
    for _ in range(3):
        graph.replay()
    step = clocked(graph.replay, 20)
    prompt = None
    if batch == 1:
        tokens = torch.randint(0, shape[-1], (batch, CONTEXT), device="cuda")
        for _ in range(2):
            model.run(tokens, 0)
        prompt = clocked(lambda: model.run(tokens, 0), 7)
    del model, graph
    torch.cuda.empty_cache()
    return step, prompt


def ours(model, precision, batch):
    command = [ROOFLINE, "measure", "model", model, "--random", "--precision", precision, "--batch", str(batch), "--prompt", str(CONTEXT),
               "--generate", str(GENERATED), "--backend", "cuda", "--json", "--quick"]
    done = subprocess.run(command, env=dict(os.environ, ROOFLINE_CONFIG_DIR=config), capture_output=True, text=True)
    if done.returncode:
        print("failed:", " ".join(command), done.stderr.strip(), file=sys.stderr)
        return None
    return json.loads(done.stdout)["passes"][0]


rows = []


def keep(**row):
    """Says what was found, and writes all of it again: what is there stays if the rest does not come."""
    rows.append(row)
    floor = FLOORS.get(row["precision"]) if row["model"] == "llama-3-8b" and row["batch"] == 1 else None
    word = "      " if floor is None else "met   " if row["step_ms"] <= floor else "MISSED"
    print(word, *(f"{key} {value:.3f}" if isinstance(value, float) else value for key, value in row.items() if value is not None), "asked", floor, flush=True)
    with open(os.path.join(OUT, "models.csv"), "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows({key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()} for row in rows)


for name, shape in list(SHAPES.items())[: 1 if QUICK else None]:
    for batch in [1, 8, 32] if name == "llama-3-8b" else [1]:
        step, prompt = theirs(shape, batch)
        for precision in FLOORS if batch == 1 else ["bf16", "w4a16"]:
            found = ours(name, precision, batch)
            if found is None:
                continue
            keep(model=name, precision=precision, batch=batch, step_ms=found["tpot_us"] / 1e3, prompt_ms=found["ttft_us"] / 1e3,
                 torch_step_ms=step, torch_prompt_ms=prompt, times=step / found["tpot_us"] * 1e3,
                 predicted_step_ms=(found.get("predicted_tpot_us") or 0) / 1e3, predicted_prompt_ms=(found.get("predicted_ttft_us") or 0) / 1e3,
                 tokens_per_joule=found.get("decode_tokens_per_joule"))
if not QUICK:
    for precision in ["bf16", "*=bf16,experts=mxfp4a16"]:
        found = ours("gpt-oss-20b", precision, 1)
        if found:
            keep(model="gpt-oss-20b", precision=precision, batch=1, step_ms=found["tpot_us"] / 1e3, prompt_ms=found["ttft_us"] / 1e3)

print(torch.cuda.get_device_name(), torch.__version__)
