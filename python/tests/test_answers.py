"""What an answer can do."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

import roofline


@pytest.fixture(scope="module")
def answer() -> roofline.Answer:
    return roofline.predict("gemv", n=4096, k=4096, on="h200", precision=["bf16", "w4a16"])


def test_fields_are_attributes(answer: roofline.Answer) -> None:
    first = answer.estimates[0]
    assert first.precision == first["precision"] == "bf16"
    assert isinstance(first.expected_time_us, float) and first.ideal_time_us <= first.expected_time_us
    assert "estimates" in answer and list(answer) == answer.keys() and len(answer) == len(answer.keys())
    assert answer.get("nothing", 7) == 7
    assert "calibration" in answer.notes[0].text and answer.notes[0].kind == "note"
    assert roofline.devices("h200").notes == []
    assert "estimates" in dir(answer)
    with pytest.raises(AttributeError, match="did you mean `estimates`"):
        answer.estimate
    with pytest.raises(AttributeError):
        answer.subject = "other"
    with pytest.raises(KeyError):
        answer["nothing"]


def test_it_can_be_given_away(answer: roofline.Answer) -> None:
    plain = answer.to_dict()
    assert json.loads(answer.to_json()) == plain
    plain["estimates"].clear()
    assert len(answer.estimates) == 2
    assert pickle.loads(pickle.dumps(answer)) == answer
    assert [row["precision"] for row in answer.to_rows()] == ["bf16", "w4a16"]
    assert answer.to_rows()[0]["formats.weights"] == "bf16"


def test_tables(answer: roofline.Answer) -> None:
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    frame = answer.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and list(frame["precision"]) == ["bf16", "w4a16"]
    table = answer.to_arrow()
    assert isinstance(table, pyarrow.Table) and table.column("speedup").to_pylist() == list(frame["speedup"])


@pytest.mark.parametrize(("method", "module"), [("to_pandas", "pandas"), ("to_arrow", "pyarrow")])
def test_what_is_not_installed_is_named(
    answer: roofline.Answer, method: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"pip install {module}"):
        getattr(answer, method)()


def test_it_shows_itself(answer: roofline.Answer) -> None:
    shown = repr(answer)
    assert "GEMV 4096 x 4096" in shown and "expected_time_us" in shown and "w4a16" in shown
    assert max(map(len, shown.splitlines())) < 160
    page = answer._repr_html_()
    assert "<table>" in page and page.count("<svg") == 1
    ElementTree.fromstring(f"<div>{page}</div>")


def test_pictures(tmp_path: pathlib.Path) -> None:
    both = roofline.predict("model", "llama-3-8b", on=["h200", "a100"], precision="bf16")
    assert len(both.pictures()) == 2
    light, dark = both.pictures(), both.pictures(dark=True)
    assert light != dark
    assert roofline.recommend("model", "llama-3.2-1b", on="h200").pictures()
    assert roofline.plot("batch", "llama-3-8b", on="h200", precision="bf16").pictures()
    compared = roofline.compare("gemv", n=256, k=256, on="h200", backend="null", precision="bf16")
    assert len(compared.pictures()) == 2 and pathlib.Path(compared.report).exists()
    both.save(tmp_path / "roofline.svg")
    assert (tmp_path / "roofline.svg").read_text(encoding="utf-8") == light[0]
    with pytest.raises(roofline.RooflineError, match="no picture"):
        roofline.devices("h200").save(tmp_path / "none.svg")


def test_text_of_others_is_escaped() -> None:
    hostile = roofline.Answer({"subject": "<script>", "estimates": [{"precision": "<b>&"}]})
    assert "<script>" not in hostile._repr_html_() and "<b>" not in hostile._repr_html_()


def test_every_function_asks_its_verb() -> None:
    assert roofline.devices("h200", "a100").devices[1].key.startswith("a100")
    assert roofline.models("llama-3-8b").models[0].name == "Llama 3 8B"
    assert roofline.formats("nvfp4").formats[0].name == "nvfp4"
    assert roofline.sweep("llama-3-8b", on="h200", batch="1..4", precision="bf16").points
    assert roofline.tiling(m=4096, n=4096, k=4096, on="h200", format="bf16").device == "h200_sxm"
    assert roofline.inspect("demo").parameters > 1_000_000
    assert roofline.precisions(on="h200").precisions
    assert roofline.quantize(list=True).schemes


def test_quantize_and_evaluate(tmp_path: pathlib.Path, root: pathlib.Path) -> None:
    written = roofline.quantize("demo", plan="q4_0", to=tmp_path / "demo.gguf", as_="gguf")
    assert written.bytes_after < written.bytes_before and (tmp_path / "demo.gguf").exists()
    with pytest.raises(roofline.RooflineError, match="there already"):
        roofline.quantize("demo", plan="q4_0", to=tmp_path / "demo.gguf")
    lost = roofline.evaluate(tmp_path / "demo.gguf", against="demo", text=root / "README.md", tokens=512)
    assert lost.ratio > 0.5 and lost.original.perplexity > 1


def test_import_is_quick_and_needs_nothing() -> None:
    """What the import itself takes of a processor, in fresh interpreters, without what an environment has beside it. Other programs
    can only make it longer, so the least of several is what it takes. This is the debug build; an optimised one takes less."""
    code = "import sys, time; t = time.process_time(); import roofline; print(time.process_time() - t); " + (
        "assert not {'numpy', 'pandas', 'pyarrow', 'tqdm', 'torch'} & set(sys.modules)"
    )
    run = lambda: float(subprocess.check_output([sys.executable, "-c", code]))  # noqa: E731
    assert min(run() for _ in range(15)) < 0.05


def test_pages_are_those_of_the_command_line(tmp_path: pathlib.Path, root: pathlib.Path) -> None:
    """A comparison of a run that is kept says the same whoever asks; times of an evaluation differ, and nothing else."""
    program = os.environ.get("ROOFLINE_BIN")
    if program is None:
        pytest.skip("needs the program")
    shell = lambda *words: subprocess.run([program, *map(str, words)], check=True, capture_output=True)  # noqa: E731
    run = tmp_path / "run.jsonl"
    measured = roofline.compare("gemv", n=64, k=64, backend="null", on="h200", out=run)
    assert pathlib.Path(measured.report).read_text(encoding="utf-8").startswith("<!doctype html>")
    pages = [tmp_path / name for name in ("python.html", "shell.html")]
    assert roofline.compare(from_=run, report=pages[0]).report == str(pages[0])
    shell("compare", "--from", run, "--report", pages[1])
    assert pages[0].read_bytes() == pages[1].read_bytes()
    with pytest.raises(roofline.RooflineError, match="there already"):
        roofline.compare(from_=run, report=pages[0])

    lost = [tmp_path / name for name in ("lost-python.html", "lost-shell.html")]
    text = root / "README.md"
    assert roofline.evaluate("demo", text=text, tokens=512, html=lost[0]).report == str(lost[0])
    shell("evaluate", "demo", "--text", text, "--tokens", 512, "--html", lost[1])
    seconds = re.compile(r"threads, [^<]* s<")
    one, other = (seconds.sub("", page.read_text(encoding="utf-8")) for page in lost)
    assert one == other and "perplexity" in one
