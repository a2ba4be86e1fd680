"""A model on a GPU in one page: the table, one length in detail, another model beside it, the picture, and what to do.

    python examples/basic_analysis.py [PICTURE]
"""

from __future__ import annotations

import sys

from roofline import A100_40GBSpecs, Llama3_8BConfig, MistralConfig, RooflineAnalyzer, T4Specs


def main(picture: str = "roofline.png") -> None:
    analyzer = RooflineAnalyzer(gpu_specs=T4Specs(), model_config=MistralConfig())
    summary = analyzer.summary_table(versus=A100_40GBSpecs())
    print(f"{analyzer.model_config.name} on {analyzer.gpu_specs.name}, ridge at {analyzer.ridge_point:.1f} FLOP/B\n")
    print(summary, end="\n\n")

    for phase in ("prefill", "decode"):
        one = analyzer.analyze(512, phase=phase)
        print(f"{phase} at 512 tokens: {one.bottleneck}, at most {one.theoretical_tflops:.2f} TFLOP/s")
        print(f"  {one.flops / 1e9:,.1f} GFLOP, {one.memory_bytes / 1e9:.2f} GB, {one.operational_intensity:.2f} FLOP/B")

    print("\ndecode at 512 tokens, model by model")
    for config in (MistralConfig(), Llama3_8BConfig()):
        one = RooflineAnalyzer(T4Specs(), config).analyze(512, phase="decode")
        print(f"  {config.name:<16} {one.memory_bytes / 1e9:6.2f} GB a token, {one.roof_time_ms:6.1f} ms at least")

    print()
    for insight in summary.insights:
        print("-", insight)
    print("\nWhat to do")
    for advice in summary.recommendations:
        print(f"- {advice['title']}: {advice['text']}")
    print(f"\nwrote {analyzer.plot_roofline(save_path=picture).path}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
