/** One function per question; the only place that knows the server's routes. */

import { Refusal } from "./client";
import { pictureOf, roofOf, type Picture, type Roof } from "./picture";
import { get, post, upload, type Body } from "./routes";
import type { Chart, Device, FormatList, GemmAnswer, GemmEstimate, GemmPrediction, Health, Model, ModelAnswer, ModelPrediction, Precision, Sweep, SweepRow, Traced, Validation } from "./types";
import type { Row } from "../state/import";
import type { Limits, Machine, Setup, Shape } from "../state/view";

type Signal = AbortSignal | undefined;

type Predict<S extends Body<"/api/roofline">["subject"]> = Extract<Body<"/api/roofline">, { readonly subject: S }>;
type Recommend<S extends "gemm" | "model"> = Extract<Body<"/api/recommend">, { readonly subject: S }>;

export function health(signal?: Signal): Promise<Health> {
  return get("/api/health", { signal });
}

export async function devices(signal?: Signal): Promise<readonly Device[]> {
  return (await get("/api/devices", { signal })).devices;
}

export async function models(signal?: Signal): Promise<readonly Model[]> {
  return (await get("/api/models", { signal })).models;
}

export async function precisions(on: string, signal?: Signal): Promise<readonly Precision[]> {
  return (await get("/api/precisions", { query: { on }, signal })).precisions;
}

/** The device as every verb takes it: a key, and rates of one's own beside it. */
export function machineFields(machine: Machine) {
  return {
    on: machine.on,
    bandwidth: machine.bandwidth === null ? null : `${machine.bandwidth}GB/s`,
    peak: Object.fromEntries(Object.entries(machine.peaks).map(([unit, peak]) => [unit, `${peak}TFLOP/s`])),
  } satisfies Pick<Predict<"model">, "on" | "bandwidth" | "peak">;
}

export interface PictureQuestion {
  readonly setup: Setup;
  readonly ideal: boolean;
}

export async function picture({ setup, ideal }: PictureQuestion, signal?: Signal): Promise<Picture> {
  const body: Predict<"model"> = {
    subject: "model",
    ...machineFields(setup),
    model: setup.model,
    precision: [setup.precision],
    phase: setup.phase,
    context: setup.context,
    batch: setup.batch,
    tier: ideal ? "ideal" : null,
  };
  const chart = await post<"/api/roofline", Chart<ModelPrediction>>("/api/roofline", body, { signal });
  const found = pictureOf(chart);
  if (!found) throw unavailable(chart.prediction);
  return found;
}

/** Why there is no estimate, as the server says it. */
export function unavailable({ unavailable: [first] }: Pick<ModelPrediction, "unavailable">): Refusal {
  return new Refusal(422, first?.error ?? "the device cannot multiply in this precision", first?.hint ?? null);
}

export interface RecommendQuestion {
  readonly setup: Setup;
  readonly limits: Limits;
  readonly ideal: boolean;
}

export function recommendModel({ setup, limits, ideal }: RecommendQuestion, signal?: Signal): Promise<ModelAnswer> {
  const body: Recommend<"model"> = {
    subject: "model",
    ...machineFields(setup),
    model: setup.model,
    phase: setup.phase,
    context: setup.context,
    batch: setup.batch,
    goal: limits.goal,
    ...limitFields(limits),
    runtime: limits.runtime === "" ? [] : [limits.runtime],
    native_only: limits.native,
    any_quality: limits.any,
    tier: ideal ? "ideal" : null,
  };
  return post<"/api/recommend", ModelAnswer>("/api/recommend", body, { signal });
}

/** A limit by the field that carries it. */
export const LIMIT_FIELDS = { max_quality_loss: "loss", min_tokens_per_s: "rate", max_ttft: "first", memory_limit: "memory", target_size: "weights", target_bits: "bits", price: "price" } as const satisfies Partial<Record<keyof Recommend<"model">, keyof Limits>>;
type LimitField = keyof typeof LIMIT_FIELDS;
export type LimitKey = (typeof LIMIT_FIELDS)[LimitField];
const NUMBERS: readonly string[] = ["min_tokens_per_s", "target_bits", "price"] satisfies readonly LimitField[];

/** What was typed; a number that is none goes as it is, for the server to refuse: a limit that is dropped would seem to be kept. */
export function limitFields(limits: Pick<Limits, LimitKey>): Pick<Recommend<"model">, LimitField> {
  const fields: Record<string, string | number> = {};
  for (const [field, key] of Object.entries(LIMIT_FIELDS)) {
    const text = limits[key].trim();
    if (text !== "") fields[field] = NUMBERS.includes(field) && Number.isFinite(Number(text)) ? Number(text) : text;
  }
  return fields;
}

/** The limit that a refusal is about: the server names the field first. */
export function refusedLimit(error: Error | null): LimitKey | null {
  const field = error instanceof Refusal ? /^`(\w+)`/.exec(error.message)?.[1] : undefined;
  return LIMIT_FIELDS[field as keyof typeof LIMIT_FIELDS] ?? null;
}

export interface GemmQuestion {
  readonly machine: Machine;
  readonly shape: Shape;
  readonly precision: readonly string[];
}

/** A product in several precisions, under the roof of a device. */
export interface GemmPicture extends Roof {
  readonly estimates: readonly GemmEstimate[];
}

export async function gemm({ machine, shape, precision }: GemmQuestion, signal?: Signal): Promise<GemmPicture> {
  const body: Predict<"gemm"> = { subject: "gemm", ...machineFields(machine), ...sides(shape), precision };
  const chart = await post<"/api/roofline", Chart<GemmPrediction>>("/api/roofline", body, { signal });
  return { ...roofOf(chart), estimates: chart.prediction.estimates };
}

export function recommendGemm({ machine, shape }: Omit<GemmQuestion, "precision">, signal?: Signal): Promise<GemmAnswer> {
  const body: Recommend<"gemm"> = { subject: "gemm", ...machineFields(machine), ...sides(shape) };
  return post<"/api/recommend", GemmAnswer>("/api/recommend", body, { signal });
}

function sides({ m, n, k }: Shape): Shape {
  return { m, n, k };
}

export function formats(signal?: Signal): Promise<FormatList> {
  return get("/api/formats", { signal });
}

/** What the same set-up would do on a chip with more or less of everything. */
export async function sensitivity(setup: Setup, signal?: Signal): Promise<readonly SweepRow[]> {
  const body: Body<"/api/sweep"> = {
    ...machineFields(setup),
    models: [setup.model],
    precision: [setup.precision],
    phase: setup.phase,
    batch: setup.batch,
    context: setup.context,
    scale_bandwidth: [0.5, 1, 2],
    scale_compute: [0.5, 1, 2],
  };
  return (await post<"/api/sweep", Sweep>("/api/sweep", body, { signal })).points;
}

export interface CompareQuestion {
  readonly on: string;
  readonly rows: readonly Row[];
}

/** Measurements made elsewhere, held against the predictions for a device. */
export function validate({ on, rows }: CompareQuestion, signal?: Signal): Promise<Validation> {
  const benchmarks = rows.map(({ m, n, k, precision, time_us }) => ({ kernel_type: "gemm", shape: [m, n, k], precision, measured_time_us: time_us }));
  return post("/api/validate", { hardware_key: on, tier: null, benchmarks }, { signal });
}

export interface TraceQuestion {
  readonly file: File;
  /** Which choice of a file it was: two may have the same name. */
  readonly choice: number;
  /** The device it was made on; empty for the one that the trace names. */
  readonly on: string;
}

/** What a profiler recorded, operator by operator. */
export function trace({ file, on }: TraceQuestion, signal?: Signal): Promise<Traced> {
  return upload("/api/trace", file, { query: { name: file.name, ...(on === "" ? {} : { on }) }, signal });
}
