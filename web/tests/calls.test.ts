import { beforeAll, describe, expect, it, vi } from "vitest";
import type { Body } from "../src/api/routes";
import type { Quality } from "../src/api/types";
import { FIRST } from "../src/state/view";

let calls: typeof import("../src/api/calls");

beforeAll(async () => {
  vi.stubGlobal("window", { location: new URL("http://127.0.0.1:8000/"), sessionStorage: { getItem: () => null } });
  calls = await import("../src/api/calls");
  return () => vi.unstubAllGlobals();
});

/** Answers with `value`, and says what was asked. */
function answering(value: unknown) {
  const asked: { path: string; body: Record<string, unknown> }[] = [];
  vi.stubGlobal("fetch", (path: string, init: RequestInit) => {
    asked.push({ path, body: JSON.parse(String(init.body)) as Record<string, unknown> });
    return Promise.resolve(new Response(JSON.stringify(value)));
  });
  return asked;
}

describe("a precision that the device does not have", () => {
  it("is explained in the server's words", async () => {
    const none = { device: "a100_sxm_80gb", precision: "nvfp4", error: "`nvfp4` needs FP4 math", hint: "use nvfp4a16" };
    answering({ device: {}, memories: [], ceilings: [], prediction: { estimates: [], unavailable: [none] } });
    await expect(calls.picture({ setup: FIRST.setup, ideal: false })).rejects.toMatchObject({ status: 422, message: "`nvfp4` needs FP4 math", hint: "use nvfp4a16" });
  });
});

describe("a question for advice", () => {
  // The server refuses a field that it does not know, and with it the whole question.
  const KNOWN = ["subject", "on", "bandwidth", "peak", "model", "phase", "context", "batch", "goal", "max_quality_loss", "min_tokens_per_s", "max_ttft", "memory_limit", "target_size", "target_bits", "price", "runtime", "native_only", "any_quality", "tier"];

  it("has fields that the server knows and no others", async () => {
    const asked = answering({});
    await calls.recommendModel({ setup: FIRST.setup, limits: { ...FIRST.limits, loss: "2%", rate: "30", runtime: "vllm" }, ideal: true });
    expect(asked[0]!.path).toBe("api/recommend");
    expect(Object.keys(asked[0]!.body).filter((field) => !KNOWN.includes(field))).toEqual([]);
    expect(asked[0]!.body).toMatchObject({ subject: "model", on: "h200_sxm", max_quality_loss: "2%", min_tokens_per_s: 30, runtime: ["vllm"], tier: "ideal" });
  });

  it("does not compile otherwise", () => {
    const model = { subject: "model", model: "llama-3-8b" } as const;
    const right: Extract<Body<"/api/recommend">, { subject: "model" }> = { ...model, native_only: true };
    // @ts-expect-error: there is no such field
    const wrong: Extract<Body<"/api/recommend">, { subject: "model" }> = { ...model, all: true };
    // @ts-expect-error: a limit in words, not a number
    const words: Extract<Body<"/api/recommend">, { subject: "model" }> = { ...model, price: "cheap" };
    expect([right, wrong, words].every(({ subject }) => subject === "model")).toBe(true);
  });
});

describe("the address of a question", () => {
  it("carries what stands in the path and in the query", async () => {
    const { address } = await import("../src/api/routes");
    expect(address<"/api/precisions", "get">("/api/precisions", { query: { on: "h200 & co" } })).toBe("api/precisions?on=h200+%26+co");
    expect(address<"/api/jobs/{id}", "get">("/api/jobs/{id}", { path: { id: "a/b" } })).toBe("api/jobs/a%2Fb");
  });
});

describe("a variant that refers to another type", () => {
  it("keeps its kind", () => {
    const estimated: Extract<Quality, { kind: "estimated" }> = { kind: "estimated", low: 0.01, high: 0.02 };
    expect(estimated.kind).toBe("estimated");
  });
});
