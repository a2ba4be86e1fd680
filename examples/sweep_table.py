"""Tokens per second over batches and formats, as a table; as a data frame where pandas is installed."""

import roofline

answer = roofline.sweep("llama-3-8b", on="h200", phase="decode", batch="1..64", precision=["bf16", "fp8", "w4a16"])
print(f"{'batch':>6} {'plan':8} {'tokens/s':>10}")
for point in answer.points:
    print(f"{point.batch:6} {point.precision:8} {point.tokens_per_s:10.0f}")

try:
    frame = answer.to_pandas()
except ImportError as error:
    print(error)
else:
    print(frame.pivot(index="batch", columns="precision", values="tokens_per_s").round())
