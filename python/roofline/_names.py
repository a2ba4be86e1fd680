"""Names that the package has and imports when they are asked for, so that importing it costs nothing."""

from __future__ import annotations

from typing import Any, Dict

#: Name to module.
LAZY: Dict[str, str] = {
    name: module
    for module, names in {
        "analyzer": "Analysis RooflineAnalyzer Summary quick_analysis",
        "batch": "BatchAnswer predict_batch",
        "benchmark": "BenchmarkResults InferenceBenchmark",
        "callables": "measure_callable",
        "configs": (
            "CustomModelConfig Llama2_13BConfig Llama2_70BConfig Llama2_7BConfig Llama3_70BConfig Llama3_8BConfig "
            "LlamaConfig MistralConfig ModelConfig get_model_config"
        ),
        "hardware": (
            "A100Specs A100_40GBSpecs A100_80GBSpecs CustomGPUSpecs GPUSpecs H100Specs H200Specs L4Specs RTX4090Specs "
            "T4Specs V100Specs get_gpu_specs"
        ),
        "quantization": (
            "Recommendation apply_quantization benchmark_transformer get_quantize_config map_precision_to_torchao "
            "recommend_quantization run_pipeline"
        ),
        "watching": "Region from_transformers watch",
    }.items()
    for name in names.split()
}


def find(name: str) -> Any:
    """What a name stands for."""
    from importlib import import_module

    if name == "torch":
        return import_module(".torch", __package__)
    if name not in LAZY:
        raise AttributeError(f"module 'roofline' has no attribute {name!r}")
    return getattr(import_module("." + LAZY[name], __package__), name)
