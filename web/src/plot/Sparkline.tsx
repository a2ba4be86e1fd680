import { area, line } from "d3-shape";
import { useRef } from "react";
import { useSize } from "../parts/size";

/** A line of the last values against their limit; gaps where there was none. */
export function Sparkline({ values, most, slots, label }: { values: readonly (number | null)[]; most: number; slots: number; label: string }) {
  const box = useRef<HTMLDivElement>(null);
  const size = useSize(box, { width: 260, height: 56 });
  const offset = slots - values.length;
  const x = (index: number) => ((offset + index) / (slots - 1)) * size.width;
  const y = (value: number) => size.height - 1 - (Math.min(value, most * 1.05) / (most * 1.05)) * (size.height - 2);
  const points = [...values];
  const drawn = line<number | null>().defined((value) => value !== null).x((_, index) => x(index)).y((value) => y(value ?? 0));
  const filled = area<number | null>().defined((value) => value !== null).x((_, index) => x(index)).y0(size.height).y1((value) => y(value ?? 0));
  return (
    <div className="spark" ref={box}>
      <svg width={size.width} height={size.height} role="img" aria-label={label}>
        <line className="limit" x1={0} x2={size.width} y1={y(most)} y2={y(most)} />
        <path className="spark-fill" d={filled(points) ?? ""} />
        <path className="spark-line" d={drawn(points) ?? ""} />
      </svg>
    </div>
  );
}
