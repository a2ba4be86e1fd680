/** The shapes of points: what kind of work it is must be seen without colour. */

import type { OpClass } from "../api/types";

export type Kind = OpClass | "total";

/** The radius of an operator: by the logarithm of its work. */
export function radiusOf(flops: number): number {
  return Math.min(8.5, Math.max(4, Math.log10(Math.max(flops, 1) / 1e6) + 0.5));
}

/** A path around (0, 0) of the same area for each kind. */
export function glyphPath(kind: Kind, r: number): string {
  switch (kind) {
    case "gemm":
      return `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`;
    case "attention": {
      const d = r * 1.25;
      return `M0,${-d}L${d},0L0,${d}L${-d},0Z`;
    }
    case "elementwise": {
      const s = r * 0.89;
      return `M${-s},${-s}H${s}V${s}H${-s}Z`;
    }
    case "network": {
      const w = r * 1.3;
      const h = r * 1.2;
      return `M0,${-h}L${w},${h}H${-w}Z`;
    }
    case "total": {
      const o = r * 1.35;
      const i = r * 0.5;
      return `M0,${-o}L${i},${-i}L${o},0L${i},${i}L0,${o}L${-i},${i}L${-o},0L${-i},${-i}Z`;
    }
  }
}

export function Glyph({ kind, size = 10 }: { kind: Kind; size?: number }) {
  return (
    <svg className={`glyph ${kind}`} width={size} height={size} viewBox="-6 -6 12 12" aria-hidden="true">
      <path d={glyphPath(kind, kind === "total" ? 4.2 : 4.6)} />
    </svg>
  );
}
