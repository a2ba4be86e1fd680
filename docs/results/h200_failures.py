"""What is left when a measurement on a GPU is killed, finds no memory, or loses the GPU.

    python3 docs/results/h200_failures.py path/to/roofline

Three things happen to the program on the GPU that is there; each prints what it said, and whether finished measurements stayed:

* kill -9 in the middle of a run of eight products, then --resume: what was finished is not measured again;
* a model in two precisions on a GPU that another process has filled but for 11 GB, where the second does not fit;
* a kernel of one's own that is right for its first shape and writes where there is no memory for its second, which ends the GPU's
  context: to the program the GPU is gone.

PyTorch only takes the memory.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import torch

ROOFLINE = os.path.abspath(sys.argv[1])
KERNELS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "kernels"
place = pathlib.Path(tempfile.mkdtemp())
environment = dict(os.environ, ROOFLINE_CONFIG_DIR=str(place / "config"))
met = []


def program(*words):
    return [ROOFLINE, "measure", *words, "--backend", "cuda"]


def told(what, good):
    met.append(good)
    print("met   " if good else "MISSED", what, flush=True)


def said(done):
    print("   exit code", done.returncode)
    for line in (done.stdout + done.stderr).splitlines()[-14:]:
        print("   |", line[:220])


def finished(run):
    return [line for line in run.read_text().splitlines() if "measured" in json.loads(line)] if run.exists() else []


# kill -9.
run = place / "killed.jsonl"
products = ["gemm", "--m", "16", "--n", "14336", "--k", "4096", "--precision", "bf16,w4a16,w8a16,fp8a16,nf4,mxfp4a16,nvfp4a16,fp8", "--seconds", "2", "--out", str(run)]
child = subprocess.Popen(program(*products), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
end = time.monotonic() + 60
while len(finished(run)) < 3 and child.poll() is None and time.monotonic() < end:
    time.sleep(0.02)
child.send_signal(signal.SIGKILL)
child.wait()
before = finished(run)
done = subprocess.run([*program(*products), "--resume"], env=environment, capture_output=True, text=True)
after = finished(run)
said(done)
told(f"kill -9 after {len(before)} of 8: {len(after)} after --resume, the first {len(before)} unchanged",
     done.returncode == 0 and 3 <= len(before) < 8 and len(after) == 8 and after[: len(before)] == before)

# No memory.
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - (11 << 30), dtype=torch.uint8, device="cuda")
run = place / "full.jsonl"
done = subprocess.run(program("model", "llama-3-8b", "--random", "--prompt", "64", "--generate", "4", "--quick", "--precision", "w4a16,bf16", "--out", str(run)),
                      env=environment, capture_output=True, text=True)
del held
torch.cuda.empty_cache()
said(done)
words = done.stdout + done.stderr
told("no memory for the second: the first is shown, and the word is of memory",
     done.returncode not in (0, 101, -6, -11) and "w4a16" in done.stdout and "memory" in words.lower())

# A GPU that is gone.
shutil.copy(KERNELS / "gemv_bf16.toml", place)
text = (KERNELS / "gemv_bf16.cu").read_text()
broken = text.replace("if (row >= n) return;", "if (row >= n) return;\n    if (n > 10000) *(volatile int*)16 = row;")
assert broken != text
(place / "gemv_bf16.cu").write_text(broken)
done = subprocess.run(program("kernel", str(place / "gemv_bf16.toml"), "--quick"), env=environment, capture_output=True, text=True)
said(done)
told("the GPU is gone at the second shape: the first is shown, and the word is of the GPU",
     done.returncode not in (0, 101, -6, -11) and "4096 x 4096" in done.stdout and "GPU" in done.stderr)
print(sum(met), "of", len(met), "met;", torch.cuda.get_device_name(), torch.__version__)
