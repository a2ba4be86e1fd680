/** Where labels go without covering each other: the first free place of a few, or none. */

export interface Box {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

export interface Wish {
  readonly key: string;
  readonly text: string;
  readonly x: number;
  readonly y: number;
  /** How far from the point it has to stay. */
  readonly clear: number;
}

export interface Placed extends Box {
  readonly key: string;
  readonly text: string;
}

const LETTER = 6.3;
const HEIGHT = 13;

export function overlaps(a: Box, b: Box): boolean {
  return a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
}

/** Earlier wishes win. `taken` is covered already, `area` is where labels may be. */
export function place(wishes: readonly Wish[], taken: readonly Box[], area: Box): Placed[] {
  const used: Box[] = [...taken];
  const placed: Placed[] = [];
  for (const { key, text, x, y, clear } of wishes) {
    const width = text.length * LETTER;
    const gap = clear + 4;
    const places: readonly (readonly [number, number])[] = [
      [x + gap, y - HEIGHT / 2],
      [x - gap - width, y - HEIGHT / 2],
      [x + gap - 2, y + clear],
      [x - gap - width + 2, y - clear - HEIGHT],
      [x - width / 2, y - clear - HEIGHT - 2],
      [x - width / 2, y + clear + 2],
      [x + gap + 6, y + clear + 10],
      [x + gap + 6, y + clear + 24],
    ];
    const free = places
      .map(([left, top]) => ({ x: left, y: top, width, height: HEIGHT }))
      .find((box) => box.x >= area.x && box.x + box.width <= area.x + area.width && box.y >= area.y && box.y + box.height <= area.y + area.height && !used.some((other) => overlaps(box, other)));
    if (!free) continue;
    used.push(free);
    placed.push({ key, text, ...free });
  }
  return placed;
}
