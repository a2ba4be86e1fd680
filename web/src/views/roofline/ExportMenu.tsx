import { useEffect, useRef } from "react";
import type { Picture } from "../../api/picture";
import type { Measured } from "../../data/measured";
import { pngBlob, save, svgText } from "../../plot/export";
import { link } from "../../state/store";
import { toCsv } from "../../units/csv";

/** The picture and its numbers as files. */
export function ExportMenu({ picture, measured }: { picture: Picture; measured: readonly Measured[] }) {
  const box = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const close = (event: Event) => {
      const element = box.current;
      if (element?.open && (event instanceof KeyboardEvent ? event.key === "Escape" : !element.contains(event.target as Node))) element.open = false;
    };
    document.addEventListener("pointerdown", close);
    document.addEventListener("keydown", close);
    return () => {
      document.removeEventListener("pointerdown", close);
      document.removeEventListener("keydown", close);
    };
  }, []);
  const name = `roofline-${picture.model}-${picture.estimate.device.replace(/\W+/g, "_")}-${picture.estimate.precision}-${picture.estimate.phase}`;
  const plot = () => document.querySelector<SVGSVGElement>(".plot-svg");
  const run = async (kind: "svg" | "png" | "csv" | "json") => {
    if (box.current) box.current.open = false;
    const svg = plot();
    if (kind === "svg" && svg) save(`${name}.svg`, new Blob([svgText(svg)], { type: "image/svg+xml" }));
    if (kind === "png" && svg) save(`${name}.png`, await pngBlob(svg));
    if (kind === "csv") save(`${name}.csv`, new Blob([csv(picture, measured)], { type: "text/csv" }));
    if (kind === "json") save(`${name}.json`, new Blob([JSON.stringify({ ...picture, measured, link: link() }, null, 2)], { type: "application/json" }));
  };
  return (
    <details className="menu" ref={box}>
      <summary className="button tight">Export</summary>
      <div className="menu-list">
        {(["svg", "png", "csv", "json"] as const).map((kind) => (
          <button key={kind} type="button" onClick={() => void run(kind)}>
            {kind.toUpperCase()}
          </button>
        ))}
      </div>
    </details>
  );
}

function csv(picture: Picture, measured: readonly Measured[]): string {
  const header = ["label", "source", "class", "precision", "count", "ai", "tflops", "time_us", "ideal_time_us", "share", "bottleneck", "flops", "bytes"];
  const { estimate } = picture;
  return toCsv(header, [
    ...estimate.operators.map((op) => [op.site, estimate.tier, op.class, estimate.precision, op.count, op.ai, op.predicted_tflops, op.predicted_time_us, op.ideal_time_us, op.share, op.bottleneck, op.flops, op.bytes]),
    ["total", estimate.tier, "", estimate.precision, 1, estimate.ai, estimate.predicted_tflops, estimate.predicted_time_us, estimate.ideal_time_us, 1, estimate.bottleneck, estimate.flops, estimate.bytes],
    ...measured.map((point) => [point.label, "measured", "", point.precision, 1, point.ai, point.tflops, point.time_us, null, null, null, null, null]),
  ]);
}
