/** Points of a roofline, whatever they come from: operators, whole passes, pinned set-ups, measurements. */

import type { Picture } from "../api/picture";
import type { GemmEstimate, Operator } from "../api/types";
import { FAKE, type Measured } from "../data/measured";
import { bytes, digits, flops, micros, percent, prefixed, teraflops } from "../units/figure";
import { inTime } from "../units/rate";
import type { CardContent } from "./Card";
import { precisionColour } from "./colours";
import { radiusOf, type Kind } from "./glyphs";

export interface Mark {
  readonly key: string;
  /** Marks of one name light up together, here and in a table. */
  readonly name: string | null;
  readonly kind: Kind;
  readonly style: "operator" | "total" | "pin" | "pin-operator" | "measured" | "predicted";
  /** FLOP per byte, FLOP per second. */
  readonly x: number;
  readonly y: number;
  readonly radius: number;
  readonly colour: string | null;
  /** Rates in the ideal time, and at the ends of an interval. */
  readonly ideal: number | null;
  readonly low: number | null;
  readonly high: number | null;
  /** What stands beside it where there is room; the lower the rank, the sooner. */
  readonly label: string | null;
  readonly rank: number;
  readonly card: CardContent | null;
}

const TERA = 1e12;

function tera(value: number | null): number | null {
  return value === null ? null : value * TERA;
}

/** A picture's operators and their sum. */
export function pictureMarks(picture: Picture): readonly Mark[] {
  const { estimate, rates } = picture;
  const total: Mark = {
    key: "total",
    name: null,
    kind: "total",
    style: "total",
    x: estimate.ai,
    y: estimate.predicted_tflops * TERA,
    radius: 7,
    colour: null,
    ideal: rates.ideal * TERA,
    low: tera(rates.low),
    high: tera(rates.high),
    label: "whole pass",
    rank: 0,
    card: totalCard(picture),
  };
  return [...estimate.operators.map(operatorMark), total].filter(drawable);
}

function operatorMark(operator: Operator): Mark {
  return {
    key: `op:${operator.site}`,
    name: operator.site,
    kind: operator.class,
    style: "operator",
    x: operator.ai,
    y: operator.predicted_tflops * TERA,
    radius: radiusOf(operator.flops),
    colour: null,
    ideal: operator.ideal_tflops * TERA,
    low: null,
    high: null,
    label: operator.site,
    rank: 1 - operator.share,
    card: operatorCard(operator),
  };
}

/** A pinned set-up: small and pale, its sum a little larger. */
export function pinMarks(picture: Picture, label: string, colour: string): readonly Mark[] {
  const { estimate } = picture;
  const base = { name: null, colour, ideal: null, low: null, high: null, label: null, rank: 9 };
  return [
    ...estimate.operators.map((operator): Mark => ({ ...base, key: `${label}:${operator.site}`, kind: operator.class, style: "pin-operator", x: operator.ai, y: operator.predicted_tflops * TERA, radius: 3.5, card: null })),
    { ...base, key: `pin:${label}`, kind: "total" as const, style: "pin" as const, x: estimate.ai, y: estimate.predicted_tflops * TERA, radius: 6, card: totalCard(picture, label) },
  ].filter(drawable);
}

export function measuredMark(point: Measured): Mark {
  return {
    key: point.id,
    name: point.precision,
    kind: "gemm",
    style: "measured",
    x: point.ai,
    y: point.tflops * TERA,
    radius: 7.5,
    colour: precisionColour(point.precision),
    ideal: null,
    low: tera(point.tflops_low),
    high: tera(point.tflops_high),
    label: null,
    rank: 9,
    card: measuredCard(point),
  };
}

/** A predicted product, in the colour of its precision. */
export function gemmMark(estimate: GemmEstimate): Mark {
  const rate = (time: number | null) => tera(inTime(estimate.predicted_tflops, estimate.predicted_time_us, time));
  const rows: CardContent["rows"] = [
    ["time", micros(estimate.predicted_time_us)],
    ...interval(estimate.lo_us, estimate.hi_us),
    ["ideal", micros(estimate.ideal_time_us)],
    ["bound by", estimate.bottleneck],
    ["intensity", `${digits(estimate.ai, 3)} FLOP/B`],
    ["rate", teraflops(estimate.predicted_tflops)],
  ];
  return {
    key: `predicted:${estimate.precision}`,
    name: estimate.precision,
    kind: "gemm",
    style: "predicted",
    x: estimate.ai,
    y: estimate.predicted_tflops * TERA,
    radius: 5,
    colour: precisionColour(estimate.precision),
    ideal: rate(estimate.ideal_time_us),
    low: rate(estimate.hi_us),
    high: rate(estimate.lo_us),
    label: estimate.precision,
    rank: 1,
    card: card(`${estimate.precision} · predicted`, `${estimate.tier} tier`, rows),
  };
}

function drawable({ x, y }: Mark): boolean {
  return x > 0 && y > 0 && Number.isFinite(x) && Number.isFinite(y);
}

function interval(low: number | null, high: number | null): CardContent["rows"] {
  return low === null || high === null ? [] : [["range", `${micros(low, 3)} – ${micros(high, 3)}`]];
}

function operatorCard(operator: Operator): CardContent {
  return card(operator.count > 1 ? `${operator.site} ×${operator.count}` : operator.site, operator.class, [
    ["time", `${micros(operator.predicted_time_us)} · ${percent(operator.share)}`],
    ...interval(operator.lo_us, operator.hi_us),
    ["ideal", micros(operator.ideal_time_us)],
    ["bound by", operator.bottleneck],
    ["intensity", `${digits(operator.ai, 3)} FLOP/B`],
    ["rate", teraflops(operator.predicted_tflops)],
    ["work", flops(operator.flops)],
    ["moved", bytes(operator.bytes)],
    ["unit", operator.math.toUpperCase()],
  ]);
}

function totalCard(picture: Picture, label?: string): CardContent {
  const { estimate } = picture;
  return card(label ?? `${estimate.phase}, whole pass`, `${picture.modelName} · ${estimate.precision} · ${picture.device.name}`, [
    ["time", micros(estimate.predicted_time_us)],
    ...interval(estimate.lo_us, estimate.hi_us),
    ["ideal", micros(estimate.ideal_time_us)],
    ["bound by", estimate.bottleneck],
    ["intensity", `${digits(estimate.ai, 3)} FLOP/B`],
    ["rate", teraflops(estimate.predicted_tflops)],
    ["tokens/s", digits(estimate.tokens_per_s, 4)],
  ]);
}

function measuredCard(point: Measured): CardContent {
  return card(`${point.label} · ${point.warnings.includes(FAKE) ? "fake" : "measured"}`, [point.precision, ...point.warnings].join(" · "), [
    ["time", micros(point.time_us)],
    ...(point.p5_us && point.p95_us ? ([["spread", `${micros(point.p5_us, 3)} – ${micros(point.p95_us, 3)}`]] as const) : []),
    ["intensity", `${digits(point.ai, 3)} FLOP/B`],
    ["rate", teraflops(point.tflops)],
    ...(point.gb_s ? ([["bandwidth", prefixed(point.gb_s * 1e9, "B/s", 3)]] as const) : []),
    ...(point.kernel_path ? ([["path", point.kernel_path]] as const) : []),
  ]);
}

function card(title: string, note: string, rows: CardContent["rows"]): CardContent {
  return { title, note, rows, spoken: `${title}: ${rows.map(([name, value]) => `${name} ${value}`).join(", ")}` };
}
