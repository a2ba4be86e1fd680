/** The view as a query string and back. What is as at first is left out; what is wrong is ignored, never fatal. */

import { BATCH, CONTEXT, FIRST, GOALS, MOST_PINS, STILL, TABS, type Setup, type Shape, type View, type Zoom } from "./view";

const NAME = /^[\w@.:/+-]{1,120}$/;

export function toQuery(view: View): string {
  const query = new URLSearchParams();
  const put = (key: string, value: string, first: string) => {
    if (value !== first) query.append(key, value);
  };
  put("tab", view.tab, FIRST.tab);
  const { setup } = view;
  put("on", setup.on, FIRST.setup.on);
  if (setup.bandwidth !== null) query.append("bw", String(setup.bandwidth));
  const peaks = writePeaks(setup.peaks);
  if (peaks) query.append("peak", peaks);
  put("model", setup.model, FIRST.setup.model);
  put("p", setup.precision, FIRST.setup.precision);
  put("phase", setup.phase, FIRST.setup.phase);
  put("ctx", String(setup.context), String(FIRST.setup.context));
  put("batch", String(setup.batch), String(FIRST.setup.batch));
  for (const pin of view.pins) query.append("pin", writeSetup(pin));
  put("band", view.band ? "1" : "0", "1");
  put("tier", view.tier, FIRST.tier);
  put("zoom", writeZoom(view.zoom), writeZoom(STILL));
  put("sort", view.sort, FIRST.sort);
  put("find", view.find, "");
  put("gemm", writeShape(view.kernel), writeShape(FIRST.kernel));
  put("kp", view.kernel.precision, FIRST.kernel.precision);
  put("all", view.kernel.all ? "1" : "0", "0");
  put("kzoom", writeZoom(view.kernelZoom), writeZoom(STILL));
  put("backend", view.backend, "");
  put("shapes", view.shapes.join(","), FIRST.shapes.join(","));
  put("bp", view.precisions.join(","), FIRST.precisions.join(","));
  put("goal", view.limits.goal, FIRST.limits.goal);
  put("loss", view.limits.loss, "");
  put("rate", view.limits.rate, "");
  put("ttft", view.limits.first, "");
  put("mem", view.limits.memory, "");
  put("weights", view.limits.weights, "");
  put("bits", view.limits.bits, "");
  put("price", view.limits.price, "");
  put("runtime", view.limits.runtime, "");
  put("native", view.limits.native ? "1" : "0", "0");
  put("any", view.limits.any ? "1" : "0", "0");
  put("psort", view.plans.sort, "");
  put("plans", view.plans.all ? "all" : "", "");
  put("format", view.format, FIRST.format);
  put("fsort", view.formats, "");
  put("csort", view.compared, "");
  // commas, slashes and colons are legible and legal in a query
  const text = query.toString().replace(/%2C/g, ",").replace(/%2F/g, "/").replace(/%3A/g, ":").replace(/%40/g, "@");
  return text ? `?${text}` : "";
}

export function fromQuery(text: string): View {
  const query = new URLSearchParams(text);
  const name = (key: string, first: string) => named(query.get(key)) ?? first;
  const words = (key: string, first: readonly string[]) => {
    const value = query.get(key);
    return value === null ? first : value.split(",").filter((word) => NAME.test(word));
  };
  const free = (key: string) => (query.get(key) ?? "").slice(0, 60);
  const setup: Setup = {
    on: name("on", FIRST.setup.on),
    bandwidth: positive(query.get("bw")),
    peaks: readPeaks(query.get("peak") ?? ""),
    model: name("model", FIRST.setup.model),
    precision: name("p", FIRST.setup.precision),
    phase: query.get("phase") === "prefill" ? "prefill" : "decode",
    context: whole(query.get("ctx"), CONTEXT.low, CONTEXT.high, FIRST.setup.context),
    batch: whole(query.get("batch"), BATCH.low, BATCH.high, FIRST.setup.batch),
  };
  const order = (key: string, first: string) => (/^-?[a-z]+$/.test(query.get(key) ?? "") ? query.get(key)! : first);
  const goal = query.get("goal");
  return {
    tab: TABS.find((tab) => tab === query.get("tab")) ?? FIRST.tab,
    setup,
    pins: query.getAll("pin").map(readSetup).filter((pin) => pin !== null).slice(0, MOST_PINS),
    band: query.get("band") !== "0",
    tier: query.get("tier") === "ideal" ? "ideal" : "best",
    zoom: readZoom(query.get("zoom")),
    sort: order("sort", FIRST.sort),
    find: free("find"),
    kernel: {
      ...(readShape(query.get("gemm") ?? "") ?? { m: FIRST.kernel.m, n: FIRST.kernel.n, k: FIRST.kernel.k }),
      precision: name("kp", FIRST.kernel.precision),
      all: query.get("all") === "1",
    },
    kernelZoom: readZoom(query.get("kzoom")),
    backend: named(query.get("backend")) ?? "",
    shapes: words("shapes", FIRST.shapes),
    precisions: words("bp", FIRST.precisions),
    limits: {
      goal: GOALS.find((known) => known === goal) ?? "latency",
      loss: free("loss"),
      rate: free("rate"),
      first: free("ttft"),
      memory: free("mem"),
      weights: free("weights"),
      bits: free("bits"),
      price: free("price"),
      runtime: named(query.get("runtime")) ?? "",
      native: query.get("native") === "1",
      any: query.get("any") === "1",
    },
    plans: { sort: order("psort", ""), all: query.get("plans") === "all" },
    format: name("format", FIRST.format),
    formats: order("fsort", ""),
    compared: order("csort", ""),
  };
}

/** A pin in one word: `h200_sxm~bw=6000~fp8=3000~llama-3-8b~w4a16~decode~4096~1`. */
export function writeSetup(setup: Setup): string {
  const rates = [...(setup.bandwidth === null ? [] : [`bw=${setup.bandwidth}`]), ...Object.entries(setup.peaks).map(([unit, peak]) => `${unit}=${peak}`)];
  return [setup.on, ...rates, setup.model, setup.precision, setup.phase, setup.context, setup.batch].join("~");
}

export function readSetup(text: string): Setup | null {
  const parts = text.split("~");
  const rates = parts.filter((part) => part.includes("="));
  const [on, model, precision, phase, context, batch, ...rest] = parts.filter((part) => !part.includes("="));
  if (rest.length > 0 || batch === undefined || named(on) === null || named(model) === null || named(precision) === null) return null;
  if (phase !== "prefill" && phase !== "decode") return null;
  let bandwidth: number | null = null;
  const peaks: Record<string, number> = {};
  for (const rate of rates) {
    const [unit = "", value = ""] = rate.split("=");
    const number = positive(value);
    if (number === null || !/^\w+$/.test(unit)) return null;
    if (unit === "bw") bandwidth = number;
    else peaks[unit] = number;
  }
  return {
    on: on!,
    bandwidth,
    peaks,
    model: model!,
    precision: precision!,
    phase,
    context: whole(context ?? null, CONTEXT.low, CONTEXT.high, FIRST.setup.context),
    batch: whole(batch, BATCH.low, BATCH.high, FIRST.setup.batch),
  };
}

export function writeShape(shape: Shape): string {
  return `${shape.m}x${shape.n}x${shape.k}`;
}

export function readShape(text: string): Shape | null {
  const found = /^(\d{1,9})x(\d{1,9})x(\d{1,9})$/.exec(text);
  if (!found) return null;
  const [m, n, k] = found.slice(1).map(Number) as [number, number, number];
  return m > 0 && n > 0 && k > 0 ? { m, n, k } : null;
}

function writePeaks(peaks: Readonly<Record<string, number>>): string {
  return Object.entries(peaks).map(([unit, peak]) => `${unit}:${peak}`).join(",");
}

function readPeaks(text: string): Record<string, number> {
  const peaks: Record<string, number> = {};
  for (const part of text.split(",")) {
    const [unit = "", value = ""] = part.split(":");
    const peak = positive(value);
    if (/^\w+$/.test(unit) && peak !== null) peaks[unit] = peak;
  }
  return peaks;
}

function writeZoom(zoom: Zoom): string {
  return [zoom.k, zoom.x, zoom.y].map((part) => Number(part.toFixed(4))).join(",");
}

function readZoom(text: string | null): Zoom {
  const [k, x, y] = (text ?? "").split(",").map(Number);
  const sound = k !== undefined && x !== undefined && y !== undefined && [k, x, y].every(Number.isFinite) && k >= 0.5 && k <= 64 && Math.abs(x) <= 64 && Math.abs(y) <= 64;
  return sound ? { k, x, y } : STILL;
}

function named(text: string | null | undefined): string | null {
  return text && NAME.test(text) ? text : null;
}

function positive(text: string | null): number | null {
  const number = text === null || text === "" ? NaN : Number(text);
  return Number.isFinite(number) && number > 0 ? number : null;
}

function whole(text: string | null, low: number, high: number, first: number): number {
  const number = text === null || text === "" ? NaN : Number(text);
  return Number.isFinite(number) ? Math.min(high, Math.max(low, Math.round(number))) : first;
}
