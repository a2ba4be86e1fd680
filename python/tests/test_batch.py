"""Columns of forecasts are those of `predict`, row by row, whatever the columns are made of."""

from __future__ import annotations

import array
import json
import math
import pathlib
import pickle
import random
import re
from typing import Any, Dict, List

import pytest

import roofline
from roofline import RooflineError, predict_batch

LLAMA: Dict[str, Any] = {"model": "llama-3-8b", "on": "h200", "precision": "bf16"}
NUMBERS = ["expected_time_us", "lo_us", "hi_us", "ideal_time_us", "tokens_per_s", "memory_bytes"]
COLUMNS = [*NUMBERS, "fits", "basis"]


def random_rows(count: int) -> Dict[str, List[Any]]:
    chance = random.Random(20)
    return {
        "model": chance.choices(["llama-3-8b", "mixtral-8x7b", "gemma-3-27b", "deepseek-v3", "tinyllama-1.1b"], k=count),
        "on": chance.choices(["h200", "a100", "h100_sxm", "rtx_4090", "mi300x", "h20O"], k=count),
        "precision": chance.choices(["bf16", "fp8", "w4a16", "q4_k_m", "int8", "w4a16,head=q8_0", "fq8"], k=count),
        "batch": [chance.choice([1, 2, 7, 64, 4096]) for _ in range(count)],
        "context": [int(10 ** chance.uniform(0, 5.2)) for _ in range(count)],
        "phase": chance.choices(["decode", "prefill"], k=count),
        "tier": chance.choices(["ideal", "expected"], k=count),
    }


def test_a_row_is_what_predict_says() -> None:
    rows = random_rows(300)
    told = predict_batch(**rows)
    refused = 0
    for at in range(300):
        row = {name: values[at] for name, values in rows.items()}
        try:
            said = roofline.predict("model", **row).estimates[0]
        except RooflineError as error:
            refused += 1
            assert told.error[at] == error.message, row
            assert math.isnan(told.expected_time_us[at]) and told.fits[at] is None and told.basis[at] is None
            continue
        assert told.error[at] is None, row
        assert [told[name][at] for name in COLUMNS] == [said[name] for name in COLUMNS], row
    assert 30 < refused < 200


def test_single_values_hold_for_every_row() -> None:
    told = predict_batch(**LLAMA, batch=[1, 2, 4], context=(512, 512, 512))
    assert len(told.error) == 3 and told.error == [None] * 3
    assert told.memory_bytes[0] < told.memory_bytes[1] < told.memory_bytes[2]
    alone = predict_batch(**LLAMA, batch=2, context=512)
    assert list(alone.expected_time_us) == [told.expected_time_us[1]]


def test_what_is_left_out_is_what_predict_takes_first() -> None:
    told = predict_batch("llama-3-8b", "h200")
    said = roofline.predict("model", "llama-3-8b", on="h200", phase="decode").estimates[0]
    assert told.expected_time_us[0] == said.expected_time_us
    assert predict_batch("llama-3-8b", "h200", [None, "bf16"]).expected_time_us[0] == said.expected_time_us


def test_a_model_may_be_a_file_or_the_content_of_one(tmp_path: pathlib.Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
    }  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    ways = [predict_batch(model, "h200") for model in (config, file, [str(file)], [file])]
    assert [way.error for way in ways] == [[None]] * 4
    assert len({way.expected_time_us[0] for way in ways}) == 1


def test_a_row_that_cannot_be_predicted_says_why() -> None:
    on = ["h200", "h20O", None, "a100", "h200"]
    told = predict_batch("llama-3-8b", on, ["bf16", "bf16", "bf16", "fp8/fp8", "bf16,fp8"])
    assert told.error[0] is None and told.expected_time_us[0] > 0
    assert told.error[1] == "unknown device `h20O`; did you mean `h200`?"
    assert told.error[2] == "the row names no device"
    assert "A100" in str(told.error[3])
    assert told.error[4] == "`bf16,fp8` is 2 plans, and a row has one"
    assert all(math.isnan(told[name][row]) for name in NUMBERS for row in range(1, 5))
    wrong = predict_batch(**LLAMA, phase=["decode", "prefil"], tier=["expectd", "ideal"])
    assert all(wrong.error)


@pytest.mark.parametrize("wrong", [math.nan, -1, 0, 1.5, math.inf, -math.inf, 10**30, -(10**400), 2**31, 2**63, None])
@pytest.mark.parametrize("field", ["batch", "context"])
def test_a_number_that_is_no_dimension_is_an_error_of_its_row(field: str, wrong: Any) -> None:
    told = predict_batch(**LLAMA, **{field: [8, wrong]})
    assert told.error[0] is None
    assert f"`{field}` is " in str(told.error[1]) and math.isnan(told.hi_us[1])
    assert predict_batch(**LLAMA, **{field: wrong}).error[0] == told.error[1]


@pytest.mark.parametrize(
    "fields",
    [
        {"batch": [1, 2], "context": [1, 2, 3]},
        {"batch": [1], "context": [1, 2]},
        {"on": ["h200"] * 3, "batch": [1, 2]},
        {"batch": [], "context": [1]},
        {"batch": "8"},
        {"batch": ["8", "9"]},
        {"batch": [1, "9"]},
        {"batch": b"12"},
        {"batch": True},
        {"batch": [1, True]},
        {"batch": [[1, 2]]},
        {"batch": {1: 2}},
        {"batch": object()},
        {"batch": memoryview(b"1234").cast("B", (2, 2))},
        {"batch": (size for size in [1])},
        {"on": 5},
        {"on": [5]},
        {"on": ["h200", 5]},
        {"on": [["h200"]]},
        {"on": b"h200"},
        {"on": ["\ud800"]},
        {"precision": 8},
        {"phase": {"a": 1}},
        {"model": [{"hidden_size": 1}]},
    ],
)
def test_columns_of_another_length_or_type_are_refused(fields: Dict[str, Any]) -> None:
    with pytest.raises(RooflineError):
        predict_batch(**{**LLAMA, **fields})


def test_empty_columns_are_an_empty_answer() -> None:
    told = predict_batch(**LLAMA, batch=[], context=array.array("q"))
    assert told.error == [] and len(told.lo_us) == 0 and told.to_rows() == []
    assert "0 forecasts" in repr(told)


def test_a_million_rows() -> None:
    count = 1_000_000
    batch = array.array("B", bytes(1 + at % 8 for at in range(1000)) * 1000)
    told = predict_batch(["tinyllama-1.1b"] * count, ["h100_sxm", "h20O"] * (count // 2), "bf16", batch=batch)
    assert len(told.expected_time_us) == count
    assert told.error[0] is None and told.error[-1] == told.error[1] is not None
    assert told.expected_time_us[8] == told.expected_time_us[0] < told.expected_time_us[2]
    assert "... 999980 more" in repr(told)


@pytest.mark.parametrize("letter", "bBhHiIlLqQfd")
def test_numbers_of_every_kind_are_taken_as_they_are(letter: str) -> None:
    told = predict_batch(**LLAMA, batch=array.array(letter, [1, 8, 100]))
    assert told.expected_time_us == predict_batch(**LLAMA, batch=[1, 8, 100]).expected_time_us


def test_numbers_are_memory_that_others_can_look_at() -> None:
    told = predict_batch(**LLAMA, batch=[1, 2])
    for name in NUMBERS:
        view = memoryview(told[name])
        assert (view.format, view.itemsize, view.nbytes) == ("d", 8, 16)
        assert view[1] == getattr(told, name)[1]


def test_an_answer_is_columns_and_rows() -> None:
    told = predict_batch("llama-3-8b", ["h200", "h20O"], "bf16")
    assert list(told.to_dict()) == [*COLUMNS, "error"]
    assert told.to_rows()[0]["tokens_per_s"] == told.tokens_per_s[0]
    assert json.loads(told.to_json())["lo_us"] == [told.lo_us[0], None]
    again = pickle.loads(pickle.dumps(told))
    assert again.tokens_per_s[0] == told.tokens_per_s[0] and again.error == told.error
    assert any("calibration" in note["text"] for note in told.notes)
    with pytest.raises(AttributeError):
        told.lo_us = array.array("d")  # type: ignore[misc]


def test_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    context = numpy.array([512, 1024, 2048, 4096])
    plain = predict_batch(**LLAMA, context=[512, 1024, 2048, 4096])
    for kind in ["int64", "uint32", "float32", "float16", ">i4", "object"]:
        assert predict_batch(**LLAMA, context=context.astype(kind)).lo_us == plain.lo_us, kind
    assert predict_batch(**LLAMA, context=context[::2]).lo_us == plain.lo_us[::2]
    assert predict_batch(**LLAMA, context=numpy.int64(1024)).lo_us[0] == plain.lo_us[1]
    assert predict_batch("llama-3-8b", numpy.array(["h200", "a100"]), "bf16").error == [None, None]
    seen = numpy.asarray(plain.lo_us)
    assert seen.dtype == "float64" and numpy.shares_memory(seen, numpy.frombuffer(plain.lo_us))
    for wrong in [context.reshape(2, 2), context > 1000, context.astype(str), context.astype("datetime64[s]")]:
        with pytest.raises(RooflineError):
            predict_batch(**LLAMA, context=wrong)


def test_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"device": ["h200", "a100", None], "size": [1, 8, 2]})
    told = predict_batch("llama-3-8b", frame["device"], "bf16", batch=frame["size"])
    table = told.to_pandas()
    assert list(table.columns) == [*COLUMNS, "error"] and table["error"].notna().tolist() == [False, False, True]
    sizes = pandas.Series([1, None, 2], dtype="Int64")
    assert predict_batch(**LLAMA, batch=sizes).error[1] is not None
    assert predict_batch(**LLAMA, batch=sizes).error[2] is None


def test_arrow() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    told = predict_batch(
        "llama-3-8b",
        pyarrow.chunked_array([["h200"], ["a100", None]]),
        "bf16",
        batch=pyarrow.array([1, None, 2]),
    )
    table = told.to_arrow()
    assert table.column_names == [*COLUMNS, "error"]
    assert table["tokens_per_s"][0].as_py() == told.tokens_per_s[0]
    assert [text is None for text in told.error] == [True, False, False]


def test_polars(root: pathlib.Path) -> None:
    polars = pytest.importorskip("polars")
    # What the guide shows, which is no test of the pages: those run where Polars is not.
    page = (root / "docs/guide/python.md").read_text(encoding="utf-8")
    block = [code for code in re.findall(r"^```py\n(.*?)^```", page, re.S | re.M) if "polars" in code]
    assert len(block) == 1
    shown: Dict[str, Any] = {}
    exec(block[0], shown)
    both = polars.struct("device", "size").map_batches(shown["speed"], return_dtype=polars.Float64)
    frame = polars.DataFrame({"device": ["h200", "a100", "h20O", "h200"], "size": [1, 8, 1, None]})
    seen = frame.select(both.alias("speed"))["speed"].to_list()
    assert seen[:2] == list(predict_batch("llama-3-8b", ["h200", "a100"], "bf16", [1, 8]).tokens_per_s)
    assert math.isnan(seen[2]) and math.isnan(seen[3])


def test_duckdb() -> None:
    duckdb = pytest.importorskip("duckdb")
    pyarrow = pytest.importorskip("pyarrow")

    def speed(device: Any, size: Any) -> Any:
        told = predict_batch("llama-3-8b", device, "bf16", size)
        return pyarrow.array(told.tokens_per_s, pyarrow.float64())

    with duckdb.connect() as database:
        database.create_function("speed", speed, ["VARCHAR", "BIGINT"], "DOUBLE", type="arrow")
        rows = database.execute("SELECT speed(d, 8) FROM (VALUES ('h200'), ('a100')) AS t(d)").fetchall()
    assert [row[0] for row in rows] == list(predict_batch("llama-3-8b", ["h200", "a100"], "bf16", 8).tokens_per_s)
