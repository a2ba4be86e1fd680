/** What no kernel can exceed: a ceiling per math unit, a diagonal per memory. */

import type { Ceiling, Memory } from "../api/picture";
import { prefixed } from "../units/figure";
import { unitColour } from "./colours";
import type { Frame } from "./frame";
import { overlaps, type Box } from "./labels";

interface Props {
  readonly frame: Frame;
  readonly ceilings: readonly Ceiling[];
  readonly memories: readonly Memory[];
  readonly band: boolean;
  readonly used: ReadonlySet<string>;
  readonly labels: readonly RoofLabel[];
  readonly slopes: readonly SlopeLabel[];
}

export function Roofs({ frame, ceilings, memories, band, used, labels, slopes }: Props) {
  const main = memories[0];
  const highest = highestOf(ceilings);
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
      {slopes.map(({ memory, text, x, y, angle }) => (
        <text key={memory.label} className={memory === main ? "diagonal-label" : "diagonal-label cache"} transform={`translate(${x},${y}) rotate(${angle})`} dy={-6} textAnchor="middle">
          {text}
        </text>
      ))}
    </g>
  );
}

export function highestOf(ceilings: readonly Ceiling[]): number {
  return Math.max(0, ...ceilings.map((ceiling) => ceiling.flops));
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

export interface SlopeLabel {
  readonly memory: Memory;
  readonly text: string;
  readonly x: number;
  readonly y: number;
  readonly angle: number;
  /** What it covers, in small pieces along its length. */
  readonly boxes: readonly Box[];
}

/** Labels along the diagonals, at the first place of a few where no point is in the way. */
export function slopeLabels(memories: readonly Memory[], highest: number, frame: Frame, points: readonly { readonly x: number; readonly y: number }[]): readonly SlopeLabel[] {
  const written: SlopeLabel[] = [];
  for (const memory of memories) {
    const [a, b] = diagonal(frame, memory.rate, highest);
    const slope = (b[1] - a[1]) / (b[0] - a[0]);
    const at = (x: number) => a[1] + (x - a[0]) * slope;
    const left = Math.max(a[0], frame.left, a[0] + (frame.bottom - a[1]) / slope);
    const right = Math.min(b[0], frame.right, a[0] + (frame.top - a[1]) / slope);
    const text = `${memory.label} ${prefixed(memory.rate, "B/s", 3)}`;
    const angle = Math.atan(slope);
    const length = text.length * 6.2;
    if (right - left < length * Math.cos(angle) + 20) continue;
    const made = [0.3, 0.62, 0.8, 0.15, 0.45].map((share): SlopeLabel => {
      const x = left + (right - left) * share;
      const pieces = [-0.5, -0.25, 0, 0.25, 0.5].map((part) => ({ x: x + part * length * Math.cos(angle), y: at(x) + part * length * Math.sin(angle) - 8 }));
      return { memory, text, x, y: at(x), angle: (angle * 180) / Math.PI, boxes: pieces.map((piece) => ({ x: piece.x - 10, y: piece.y - 8, width: 20, height: 16 })) };
    });
    const hit = (box: Box) => points.some((point) => point.x > box.x - 12 && point.x < box.x + box.width + 12 && point.y > box.y - 12 && point.y < box.y + box.height + 12);
    const covered = (box: Box) => written.some((label) => label.boxes.some((other) => overlaps(box, other)));
    const clear = made.filter((label) => !label.boxes.some(covered));
    const free = clear.find((label) => !label.boxes.some(hit)) ?? clear[0];
    if (free) written.push(free);
  }
  return written;
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
