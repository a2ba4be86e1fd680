import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { Work } from "../src/data/follow";

type Answer = () => Response | Promise<Response>;

const json = (body: unknown, status = 200): Answer => () => new Response(JSON.stringify(body), { status });
const gone: Answer = () => Promise.reject(new TypeError("Failed to fetch"));
const event = (type: string, data: unknown) => `event: ${type}\ndata: ${JSON.stringify(data)}\n\n`;
const point = (shape: string) => ({ shape, precision: "bf16", measured_time_us: 1 });
const job = (state: string, more: object = {}) => ({ id: "j1", verb: "sweep", request: {}, state, finished: 0, count: 3, current: null, error: null, disturbed: null, ahead: null, points: [], result: null, ...more });

/** A stream that tells `text` and then ends, or breaks. */
function stream(text: string, breaks = false): Answer {
  return () => {
    const encoded = new TextEncoder().encode(text);
    let told = false;
    return new Response(
      new ReadableStream({
        pull(controller) {
          if (!told) controller.enqueue(encoded);
          else if (breaks) controller.error(new TypeError("network error"));
          else controller.close();
          told = true;
        },
      }),
    );
  };
}

let asked: string[];

/** Answers one after the other, whatever is asked but how the server is. */
function answers(...list: Answer[]) {
  vi.stubGlobal("fetch", (path: string, init: RequestInit) => {
    if (path === "api/health") return Promise.resolve(new Response("{}"));
    asked.push(`${init.method ?? "GET"} ${path}`);
    const next = list.shift();
    return next ? Promise.resolve().then(next) : Promise.reject(new Error(`nobody expected ${path}`));
  });
}

async function followed(): Promise<Work[]> {
  const { follow } = await import("../src/data/follow");
  const works: Work[] = [];
  await follow("j1", new AbortController().signal, (work) => works.push(work), 1);
  return works;
}

beforeEach(() => {
  asked = [];
  vi.resetModules();
  vi.stubGlobal("window", { location: new URL("http://127.0.0.1:8000/"), sessionStorage: { getItem: () => null }, addEventListener: () => undefined, setTimeout: () => 0, clearTimeout: () => undefined });
});
afterEach(() => vi.unstubAllGlobals());

describe("a job that is followed", () => {
  it("ends with what the server keeps of it", async () => {
    const result = { device: "h200_sxm" };
    answers(stream(event("progress", { finished: 0, count: 1, current: "a" }) + event("point", point("a")) + event("end", job("done"))), json(job("done", { finished: 1, count: 1, result, disturbed: "had company" })));
    const works = await followed();
    expect(works.map(({ state }) => state)).toEqual(["queued", "running", "running", "done"]);
    expect(works.at(-1)).toMatchObject({ result, points: [point("a")], skipped: [], disturbed: "had company", error: null });
  });

  it.each([false, true])("is found again when the server was restarted (stream broken: %s)", async (breaks) => {
    const kept = [point("a"), point("b")];
    answers(stream(event("point", point("a")), breaks), gone, gone, json(job("interrupted", { finished: 2, points: kept })));
    const works = await followed();
    expect(works.map(({ state }) => state)).toContain("lost");
    expect(works.at(-1)).toMatchObject({ state: "interrupted", points: kept, error: null });
    expect(asked).toHaveLength(4);
  });

  it("goes on when only the stream was cut, and counts nothing twice", async () => {
    const both = event("point", point("a")) + event("point", point("b")) + event("end", job("done"));
    answers(stream(event("point", point("a")), true), json(job("running", { finished: 1, points: [point("a")] })), stream(both), json(job("done", { finished: 2, points: [point("a"), point("b")] })));
    const works = await followed();
    expect(works.at(-1)).toMatchObject({ state: "done", points: [point("a"), point("b")] });
  });

  it("names the kernels that were left out", async () => {
    const left = { site: "gemm", op: { linear: { m: 16, n: 64, k: 32 } }, precision: "fp8", reason: "this processor has no FP8" };
    answers(stream(event("skipped", left) + event("end", job("done"))), json(job("done", { disturbed: "had company" })));
    const { doubtsOf } = await import("../src/data/follow");
    expect(doubtsOf((await followed()).at(-1)!)).toEqual(["gemm 16 x 64 x 32 · fp8 · this processor has no FP8", "had company"]);
  });

  it("waits for a token that the server asks for", async () => {
    answers(json({ detail: "a token is needed" }, 401), json({ detail: "a token is needed" }, 401), json(job("done")));
    expect((await followed()).at(-1)).toMatchObject({ state: "done" });
  });

  it("says so when the server does not know it any more", async () => {
    answers(stream(""), json({ detail: "there is no job `j1`" }, 404));
    await expect(followed()).rejects.toThrow("there is no job `j1`");
  });

  it("is left alone when the page goes elsewhere", async () => {
    const { follow } = await import("../src/data/follow");
    const abort = new AbortController();
    answers(stream(""), gone);
    const works: Work[] = [];
    const end = follow("j1", abort.signal, (work) => works.push(work), 60_000);
    await vi.waitFor(() => expect(works.at(-1)?.state).toBe("lost"));
    abort.abort();
    await expect(end).rejects.toMatchObject({ name: "AbortError" });
  });
});

describe("cancelling", () => {
  it("never deletes", async () => {
    const { cancelJob } = await import("../src/api/jobs");
    answers(json(job("cancelled")));
    expect(await cancelJob("j1")).toBe(true);
    expect(asked).toEqual(["POST api/jobs/j1/cancel"]);
  });

  it("of a job that has ended changes nothing and says so", async () => {
    const { cancelJob } = await import("../src/api/jobs");
    answers(json({ detail: "the job has ended" }, 409));
    expect(await cancelJob("j1")).toBe(false);
    expect(asked).toEqual(["POST api/jobs/j1/cancel"]);
  });

  it("passes other refusals on", async () => {
    const { cancelJob } = await import("../src/api/jobs");
    answers(json({ detail: "there is no job `j1`" }, 404));
    await expect(cancelJob("j1")).rejects.toThrow("there is no job");
  });
});

describe("forgetting", () => {
  it("removes the job", async () => {
    const { forgetJob } = await import("../src/api/jobs");
    answers(json(job("done")));
    await forgetJob("j1");
    expect(asked).toEqual(["DELETE api/jobs/j1"]);
  });
});

describe("the job to take up", () => {
  it("is the one that runs, else the one that comes next", async () => {
    const { activeOf } = await import("../src/data/jobs");
    const list = (...states: string[]) => states.map((state, index) => ({ ...job(state), id: String(index) })) as unknown as Parameters<typeof activeOf>[0];
    expect(activeOf(list("queued", "queued", "running", "done"))?.id).toBe("2");
    expect(activeOf(list("queued", "queued", "done"))?.id).toBe("1");
    expect(activeOf(list("done", "interrupted"))).toBeUndefined();
  });
});
