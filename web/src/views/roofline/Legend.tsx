import { memo, type ReactNode } from "react";
import type { Picture } from "../../api/picture";
import { clearMeasured, FAKE, type Measured } from "../../data/measured";
import { Glyph } from "../../plot/glyphs";
import { change } from "../../state/store";

export const Legend = memo(function Legend({ picture, band, ideal, measured, tools }: { picture: Picture; band: boolean; ideal: boolean; measured: readonly Measured[]; tools: ReactNode }) {
  const { estimate } = picture;
  const interval = estimate.tier === "expected";
  return (
    <div className="plot-head">
      <div className="legend-row">
        <span><Glyph kind="gemm" />gemm</span>
        <span><Glyph kind="attention" />attention</span>
        <span><Glyph kind="elementwise" />elementwise</span>
        <span><Glyph kind="total" size={12} />whole pass</span>
        {measured.length > 0 && (
          <span>
            <svg className="ring" width="11" height="11" viewBox="-6 -6 12 12" aria-hidden="true"><circle r="4.4" /></svg>
            {measured.every((point) => point.warnings.includes(FAKE)) ? "null backend" : "measured"}
            <button type="button" className="button quiet tight" onClick={() => clearMeasured(picture.device.key)}>clear {measured.length}</button>
          </span>
        )}
      </div>
      <div className="legend-row">
        <label className="check" title="What a calibration makes us expect, or the speed of light">
          <input type="checkbox" checked={ideal} onChange={(event) => change({ tier: event.target.checked ? "ideal" : "best" })} />
          ideal only
        </label>
        <label className="check" title={interval ? "Where nine of ten measurements are expected" : "There is no interval without a calibration"}>
          <input type="checkbox" checked={band} onChange={(event) => change({ band: event.target.checked })} />
          uncertainty
        </label>
        {tools}
      </div>
    </div>
  );
});
