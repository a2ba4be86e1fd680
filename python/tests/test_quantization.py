"""Quantization of live models: what is recommended, what torchao is asked, and that nothing aborts.

torch and torchao are stood in for where a test is about what they are asked; where they are installed, a small model of
random weights is quantized and timed.
"""

from __future__ import annotations

import sys
import types
import warnings

import pytest

from roofline import (
    InferenceBenchmark,
    T4Specs,
    apply_quantization,
    benchmark_transformer,
    get_quantize_config,
    map_precision_to_torchao,
    recommend_quantization,
    run_pipeline,
)


@pytest.fixture
def no_torchao(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)


@pytest.fixture
def torchao(monkeypatch):
    """A torchao that keeps what it is asked, with the functions of its first versions."""
    calls = []
    quantization = types.ModuleType("torchao.quantization")
    quantization.int4_weight_only = lambda group_size=128: ("int4_weight_only", group_size)
    quantization.int8_weight_only = lambda: ("int8_weight_only",)
    quantization.quantize_ = lambda model, config: calls.append((model, config))
    whole = types.ModuleType("torchao")
    whole.quantization = quantization
    monkeypatch.setitem(sys.modules, "torchao", whole)
    monkeypatch.setitem(sys.modules, "torchao.quantization", quantization)
    quantization.calls = calls
    return quantization


@pytest.mark.parametrize(
    ("names", "mapped"),
    [
        ("INT4 NF4 NVFP4 MXFP4", "INT4"),
        # A bare FP8 is often left out of such tables.
        ("INT8 FP8_E4M3 FP8_E5M2 FP8 MXFP8", "INT8"),
        ("FP16 BF16 FP32 INT2 nonsense", None),
    ],
)
def test_mapping(names, mapped):
    for name in names.split():
        assert map_precision_to_torchao(name) == mapped
        assert map_precision_to_torchao(f" {name.lower()} ") == mapped


def test_recommendations():
    edge = recommend_quantization("jetson_orin_nano", M=1, N=4096, K=4096, phase="decode", memory_limit_gb=8)
    assert edge.precision == "w4a16" and edge.torchao == "INT4" and edge.method == "PTQ"
    assert edge.predicted_speedup > 3.5 and "memory-bound" in edge.reason
    # With 8 GB or less the smallest format wins, where compute would choose another.
    assert recommend_quantization("jetson_orin_nano", phase="prefill", memory_limit_gb=8).torchao == "INT4"
    assert recommend_quantization("jetson_orin_nano", phase="prefill").torchao != "INT4"
    assert map_precision_to_torchao(recommend_quantization("b10").precision) == "INT4"
    assert recommend_quantization("h100", phase="prefill").precision == "fp8"
    with pytest.raises(Exception, match="no memory"):
        recommend_quantization("h100", memory_limit_gb=0)
    with pytest.raises(Exception, match="did you mean"):
        recommend_quantization("jetson_orin_nanoo")


def test_configurations(torchao):
    assert get_quantize_config() == ("int4_weight_only", 128)
    assert get_quantize_config("NVFP4", group_size=64) == ("int4_weight_only", 64)
    assert get_quantize_config("FP8_E4M3") == ("int8_weight_only",)
    assert get_quantize_config("FP16") is None


def test_newer_configurations(torchao):
    class Int4WeightOnlyConfig:
        def __init__(self, group_size=128, int4_packing_format="plain"):
            self.asked = (group_size, int4_packing_format)

    torchao.Int4WeightOnlyConfig = Int4WeightOnlyConfig
    torchao.Int8WeightOnlyConfig = lambda: "Int8WeightOnlyConfig"
    assert get_quantize_config("INT4", 32, device="cuda").asked == (32, "tile_packed_to_4d")
    assert get_quantize_config("INT4", 32, device="cpu").asked == (32, "opaque")
    assert get_quantize_config("INT8") == "Int8WeightOnlyConfig"


def test_apply(torchao):
    model = object()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert apply_quantization(model, precision="INT4", group_size=128) is True
        assert apply_quantization(model, "FP8") is True
    assert torchao.calls == [(model, ("int4_weight_only", 128)), (model, ("int8_weight_only",))]


def test_apply_without_torchao(no_torchao):
    with pytest.warns(UserWarning, match="not installed"):
        assert apply_quantization(object()) is False
    assert get_quantize_config("INT4") is None


def test_apply_what_torchao_lacks(torchao):
    with pytest.warns(UserWarning, match="no weight-only format for FP16"):
        assert apply_quantization(object(), "FP16") is False

    def refuse(model, config):
        raise NotImplementedError("no kernel")

    torchao.quantize_ = refuse
    with pytest.warns(UserWarning, match="no kernel"):
        assert apply_quantization(object(), "INT4") is False


def test_pipeline_without_libraries(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    result = run_pipeline(model_name="TinyLlama-1.1B-Chat-v1.0", memory_limit_gb=8.0, phase="decode", num_tokens=10)
    assert list(result) == ["recommendation", "quantized", "tokens_per_sec", "error"]
    assert list(result["recommendation"]) == ["precision", "method", "reason", "predicted_speedup"]
    assert result["recommendation"]["precision"] == "w4a16"
    assert (result["quantized"], result["tokens_per_sec"]) == (False, None)
    assert "ModuleNotFoundError" in result["error"] or "ImportError" in result["error"]


def test_pipeline_with_a_bad_question():
    result = run_pipeline(hardware="nowhere")
    assert result["recommendation"] is None and "nowhere" in result["error"]


@pytest.fixture(scope="module")
def llama():
    """A Llama of random weights, small enough for a processor."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
        max_position_embeddings=1024,
    )
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()


def test_benchmark_of_a_live_model(llama, tmp_path):
    benchmark = InferenceBenchmark(llama, gpu_specs=T4Specs(), name="small")
    results = benchmark.run(prompt_lengths=[16, 32], gen_tokens=4, warmup=1, runs=2)
    assert [row["prompt_len"] for row in results.rows] == [16, 32]
    for row in results.rows:
        assert row["tokens_per_sec"] == pytest.approx(4 / row["avg_time"])
        assert row["total_flops"] == row["prefill_flops"] + row["decode_flops"]
    assert results.plot(save_path=tmp_path / "panels.svg").svg.startswith("<svg")
    points = results.measured_points()
    assert "prompt 16" in benchmark.analyzer.plot_roofline(measured_points=points).svg


def test_batches_that_do_not_fit(llama, monkeypatch):
    benchmark = InferenceBenchmark(llama, gpu_specs=T4Specs())
    once = benchmark._once

    def tight(ids, tokens):
        if ids.shape[0] > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        return once(ids, tokens)

    monkeypatch.setattr(benchmark, "_once", tight)
    rows = benchmark.batch_scaling([1, 2, 4], prompt_len=8, gen_tokens=2, runs=1).rows
    assert [row["error"] for row in rows] == [None, None, "out of memory"]
    assert rows[1]["scaling"] > 0 and rows[2]["tokens_per_sec"] is None

    def broken(ids, tokens):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(benchmark, "_once", broken)
    with pytest.raises(RuntimeError, match="shapes"):
        benchmark.batch_scaling([1])


def test_real_torchao(llama):
    pytest.importorskip("torchao")
    import copy

    import torch

    model = copy.deepcopy(llama)
    ids = torch.arange(8).unsqueeze(0)
    before = model(ids).logits
    assert apply_quantization(model, "INT8") is True
    after = model(ids).logits
    assert not torch.equal(before, after), "nothing was quantized"
    assert torch.nn.functional.cosine_similarity(before.flatten(), after.flatten(), dim=0) > 0.99


def test_pipeline_of_a_live_model(llama):
    import copy

    result = run_pipeline(model=copy.deepcopy(llama), num_tokens=4)
    assert result["error"] is None and result["tokens_per_sec"] > 0


def test_transformer_in_several_precisions(llama):
    rows = {row["label"]: row for row in benchmark_transformer(llama, ["FP16", "BF16", "INT8", "INT3"], 4, runs=2).rows}
    assert rows["FP16"]["speedup"] == 1.0 and rows["BF16"]["speedup"] > 0
    assert rows["INT8"]["error"] is None or rows["INT8"]["tokens_per_sec"] is None
    assert rows["INT3"]["tokens_per_sec"] is None and "INT3" in rows["INT3"]["error"]
