import { describe, expect, it } from "vitest";
import { position, step, valueAt } from "../src/units/logscale";

describe("a slider over powers of two", () => {
  it("stands at round numbers", () => {
    for (const power of [1, 2, 4, 8, 16, 32, 64, 1024, 32_768]) expect(valueAt(position(power))).toBe(power);
    expect([-16, -8, -7, -1, 1, 9, 47].map((place) => valueAt(place))).toEqual([0.25, 0.5, 0.55, 0.92, 1.1, 2.2, 59]);
  });

  it("has no fractions of what is counted", () => {
    for (let place = 0; place <= position(131_072); place += 1) expect(valueAt(place, true) % 1).toBe(0);
  });

  it("moves in the direction of the key, from any value", () => {
    for (const value of [0.26, 0.51, 0.547, 0.99, 1, 1.04, 3.3, 17.5, 63, 64, 66.9, 989.4, 4800, 32_700]) {
      const [less, more] = [step(value, -1, 0.25, 32_768), step(value, 1, 0.25, 32_768)];
      expect(less, `below ${value}`).toBeLessThan(value);
      expect(more, `above ${value}`).toBeGreaterThan(value);
      expect(more / less, `around ${value}`).toBeLessThan(1.35);
    }
    expect(step(0.547, -1, 0.25, 32_768)).toBe(0.5);
    expect(step(0.547, 1, 0.25, 32_768)).toBe(0.55);
  });

  it("walks from end to end and stays there", () => {
    for (const [low, high, whole] of [[0.25, 32_768, false], [8, 32_768, false], [1, 512, true], [32, 131_072, true]] as const) {
      for (const [from, to, direction] of [[low, high, 1], [high, low, -1]] as const) {
        let value: number = from;
        for (let press = 0; press < 200; press += 1) {
          const next = step(value, direction, low, high, whole);
          expect(direction * (next - value)).toBeGreaterThanOrEqual(0);
          value = next;
        }
        expect(value).toBe(to);
      }
    }
  });

  it("leaves alone what lies beyond its end", () => {
    expect(step(40_000, 1, 0.25, 32_768)).toBe(40_000);
    expect(step(40_000, -1, 0.25, 32_768)).toBe(32_768);
    expect(step(0.1, -1, 0.25, 32_768)).toBe(0.1);
    expect(step(0.1, 1, 0.25, 32_768)).toBe(0.25);
  });
});
