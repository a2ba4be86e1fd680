"""What the pages and the examples show works as it is printed."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from typing import Iterator, Tuple

import pytest

ROOT = pathlib.Path(os.environ.get("ROOFLINE_ROOT", pathlib.Path(__file__).parents[2]))
PAGES = ["README.md", "docs/guide/python.md", "docs/guide/many-machines.md"]


def blocks() -> Iterator[Tuple[str, str]]:
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for at, block in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)):
            yield f"{page} {at}", block


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in blocks()])
def test_blocks_of_pages(code: str, tmp_path: pathlib.Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def guests() -> Iterator[Tuple[str, str]]:
    """Blocks that need another library."""
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        for at, block in enumerate(re.findall(r"^```py\n(.*?)^```", text, re.S | re.M)):
            yield f"{page} {at}", block


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in guests()])
def test_blocks_with_guests(code: str, tmp_path: pathlib.Path) -> None:
    for name in re.findall(r"^import (\w+)$", code, re.M):
        pytest.importorskip(name)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_the_pages_have_blocks() -> None:
    assert {name.split()[0] for name, _ in blocks()} == set(PAGES)


# Those that need a cluster have tests of their own.
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py") if not path.name.startswith("ray_"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str, tmp_path: pathlib.Path) -> None:
    script = str(ROOT / "examples" / name)
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
