import { describe, expect, it } from "vitest";
import { fromQuery, readSetup, toQuery, writeSetup } from "../src/state/address";
import { FIRST, pinLabel, type Setup, type View } from "../src/state/view";

const OTHER: Setup = { on: "jetson_orin_nano@7W", bandwidth: 6000, peaks: { fp8: 3000, fp64_tensor: 67.5 }, model: "qwen2.5-7b", precision: "int4-g128/bf16/fp8", phase: "prefill", context: 131_072, batch: 512 };

const FULL: View = {
  tab: "recommend",
  setup: OTHER,
  pins: [FIRST.setup, OTHER],
  band: false,
  tier: "ideal",
  zoom: { k: 2.5, x: -0.75, y: 0.125 },
  sort: "site",
  find: "proj & more",
  kernel: { m: 1, n: 14_336, k: 4096, precision: "fp8", all: true },
  kernelZoom: { k: 4, x: -1.5, y: 0 },
  backend: "null",
  shapes: ["decode"],
  precisions: [],
  limits: { goal: "memory", loss: "2%", rate: "30", first: "200ms", memory: "8GB", weights: "5GB", bits: "4.3", price: "2.50", runtime: "llama.cpp", native: true, any: true },
  plans: { sort: "-memory", all: true },
  format: "mxfp4",
  formats: "error",
  compared: "-error",
};

describe("a link", () => {
  it("is empty for the first view", () => {
    expect(toQuery(FIRST)).toBe("");
    expect(fromQuery("")).toEqual(FIRST);
  });

  it("shows the same view again, whatever was changed", () => {
    expect(fromQuery(toQuery(FULL))).toEqual(FULL);
    for (const key of Object.keys(FULL) as (keyof View)[]) {
      const view = { ...FIRST, [key]: FULL[key] };
      expect(fromQuery(toQuery(view)), key).toEqual(view);
    }
  });

  it("is legible", () => {
    expect(toQuery({ ...FIRST, setup: { ...FIRST.setup, on: "a100_sxm_80gb", precision: "w4a16", batch: 16 } })).toBe("?on=a100_sxm_80gb&p=w4a16&batch=16");
  });

  it("that is wrong gives what can be saved of it", () => {
    const view = fromQuery("?tab=nowhere&on=<script>&bw=-3&peak=fp8:x,bf16:500&ctx=9999999&batch=zero&zoom=1,2&pin=a~b&phase=x&gemm=0x1x2&sort=%27");
    expect(view).toEqual({ ...FIRST, setup: { ...FIRST.setup, peaks: { bf16: 500 }, context: 131_072 } });
  });

  it("holds four pins at most", () => {
    const query = Array.from({ length: 6 }, () => `pin=${writeSetup(OTHER)}`).join("&");
    expect(fromQuery(query).pins).toHaveLength(4);
  });
});

describe("a pin", () => {
  it("survives being written", () => {
    expect(readSetup(writeSetup(OTHER))).toEqual(OTHER);
    expect(readSetup(writeSetup(FIRST.setup))).toEqual(FIRST.setup);
    expect(readSetup("h200~model~bf16~sideways~1~1")).toBeNull();
  });

  it("has a short name", () => {
    expect(pinLabel(FIRST.setup)).toBe("h200_s·bf16·d4096");
    expect(pinLabel(OTHER)).toBe("custom·int4-g128/·p131072×512");
  });
});
