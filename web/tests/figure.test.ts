import { describe, expect, it } from "vitest";
import { bytes, count, digits, micros, NONE, percent, prefixed, seconds, signedPercent, teraflops, times, tokens } from "../src/units/figure";

describe("figures", () => {
  it("have the digits that were asked for, and no others", () => {
    expect(digits(3.9013131, 4)).toBe("3.901");
    expect(digits(256.3, 3)).toBe("256");
    expect(digits(1908.9, 3)).toBe("1909");
    expect(digits(0.04119, 3)).toBe("0.0412");
    expect(digits(2, 4)).toBe("2");
    expect(digits(100, 3)).toBe("100");
    expect(digits(-0.5, 2)).toBe("−0.5");
    expect(digits(0)).toBe("0");
    expect(digits(1e300, 4)).toBe("1.00e+300");
  });

  it("get the prefix that keeps them short, also where rounding carries over", () => {
    expect(prefixed(4.8e12, "B/s")).toBe("4.8 TB/s");
    expect(prefixed(999.96, "B")).toBe("1 kB");
    expect(prefixed(0, "s")).toBe("0 s");
    expect(prefixed(3.4e-9, "s")).toBe("3.4 ns");
    expect(bytes(16060522496)).toBe("16.06 GB");
    expect(teraflops(1978.9, 4)).toBe("1.979 PFLOP/s");
  });

  it("write times as the command line does", () => {
    expect(micros(3901.31)).toBe("3.901 ms");
    expect(micros(9.477)).toBe("9.477 µs");
    expect(seconds(4.297548986286374e-6)).toBe("4.298 µs");
    expect(seconds(1234.5)).toBe("1235 s");
  });

  it("say so when there is none", () => {
    for (const text of [digits(null), micros(undefined), bytes(NaN), percent(null), times(undefined), signedPercent(null)]) expect(text).toBe(NONE);
  });

  it("know the habits of the field", () => {
    expect(count(8030261248)).toBe("8.03 B");
    expect(count(65571)).toBe("65.6 k");
    expect(count(0.2949)).toBe("0.295");
    expect(count(0.0316, 4)).toBe("0.0316");
    expect(count(0)).toBe("0");
    expect(count(1.5)).toBe("1.5");
    expect(tokens(4096)).toBe("4 K");
    expect(tokens(131072)).toBe("128 K");
    expect(tokens(96)).toBe("96");
    expect(times(2.2131)).toBe("2.21×");
    expect(signedPercent(-11.04)).toBe("−11 %");
    expect(signedPercent(308.4)).toBe("+308 %");
  });
});
