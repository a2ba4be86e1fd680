import { describe, expect, it } from "vitest";
import type { JobResult } from "../src/api/jobs";
import { resultOf } from "../src/views/kernel/matching";

const SQUARE = { m: 4096, n: 4096, k: 4096 };
const DECODE = { m: 1, n: 4096, k: 4096 };
const found = (shape: string) => ({ shape, precision: "bf16" });
const result = { device: "h200_sxm", backend: "null", insight: "so", comparisons: [found("gemm 4096 x 4096 x 4096")] } as unknown as JobResult;

describe("a measured product", () => {
  it("is shown where it was asked for", () => {
    expect(resultOf(result, SQUARE, "h200_sxm", "null")).toEqual(result);
    const gemv = { ...result, comparisons: [found("gemv 1 x 4096 x 4096")] } as unknown as JobResult;
    expect(resultOf(gemv, DECODE, "h200_sxm", "null")).toEqual(gemv);
  });

  it("is not shown for another shape, device or backend", () => {
    expect(resultOf(result, DECODE, "h200_sxm", "null")).toBeNull();
    expect(resultOf(result, { ...SQUARE, m: 40 }, "h200_sxm", "null")).toBeNull();
    expect(resultOf(result, SQUARE, "a100_sxm_80gb", "null")).toBeNull();
    expect(resultOf(result, SQUARE, "h200_sxm (modified)", "null")).toBeNull();
    expect(resultOf(result, SQUARE, "h200_sxm", "cpu")).toBeNull();
    expect(resultOf(result, SQUARE, "h200_sxm", "none")).toBeNull();
    expect(resultOf(result, SQUARE, undefined, "null")).toBeNull();
    expect(resultOf(null, SQUARE, "h200_sxm", "null")).toBeNull();
  });
});
