import { beforeAll, describe, expect, it, vi } from "vitest";

let calls: typeof import("../src/api/calls");
let client: typeof import("../src/api/client");

beforeAll(async () => {
  vi.stubGlobal("window", { location: new URL("http://127.0.0.1:8000/"), sessionStorage: { getItem: () => null } });
  [calls, client] = [await import("../src/api/calls"), await import("../src/api/client")];
  return () => vi.unstubAllGlobals();
});

const NONE = { loss: "", rate: "", first: "", memory: "", weights: "", bits: "", price: "" };

describe("limits", () => {
  it("are sent when there are any", () => {
    expect(calls.limitFields(NONE)).toEqual({});
    expect(calls.limitFields({ loss: "2%", rate: " 30 ", first: "200ms", memory: "8GB", weights: "5GB", bits: "4.3", price: "2.50" })).toEqual({ max_quality_loss: "2%", min_tokens_per_s: 30, max_ttft: "200ms", memory_limit: "8GB", target_size: "5GB", target_bits: 4.3, price: 2.5 });
    expect(calls.limitFields({ ...NONE, rate: "  " })).toEqual({});
  });

  it("that are no numbers are left to the server to refuse", () => {
    expect(calls.limitFields({ ...NONE, rate: "30 tok/s", price: "2,50" })).toEqual({ min_tokens_per_s: "30 tok/s", price: "2,50" });
    expect(calls.limitFields({ ...NONE, rate: "1e999" })).toEqual({ min_tokens_per_s: "1e999" });
  });

  it("are found in what the server says", () => {
    expect(calls.refusedLimit(new client.Refusal(422, '`price` is "2,50"', "it is a number"))).toBe("price");
    expect(calls.refusedLimit(new client.Refusal(422, "`max_ttft` is `soon`: expected a quantity in s", null))).toBe("first");
    expect(calls.refusedLimit(new client.Refusal(422, "`model` is unknown", null))).toBeNull();
    expect(calls.refusedLimit(new client.Refusal(500, "something else", null))).toBeNull();
    expect(calls.refusedLimit(new client.Offline())).toBeNull();
    expect(calls.refusedLimit(null)).toBeNull();
  });
});
