import { describe, expect, it } from "vitest";
import { readMeasurements } from "../src/state/import";

const ROW = { m: 1, n: 4096, k: 4096, precision: "bf16", time_us: 10.1 };

describe("measurements from elsewhere", () => {
  it("come as CSV in any order of columns", () => {
    expect(readMeasurements("m,n,k,precision,time_us\n1,4096,4096,bf16,10.1\n")).toEqual({ rows: [ROW], errors: [] });
    expect(readMeasurements("precision;time_us;n;k\r\nbf16;10.1;4096;4096\r\n").rows).toEqual([ROW]);
    expect(readMeasurements('shape,precision,time_ms\n"1x4096x4096",bf16,0.0101').rows[0]).toMatchObject({ m: 1, n: 4096, k: 4096 });
  });

  it("come as JSON under the names that tools give", () => {
    const forms = [
      { benchmarks: [{ kernel_type: "gemm", shape: [1, 4096, 4096], precision: "bf16", measured_time_us: 10.1 }] },
      { simplified: [{ shape: "4096x4096", precision: "bf16", time_us: 10.1 }] },
      [{ M: 1, N: 4096, K: 4096, precision: "bf16", time_us: 10.1 }],
      { measurements: [{ op: { linear: { m: 1, n: 4096, k: 4096 } }, shape: "gemv 1 x 4096 x 4096", precision: "bf16", measured_time_us: 10.1 }] },
      { comparisons: [{ shape: "gemv 1 x 4096 x 4096", precision: "bf16", measured_time_us: 10.1 }] },
    ];
    for (const form of forms) expect(readMeasurements(JSON.stringify(form)), JSON.stringify(form)).toEqual({ rows: [ROW], errors: [] });
  });

  it("come as lines of JSON, and lines that are none are left out", () => {
    const lines = ['{"run":"header"}', '{"shape":"1x4096x4096","precision":"bf16","time_us":10.1}'].join("\n");
    expect(readMeasurements(lines)).toEqual({ rows: [ROW], errors: [] });
  });

  it("keep what is right and name what is wrong", () => {
    const { rows, errors } = readMeasurements("m,n,k,precision,time_us\n1,4096,4096,bf16,10.1\n1,0,4096,bf16,3\n1,2,3,,4\n1,2,3,fp8,-4\n");
    expect(rows).toEqual([ROW]);
    expect(errors).toEqual(["Line 3: the shape is 1 x 0 x 4096, not three positive whole numbers", "Line 4: no precision", "Line 5: the time is -4, not a positive number"]);
  });

  it("are refused in a sentence when nothing can be read", () => {
    expect(readMeasurements("").errors).toEqual(["nothing was given"]);
    expect(readMeasurements("{oops").errors[0]).toMatch(/^Invalid JSON/);
    expect(readMeasurements("a,b\n1,2").errors[0]).toMatch(/name the columns/);
    expect(readMeasurements('{"x": 1}').errors[0]).toMatch(/no list under/);
  });
});
