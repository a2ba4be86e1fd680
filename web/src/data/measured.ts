/** Points that were measured here or imported: kept in this browser until they are cleared. */

import { useSyncExternalStore } from "react";
import type { Comparison, Doubt, Measurement } from "../api/types";
import { inTime } from "../units/rate";

export interface Measured {
  readonly id: string;
  readonly label: string;
  readonly device: string;
  readonly precision: string;
  readonly ai: number;
  readonly tflops: number;
  readonly time_us: number;
  readonly tflops_low: number | null;
  readonly tflops_high: number | null;
  readonly p5_us: number | null;
  readonly p95_us: number | null;
  readonly gb_s: number | null;
  readonly kernel_path: string | null;
  readonly warnings: readonly string[];
}

export const FAKE = "fake time of the null backend";

/** What the server measured, or was told, as a point. */
export function measuredOf(device: string, found: Measurement | Comparison, backend: string | null): Measured {
  const rate = (time: number | null) => inTime(found.measured_tflops, found.measured_time_us, time);
  return {
    id: [device, found.shape, found.precision, found.kernel_path ?? ""].join("|"),
    label: found.shape,
    device,
    precision: found.precision,
    ai: found.ai,
    tflops: found.measured_tflops,
    time_us: found.measured_time_us,
    tflops_low: rate(found.p95_us),
    tflops_high: rate(found.p5_us),
    p5_us: found.p5_us,
    p95_us: found.p95_us,
    gb_s: found.measured_bandwidth_gb_s,
    kernel_path: found.kernel_path,
    warnings: [...(backend === "null" ? [FAKE] : []), ...found.warnings.map(doubtText)],
  };
}

/** A doubt in words: `above_roofline` as "above roofline". */
export function doubtText(doubt: Doubt): string {
  return "text" in doubt ? doubt.text : doubt.kind.replaceAll("_", " ");
}

const KEY = "roofline.measured";
const MOST = 500;
const listeners = new Set<() => void>();
let points: readonly Measured[] = load();

function load(): readonly Measured[] {
  try {
    const kept: unknown = JSON.parse(window.localStorage.getItem(KEY) ?? "[]");
    return Array.isArray(kept) ? kept.filter(isMeasured) : [];
  } catch {
    return [];
  }
}

function isMeasured(value: unknown): value is Measured {
  const point = value as Partial<Measured> | null;
  return typeof point === "object" && point !== null && typeof point.id === "string" && typeof point.ai === "number" && typeof point.tflops === "number" && Array.isArray(point.warnings);
}

function keep(next: readonly Measured[]): void {
  points = next;
  try {
    window.localStorage.setItem(KEY, JSON.stringify(points));
  } catch {
    // a full or forbidden store loses the points with the tab, nothing else
  }
  for (const listener of listeners) listener();
}

/** A point of the same kernel on the same device replaces the older one. */
export function addMeasured(added: readonly Measured[]): void {
  const ids = new Set(added.map((point) => point.id));
  keep([...points.filter((point) => !ids.has(point.id)), ...added].slice(-MOST));
}

export function clearMeasured(device?: string): void {
  keep(device === undefined ? [] : points.filter((point) => point.device !== device));
}

export function useMeasured(): readonly Measured[] {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => points,
  );
}
