"""What the tests share: the command line to compare with, and a home of their own."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from typing import Any, List

import pytest

ROOT = pathlib.Path(os.environ.get("ROOFLINE_ROOT", pathlib.Path(__file__).parents[2]))
PROGRAM = os.environ.get("ROOFLINE_BIN", str(ROOT / "target" / "debug" / "roofline"))


@pytest.fixture(autouse=True, scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder for what is kept, so that no test sees what a user has, and none changes it."""
    folder = tmp_path_factory.mktemp("home")
    os.environ["ROOFLINE_CONFIG_DIR"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    return ROOT


class Command:
    """The command line."""

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([PROGRAM, *words, "--json"], capture_output=True, text=True, encoding="utf-8", check=False)

    def answer(self, *words: str) -> Any:
        """The answer, or what is said instead."""
        done = self.run(*words)
        if done.returncode == 0:
            # A sweep may be long: it is a point on each line.
            return [json.loads(line) for line in done.stdout.splitlines()] if words[0] == "sweep" else json.loads(done.stdout)
        said: List[str] = done.stderr.strip().splitlines()
        return json.loads(said[-1])


@pytest.fixture(scope="session")
def command() -> Command:
    return Command()
