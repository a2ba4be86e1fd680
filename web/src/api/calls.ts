/** One function per question; the only place that knows the server's routes. */

import { ask, Refusal, send } from "./client";
import { pictureOf, roofOf, type Picture, type Roof } from "./picture";
import type { Chart, Device, FormatList, GemmAnswer, GemmEstimate, GemmEstimates, Health, Model, ModelAnswer, ModelPrediction, Precision, SweepRow, Validation } from "./types";
import type { Row } from "../state/import";
import type { Limits, Machine, Setup, Shape } from "../state/view";

type Signal = AbortSignal | undefined;

export function health(signal?: Signal): Promise<Health> {
  return ask<Health>("api/health", { signal });
}

export async function devices(signal?: Signal): Promise<readonly Device[]> {
  return (await ask<{ devices: Device[] }>("api/devices", { signal })).devices;
}

export async function models(signal?: Signal): Promise<readonly Model[]> {
  return (await ask<{ models: Model[] }>("api/models", { signal })).models;
}

export async function precisions(on: string, signal?: Signal): Promise<readonly Precision[]> {
  return (await ask<{ precisions: Precision[] }>(`api/precisions?on=${encodeURIComponent(on)}`, { signal })).precisions;
}

/** The device as the command line takes it: a key, and rates of one's own beside it. */
export function machineFields(machine: Machine): Record<string, unknown> {
  return {
    on: machine.on,
    ...(machine.bandwidth === null ? {} : { bandwidth: `${machine.bandwidth}GB/s` }),
    ...(Object.keys(machine.peaks).length === 0 ? {} : { peak: Object.fromEntries(Object.entries(machine.peaks).map(([unit, peak]) => [unit, `${peak}TFLOP/s`])) }),
  };
}

export interface PictureQuestion {
  readonly setup: Setup;
  readonly ideal: boolean;
}

export async function picture({ setup, ideal }: PictureQuestion, signal?: Signal): Promise<Picture> {
  const chart = await ask<Chart<ModelPrediction>>("api/roofline", {
    signal,
    body: {
      subject: "model",
      ...machineFields(setup),
      model: setup.model,
      precision: [setup.precision],
      phase: setup.phase,
      context: setup.context,
      batch: setup.batch,
      ...(ideal ? { tier: "ideal" } : {}),
    },
  });
  const found = pictureOf(chart);
  if (!found) throw new Refusal(422, unavailable(chart), null);
  return found;
}

function unavailable(chart: Chart<ModelPrediction>): string {
  const [first] = chart.prediction.unavailable as readonly { readonly reason?: string; readonly message?: string }[];
  return first?.reason ?? first?.message ?? "the device cannot multiply in this precision";
}

export interface RecommendQuestion {
  readonly setup: Setup;
  readonly limits: Limits;
  readonly ideal: boolean;
}

export function recommendModel({ setup, limits, ideal }: RecommendQuestion, signal?: Signal): Promise<ModelAnswer> {
  return ask<ModelAnswer>("api/recommend", {
    signal,
    body: {
      subject: "model",
      ...machineFields(setup),
      model: setup.model,
      phase: setup.phase,
      context: setup.context,
      batch: setup.batch,
      goal: limits.goal,
      all: true,
      ...limitFields(limits),
      ...(limits.runtime ? { runtime: [limits.runtime] } : {}),
      ...(limits.native ? { native_only: true } : {}),
      ...(limits.any ? { any_quality: true } : {}),
      ...(ideal ? { tier: "ideal" } : {}),
    },
  });
}

/** A limit by the field that carries it. */
export const LIMIT_FIELDS = { max_quality_loss: "loss", min_tokens_per_s: "rate", max_ttft: "first", memory_limit: "memory", price: "price" } as const;
export type LimitKey = (typeof LIMIT_FIELDS)[keyof typeof LIMIT_FIELDS];
const NUMBERS: readonly string[] = ["min_tokens_per_s", "price"];

/** What was typed; a number that is none goes as it is, for the server to refuse: a limit that is dropped would seem to be kept. */
export function limitFields(limits: Pick<Limits, LimitKey>): Record<string, string | number> {
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
  const chart = await ask<Chart<GemmEstimates>>("api/roofline", { signal, body: { subject: "gemm", ...machineFields(machine), ...sides(shape), precision } });
  return { ...roofOf(chart), estimates: chart.prediction.estimates };
}

export function recommendGemm({ machine, shape }: Omit<GemmQuestion, "precision">, signal?: Signal): Promise<GemmAnswer> {
  return ask<GemmAnswer>("api/recommend", { signal, body: { subject: "gemm", ...machineFields(machine), ...sides(shape) } });
}

function sides({ m, n, k }: Shape): Shape {
  return { m, n, k };
}

export function formats(signal?: Signal): Promise<FormatList> {
  return ask<FormatList>("api/formats", { signal });
}

/** What the same set-up would do on a chip with more or less of everything. */
export async function sensitivity(setup: Setup, signal?: Signal): Promise<readonly SweepRow[]> {
  const response = await send("api/sweep", {
    signal,
    body: {
      ...machineFields(setup),
      models: [setup.model],
      precision: [setup.precision],
      phase: setup.phase,
      batch: String(setup.batch),
      context: String(setup.context),
      scale_bandwidth: [0.5, 1, 2],
      scale_compute: [0.5, 1, 2],
    },
  });
  return rowsOf(await response.text());
}

/** Rows as lines of JSON, as a list, or as a list under a name. */
export function rowsOf(text: string): readonly SweepRow[] {
  const trimmed = text.trim();
  if (trimmed.startsWith("[")) return JSON.parse(trimmed) as SweepRow[];
  const lines = trimmed.split("\n");
  if (lines.length > 1 && lines.every((line) => line.startsWith("{") && line.endsWith("}"))) return lines.map((line) => JSON.parse(line) as SweepRow);
  const single = JSON.parse(trimmed) as { points?: SweepRow[]; rows?: SweepRow[] } & SweepRow;
  return single.points ?? single.rows ?? [single];
}

export interface CompareQuestion {
  readonly on: string;
  readonly rows: readonly Row[];
}

/** Measurements made elsewhere, held against the predictions for a device. */
export function validate({ on, rows }: CompareQuestion, signal?: Signal): Promise<Validation> {
  const benchmarks = rows.map(({ m, n, k, precision, time_us }) => ({ kernel_type: "gemm", shape: [m, n, k], precision, measured_time_us: time_us }));
  return ask<Validation>("api/validate", { signal, body: { hardware_key: on, benchmarks } });
}
