import { useRef } from "react";
import type { Format } from "../../api/types";
import { useSize } from "../../parts/size";
import { precisionColour } from "../../plot/colours";
import { digits } from "../../units/figure";

/** The values that a format can hold, where they are. */
export function NumberLine({ format, bare = false }: { format: Format; bare?: boolean }) {
  const box = useRef<HTMLDivElement>(null);
  const size = useSize(box, { width: 320, height: bare ? 22 : 44 });
  const codes = format.codebook ?? [];
  const most = Math.max(...codes.map(Math.abs));
  const place = (value: number) => 8 + ((value / most + 1) / 2) * (size.width - 16);
  const labelled = spread(codes, place);
  const middle = bare ? size.height / 2 : 13;
  return (
    <div className={bare ? "number-line bare" : "number-line"} ref={box}>
      <svg width={size.width} height={size.height} role="img" aria-label={`${codes.length} codes: ${spoken(codes)}`}>
        <line className="line" x1={2} x2={size.width - 2} y1={middle} y2={middle} />
        {codes.map((code, index) => (
          <line key={index} className="code" style={{ stroke: precisionColour(format.name) }} x1={place(code)} x2={place(code)} y1={middle - 8} y2={middle + 8} />
        ))}
        {!bare &&
          labelled.map((code) => (
            <text key={code} x={place(code)} y={middle + 24} textAnchor="middle">
              {digits(code, 2)}
            </text>
          ))}
      </svg>
    </div>
  );
}

/** Few codes one by one; many by where they end. */
function spoken(codes: readonly number[]): string {
  const said = (code: number) => digits(code, 3);
  return codes.length <= 64 ? codes.map(said).join(", ") : `from ${said(codes[0]!)} to ${said(codes[codes.length - 1]!)}`;
}

/** As many codes as have room for their number. */
function spread(codes: readonly number[], place: (code: number) => number): readonly number[] {
  const kept: number[] = [];
  const byImportance = [...codes].sort((a, b) => Math.abs(b) - Math.abs(a));
  const zero = codes.includes(0) ? [0] : [];
  for (const code of [...zero, ...byImportance]) {
    if (!kept.some((other) => Math.abs(place(other) - place(code)) < 26)) kept.push(code);
  }
  return kept;
}
