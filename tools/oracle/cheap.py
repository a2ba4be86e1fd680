"""Compares what `roofline quantize` writes with an independent reference, byte by byte.

    python cheap.py BINARY

Needs numpy, ml_dtypes, safetensors and gguf, no PyTorch, and less than a minute. The references in `reference/` are themselves compared with
the libraries they stand for by the oracles in `heavy/`. Ends with an error on any difference.
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

import box_cases
import compressed_cases
import failures
import gguf_cases
import lora_cases
import packed_cases
import plain_cases
import torchao_cases
from checks import Checks, schemes


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    binary = Path(sys.argv[1]).resolve()
    if not os.access(binary, os.X_OK):
        sys.exit(f"{binary} is no program")
    # Infinities and quotients of zero are part of what is compared.
    np.seterr(all="ignore")
    checks = Checks()
    known = schemes(binary)
    with tempfile.TemporaryDirectory(prefix="roofline-oracle-") as folder:
        for part in (compressed_cases, torchao_cases, packed_cases, box_cases, plain_cases, lora_cases, gguf_cases, failures):
            work = Path(folder) / part.__name__
            work.mkdir()
            part.run(checks, binary, known, work)
    checks.finish()


if __name__ == "__main__":
    main()
