import { describe, expect, it } from "vitest";
import { domainOf, frameOf } from "../src/plot/frame";
import { overlaps, place } from "../src/plot/labels";
import { position, step, valueAt } from "../src/units/logscale";
import { decade, linearTicks, logTicks } from "../src/units/ticks";

const SIZE = { width: 800, height: 500 };
const MARGINS = { top: 10, right: 10, bottom: 40, left: 50 };

describe("ticks", () => {
  it("name decades", () => {
    expect([-2, 0, 2, 3, 5, 12, 15].map(decade)).toEqual(["0.01", "1", "100", "1 k", "100 k", "1 T", "1 P"]);
  });

  it("are labelled more densely the less is seen", () => {
    const labels = (low: number, high: number) => logTicks(low, high).map((tick) => tick.label).filter(Boolean);
    expect(labels(0.1, 10_000)).toEqual(["0.1", "1", "10", "100", "1 k", "10 k"]);
    expect(labels(1, 100)).toEqual(["1", "2", "5", "10", "20", "50", "100"]);
    expect(labels(2000, 6000)).toEqual(["2 k", "3 k", "4 k", "5 k", "6 k"]);
    expect(logTicks(0, 10)).toEqual([]);
  });

  it("step roundly on linear axes", () => {
    expect(linearTicks(0, 0.15, 4)).toEqual([0, 0.05, 0.1, 0.15]);
    expect(linearTicks(3, 3)).toEqual([3]);
  });
});

describe("the frame", () => {
  const domain = domainOf([{ x: 1, y: 4e12 }], [2e15], [400]);

  it("holds every point and every roof, in half decades", () => {
    expect(domain.x[0]).toBeLessThan(1);
    expect(domain.x[1]).toBeGreaterThan(400);
    expect(domain.y[1]).toBeGreaterThan(2e15);
    for (const end of [...domain.x, ...domain.y]) expect(Math.log10(end) * 2).toBeCloseTo(Math.round(Math.log10(end) * 2), 9);
  });

  it("stands still while a point moves within it", () => {
    expect(domainOf([{ x: 1.3, y: 5e12 }], [2e15], [400])).toEqual(domain);
  });

  it("leaves out what has no logarithm", () => {
    expect(domainOf([{ x: 0, y: 0 }, { x: 1, y: NaN }, { x: 1, y: 4e12 }], [2e15], [400])).toEqual(domain);
  });

  it("shows the middle half at a zoom of two", () => {
    const still = frameOf(domain, SIZE, MARGINS, { k: 1, x: 0, y: 0 });
    const zoomed = frameOf(domain, SIZE, MARGINS, { k: 2, x: -0.5, y: -0.5 });
    const middle = (still.left + still.right) / 2;
    expect(zoomed.x.invert(middle)).toBeCloseTo(still.x.invert(middle), 6);
    const decades = (scale: { domain(): number[] }) => Math.log10(scale.domain()[1]! / scale.domain()[0]!);
    expect(decades(zoomed.x)).toBeCloseTo(decades(still.x) / 2, 9);
    expect(decades(zoomed.y)).toBeCloseTo(decades(still.y) / 2, 9);
  });
});

describe("labels", () => {
  const area = { x: 0, y: 0, width: 400, height: 200 };

  it("never cover each other nor what is taken", () => {
    const taken = [{ x: 110, y: 90, width: 60, height: 20 }];
    const wishes = Array.from({ length: 12 }, (_, index) => ({ key: String(index), text: "gate_up_proj", x: 100 + index, y: 100 + index, clear: 5 }));
    const placed = place(wishes, taken, area);
    expect(placed.length).toBeGreaterThan(2);
    placed.forEach((label, index) => {
      expect(overlaps(label, taken[0]!)).toBe(false);
      placed.slice(index + 1).forEach((other) => expect(overlaps(label, other)).toBe(false));
    });
  });

  it("stay away where there is no room", () => {
    expect(place([{ key: "a", text: "a very long name that does not fit", x: 5, y: 5, clear: 4 }], [], { x: 0, y: 0, width: 40, height: 20 })).toEqual([]);
  });
});

describe("a logarithmic slider", () => {
  it("hits powers of two exactly and never falls", () => {
    for (let power = 0; power <= 17; power += 1) expect(valueAt(position(2 ** power))).toBe(2 ** power);
    let before = 0;
    for (let place = position(1); place <= position(131_072); place += 1) {
      expect(valueAt(place)).toBeGreaterThanOrEqual(before);
      before = valueAt(place);
    }
  });

  it("reaches every small number by key", () => {
    const seen = [1];
    while (seen.at(-1)! < 12) seen.push(step(seen.at(-1)!, 1, 1, 512, true));
    expect(seen.slice(0, 6)).toEqual([1, 2, 3, 4, 5, 6]);
    expect(step(512, 1, 1, 512, true)).toBe(512);
  });
});
