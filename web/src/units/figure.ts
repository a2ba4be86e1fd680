/**
 * Numbers as people read them: at most four digits, decimal prefixes, a unit. The server computes; this only writes down.
 */

const PREFIXES: readonly (readonly [number, string])[] = [
  [1e15, "P"],
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
  [1, ""],
  [1e-3, "m"],
  [1e-6, "µ"],
  [1e-9, "n"],
];

/** What stands where there is no number. */
export const NONE = "–";

type Maybe = number | null | undefined;

function absent(value: Maybe): value is null | undefined {
  return value === null || value === undefined || Number.isNaN(value);
}

/** `digits` significant digits without an exponent and without trailing zeros: 3.901, 256, 0.0412. */
export function digits(value: Maybe, count = 4): string {
  if (absent(value)) return NONE;
  if (value === 0) return "0";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.floor(Math.log10(Math.abs(value)));
  if (size >= 15 || size < -6) return minus(value.toExponential(Math.max(0, count - 2)));
  const places = Math.max(0, count - 1 - size);
  const fixed = value.toFixed(Math.min(places, 20));
  return minus(fixed.includes(".") ? fixed.replace(/\.?0+$/, "") : fixed);
}

function minus(text: string): string {
  return text.startsWith("-") ? `−${text.slice(1)}` : text;
}

/** A value with a decimal prefix and a unit: 4.8 TB/s. */
export function prefixed(value: Maybe, unit: string, count = 4): string {
  if (absent(value)) return NONE;
  if (value === 0) return unit ? `0 ${unit}` : "0";
  if (!Number.isFinite(value)) return digits(value);
  const size = Math.abs(value);
  const found = PREFIXES.find(([scale], index) => {
    const next = PREFIXES[index - 1];
    // 999.96 must become 1 k, not 1000
    const rounded = Number((size / scale).toPrecision(count));
    return rounded >= 1 && (next === undefined || rounded < 1000);
  }) ?? PREFIXES[PREFIXES.length - 1]!;
  const [scale, prefix] = found;
  const text = digits(value / scale, count);
  return prefix || unit ? `${text} ${prefix}${unit}` : text;
}

/** A time that is given in microseconds. */
export function micros(value: Maybe, count = 4): string {
  return absent(value) ? NONE : seconds(value * 1e-6, count);
}

/** A time that is given in seconds. */
export function seconds(value: Maybe, count = 4): string {
  if (absent(value)) return NONE;
  return value >= 1000 ? `${digits(value, count)} s` : prefixed(value, "s", count);
}

/** Sizes count in thousands, as the command line does: 16.06 GB. */
export function bytes(value: Maybe, count = 4): string {
  return prefixed(value, "B", count);
}

export function flops(value: Maybe, count = 3): string {
  return prefixed(value, "FLOP", count);
}

export function teraflops(value: Maybe, count = 3): string {
  return absent(value) ? NONE : prefixed(value * 1e12, "FLOP/s", count);
}

/**
 * A plain count with a prefix and no unit: 65.6 k, 8.03 B as 8.03 G is what physicists write; people here write B. Nobody
 * counts in thousandths: a third of a token per second is 0.333 of them, not 333 m.
 */
export function count(value: Maybe, places = 3): string {
  if (absent(value)) return NONE;
  if (Math.abs(value) < 1) return digits(value, places);
  const text = prefixed(value, "", places);
  return text.replace(/ G$/, " B");
}

export function percent(share: Maybe, places = 3): string {
  return absent(share) ? NONE : `${digits(share * 100, places)} %`;
}

/** Percent that are already percent, with a sign: +2 %. */
export function signedPercent(value: Maybe, places = 2): string {
  if (absent(value)) return NONE;
  const size = Math.abs(value);
  const text = size >= 100 ? Math.round(size).toString() : digits(Number(size.toFixed(1)), Math.max(places, 3));
  return `${value < 0 ? "−" : "+"}${text} %`;
}

/** How many times: 2.21×. */
export function times(value: Maybe): string {
  return absent(value) ? NONE : `${value >= 100 ? digits(value, 3) : value.toFixed(2)}×`;
}

/** Tokens on a slider: powers of two as the field writes them, 4096 as 4 K. */
export function tokens(value: number): string {
  if (value < 1024) return String(value);
  const k = value / 1024;
  return Number.isInteger(k) ? `${k} K` : `${digits(k, 3)} K`;
}
