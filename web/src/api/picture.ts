/** A chart as the plot wants it: equal ceilings together, one estimate, rates at the ends of intervals. */

import { inTime } from "../units/rate";
import type { Chart, Estimate, ModelPrediction } from "./types";

export interface Ceiling {
  /** The labels of the units that share it: `FP16, BF16`. */
  readonly label: string;
  readonly units: readonly string[];
  readonly flops: number;
  readonly ridge: number;
  readonly low: number | null;
  readonly high: number | null;
}

export interface Memory {
  readonly label: string;
  readonly source: string;
  readonly rate: number;
  readonly low: number | null;
  readonly high: number | null;
}

export interface Picture {
  readonly device: Chart["device"];
  readonly model: string;
  readonly modelName: string;
  readonly parameters: number;
  /** Tokens that the model was made for. */
  readonly maxContext: number | null;
  readonly ceilings: readonly Ceiling[];
  readonly memories: readonly Memory[];
  readonly estimate: Estimate;
  /** TFLOP/s of the whole pass in its ideal time, and at the ends of its interval. */
  readonly rates: { readonly ideal: number; readonly low: number | null; readonly high: number | null };
}

export function pictureOf(chart: Chart<ModelPrediction>): Picture | null {
  const estimate = chart.prediction.estimates[0];
  if (!estimate) return null;
  const rate = (time: number | null) => inTime(estimate.predicted_tflops, estimate.predicted_time_us, time);
  return {
    device: chart.device,
    model: chart.prediction.model,
    modelName: chart.prediction.model_name,
    parameters: chart.prediction.parameters,
    maxContext: chart.prediction.max_context,
    ceilings: together(chart.ceilings),
    memories: slopes(chart.memories),
    estimate,
    rates: { ideal: rate(estimate.ideal_time_us) ?? estimate.predicted_tflops, low: rate(estimate.hi_us), high: rate(estimate.lo_us) },
  };
}

/** The lines above any work: what a device can do. */
export interface Roof {
  readonly device: Chart["device"];
  readonly ceilings: readonly Ceiling[];
  readonly memories: readonly Memory[];
}

export function roofOf(chart: Chart): Roof {
  return { device: chart.device, ceilings: together(chart.ceilings), memories: slopes(chart.memories) };
}

function slopes(memories: Chart["memories"]): readonly Memory[] {
  return memories.map(({ label, source, bytes_per_s: rate, lo_bytes_per_s: low, hi_bytes_per_s: high }) => ({ label, source, rate, low, high }));
}

function together(ceilings: Chart["ceilings"]): readonly Ceiling[] {
  const found: Ceiling[] = [];
  for (const { math, label, flop_per_s: flops, critical_ai: ridge, lo_flop_per_s: low, hi_flop_per_s: high } of ceilings) {
    const at = found.findIndex((other) => other.flops === flops);
    const before = found[at];
    if (before) found[at] = { ...before, label: `${before.label}, ${label}`, units: [...before.units, math], low: least(before.low, low), high: before.high ?? high };
    else found.push({ label, units: [math], flops, ridge, low, high });
  }
  return found;
}

function least(a: number | null, b: number | null): number | null {
  return a === null ? b : b === null ? a : Math.min(a, b);
}
