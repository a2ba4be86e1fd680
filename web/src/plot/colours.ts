/** Which colour a precision or a math unit has, as a custom property of the style sheet. */

const UNITS: Readonly<Record<string, string>> = {
  fp64: "--fp64",
  fp64_tensor: "--fp64",
  fp32: "--fp32",
  tf32: "--tf32",
  fp16: "--fp16",
  bf16: "--bf16",
  fp8: "--fp8",
  fp6: "--fp6",
  fp4: "--fp4",
  int8: "--int8",
  int4: "--int4",
};

export function unitColour(unit: string): string {
  return `var(${UNITS[unit] ?? "--fp32"})`;
}

/** The first that fits wins: `w8a16` before `a16`. */
const PRECISIONS: readonly (readonly [RegExp, string])[] = [
  [/nvfp4|mxfp4|^nf4|fp4/, "--fp4"],
  [/int4|w4|int2|int3/, "--int4"],
  [/int8|w8/, "--int8"],
  [/fp6(?!4)/, "--fp6"],
  [/fp8|e4m3|e5m2/, "--fp8"],
  [/bf16/, "--bf16"],
  [/fp16/, "--fp16"],
  [/tf32/, "--tf32"],
  [/fp64/, "--fp64"],
  [/fp32/, "--fp32"],
];

export function precisionColour(precision: string): string {
  const name = precision.toLowerCase();
  const found = PRECISIONS.find(([pattern]) => pattern.test(name));
  return `var(${found?.[1] ?? "--fp8"})`;
}

export const PIN_COLOURS = ["var(--pin-1)", "var(--pin-2)", "var(--pin-3)", "var(--pin-4)"] as const;
