"""What every oracle shares: counting checks, running the program, reading raw tensors. Standard library only."""

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple


class Tensor(NamedTuple):
    """A tensor as its file stores it."""

    dtype: str
    shape: tuple
    data: bytes


class Checks:
    """Prints one line per check and remembers how many there were and which failed."""

    def __init__(self):
        self.count = 0
        self.failed = []
        self.skipped = []
        self.begin = time.monotonic()

    def check(self, name, passed, detail=""):
        self.count += 1
        if not passed:
            self.failed.append(name)
        shown = f"  ({detail})" if detail else ""
        print(f"{'ok  ' if passed else 'FAIL'} {name}{shown}", flush=True)
        return passed

    def skip(self, name, reason):
        """Says that something was not checked: never silently."""
        self.skipped.append(name)
        print(f"SKIP {name}  ({reason})", flush=True)

    def same_tensors(self, name, ours, theirs):
        """Whether two sets of tensors are the same names, types, shapes and bytes."""
        return self.check(name, not (found := differences(ours, theirs)), "; ".join(found[:4]) or f"{len(ours)} tensors")

    def finish(self):
        """Ends the process: zero only if something was checked and nothing failed."""
        seconds = time.monotonic() - self.begin
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        print(f"\n{self.count} checks, {len(self.failed)} failed{skipped}, {seconds:.1f} s")
        for name in self.failed:
            print(f"  failed: {name}")
        sys.exit(0 if self.count and not self.failed else 1)


def differences(ours, theirs):
    """What differs between two sets of tensors, in words, with the first differing byte of each."""
    found = [f"{name} is missing" for name in sorted(theirs.keys() - ours.keys())]
    found += [f"{name} is too much" for name in sorted(ours.keys() - theirs.keys())]
    for name in sorted(ours.keys() & theirs.keys()):
        a, b = ours[name], theirs[name]
        if (a.dtype, tuple(a.shape)) != (b.dtype, tuple(b.shape)):
            found.append(f"{name} is {a.dtype} {list(a.shape)}, expected {b.dtype} {list(b.shape)}")
        elif a.data != b.data:
            unequal = [at for at, (x, y) in enumerate(zip(a.data, b.data)) if x != y]
            at = unequal[0] if unequal else min(len(a.data), len(b.data))
            found.append(
                f"{name} {a.dtype} {list(a.shape)}: {len(unequal)} of {len(b.data)} bytes differ, first at {at}: "
                f"{a.data[at:at + 8].hex()} instead of {b.data[at:at + 8].hex()}"
            )
    return found


class Run(NamedTuple):
    """What the program said."""

    code: int
    out: str
    err: str

    @property
    def report(self):
        return json.loads(self.out)


def quantize(binary, model, plan, to, *more):
    """Runs `roofline quantize`; the report is JSON."""
    command = [str(binary), "quantize", str(model), "--plan", str(plan), "--to", str(to), "--json", *map(str, more)]
    # The user's own configuration has no say here.
    environment = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    return Run(done.returncode, done.stdout, done.stderr)


def schemes(binary):
    """Every `(layout, scheme)` the program has."""
    listed = subprocess.run([str(binary), "quantize", "--list", "--json"], capture_output=True, text=True, check=True)
    rows = json.loads(listed.stdout)
    rows = rows if isinstance(rows, list) else next(value for value in rows.values() if isinstance(value, list))
    return [(row["layout"], row.get("scheme") or row["name"]) for row in rows]


def header(path):
    """A safetensors file's header and where its data begins."""
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        return json.loads(file.read(length)), 8 + length


def read_folder(folder):
    """Every tensor of a folder of safetensors, raw."""
    tensors = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        entries, start = header(path)
        entries.pop("__metadata__", None)
        data = path.read_bytes()
        for name, entry in entries.items():
            begin, end = entry["data_offsets"]
            assert name not in tensors, f"{name} is in two shards"
            tensors[name] = Tensor(entry["dtype"], tuple(entry["shape"]), data[start + begin : start + end])
    return tensors
