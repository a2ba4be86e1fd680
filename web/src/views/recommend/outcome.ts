/** A plan in words and as a point. */

import type { Outcome, Quality } from "../../api/types";
import { precisionColour } from "../../plot/colours";
import type { Dot } from "../../plot/Scatter";
import { bytes, digits, prefixed, seconds, times } from "../../units/figure";

export function energyOf(plan: Outcome): string {
  if (!plan.energy_per_token) return "–";
  const { kind, joules } = plan.energy_per_token;
  return `${kind === "at_limit" ? "≤ " : ""}${prefixed(joules, "J", 3)}`;
}

export function dotOf(plan: Outcome): Dot {
  const { quality } = plan;
  const rows = [
    ["time", seconds(plan.time)],
    ["speed-up", times(plan.gain)],
    ["memory", bytes(plan.memory.total)],
    ["perplexity", lossOf(plan)],
  ] as const;
  const interval = quality.kind === "estimated" || quality.kind === "measured" ? quality : null;
  const alone = plan.cache_quality === null ? interval : null;
  return {
    key: keyOf(plan),
    x: plan.time,
    y: plan.loss!,
    low: alone?.low ?? null,
    high: alone?.high ?? null,
    colour: plan.refused ? "var(--line-strong)" : precisionColour(inner(plan)),
    label: plan.pareto ? plan.plan : null,
    filled: plan.pareto,
    card: { title: named(plan), note: plan.refused ? `refused: ${plan.refused}` : knownAs(plan), rows, spoken: `${named(plan)}: ${rows.map((row) => row.join(" ")).join(", ")}` },
  };
}

/** A plan with what sets it apart from the same on other devices. */
export function named(plan: Outcome): string {
  const host = plan.offload ? `, ${plan.offload.layers} of ${plan.offload.of} layers on the host` : "";
  return `${plan.plan}${plan.tp > 1 ? ` on ${plan.tp} devices` : ""}${host}`;
}

export function keyOf(plan: Outcome): string {
  return named(plan);
}

/** What most weights are in: the rule for the feed-forward part, or what the plan begins with. */
export function inner(plan: Outcome): string {
  return /(?:ffn|experts)=([^,]+)/.exec(plan.plan)?.[1] ?? plan.plan.split(",")[0] ?? plan.plan;
}

export function knownAs(plan: Outcome): string {
  return Object.entries(plan.known_as).map(([runtime, name]) => `${name} in ${runtime}`).join(", ");
}

export function lossOf(plan: Outcome): string {
  return plan.cache_quality ? `${said(plan.quality)}, cache ${said(plan.cache_quality)}` : said(plan.quality);
}

function said(quality: Quality): string {
  switch (quality.kind) {
    case "exact":
      return "as 16 bit";
    case "released":
      return "as released";
    case "measured":
      return `${quality.change < 0 ? "-" : "+"}${digits(Math.abs(quality.change) * 100, 2)} % measured`;
    case "elsewhere":
      return `+${digits(quality.change * 100, 2)} % published of others`;
    case "estimated":
      return `+${digits(quality.low * 100, 2)} to ${digits(quality.high * 100, 2)} %`;
    case "published":
      return `+${digits(quality.change * 100, 2)} % published`;
    case "unknown":
      return "unknown";
  }
}
