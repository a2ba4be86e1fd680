/** A slider that runs over powers of two: its positions, and the round numbers they stand for. */

/** Positions per doubling; 8 is fine enough to feel continuous and coarse enough for the keyboard. */
const PER_DOUBLING = 8;

export function position(value: number): number {
  return Math.round(Math.log2(value) * PER_DOUBLING);
}

/** The number at a position: two or three digits, exact at powers of two from 1 on; things that are counted have no fraction. */
export function valueAt(place: number, whole = false): number {
  const exact = 2 ** (place / PER_DOUBLING);
  if (exact < 64) return whole ? Math.round(exact) : Number(exact.toPrecision(2));
  if (place % PER_DOUBLING === 0) return Math.round(exact);
  const grain = 2 ** Math.max(0, Math.floor(Math.log2(exact)) - 5);
  return Math.round(exact / grain) * grain;
}

/** The next number in a direction, never one against it; the same at the end of the scale. */
export function step(value: number, direction: 1 | -1, low: number, high: number, whole = false): number {
  const end = direction > 0 ? high : low;
  if (direction * (end - value) <= 0) return value;
  const [from, to] = [position(low), position(high)];
  for (let place = Math.min(to, Math.max(from, position(value))); place >= from && place <= to; place += direction) {
    const next = valueAt(place, whole);
    if (direction * (next - value) > 0) return direction * (end - next) > 0 ? next : end;
  }
  return end;
}
