/** What no kernel can exceed: a ceiling per math unit, a diagonal per memory. */

import type { Ceiling, Memory } from "../api/picture";
import { prefixed } from "../units/figure";
import { unitColour } from "./colours";
import type { Frame } from "./frame";
import type { Box } from "./labels";

interface Props {
  readonly frame: Frame;
  readonly ceilings: readonly Ceiling[];
  readonly memories: readonly Memory[];
  readonly band: boolean;
  readonly used: ReadonlySet<string>;
  readonly labels: readonly RoofLabel[];
}

export function Roofs({ frame, ceilings, memories, band, used, labels }: Props) {
  const main = memories[0];
  const highest = Math.max(0, ...ceilings.map((ceiling) => ceiling.flops));
  return (
    <g className="roofs" aria-hidden="true">
      {band && main?.low && main.high && <path className="band" d={bandPath(frame, main.low, main.high, highest)} />}
      {band &&
        ceilings.map(({ label, units, ridge, low, high }) =>
          low && high && low < high ? <rect key={label} className="band roof" style={{ fill: unitColour(units.find((unit) => used.has(unit)) ?? units[0] ?? "") }} x={frame.x(ridge)} width={Math.max(0, frame.right - frame.x(ridge))} y={frame.y(high)} height={frame.y(low) - frame.y(high)} /> : null,
        )}
      {ceilings.map((ceiling) => {
        const y = frame.y(ceiling.flops);
        const active = ceiling.units.some((unit) => used.has(unit));
        const unit = ceiling.units.find((name) => used.has(name)) ?? ceiling.units[0] ?? "";
        const start = frame.x(ceiling.ridge);
        const stroke = unitColour(unit);
        return (
          <g key={ceiling.label} className={active ? "ceiling active" : "ceiling"}>
            <line x1={start} x2={frame.right} y1={y} y2={y} style={{ stroke }} />
            <line className="ridge" x1={start} x2={start} y1={y} y2={frame.bottom} style={{ stroke }} />
          </g>
        );
      })}
      {memories.map((memory, index) => {
        const [a, b] = diagonal(frame, memory.rate, highest);
        return <line key={memory.label} className={index === 0 ? "diagonal" : "diagonal cache"} x1={a[0]} y1={a[1]} x2={b[0]} y2={b[1]} />;
      })}
      {labels.map(({ ceiling, text, y, height }) => {
        const active = ceiling.units.some((unit) => used.has(unit));
        const unit = ceiling.units.find((name) => used.has(name)) ?? ceiling.units[0] ?? "";
        return (
          <text key={ceiling.label} className={active ? "roof-label active" : "roof-label"} x={frame.right - 6} y={y + height - 3} textAnchor="end" style={{ fill: unitColour(unit) }}>
            {text}
          </text>
        );
      })}
      {memories.map((memory, index) => (
        <DiagonalLabel key={memory.label} frame={frame} memory={memory} highest={highest} cache={index > 0} />
      ))}
    </g>
  );
}

/** A memory of so many bytes a second crosses one FLOP per byte at as many FLOP a second: a line of slope one through that point. */
function diagonal(frame: Frame, rate: number, highest: number): [[number, number], [number, number]] {
  const [low] = frame.x.domain() as [number, number];
  const end = highest / rate;
  return [[frame.x(low), frame.y(low * rate)], [frame.x(end), frame.y(highest)]];
}

function bandPath(frame: Frame, low: number, high: number, highest: number): string {
  const [a, b] = diagonal(frame, low, highest);
  const [c, d] = diagonal(frame, high, highest);
  return `M${a}L${b}L${d}L${c}Z`;
}

function DiagonalLabel({ frame, memory, highest, cache }: { frame: Frame; memory: Memory; highest: number; cache: boolean }) {
  const [a, b] = diagonal(frame, memory.rate, highest);
  // along the part that is seen
  const left = Math.max(a[0], frame.left);
  const slope = (b[1] - a[1]) / (b[0] - a[0]);
  const at = (x: number) => a[1] + (x - a[0]) * slope;
  const top = Math.min(b[0], frame.right);
  const bottomX = at(left) > frame.bottom ? left + (frame.bottom - at(left)) / slope : left;
  if (top - bottomX < 120) return null;
  const x = bottomX + (top - bottomX) * (cache ? 0.62 : 0.5);
  const angle = (Math.atan(slope) * 180) / Math.PI;
  const text = `${memory.label} ${prefixed(memory.rate, "B/s", 3)}`;
  return (
    <text className={cache ? "diagonal-label cache" : "diagonal-label"} transform={`translate(${x},${at(x)}) rotate(${angle})`} dy={-6} textAnchor="middle">
      {text}
    </text>
  );
}

export interface RoofLabel extends Box {
  readonly ceiling: Ceiling;
  readonly text: string;
}

/** Labels of the ceilings at their right ends; those that lie close together move apart. */
export function roofLabels(ceilings: readonly Ceiling[], frame: Frame, narrow: boolean): readonly RoofLabel[] {
  const placed = ceilings.map((ceiling) => ({ ceiling, y: frame.y(ceiling.flops) })).sort((a, b) => a.y - b.y);
  let before = -Infinity;
  return placed.map(({ ceiling, y }) => {
    const base = Math.max(y, before + 13) - 4;
    before = base + 4;
    const text = narrow ? `${ceiling.label} ${prefixed(ceiling.flops, "", 3).replace(" ", "")}` : `${ceiling.label}  ${prefixed(ceiling.flops, "FLOP/s", 4)}`;
    const width = text.length * 6.2;
    return { ceiling, text, x: frame.right - 6 - width, y: base - 10, width, height: 13 };
  });
}
