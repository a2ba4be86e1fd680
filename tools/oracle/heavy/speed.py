"""Times the program against the libraries' own command for the same checkpoint, in one run on one machine.

    python speed.py BINARY FOLDER [--threads N] [--runs N]

Every run is a process of its own that reads a checkpoint of 0.8 GB and writes the result; its seconds and its peak memory are those the
kernel reports when it ends. Ours and theirs take turns; the best of the runs counts, and all are printed. Use a release build.
GGUF files are made from safetensors by us, and from our BF16 GGUF by `llama_model_quantize`: the same bytes in, the same out.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMPRESSED = {"fp8": "FP8_DYNAMIC", "w4a16": "W4A16", "nvfp4a16": "NVFP4A16"}
GGUF = {"q8_0": 7, "q4_0": 2, "q6_k": 18, "q4_k_m": 15}

MODEL_FREE = """
import os, sys
os.environ["LLM_COMPRESSOR_LOG_DISABLED"] = "true"
import torch
torch.set_num_threads(int(sys.argv[4]))
from llmcompressor import model_free_ptq
model_free_ptq(sys.argv[1], sys.argv[2], sys.argv[3], ignore=["lm_head", "re:.*embed_tokens$"], max_workers=1, device="cpu")
"""
LLAMA = """
import ctypes, sys, llama_cpp
quiet = llama_cpp.llama_log_callback(lambda *_: None)
llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
parameters = llama_cpp.llama_model_quantize_default_params()
parameters.ftype, parameters.nthread = int(sys.argv[3]), int(sys.argv[4])
sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(parameters)))
"""


def measured(command, to):
    """Seconds and peak bytes of a process, which must succeed."""
    shutil.rmtree(to, ignore_errors=True)
    Path(to).unlink(missing_ok=True)
    begin = time.monotonic()
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    message = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command[:3]} failed: {message.decode(errors='replace')[-400:]}")
    return seconds, usage.ru_maxrss * 1024


def best(rows):
    return min(seconds for seconds, _ in rows), max(memory for _, memory in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    made = [sys.executable, "-c", "import sys, models; models.ensure(sys.argv[1], 'mid')", str(options.folder)]
    subprocess.run(made, cwd=HERE, check=True, stdout=subprocess.DEVNULL)
    source = options.folder / "mid"
    size = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    # The machine's own start of Python and its libraries is part of what their users wait for, and is shown beside it.
    imports = {
        "llm-compressor": measured([sys.executable, "-c", "from llmcompressor import model_free_ptq"], options.folder / "none")[0],
        "llama.cpp": measured([sys.executable, "-c", "import llama_cpp"], options.folder / "none")[0],
    }
    rows = []
    with tempfile.TemporaryDirectory(dir=options.folder) as work:
        work = Path(work)

        def ours(scheme, to):
            return [options.binary, "quantize", source, "--plan", scheme, "--to", to, "--threads", options.threads]

        def turns(scheme, peer, to, theirs):
            a, b = [], []
            for _ in range(options.runs):
                a.append(measured(ours(scheme, to), to))
                b.append(measured(theirs, work / ("theirs" + to.suffix)))
            print(f"{scheme}: ours {[f'{s:.2f}' for s, _ in a]} s, {peer} {[f'{s:.2f}' for s, _ in b]} s", file=sys.stderr, flush=True)
            rows.append((scheme, peer, best(a), best(b)))

        for scheme, preset in COMPRESSED.items():
            theirs = [sys.executable, "-c", MODEL_FREE, source, work / "theirs", preset, options.threads]
            turns(scheme, "llm-compressor", work / "ours", theirs)
        base = work / "base.gguf"
        try:
            measured(ours("bf16", base), base)
        except RuntimeError as error:
            print(f"GGUF was not timed: {error}", file=sys.stderr)
        for scheme, number in GGUF.items() if base.exists() else ():
            theirs = [sys.executable, "-c", LLAMA, base, work / "theirs.gguf", number, options.threads]
            turns(scheme, "llama.cpp", work / "ours.gguf", theirs)
    print(f"\n{size / 1e9:.3f} GB of BF16, {options.threads} threads, best of {options.runs}; peak memory is the largest of all runs.")
    print(f"Importing takes llm-compressor {imports['llm-compressor']:.1f} s and llama.cpp {imports['llama.cpp']:.1f} s of their time.\n")
    print("| scheme | ours, s | GB/s | MB | peer | theirs, s | GB/s | MB | faster | faster without imports |")
    print("|---|--:|--:|--:|---|--:|--:|--:|--:|--:|")
    for scheme, peer, (a, memory), (b, their_memory) in rows:
        alone = max(b - imports[peer], 0)
        print(
            f"| {scheme} | {a:.2f} | {size / a / 1e9:.3f} | {memory / 1e6:.0f} | {peer} | {b:.2f} | {size / b / 1e9:.3f} "
            f"| {their_memory / 1e6:.0f} | {b / a:.1f} x | {alone / a:.1f} x |"
        )


if __name__ == "__main__":
    main()
