"""How fast a model would run on two machines, in 16 bit and in 4 bit: the floor, and what to expect."""

import roofline

answer = roofline.predict("model", "llama-3-8b", on=["h200", "a100"], precision=["bf16", "w4a16"], phase="decode")
for estimate in answer.estimates:
    print(
        f"{estimate.device_name:18} {estimate.precision:6} {estimate.tokens_per_s:6.1f} tokens/s expected, "
        f"{estimate.ideal_time_us / 1e3:.2f} ms at least, {estimate.expected_time_us / 1e3:.2f} ms to expect "
        f"({estimate.basis}), {estimate.bottleneck}"
    )

# The roofline of the first machine, as a notebook shows it.
answer.save("llama-3-8b.svg")
