"""The analyzer: every snippet that explains it runs as printed, and the numbers are those of the counting it documents."""

from __future__ import annotations

import runpy
import struct
import subprocess
import sys
import types
from pathlib import Path

import pytest

import roofline
from roofline import (
    A100_40GBSpecs,
    A100Specs,
    CustomGPUSpecs,
    CustomModelConfig,
    GPUSpecs,
    H100Specs,
    L4Specs,
    Llama2_7BConfig,
    Llama2_13BConfig,
    Llama2_70BConfig,
    Llama3_8BConfig,
    Llama3_70BConfig,
    LlamaConfig,
    MistralConfig,
    ModelConfig,
    RooflineAnalyzer,
    T4Specs,
    V100Specs,
    quick_analysis,
)

LENGTHS = (128, 256, 512, 1024, 2048)


@pytest.fixture(scope="module")
def analyzer() -> RooflineAnalyzer:
    return RooflineAnalyzer(gpu_specs=T4Specs(), model_config=MistralConfig())


def png_size(path) -> tuple:
    return struct.unpack(">II", path.read_bytes()[16:24])


BASIC_USAGE = '''
from roofline import RooflineAnalyzer, T4Specs, MistralConfig

# Initialize analyzer
analyzer = RooflineAnalyzer(
    gpu_specs=T4Specs(),
    model_config=MistralConfig()
)

# Calculate operational intensity for prefill
oi = analyzer.get_operational_intensity(seq_len=512, phase="prefill")
print(f"Prefill OI: {oi:.1f} FLOPs/Byte")

# Plot roofline with your measurements
analyzer.plot_roofline(
    measured_points=[
        {"name": "My Model", "oi": 150, "tflops": 12}
    ],
    save_path="my_roofline.png"
)
'''


def test_basic_usage(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(BASIC_USAGE, {})
    assert capsys.readouterr().out == "Prefill OI: 493.9 FLOPs/Byte\n"
    # 12 x 8 inches of 150 pixels; a second run replaces the file.
    assert png_size(tmp_path / "my_roofline.png") == (1800, 1200)
    exec(BASIC_USAGE, {})


COMBINED_WORKFLOW = '''
# Combined workflow
from inference_optimizer.monitor import GpuMonitor
from roofline import RooflineAnalyzer, T4Specs, MistralConfig

with GpuMonitor() as monitor:
    result = runner.generate(prompt, max_new_tokens=100)

# Understand the bottleneck
analyzer = RooflineAnalyzer(gpu_specs=T4Specs(), model_config=MistralConfig())
analysis = analyzer.analyze(
    prompt_len=len(tokens),
    gen_tokens=100,
    measured_time=result.time
)
print(analysis.bottleneck)  # "memory-bound" or "compute-bound"
'''


def test_combined_workflow(monkeypatch, capsys):
    class GpuMonitor:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    monitor = types.ModuleType("inference_optimizer.monitor")
    monitor.GpuMonitor = GpuMonitor
    monkeypatch.setitem(sys.modules, "inference_optimizer", types.ModuleType("inference_optimizer"))
    monkeypatch.setitem(sys.modules, "inference_optimizer.monitor", monitor)
    runner = types.SimpleNamespace(generate=lambda prompt, max_new_tokens: types.SimpleNamespace(time=12.5))
    names = {"runner": runner, "prompt": "Hello", "tokens": list(range(512))}
    exec(COMBINED_WORKFLOW, names)
    assert capsys.readouterr().out == "memory-bound\n"
    analysis = names["analysis"]
    assert analysis.tokens_per_sec == 8.0
    assert analysis["mfu"] == pytest.approx(analysis.measured_tflops / 65)
    assert analysis.mbu == pytest.approx(analysis.measured_gb_s / 320)
    # The least time for all passes over the time they took.
    assert 0.3 < analysis.efficiency < 0.45


def test_intensities(analyzer):
    prompts = [analyzer.get_operational_intensity(length) for length in LENGTHS]
    assert prompts == pytest.approx([125.12, 249.12, 493.91, 971.41, 1883.49], rel=5e-5)
    tokens = [analyzer.get_operational_intensity(length, phase="decode") for length in LENGTHS]
    assert tokens == pytest.approx([0.985, 0.989, 0.996, 1.010, 1.037], abs=5e-4)


def test_operations(analyzer):
    prompt, token = analyzer.calculate_prefill_flops(512), analyzer.calculate_decode_flops(512)
    parts = "q_proj k_proj v_proj attn_scores attn_output o_proj mlp_gate mlp_up mlp_down lm_head total".split()
    assert list(prompt) == list(token) == parts
    assert prompt["total"] == sum(prompt[part] for part in parts[:-1])
    assert prompt["lm_head"] == 2 * 512 * 4096 * 32000, "logits of every prompt token"
    assert token["mlp_down"] == 2 * 4096 * 14336 * 32
    assert analyzer.calculate_decode_flops(512, 4)["q_proj"] == 4 * token["q_proj"]


def test_traffic(analyzer):
    memory = analyzer.calculate_memory_traffic(512, phase="decode")
    assert memory["weights"] == 14_482_931_712, "the table of token vectors among them"
    assert memory["kv_cache"] == 2 * 512 * 1024 * 2 * 32
    assert memory["total"] == memory["weights"] + memory["kv_cache"] + memory["activations"]
    assert analyzer.calculate_memory_traffic(512)["kv_cache"] == 0
    assert analyzer.calculate_memory_traffic(512, dtype_bytes=4)["weights"] == 2 * memory["weights"]
    with pytest.raises(Exception, match="no number has 3"):
        analyzer.calculate_memory_traffic(512, dtype_bytes=3)


def test_one_pass(analyzer):
    prompt, token = analyzer.analyze(512), analyzer.analyze(512, 1, "decode")
    assert (prompt.bottleneck, token.bottleneck) == ("compute-bound", "memory-bound")
    assert (prompt.is_memory_bound, prompt.theoretical_tflops, prompt.efficiency_ceiling) == (False, 65.0, 100.0)
    assert token.flops / token.memory_bytes == token.operational_intensity
    assert token.theoretical_tflops == pytest.approx(token.operational_intensity * 0.32)
    assert (token.phase, token.seq_len, token.batch_size) == ("decode", 512, 1)
    # A causal prompt whose last token alone has logits takes less than such tables say.
    assert prompt.kernels["flops"] < prompt.flops
    with pytest.raises(TypeError, match="seq_len"):
        analyzer.analyze()
    with pytest.raises(TypeError, match="of one pass"):
        analyzer.analyze(512, prompt_len=1, gen_tokens=1)
    with pytest.raises(AttributeError, match="bottleneck"):
        token.bottelneck


def test_measured_runs(analyzer):
    # All operations over the bytes of one pass would be 72.6 FLOP/B; every pass reads the weights, so it is 2.2.
    run = analyzer.analyze(prompt_len=42, gen_tokens=32, measured_time=4.0)
    assert run.operational_intensity == pytest.approx(2.24, abs=0.01)
    assert any("first token" in note["text"] for note in run.notes)
    with pytest.raises(Exception, match="cannot take 0"):
        analyzer.analyze(prompt_len=42, gen_tokens=32, measured_time=0)


def test_roof(analyzer):
    assert analyzer.ridge_point == 203.125
    assert analyzer.is_memory_bound(100) and not analyzer.is_memory_bound(100, dtype="fp32")
    assert analyzer.theoretical_performance(100) == 32.0
    assert analyzer.theoretical_performance(1e4, "int8") == 130.0


# Peak TFLOPS, GB/s and ridge as they are often printed. The H100's dense peak is 989.4, its ridge 295.3 and not 296.
PRINTED = [
    (T4Specs, 65, 320, 203),
    (V100Specs, 125, 900, 139),
    (A100_40GBSpecs, 312, 1555, 201),
    (A100Specs, 312, 2039, 153),
    (H100Specs, 989.4, 3350, 295),
    (L4Specs, 121, 300, 403),
]


@pytest.mark.parametrize(("specs", "peak", "bandwidth", "ridge"), PRINTED)
def test_supported_gpus(specs, peak, bandwidth, ridge):
    gpu = specs()
    assert (gpu.peak_fp16_tflops, gpu.memory_bandwidth_gb_s) == (peak, bandwidth)
    assert round(gpu.ridge_point) == ridge


def test_supported_models():
    counts = {
        MistralConfig: 7.242,
        Llama2_7BConfig: 6.738,
        Llama2_13BConfig: 13.016,
        Llama2_70BConfig: 68.977,
        Llama3_8BConfig: 8.030,
        Llama3_70BConfig: 70.554,
    }
    for config, billions in counts.items():
        assert config().params_billions == pytest.approx(billions, abs=6e-4), config
    assert LlamaConfig().name == Llama2_7BConfig().name
    assert LlamaConfig("3-8b").vocab_size == 128256


def test_own_gpu_and_model():
    gpu = CustomGPUSpecs("Mine", peak_fp16_tflops=100, memory_bandwidth_gb_s=800, memory_gb=24)
    assert (gpu.ridge_point, gpu.name, gpu.memory_gb) == (125.0, "Mine", 24.0)
    model = CustomModelConfig(
        "Tiny", hidden_size=512, num_layers=4, num_heads=8, num_kv_heads=2, intermediate_size=1024, vocab_size=1000
    )
    assert (model.num_kv_heads, model.head_dim, model.num_layers) == (2, 64, 4)
    own = RooflineAnalyzer(gpu, model)
    assert own.calculate_prefill_flops(16)["k_proj"] == 2 * 16 * 512 * 128 * 4
    assert own.plot_roofline().title == "Roofline Analysis: Tiny on Mine"
    with pytest.raises(Exception, match="did you mean"):
        GPUSpecs(key="h20O").to_dict()
    with pytest.raises(Exception, match="mistral"):
        ModelConfig(key="mistrall-7b").to_dict()


def test_defaults():
    default = RooflineAnalyzer()
    assert default.model_config.key == "mistral-7b"
    assert default.gpu_specs.ridge_point > 0


def test_plot(analyzer, tmp_path):
    chart = analyzer.plot_roofline(
        measured_points=[{"name": "My Model", "oi": 150, "tflops": 12}],
        seq_lengths=[128, 4096],
        save_path=tmp_path / "r.svg",
        figsize=(6, 4),
    )
    assert (tmp_path / "r.svg").read_text() == chart._repr_svg_()
    for text in ("Roofline Analysis: Mistral 7B v0.1 on Tesla T4", "Memory Bound", "Compute Bound", "My Model"):
        assert text in chart.svg
    assert "practical roof (70 %)" in chart.svg and "ridge 203.1 FLOP/B" in chart.svg
    assert [(point["phase"], point["seq_len"]) for point in chart.points] == [
        ("prefill", 128),
        ("prefill", 4096),
        ("decode", 128),
        ("decode", 4096),
    ]
    # Theory stands on the roof, and lower where that is asked for.
    assert chart.points[1]["tflops"] == 65.0
    assert analyzer.plot_roofline(prefill_factor=0.5).points[4]["tflops"] == 32.5
    with pytest.raises(Exception, match="already"):
        analyzer.plot_roofline(save_path=tmp_path / "r.svg", overwrite=False)
    with pytest.raises(Exception, match="not a picture"):
        analyzer.plot_roofline(save_path=tmp_path / "r.txt")


def test_panels(analyzer, tmp_path):
    runs = [
        {"prompt_len": length, "gen_tokens": 32, "times": [2.0 + at / 10, 2.1 + at / 10]}
        for at, length in enumerate((64, 128, 256, 512))
    ]
    figure = analyzer.plot_benchmark(runs, save_path=tmp_path / "panels.png", figsize=(6, 4))
    assert png_size(tmp_path / "panels.png") == (900, 600)
    for text in ("Throughput, tokens/s", "Achieved TFLOP/s", "standard deviation", "TFLOP of a run", "70 %: 45.5"):
        assert text in figure.svg


def test_summary_table(analyzer):
    summary = analyzer.summary_table(versus=A100_40GBSpecs())
    lines = str(summary).splitlines()
    assert lines[0].split() == ["Phase", "Seq", "Len", "FLOPs", "Memory", "GB", "OI", "(F/B)", "Bound"]
    assert lines[3].split() == ["prefill", "512", "7.42", "T", "15.02", "493.9", "Compute"]
    assert lines[8].split() == ["decode", "512", "14.49", "G", "14.55", "0.996", "Memory"]
    assert len(summary.rows) == 10 and "<table>" in summary._repr_html_()
    # A rounded 1.5 TB/s gives 4.7; 1555 GB/s over 320 are 4.86.
    assert any("4.86x" in insight for insight in summary.insights)


def test_findings(analyzer):
    short, long, decode = analyzer.key_findings()
    assert (short["bottleneck"], long["bottleneck"], decode["bottleneck"]) == ("Memory", "Compute", "Memory")
    # "50 to 100" for short prompts is of 51 to 102 tokens; they stay memory-bound up to the ridge.
    assert short["lowest_oi"] < 100 < short["highest_oi"] < 203.125
    assert 203.125 <= long["lowest_oi"] < 210 and 1800 < long["highest_oi"] < 2000
    # "1 to 2" for a token: one sequence never comes near 2.
    assert 0.98 < decode["lowest_oi"] < decode["highest_oi"] < 1.1
    assert [advice["title"] for advice in analyzer.recommendations()] == [
        "Batching",
        "Quantization",
        "Flash Attention",
        "Continuous batching",
        "KV-cache formats",
        "Speculative decoding",
    ]


def test_batches(analyzer):
    rows = analyzer.batch_scaling([1, 4], seq_len=128).rows
    # Weights are loaded once for all: nearly, not exactly, four times the tokens, since each has a cache of its own.
    assert 3.9 < rows[1]["scaling"] < 4.0
    assert rows[1]["efficiency"] == pytest.approx(25 * rows[1]["scaling"])


def test_precision():
    four = RooflineAnalyzer("T4", "mistral-7b", precision="w4a16")
    assert four.calculate_memory_traffic(512)["weights"] < 14_482_931_712 / 3
    assert four.analyze(512, phase="decode").operational_intensity > 3


def test_quick_analysis(capsys):
    summary = quick_analysis(model="mistral-7b", gpu="T4", seq_len=512)
    out = capsys.readouterr().out
    assert "Ridge point: 203.1 FLOP/B" in out and str(summary) in out
    assert "prompts of 209 tokens and more are compute-bound" in out


def test_tables_without_pandas_stay_tables(analyzer, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError):
        analyzer.summary_table().to_pandas()


def test_import_needs_nothing():
    code = "import sys, roofline; print([m for m in ('torch', 'transformers', 'torchao', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    with pytest.raises(AttributeError, match="no_such_name"):
        roofline.no_such_name


def test_example(tmp_path, capsys):
    path = Path(__file__).resolve().parents[2] / "examples" / "basic_analysis.py"
    if not path.is_file():
        pytest.skip("the examples are not beside the tests")
    runpy.run_path(str(path))["main"](str(tmp_path / "roofline.svg"))
    out = capsys.readouterr().out
    assert "prefill at 512 tokens: compute-bound" in out and "Speculative decoding" in out
    # Llama 3 has a larger vocabulary, and so more bytes to read for each token.
    assert "Mistral 7B v0.1   14.55 GB" in out and "Llama 3 8B        16.13 GB" in out
    assert (tmp_path / "roofline.svg").is_file()


def test_the_guide(tmp_path, monkeypatch):
    page = Path(__file__).resolve().parents[2] / "docs" / "guide" / "analyzer.md"
    if not page.is_file():
        pytest.skip("the guide is not beside the tests")
    first = page.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(first, {})
    assert png_size(tmp_path / "roofline.png") == (1800, 1200)
