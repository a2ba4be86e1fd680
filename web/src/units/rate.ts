/** The rate of the same work in another time; nothing where there is no other time. */
export function inTime(rate: number, time: number, other: number | null | undefined): number | null {
  return other === null || other === undefined || !(other > 0) ? null : (rate * time) / other;
}
