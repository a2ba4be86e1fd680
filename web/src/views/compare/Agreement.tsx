/** Predicted against measured time, kernel by kernel: on the line both agree. */

import { useMemo } from "react";
import type { Comparison } from "../../api/types";
import { Panel } from "../../parts/Panel";
import { precisionColour } from "../../plot/colours";
import { Scatter, type Axis, type Dot } from "../../plot/Scatter";
import { micros, signedPercent } from "../../units/figure";

const PREDICTED: Axis = { title: "predicted time", log: true, text: (time) => micros(time, 2) };
const MEASURED: Axis = { title: "measured time", log: true, text: (time) => micros(time, 2) };

/** Dots go by their place in the list. */
export function Agreement({ comparisons, lit, onLit }: { comparisons: readonly Comparison[]; lit: string | null; onLit: (key: string | null) => void }) {
  const dots = useMemo(() => comparisons.map((row, index) => dotOf(row, String(index))), [comparisons]);
  return (
    <Panel title="Predicted against measured" flush>
      <Scatter title="Predicted against measured time" x={PREDICTED} y={MEASURED} dots={dots} equal lit={lit} onLit={onLit} />
      <p className="small faint pad">On the line both agree; above it the kernel was slower than predicted.</p>
    </Panel>
  );
}

function dotOf(row: Comparison, key: string): Dot {
  const rows = [
    ["predicted", micros(row.predicted_time_us)],
    ["measured", micros(row.measured_time_us)],
    ["error", signedPercent(row.signed_pct)],
    ["ideal", micros(row.ideal_time_us)],
  ] as const;
  return {
    key,
    x: row.predicted_time_us,
    y: row.measured_time_us,
    low: row.p5_us,
    high: row.p95_us,
    colour: precisionColour(row.precision),
    label: null,
    filled: false,
    card: { title: row.shape, note: row.precision, rows, spoken: `${row.shape} ${row.precision}: ${rows.map((one) => one.join(" ")).join(", ")}` },
  };
}
