import { describe, expect, it } from "vitest";
import type { OpClass, Outcome, Quality } from "../src/api/types";
import { glyphPath } from "../src/plot/glyphs";
import { dotOf, lossOf } from "../src/views/recommend/outcome";

const plan = (quality: Quality, cache: Quality | null, loss: number | null) => ({ plan: "fp8", known_as: {}, tp: 1, offload: null, refused: null, time: 0.007, gain: 1, memory: { total: 1e9 }, quality, cache_quality: cache, loss }) as Outcome;

describe("the quality of a plan", () => {
  it("has words for each kind", () => {
    const words: Record<Quality["kind"], string> = {
      exact: lossOf(plan({ kind: "exact" }, null, 0)),
      released: lossOf(plan({ kind: "released" }, null, 0)),
      measured: lossOf(plan({ kind: "measured", change: 0.012, low: 0.01, high: 0.014, kl_divergence: null, top1_agreement: null, tokens: 1000, text: "a book", method: "mse", date: "2026-01-31", cache: null }, null, 0.014)),
      published: lossOf(plan({ kind: "published", change: 0.012, method: "AWQ", source: "a paper" }, null, 0.012)),
      elsewhere: lossOf(plan({ kind: "elsewhere", change: 0.012, source: "a paper" }, null, 0.012)),
      estimated: lossOf(plan({ kind: "estimated", low: 0.01, high: 0.02 }, null, 0.02)),
      unknown: lossOf(plan({ kind: "unknown" }, null, null)),
    };
    expect(words).toEqual({ exact: "as 16 bit", released: "as released", measured: "+1.2 % measured", published: "+1.2 % published", elsewhere: "+1.2 % published of others", estimated: "+1 to 2 %", unknown: "unknown" });
  });

  it("is on the axis where the model is as its makers released it", () => {
    const dot = dotOf(plan({ kind: "released" }, null, 0));
    expect([dot.y, dot.low, dot.high]).toEqual([0, null, null]);
    expect(dot.card.rows).toContainEqual(["perplexity", "as released"]);
  });

  it("tells of the cache beside the weights", () => {
    expect(lossOf(plan({ kind: "released" }, { kind: "unknown" }, null))).toBe("as released, cache unknown");
  });
});

describe("a kind of work", () => {
  it("has a shape of its own", () => {
    const kinds: Record<OpClass | "total", string> = { gemm: glyphPath("gemm", 5), attention: glyphPath("attention", 5), elementwise: glyphPath("elementwise", 5), network: glyphPath("network", 5), total: glyphPath("total", 5) };
    for (const path of Object.values(kinds)) expect(path).toMatch(/^M.*Z$/);
    expect(new Set(Object.values(kinds)).size).toBe(5);
  });
});
