/** The roofline: ceilings, diagonals, and what stands below them. */

import { memo, useId, useMemo, useRef, useState, type KeyboardEvent } from "react";
import type { Picture } from "../api/picture";
import type { Operator } from "../api/types";
import type { Measured } from "../data/measured";
import type { Zoom } from "../state/view";
import { useSize } from "../parts/size";
import { bytes, digits, flops, micros, percent, prefixed, teraflops } from "../units/figure";
import { Axes } from "./Axes";
import { Card, type CardContent } from "./Card";
import { precisionColour } from "./colours";
import { domainOf, frameOf, inside, type Frame } from "./frame";
import { glyphPath, radiusOf } from "./glyphs";
import { place, type Box, type Wish } from "./labels";
import { roofLabels, Roofs, type RoofLabel } from "./Roofs";
import { useZoom } from "./zoom";

export interface PinnedPicture {
  readonly picture: Picture;
  readonly label: string;
  readonly colour: string;
}

interface Props {
  readonly picture: Picture;
  readonly pins: readonly PinnedPicture[];
  readonly measured: readonly Measured[];
  readonly band: boolean;
  readonly zoom: Zoom;
  readonly onZoom: (zoom: Zoom) => void;
  readonly lit: string | null;
  readonly onLit: (site: string | null) => void;
  readonly stale: boolean;
}

const TERA = 1e12;

/** A point with its place on the screen. */
interface Spot {
  readonly key: string;
  readonly x: number;
  readonly y: number;
  readonly card: CardContent;
}

export const RooflinePlot = memo(function RooflinePlot(props: Props) {
  const { picture, pins, measured, band, zoom, onZoom, lit, onLit, stale } = props;
  const box = useRef<HTMLDivElement>(null);
  const svg = useRef<SVGSVGElement>(null);
  const size = useSize(box, { width: 760, height: 480 });
  const narrow = size.width < 560;
  const margins = useMemo(() => ({ top: 14, right: narrow ? 8 : 14, bottom: 42, left: narrow ? 44 : 58 }), [narrow]);
  const control = useZoom(svg, size, margins, zoom, onZoom);
  const [near, setNear] = useState<Spot | null>(null);
  const clip = useId();

  const { estimate } = picture;
  const operators = useMemo(() => estimate.operators.filter((operator) => operator.ai > 0 && operator.predicted_tflops > 0), [estimate]);
  const domain = useMemo(
    () =>
      domainOf(
        [
          ...operators.map((operator) => ({ x: operator.ai, y: operator.predicted_tflops * TERA })),
          ...measured.map((point) => ({ x: point.ai, y: point.tflops * TERA })),
          ...pins.map((pin) => ({ x: pin.picture.estimate.ai, y: pin.picture.estimate.predicted_tflops * TERA })),
        ],
        [...picture.ceilings.map((ceiling) => ceiling.flops)],
        picture.ceilings.map((ceiling) => ceiling.ridge),
      ),
    [operators, measured, pins, picture.ceilings],
  );
  const frame = useMemo(() => frameOf(domain, size, margins, zoom), [domain, size, margins, zoom]);
  const roofs = useMemo(() => roofLabels(picture.ceilings, frame, narrow), [picture.ceilings, frame, narrow]);
  const used = useMemo(() => new Set([estimate.plan.layers.math]), [estimate]);

  const show = (spot: Spot | null) => {
    setNear(spot);
    onLit(spot && spot.key.startsWith("op:") ? spot.key.slice(3) : null);
  };

  const spots: Spot[] = operators.map((operator) => ({
    key: `op:${operator.site}`,
    x: frame.x(operator.ai),
    y: frame.y(operator.predicted_tflops * TERA),
    card: operatorCard(operator),
  }));
  const total: Spot = {
    key: "total",
    x: frame.x(estimate.ai),
    y: frame.y(estimate.predicted_tflops * TERA),
    card: totalCard(picture),
  };
  const litSpot = near ?? spots.find((spot) => spot.key === `op:${lit ?? ""}`) ?? null;

  const keys = (event: KeyboardEvent) => {
    const step = 40;
    const actions: Record<string, () => void> = {
      "+": () => control.by(1.3),
      "=": () => control.by(1.3),
      "-": () => control.by(1 / 1.3),
      "0": control.reset,
      Escape: () => show(null),
      ArrowLeft: () => control.move(step, 0),
      ArrowRight: () => control.move(-step, 0),
      ArrowUp: () => control.move(0, step),
      ArrowDown: () => control.move(0, -step),
    };
    const action = actions[event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
  };

  return (
    <figure className={stale ? "plot stale" : "plot"}>
      <div className="plot-box" ref={box}>
        <svg
          ref={svg}
          className="plot-svg"
          width={size.width}
          height={size.height}
          viewBox={`0 0 ${size.width} ${size.height}`}
          role="group"
          aria-label={`Roofline of ${picture.modelName} on ${picture.device.name}`}
          tabIndex={0}
          onKeyDown={keys}
        >
          <defs>
            <clipPath id={clip}>
              <rect x={frame.left} y={frame.top} width={frame.right - frame.left} height={frame.bottom - frame.top} />
            </clipPath>
          </defs>
          <rect className="ground" x={frame.left} y={frame.top} width={frame.right - frame.left} height={frame.bottom - frame.top} />
          <Axes frame={frame} narrow={narrow} />
          <g clipPath={`url(#${clip})`}>
            <Roofs frame={frame} ceilings={picture.ceilings} memories={picture.memories} band={band} used={used} labels={roofs} />
            {pins.map((pin) => (
              <PinMarks key={pin.label} pin={pin} frame={frame} show={show} />
            ))}
            {operators.map((operator, index) => (
              <Ideal key={operator.site} operator={operator} spot={spots[index]!} frame={frame} />
            ))}
            {operators.map((operator, index) => {
              const spot = spots[index]!;
              const bright = lit === operator.site || near?.key === spot.key;
              return (
                <g
                  key={operator.site}
                  className={`point ${operator.class}${bright ? " lit" : ""}${lit && !bright ? " dim" : ""}`}
                  transform={`translate(${spot.x},${spot.y})`}
                  tabIndex={inside(frame, spot.x, spot.y) ? 0 : -1}
                  role="img"
                  aria-label={spot.card.spoken}
                  onPointerEnter={() => show(spot)}
                  onPointerLeave={() => show(null)}
                  onFocus={() => show(spot)}
                  onBlur={() => show(null)}
                >
                  <path className="reach" d={glyphPath("gemm", 13)} />
                  <path className="mark" d={glyphPath(operator.class, radiusOf(operator.flops))} />
                </g>
              );
            })}
            <Total spot={total} picture={picture} frame={frame} show={show} />
            {measured.map((point) => (
              <MeasuredMark key={point.id} point={point} frame={frame} show={show} />
            ))}
            <PointLabels operators={operators} spots={spots} total={total} measured={measured} roofs={roofs} frame={frame} narrow={narrow} />
          </g>
          <rect className="edge" x={frame.left} y={frame.top} width={frame.right - frame.left} height={frame.bottom - frame.top} />
        </svg>
        <div className="plot-tools" role="group" aria-label="Zoom">
          <button type="button" className="icon-button" title="Zoom in (+, or Ctrl and the wheel)" aria-label="Zoom in" onClick={() => control.by(1.5)}>
            +
          </button>
          <button type="button" className="icon-button" title="Zoom out (−)" aria-label="Zoom out" onClick={() => control.by(1 / 1.5)}>
            −
          </button>
          <button type="button" className="icon-button wide" title="Show everything (0)" aria-label="Reset zoom" disabled={zoom.k === 1 && zoom.x === 0 && zoom.y === 0} onClick={control.reset}>
            reset
          </button>
        </div>
        {litSpot && inside(frame, litSpot.x, litSpot.y) && <Card content={litSpot.card} x={litSpot.x} y={litSpot.y} size={size} />}
      </div>
    </figure>
  );
});

/** Where the ideal roofline would have it, joined to where it is expected. */
function Ideal({ operator, spot, frame }: { operator: Operator; spot: Spot; frame: Frame }) {
  const y = frame.y(operator.ideal_tflops * TERA);
  if (!Number.isFinite(y) || spot.y - y < radiusOf(operator.flops) + 2) return null;
  return (
    <g className={`ideal ${operator.class}`} aria-hidden="true">
      <line x1={spot.x} x2={spot.x} y1={spot.y} y2={y} />
      <line className="tick" x1={spot.x - 4} x2={spot.x + 4} y1={y} y2={y} />
    </g>
  );
}

function Total({ spot, picture, frame, show }: { spot: Spot; picture: Picture; frame: Frame; show: (spot: Spot | null) => void }) {
  const low = picture.rates.low === null ? null : frame.y(picture.rates.low * TERA);
  const high = picture.rates.high === null ? null : frame.y(picture.rates.high * TERA);
  const ideal = frame.y(picture.rates.ideal * TERA);
  return (
    <g className="point total" tabIndex={inside(frame, spot.x, spot.y) ? 0 : -1} role="img" aria-label={spot.card.spoken} onPointerEnter={() => show(spot)} onPointerLeave={() => show(null)} onFocus={() => show(spot)} onBlur={() => show(null)}>
      {low !== null && high !== null && (
        <g className="whisker" aria-hidden="true">
          <line x1={spot.x} x2={spot.x} y1={low} y2={high} />
          <line x1={spot.x - 5} x2={spot.x + 5} y1={low} y2={low} />
          <line x1={spot.x - 5} x2={spot.x + 5} y1={high} y2={high} />
        </g>
      )}
      {Math.abs(ideal - spot.y) > 3 && <path className="ideal-total" d={glyphPath("total", 5)} transform={`translate(${spot.x},${ideal})`} />}
      <g transform={`translate(${spot.x},${spot.y})`}>
        <path className="reach" d={glyphPath("gemm", 13)} />
        <path className="mark" d={glyphPath("total", 7)} />
      </g>
    </g>
  );
}

function MeasuredMark({ point, frame, show }: { point: Measured; frame: Frame; show: (spot: Spot | null) => void }) {
  const x = frame.x(point.ai);
  const y = frame.y(point.tflops * TERA);
  const spot: Spot = { key: point.id, x, y, card: measuredCard(point) };
  const colour = precisionColour(point.precision);
  const low = point.tflops_low ? frame.y(point.tflops_low * TERA) : null;
  const high = point.tflops_high ? frame.y(point.tflops_high * TERA) : null;
  return (
    <g className="point measured" tabIndex={inside(frame, x, y) ? 0 : -1} role="img" aria-label={spot.card.spoken} onPointerEnter={() => show(spot)} onPointerLeave={() => show(null)} onFocus={() => show(spot)} onBlur={() => show(null)}>
      {low !== null && high !== null && <line className="spread" style={{ stroke: colour }} x1={x} x2={x} y1={low} y2={high} />}
      <circle className="mark" cx={x} cy={y} r={6} style={{ stroke: colour }} />
      <circle className="reach" cx={x} cy={y} r={12} />
    </g>
  );
}

function PinMarks({ pin, frame, show }: { pin: PinnedPicture; frame: Frame; show: (spot: Spot | null) => void }) {
  const { estimate } = pin.picture;
  const x = frame.x(estimate.ai);
  const y = frame.y(estimate.predicted_tflops * TERA);
  const card = totalCard(pin.picture, pin.label);
  const spot: Spot = { key: `pin:${pin.label}`, x, y, card };
  return (
    <g className="pin-marks">
      {estimate.operators
        .filter((operator) => operator.ai > 0)
        .map((operator) => (
          <path key={operator.site} className="pin-mark" style={{ fill: pin.colour }} d={glyphPath(operator.class, 3.5)} transform={`translate(${frame.x(operator.ai)},${frame.y(operator.predicted_tflops * TERA)})`} />
        ))}
      <g className="point pin" tabIndex={inside(frame, x, y) ? 0 : -1} role="img" aria-label={card.spoken} onPointerEnter={() => show(spot)} onPointerLeave={() => show(null)} onFocus={() => show(spot)} onBlur={() => show(null)}>
        <path className="mark" style={{ fill: pin.colour }} d={glyphPath("total", 6)} transform={`translate(${x},${y})`} />
        <circle className="reach" cx={x} cy={y} r={12} />
      </g>
    </g>
  );
}

/** The heaviest operators by name, where there is room. */
function PointLabels({ operators, spots, total, measured, roofs, frame, narrow }: { operators: readonly Operator[]; spots: readonly Spot[]; total: Spot; measured: readonly Measured[]; roofs: readonly RoofLabel[]; frame: Frame; narrow: boolean }) {
  const wishes: Wish[] = [
    { key: "total", text: "whole pass", x: total.x, y: total.y, clear: 8 },
    ...operators
      .map((operator, index) => ({ operator, spot: spots[index]! }))
      .sort((a, b) => b.operator.predicted_time_us - a.operator.predicted_time_us)
      .slice(0, narrow ? 3 : 10)
      .map(({ operator, spot }) => ({ key: operator.site, text: operator.site, x: spot.x, y: spot.y, clear: radiusOf(operator.flops) })),
  ].filter(({ x, y }) => inside(frame, x, y));
  const marks: Box[] = [...spots, total].map(({ x, y }) => ({ x: x - 7, y: y - 7, width: 14, height: 14 }));
  const rings: Box[] = measured.map((point) => ({ x: frame.x(point.ai) - 7, y: frame.y(point.tflops * TERA) - 7, width: 14, height: 14 }));
  const area = { x: frame.left + 2, y: frame.top + 2, width: frame.right - frame.left - 4, height: frame.bottom - frame.top - 4 };
  return (
    <g className="point-labels" aria-hidden="true">
      {place(wishes, [...marks, ...rings, ...roofs], area).map(({ key, text, x, y, height }) => (
        <text key={key} x={x} y={y + height - 3}>
          {text}
        </text>
      ))}
    </g>
  );
}

function operatorCard(operator: Operator): CardContent {
  const rows: CardContent["rows"] = [
    ["time", `${micros(operator.predicted_time_us)} · ${percent(operator.share)}`],
    ["ideal", micros(operator.ideal_time_us)],
    ["bound by", operator.bottleneck],
    ["intensity", `${digits(operator.ai, 3)} FLOP/B`],
    ["rate", teraflops(operator.predicted_tflops)],
    ["work", flops(operator.flops)],
    ["moved", bytes(operator.bytes)],
    ["unit", operator.math.toUpperCase()],
  ];
  const title = operator.count > 1 ? `${operator.site} ×${operator.count}` : operator.site;
  return { title, note: operator.class, rows, spoken: spoken(title, rows) };
}

function totalCard(picture: Picture, label?: string): CardContent {
  const { estimate } = picture;
  const rows: CardContent["rows"] = [
    ["time", micros(estimate.predicted_time_us)],
    ...(estimate.lo_us === null || estimate.hi_us === null ? [] : ([["range", `${micros(estimate.lo_us, 3)} – ${micros(estimate.hi_us, 3)}`]] as const)),
    ["ideal", micros(estimate.ideal_time_us)],
    ["bound by", estimate.bottleneck],
    ["intensity", `${digits(estimate.ai, 3)} FLOP/B`],
    ["rate", teraflops(estimate.predicted_tflops)],
    ["tokens/s", digits(estimate.tokens_per_s, 4)],
  ];
  const title = label ?? `${estimate.phase}, whole pass`;
  return { title, note: `${picture.modelName} · ${estimate.precision} · ${picture.device.name}`, rows, spoken: spoken(title, rows) };
}

function measuredCard(point: Measured): CardContent {
  const rows: CardContent["rows"] = [
    ["time", micros(point.time_us)],
    ...(point.p5_us && point.p95_us ? ([["spread", `${micros(point.p5_us, 3)} – ${micros(point.p95_us, 3)}`]] as const) : []),
    ["intensity", `${digits(point.ai, 3)} FLOP/B`],
    ["rate", teraflops(point.tflops)],
    ...(point.gb_s ? ([["bandwidth", prefixed(point.gb_s * 1e9, "B/s", 3)]] as const) : []),
    ...(point.kernel_path ? ([["path", point.kernel_path]] as const) : []),
  ];
  const title = `${point.label} · measured`;
  return { title, note: [point.precision, ...point.warnings].join(" · "), rows, spoken: spoken(title, rows) };
}

function spoken(title: string, rows: CardContent["rows"]): string {
  return `${title}: ${rows.map(([name, value]) => `${name} ${value}`).join(", ")}`;
}

