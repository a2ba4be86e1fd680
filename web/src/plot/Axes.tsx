import { logTicks } from "../units/ticks";
import type { Frame } from "./frame";

export function Axes({ frame, narrow }: { frame: Frame; narrow: boolean }) {
  const [x0, x1] = frame.x.domain() as [number, number];
  const [y0, y1] = frame.y.domain() as [number, number];
  const across = logTicks(x0, x1);
  const up = logTicks(y0, y1);
  return (
    <g className="axes" aria-hidden="true">
      {across.map(({ value, label, major }) => {
        const x = frame.x(value);
        return (
          <g key={value}>
            <line className={major ? "grid major" : "grid"} x1={x} x2={x} y1={frame.top} y2={frame.bottom} />
            {label && (
              <text x={x} y={frame.bottom + 16} textAnchor={x > frame.right - 8 ? "end" : "middle"}>
                {label}
              </text>
            )}
          </g>
        );
      })}
      {up.map(({ value, label, major }) => {
        const y = frame.y(value);
        return (
          <g key={value}>
            <line className={major ? "grid major" : "grid"} x1={frame.left} x2={frame.right} y1={y} y2={y} />
            {label && (
              <text x={frame.left - 7} y={y + 4} textAnchor="end">
                {label}
              </text>
            )}
          </g>
        );
      })}
      <text className="axis-title" x={(frame.left + frame.right) / 2} y={frame.bottom + 34} textAnchor="middle">
        {narrow ? "→ FLOP per byte, ↑ FLOP per second" : "arithmetic intensity, FLOP per byte"}
      </text>
      {!narrow && (
        <text className="axis-title" transform={`translate(13,${(frame.top + frame.bottom) / 2}) rotate(-90)`} textAnchor="middle">
          FLOP/s
        </text>
      )}
    </g>
  );
}
