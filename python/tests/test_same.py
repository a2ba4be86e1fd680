"""The same question has the same answer from Python as from the command line, to the last bit."""

from __future__ import annotations

import concurrent.futures
import json
import os
import random
import re
from typing import Any, Dict, List, Tuple

import roofline
from roofline import _native

QUESTIONS = 1000
PLANS = [
    "bf16", "fp16", "fp8", "int8", "w8a16", "w4a16", "nvfp4", "mxfp4a16", "q4_k_m", "q8_0", "INT4",
    "w4a16,head=q8_0,kv=fp8", "ffn=int4-g64,attention=w8a16", "*=bf16,experts=mxfp4a16", "int4-g128/bf16/fp8",
    "q5_k_m,layers.0-1=q8_0",
]  # fmt: skip

Question = Tuple[str, List[str], Dict[str, Any]]


def place(dice: random.Random, devices: List[str], plans: int) -> Tuple[List[str], Dict[str, Any]]:
    """Where and how: as words and as fields."""
    device = "h200_sxm" if dice.random() < 0.25 else dice.choice(devices)
    chosen = ["bf16"] + dice.sample(PLANS, plans)
    words, fields = ["--on", device], {"on": device, "precision": chosen}
    for plan in chosen:
        words += ["--precision", plan]
    tier = dice.choice(["", "", "ideal", "expected"])
    if tier:
        words += ["--tier", tier]
        fields["tier"] = tier
    if dice.random() < 0.1:
        words += ["--sizes", "nominal"]
        fields["sizes"] = "nominal"
    return words, fields


def question(dice: random.Random, devices: List[str], models: List[str]) -> Question:
    side = lambda: 256 << dice.randrange(7)  # noqa: E731
    kind = dice.randrange(10)
    words, fields = place(dice, devices, dice.choice([1, 1, 2]))
    if kind == 0:
        n, k = side(), side() + dice.randrange(100)
        return "predict", ["gemv", "--n", str(n), "--k", str(k), *words], dict(fields, subject="gemv", n=n, k=k)
    if kind in (1, 2):
        m, n, k = dice.choice([1, 2, 16, 100, 512, 2048]), side(), side()
        shape = ["gemm", "--m", str(m), "--n", str(n), "--k", str(k)]
        return "predict", [*shape, *words], dict(fields, subject="gemm", m=m, n=n, k=k)
    if kind == 3:
        heads, context = 8 << dice.randrange(4), 64 + dice.randrange(8000)
        shape = ["attention", "--heads", str(heads), "--kv-heads", "8", "--head-dim", "128", "--context", str(context)]
        asked = dict(fields, subject="attention", heads=heads, kv_heads=8, head_dim=128, context=context)
        return "predict", [*shape, *words], asked
    if kind == 4:
        hidden, ffn, tokens = side(), side(), 1 + dice.randrange(64)
        shape = ["ffn", "--hidden", str(hidden), "--ffn", str(ffn), "--tokens", str(tokens)]
        return "predict", [*shape, *words], dict(fields, subject="ffn", hidden=hidden, ffn=ffn, tokens=tokens)
    model, batch, context = dice.choice(models), 1 << dice.randrange(5), 64 + dice.randrange(8000)
    phase = dice.choice(["prefill", "decode"])
    passes = ["--phase", phase, "--batch", str(batch), "--context", str(context)]
    asked = dict(fields, phase=phase)
    if kind == 5:
        return "sweep", [model, *passes, *words], dict(asked, models=[model], batch=str(batch), context=str(context))
    if kind == 6:
        figure = dict(asked, kind="roofline", models=model, batch=str(batch), context=str(context))
        return "plot", ["roofline", model, *passes, *words], figure
    if kind == 7:
        run = ["--model", model, "--prompt", str(context), "--generate", "20", "--measured", "2s", "--batch", str(batch)]
        asked = dict(fields, model=model, prompt=context, generate=20, measured="2s", batch=batch)
        return "analyze", [*run, *words], asked
    return "predict", ["model", model, *passes, *words], dict(
        asked, subject="model", model=model, batch=batch, context=context
    )


def spoken(value: Any) -> Any:
    """Sentences name arguments and other questions, which each face writes its own way; here they are taken out."""
    if isinstance(value, dict):
        return {name: spoken(item) for name, item in value.items()}
    if isinstance(value, list):
        return [spoken(item) for item in value]
    if isinstance(value, str):
        value = re.sub(r"`[^`]*`", "``", value)
        return re.sub(r"--[a-z-]+( [^ ,;)]+)?|\b[a-z_]+=\S+", "", value)
    return value


def exact(value: Any) -> str:
    """Every bit and every field, in order."""
    return json.dumps(value)


def test_a_thousand_questions_have_one_answer_each(command: Any) -> None:
    dice = random.Random(20261117)
    devices = [device.key for device in roofline.devices().devices]
    models = [model.key for model in roofline.models().models]
    questions = [question(dice, devices, models) for _ in range(QUESTIONS)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        told = list(pool.map(lambda one: command.answer(one[0], *one[1]), questions))
    answered = verbatim = 0
    for (verb, words, fields), expected in zip(questions, told):
        try:
            answer = _native.call(verb, fields)
        except roofline.RooflineError as error:
            assert "error" in expected, (words, error)
            assert spoken(error.message) == spoken(expected["error"]["message"]), words
            assert spoken(error.hint) == spoken(expected["error"]["hint"]), words
            assert error.kind == expected["error"]["kind"], words
            continue
        assert "error" not in expected, (words, expected)
        answer = answer["points"] if verb == "sweep" else answer
        assert exact(spoken(answer)) == exact(spoken(expected)), words
        answered += 1
        verbatim += exact(answer) == exact(expected)
    # The others ask for units that a device lacks, or cut matrices where a format cannot.
    assert answered > QUESTIONS * 0.6, answered
    # Few answers speak of other questions; all others are the same letter by letter.
    assert verbatim > answered * 0.5, (verbatim, answered)


def test_lists_are_the_same(command: Any) -> None:
    for verb in ("devices", "models", "formats", "precisions"):
        assert exact(spoken(_native.call(verb, {}))) == exact(spoken(command.answer(verb))), verb


def test_advice_is_the_same(command: Any) -> None:
    words = ["model", "llama-3.2-1b", "--on", "jetson_orin_nano", "--memory-limit", "4GB"]
    asked = {"subject": "model", "model": "llama-3.2-1b", "on": "jetson_orin_nano", "memory_limit": "4GB"}
    assert exact(spoken(_native.call("recommend", asked))) == exact(spoken(command.answer("recommend", *words)))


def test_an_integer_of_numpy_is_one() -> None:
    numpy = __import__("pytest").importorskip("numpy")
    plain = _native.call("predict", {"subject": "gemv", "n": 4096, "k": 4096, "on": "h200", "precision": ["bf16", "fp8"]})
    asked = {"subject": "gemv", "n": numpy.int64(4096), "k": numpy.uint16(4096), "on": "h200"}
    assert _native.call("predict", dict(asked, precision=numpy.array(["bf16", "fp8"]))) == plain
