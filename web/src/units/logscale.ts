/** A slider that runs over powers of two: its positions, and the round numbers they stand for. */

/** Positions per doubling; 8 is fine enough to feel continuous and coarse enough for the keyboard. */
const PER_DOUBLING = 8;

export function position(value: number): number {
  return Math.round(Math.log2(value) * PER_DOUBLING);
}

/** The whole number at a position: exact at powers of two, two or three digits between them. */
export function valueAt(place: number): number {
  const exact = 2 ** (place / PER_DOUBLING);
  if (place % PER_DOUBLING === 0) return Math.round(exact);
  if (exact < 64) return Math.round(exact);
  const grain = 2 ** Math.max(0, Math.floor(Math.log2(exact)) - 5);
  return Math.round(exact / grain) * grain;
}

/** The next position in a direction whose value differs: below 16 several positions share a number. */
export function nextPosition(value: number, direction: 1 | -1, low: number, high: number): number {
  let place = position(value);
  const end = direction > 0 ? position(high) : position(low);
  while (place !== end) {
    place += direction;
    if (valueAt(place) !== value) return place;
  }
  return end;
}
