"""A plan for the model that comes along, the checkpoint it gives, and what that lost."""

import tempfile
from pathlib import Path

import roofline

advice = roofline.recommend("model", "llama-3.2-1b", on="jetson_orin_nano", memory_limit="4GB")
print(f"Llama 3.2 1B on a Jetson Orin Nano: {advice.outcomes[0].plan}")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "demo-w8a16"
    written = roofline.quantize("demo", plan="w8a16", to=path)
    print(f"{written.plan}: {written.bytes_before} bytes before, {written.bytes_after} after")
    # Any text will do; a longer one tells more.
    lost = roofline.evaluate(path, against="demo", text=__file__, window=64)
    print(f"perplexity {lost.perplexity:.1f}, {lost.ratio:.4f} times that of the original")
