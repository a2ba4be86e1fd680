/** The roofline: ceilings, diagonals, and what stands below them. */

import { memo, useId, useMemo, useRef, useState, type KeyboardEvent } from "react";
import type { Ceiling, Memory } from "../api/picture";
import { useSize } from "../parts/size";
import type { Zoom } from "../state/view";
import { Axes } from "./Axes";
import { Card } from "./Card";
import { domainOf, frameOf, inside, type Frame } from "./frame";
import { glyphPath } from "./glyphs";
import { place, type Box } from "./labels";
import type { Mark } from "./marks";
import { highestOf, roofLabels, Roofs, slopeLabels } from "./Roofs";
import { useZoom } from "./zoom";

interface Props {
  readonly title: string;
  readonly ceilings: readonly Ceiling[];
  readonly memories: readonly Memory[];
  /** The units in use: their ceilings stand out. */
  readonly used: readonly string[];
  readonly marks: readonly Mark[];
  readonly band: boolean;
  readonly zoom: Zoom;
  readonly onZoom: (zoom: Zoom) => void;
  /** The name that is pointed at, here or elsewhere. */
  readonly lit: string | null;
  readonly onLit: (name: string | null) => void;
}

/** A mark and where it is on the screen. */
interface Spot {
  readonly mark: Mark;
  readonly x: number;
  readonly y: number;
}

export const RooflinePlot = memo(function RooflinePlot(props: Props) {
  const { title, ceilings, memories, used, marks, band, zoom, onZoom, lit, onLit } = props;
  const box = useRef<HTMLDivElement>(null);
  const svg = useRef<SVGSVGElement>(null);
  const size = useSize(box, { width: 760, height: 480 });
  const narrow = size.width < 560;
  const margins = useMemo(() => ({ top: 14, right: narrow ? 8 : 14, bottom: 42, left: narrow ? 44 : 58 }), [narrow]);
  const control = useZoom(svg, size, margins, zoom, onZoom);
  const [near, setNear] = useState<string | null>(null);
  const clip = useId();

  const domain = useMemo(
    () => domainOf(marks, ceilings.map((ceiling) => ceiling.flops), ceilings.map((ceiling) => ceiling.ridge)),
    [marks, ceilings],
  );
  const frame = useMemo(() => frameOf(domain, size, margins, zoom), [domain, size, margins, zoom]);
  const roofs = useMemo(() => roofLabels(ceilings, frame, narrow), [ceilings, frame, narrow]);
  const units = useMemo(() => new Set(used), [used]);
  const spots = useMemo(() => marks.map((mark): Spot => ({ mark, x: frame.x(mark.x), y: frame.y(mark.y) })), [marks, frame]);

  const slopes = useMemo(() => slopeLabels(memories, highestOf(ceilings), frame, spots), [memories, ceilings, frame, spots]);
  const lettered = useMemo<readonly Box[]>(() => [...roofs, ...slopes.flatMap((label) => label.boxes)], [roofs, slopes]);

  const show = (mark: Mark | null) => {
    setNear(mark?.key ?? null);
    onLit(mark?.name ?? null);
  };
  const nearest = spots.find((spot) => spot.mark.key === near);
  // a table may point elsewhere while a point here still has the focus
  const told = nearest && nearest.mark.name === lit ? nearest : lit === null ? undefined : spots.find((spot) => spot.mark.name === lit && spot.mark.card);

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

  const width = frame.right - frame.left;
  const height = frame.bottom - frame.top;
  return (
    <figure className="plot">
      <div className="plot-box" ref={box}>
        <svg ref={svg} className="plot-svg" width={size.width} height={size.height} viewBox={`0 0 ${size.width} ${size.height}`} role="group" aria-label={title} tabIndex={0} onKeyDown={keys}>
          <defs>
            <clipPath id={clip}>
              <rect x={frame.left} y={frame.top} width={width} height={height} />
            </clipPath>
          </defs>
          <rect className="ground" x={frame.left} y={frame.top} width={width} height={height} />
          <Axes frame={frame} narrow={narrow} />
          <g clipPath={`url(#${clip})`}>
            <Roofs frame={frame} ceilings={ceilings} memories={memories} band={band} used={units} labels={roofs} slopes={slopes} />
            {spots.map((spot) => (
              <Reach key={spot.mark.key} spot={spot} frame={frame} band={band} />
            ))}
            {spots.map((spot) => (
              <Point key={spot.mark.key} spot={spot} lit={spot.mark === told?.mark || (lit !== null && spot.mark.name === lit)} dim={lit !== null && spot.mark.name !== lit && spot.mark.style === "operator"} reachable={inside(frame, spot.x, spot.y)} show={show} />
            ))}
            <PointLabels spots={spots} lettered={lettered} frame={frame} most={narrow ? 4 : 12} />
          </g>
          <rect className="edge" x={frame.left} y={frame.top} width={width} height={height} />
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
        {told?.mark.card && inside(frame, told.x, told.y) && <Card content={told.mark.card} x={told.x} y={told.y} size={size} />}
      </div>
    </figure>
  );
});

function Point({ spot, lit, dim, reachable, show }: { spot: Spot; lit: boolean; dim: boolean; reachable: boolean; show: (mark: Mark | null) => void }) {
  const { mark, x, y } = spot;
  const hollow = mark.style === "measured";
  const paint = mark.colour === null ? undefined : hollow ? { stroke: mark.colour } : { fill: mark.colour };
  const shape = <path className="mark" style={paint} d={glyphPath(mark.kind, mark.radius)} />;
  const name = `point ${mark.style} ${mark.kind}${lit ? " lit" : ""}${dim ? " dim" : ""}`;
  if (!mark.card) {
    return (
      <g className={name} transform={`translate(${x},${y})`} aria-hidden="true">
        {shape}
      </g>
    );
  }
  return (
    <g className={name} transform={`translate(${x},${y})`} tabIndex={reachable ? 0 : -1} role="img" aria-label={mark.card.spoken} onPointerEnter={() => show(mark)} onPointerLeave={() => show(null)} onFocus={() => show(mark)} onBlur={() => show(null)}>
      <circle className="reach" r={13} />
      {shape}
    </g>
  );
}

/** How far a point may be off, and where the ideal roofline would have it. */
function Reach({ spot, frame, band }: { spot: Spot; frame: Frame; band: boolean }) {
  const { mark, x, y } = spot;
  const low = mark.low === null ? null : frame.y(mark.low);
  const high = mark.high === null ? null : frame.y(mark.high);
  const ideal = mark.ideal === null ? null : frame.y(mark.ideal);
  const stroke = mark.colour === null ? undefined : { stroke: mark.colour };
  return (
    <g className={`span ${mark.style} ${mark.kind}`} aria-hidden="true">
      {ideal !== null && y - ideal > mark.radius + 2 && (
        <>
          <line className="to-ideal" x1={x} x2={x} y1={y} y2={ideal} />
          {mark.style === "total" ? <path className="ideal-total" d={glyphPath("total", 5)} transform={`translate(${x},${ideal})`} /> : <line className="ideal-tick" style={stroke} x1={x - 5} x2={x + 5} y1={ideal} y2={ideal} />}
        </>
      )}
      {band && low !== null && high !== null && (
        <g className="whisker">
          <line style={stroke} x1={x} x2={x} y1={low} y2={high} />
          <line style={stroke} x1={x - 5} x2={x + 5} y1={low} y2={low} />
          <line style={stroke} x1={x - 5} x2={x + 5} y1={high} y2={high} />
        </g>
      )}
    </g>
  );
}

function PointLabels({ spots, lettered, frame, most }: { spots: readonly Spot[]; lettered: readonly Box[]; frame: Frame; most: number }) {
  const placed = useMemo(() => {
    const wishes = spots
      .filter(({ mark, x, y }) => mark.label !== null && inside(frame, x, y))
      .sort((a, b) => a.mark.rank - b.mark.rank)
      .slice(0, most)
      .map(({ mark, x, y }) => ({ key: mark.key, text: mark.label!, x, y, clear: mark.radius }));
    const taken: Box[] = spots.map(({ x, y }) => ({ x: x - 6, y: y - 6, width: 12, height: 12 }));
    const area = { x: frame.left + 2, y: frame.top + 2, width: frame.right - frame.left - 4, height: frame.bottom - frame.top - 4 };
    return place(wishes, [...taken, ...lettered], area);
  }, [spots, lettered, frame, most]);
  return (
    <g className="point-labels" aria-hidden="true">
      {placed.map(({ key, text, x, y, height }) => (
        <text key={key} x={x} y={y + height - 3}>
          {text}
        </text>
      ))}
    </g>
  );
}
