/** Where a logarithmic axis is labelled, and how. */

export interface Tick {
  readonly value: number;
  readonly label: string;
  /** A power of ten: gets a line of its own. */
  readonly major: boolean;
}

const NAMES: Record<number, string> = { 3: "k", 6: "M", 9: "G", 12: "T", 15: "P", 18: "E" };

/** A power of ten: 0.01, 1, 100, 1 k, 100 k. */
export function decade(exponent: number): string {
  if (exponent < 0) return (10 ** exponent).toFixed(-exponent);
  const group = Math.floor(exponent / 3) * 3;
  const name = NAMES[group];
  const lead = String(10 ** (exponent - group));
  return name ? `${lead} ${name}` : lead;
}

/** Ticks of a logarithmic axis from `low` to `high`; 2 and 5 get labels where fewer than three decades are seen, all where less than one is. */
export function logTicks(low: number, high: number): Tick[] {
  if (!(low > 0) || !(high > low)) return [];
  const first = Math.floor(Math.log10(low));
  const last = Math.ceil(Math.log10(high));
  const decades = Math.log10(high / low);
  const leads = decades > 3 ? [1] : decades > 1 ? [1, 2, 5] : [1, 2, 3, 4, 5, 6, 8];
  const ticks: Tick[] = [];
  for (let exponent = first; exponent <= last; exponent += 1) {
    for (const lead of [1, 2, 3, 4, 5, 6, 7, 8, 9]) {
      const value = lead * 10 ** exponent;
      if (value < low * 0.999_999 || value > high * 1.000_001) continue;
      const major = lead === 1;
      const labelled = leads.includes(lead);
      ticks.push({ value, major, label: labelled ? (major ? decade(exponent) : short(value)) : "" });
    }
  }
  return ticks;
}

function short(value: number): string {
  for (const [exponent, name] of [[15, "P"], [12, "T"], [9, "G"], [6, "M"], [3, "k"]] as const) {
    if (value >= 10 ** exponent) return `${Number((value / 10 ** exponent).toPrecision(3))} ${name}`;
  }
  return String(Number(value.toPrecision(3)));
}

/** Round steps of a linear axis, about `wanted` of them. */
export function linearTicks(low: number, high: number, wanted = 5): number[] {
  if (!(high > low)) return [low];
  const raw = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((lead) => lead * power).find((candidate) => candidate >= raw) ?? raw;
  const ticks: number[] = [];
  for (let index = Math.ceil(low / step); index * step <= high + step * 1e-9; index += 1) ticks.push(Number((index * step).toPrecision(12)));
  return ticks;
}
