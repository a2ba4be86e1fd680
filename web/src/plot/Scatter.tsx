/** Points on two axes: what is won against what is lost. */

import { scaleLinear, scaleLog, type ScaleContinuousNumeric } from "d3-scale";
import { useMemo, useRef, useState } from "react";
import { useSize } from "../parts/size";
import { linearTicks, logTicks } from "../units/ticks";
import { Card, type CardContent } from "./Card";
import { place } from "./labels";

export interface Axis {
  readonly title: string;
  readonly log: boolean;
  readonly text: (value: number) => string;
}

export interface Dot {
  readonly key: string;
  readonly x: number;
  readonly y: number;
  /** A range on the vertical axis. */
  readonly low?: number | null;
  readonly high?: number | null;
  readonly colour: string;
  readonly label: string | null;
  /** Those of the front are filled, the others hollow. */
  readonly filled: boolean;
  readonly card: CardContent;
}

interface Props {
  readonly title: string;
  readonly x: Axis;
  readonly y: Axis;
  readonly dots: readonly Dot[];
  /** Dots that are joined by a line, from left to right. */
  readonly line?: readonly string[];
  /** Both axes show the same quantity: they get the same scale, and a line where both are equal. */
  readonly equal?: boolean;
  readonly lit?: string | null;
  readonly onLit?: (key: string | null) => void;
  readonly onPick?: (key: string) => void;
}

const MARGINS = { top: 12, right: 14, bottom: 40, left: 56 };

export function Scatter({ title, x, y, dots, line, equal = false, lit = null, onLit, onPick }: Props) {
  const box = useRef<HTMLDivElement>(null);
  const size = useSize(box, { width: 600, height: 300 });
  const [near, setNear] = useState<string | null>(null);
  const right = size.width - MARGINS.right;
  const bottom = size.height - MARGINS.bottom;
  const wide = useMemo(() => dots.map((dot) => dot.x), [dots]);
  const high = useMemo(() => dots.flatMap((dot) => [dot.y, dot.low ?? dot.y, dot.high ?? dot.y]), [dots]);
  const across = useMemo(() => scaleOf(x, equal ? [...wide, ...high] : wide, [MARGINS.left, right]), [x, wide, high, equal, right]);
  const up = useMemo(() => scaleOf(y, equal ? [...wide, ...high] : high, [bottom, MARGINS.top]), [y, wide, high, equal, bottom]);
  const spots = useMemo(() => dots.map((dot) => ({ dot, left: across(dot.x), top: up(dot.y) })), [dots, across, up]);
  const labels = useMemo(
    () =>
      place(
        spots.filter(({ dot }) => dot.label !== null).map(({ dot, left, top }) => ({ key: dot.key, text: dot.label!, x: left, y: top, clear: 5 })),
        spots.map(({ left, top }) => ({ x: left - 5, y: top - 5, width: 10, height: 10 })),
        { x: MARGINS.left, y: MARGINS.top, width: right - MARGINS.left, height: bottom - MARGINS.top },
      ),
    [spots, right, bottom],
  );
  const bright = near ?? lit;
  const told = spots.find(({ dot }) => dot.key === near);
  const show = (key: string | null) => {
    setNear(key);
    onLit?.(key);
  };
  const path = (line ?? [])
    .map((key) => spots.find(({ dot }) => dot.key === key))
    .filter((spot) => spot !== undefined)
    .sort((a, b) => a.left - b.left)
    .map(({ left, top }, index) => `${index === 0 ? "M" : "L"}${left},${top}`)
    .join("");
  return (
    <div className="scatter-box" ref={box}>
      <svg className="scatter" width={size.width} height={size.height} role="group" aria-label={title}>
        <rect className="ground" x={MARGINS.left} y={MARGINS.top} width={Math.max(0, right - MARGINS.left)} height={Math.max(0, bottom - MARGINS.top)} />
        <g className="axes" aria-hidden="true">
          {ticksOf(x, across).map(({ value, label }) => (
            <g key={value}>
              <line className={label ? "grid major" : "grid"} x1={across(value)} x2={across(value)} y1={MARGINS.top} y2={bottom} />
              {label && <text x={across(value)} y={bottom + 15} textAnchor="middle">{label}</text>}
            </g>
          ))}
          {ticksOf(y, up).map(({ value, label }) => (
            <g key={value}>
              <line className={label ? "grid major" : "grid"} x1={MARGINS.left} x2={right} y1={up(value)} y2={up(value)} />
              {label && <text x={MARGINS.left - 6} y={up(value) + 4} textAnchor="end">{label}</text>}
            </g>
          ))}
          <text className="axis-title" x={(MARGINS.left + right) / 2} y={bottom + 33} textAnchor="middle">{x.title}</text>
          <text className="axis-title" transform={`translate(12,${(MARGINS.top + bottom) / 2}) rotate(-90)`} textAnchor="middle">{y.title}</text>
        </g>
        {equal && <line className="front" x1={MARGINS.left} y1={bottom} x2={right} y2={MARGINS.top} />}
        {path && <path className="front" d={path} />}
        {spots.map(({ dot, left, top }) => (
          <g
            key={dot.key}
            className={`dot${dot.key === bright ? " lit" : ""}${onPick ? " pickable" : ""}`}
            tabIndex={0}
            role={onPick ? "button" : "img"}
            aria-label={dot.card.spoken}
            onPointerEnter={() => show(dot.key)}
            onPointerLeave={() => show(null)}
            onFocus={() => show(dot.key)}
            onBlur={() => show(null)}
            onClick={() => onPick?.(dot.key)}
            onKeyDown={(event) => {
              if (onPick && (event.key === "Enter" || event.key === " ")) {
                event.preventDefault();
                onPick(dot.key);
              }
            }}
          >
            {dot.low != null && dot.high != null && <line className="dot-range" style={{ stroke: dot.colour }} x1={left} x2={left} y1={up(dot.low)} y2={up(dot.high)} />}
            <circle cx={left} cy={top} r={5} style={dot.filled ? { fill: dot.colour, stroke: dot.colour } : { stroke: dot.colour }} />
          </g>
        ))}
        <g className="point-labels" aria-hidden="true">
          {labels.map(({ key, text, x: left, y: top, height }) => (
            <text key={key} x={left} y={top + height - 3}>{text}</text>
          ))}
        </g>
      </svg>
      {told && <Card content={told.dot.card} x={told.left} y={told.top} size={size} />}
    </div>
  );
}

type Scale = ScaleContinuousNumeric<number, number>;

function scaleOf(axis: Axis, values: readonly number[], range: [number, number]): Scale {
  const sound = values.filter((value) => Number.isFinite(value) && (!axis.log || value > 0));
  const [low, high] = [Math.min(...sound), Math.max(...sound)];
  if (sound.length === 0) return scaleLinear().domain([0, 1]).range(range);
  if (axis.log) return scaleLog().domain([low / 1.25, high * 1.25]).range(range);
  const pad = (high - low || Math.abs(high) || 1) * 0.08;
  return scaleLinear().domain([low >= 0 ? Math.max(0, low - pad) : low - pad, high + pad]).range(range);
}

function ticksOf(axis: Axis, scale: Scale): readonly { value: number; label: string }[] {
  const [low, high] = scale.domain() as [number, number];
  if (!axis.log) return linearTicks(low, high, 6).map((value) => ({ value, label: axis.text(value) }));
  return logTicks(low, high).map(({ value, label }) => ({ value, label: label ? axis.text(value) : "" }));
}
