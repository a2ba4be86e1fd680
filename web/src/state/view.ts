/** Everything the page can show, as one value. The address carries it, so that a link shows the same view. */

export const TABS = ["roofline", "kernel", "benchmark", "recommend", "formats", "compare", "gpu"] as const;
export type Tab = (typeof TABS)[number];

export type Phase = "prefill" | "decode";
export const GOALS = ["latency", "throughput", "memory", "energy", "cost"] as const;
export type Goal = (typeof GOALS)[number];

/** A device, with rates of one's own where sliders were moved. */
export interface Machine {
  readonly on: string;
  /** GB/s; the preset's when null. */
  readonly bandwidth: number | null;
  /** TFLOP/s per math unit, where they differ from the preset. */
  readonly peaks: Readonly<Record<string, number>>;
}

/** What runs where: one point of comparison. */
export interface Setup extends Machine {
  readonly model: string;
  readonly precision: string;
  readonly phase: Phase;
  readonly context: number;
  readonly batch: number;
}

/** How far the plot is zoomed, as shares of its size: the same at every width. */
export interface Zoom {
  readonly k: number;
  readonly x: number;
  readonly y: number;
}

export interface Shape {
  readonly m: number;
  readonly n: number;
  readonly k: number;
}

export interface Limits {
  readonly goal: Goal;
  readonly loss: string;
  readonly rate: string;
  readonly first: string;
  readonly memory: string;
  /** What all weights may take. */
  readonly weights: string;
  /** The same, as bits for each of them. */
  readonly bits: string;
  /** Dollars an hour, for the goal `cost`. */
  readonly price: string;
  /** A runtime that has to load it; any when empty. */
  readonly runtime: string;
  readonly native: boolean;
  /** Plans of unknown or poor quality compete, too. */
  readonly any: boolean;
}

export interface View {
  readonly tab: Tab;
  readonly setup: Setup;
  readonly pins: readonly Setup[];
  readonly band: boolean;
  readonly tier: "best" | "ideal";
  readonly zoom: Zoom;
  readonly sort: string;
  readonly find: string;
  readonly kernel: Shape & { readonly precision: string; readonly all: boolean };
  readonly kernelZoom: Zoom;
  readonly backend: string;
  readonly shapes: readonly string[];
  readonly precisions: readonly string[];
  readonly limits: Limits;
  /** The order of the plans, as ranked when empty, and whether all of them are seen. */
  readonly plans: { readonly sort: string; readonly all: boolean };
  readonly format: string;
  /** The order of the formats, as the server tells them when empty. */
  readonly formats: string;
  /** The order of imported measurements, as read when empty. */
  readonly compared: string;
}

export const CONTEXT = { low: 32, high: 131_072 } as const;
export const BATCH = { low: 1, high: 512 } as const;
export const MOST_PINS = 4;
export const STILL: Zoom = { k: 1, x: 0, y: 0 };

export const FIRST: View = {
  tab: "roofline",
  setup: { on: "h200_sxm", bandwidth: null, peaks: {}, model: "llama-3-8b", precision: "bf16", phase: "decode", context: 4096, batch: 1 },
  pins: [],
  band: true,
  tier: "best",
  zoom: STILL,
  sort: "-time",
  find: "",
  kernel: { m: 4096, n: 4096, k: 4096, precision: "bf16", all: false },
  kernelZoom: STILL,
  backend: "",
  shapes: ["decode", "prefill", "square"],
  precisions: ["fp16", "fp8", "nvfp4", "int8"],
  limits: { goal: "latency", loss: "", rate: "", first: "", memory: "", weights: "", bits: "", price: "", runtime: "", native: false, any: false },
  plans: { sort: "", all: false },
  format: "nvfp4",
  formats: "",
  compared: "",
};

/** Whether sliders have made the device another one. */
export function isCustom(machine: Machine): boolean {
  return machine.bandwidth !== null || Object.keys(machine.peaks).length > 0;
}

/** A set-up in a few letters, for a pin: `h200_s·w4a16·d4096`. */
export function pinLabel(setup: Setup): string {
  const device = isCustom(setup) ? "custom" : setup.on.slice(0, 6);
  const batch = setup.batch > 1 ? `×${setup.batch}` : "";
  return `${device}·${setup.precision.slice(0, 10)}·${setup.phase[0] ?? ""}${setup.context}${batch}`;
}
