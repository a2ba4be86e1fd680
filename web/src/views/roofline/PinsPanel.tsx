import { memo } from "react";
import type { Picture } from "../../api/picture";
import type { Estimate } from "../../api/types";
import { Panel } from "../../parts/Panel";
import { PIN_COLOURS } from "../../plot/colours";
import { change } from "../../state/store";
import { MOST_PINS, pinLabel, type Setup } from "../../state/view";
import { count, micros, times } from "../../units/figure";
import type { PinnedPicture } from "./RooflineView";

/** Up to four set-ups beside the current one. */
export const PinsPanel = memo(function PinsPanel({ setup, pins, pictures, now }: { setup: Setup; pins: readonly Setup[]; pictures: readonly PinnedPicture[]; now: Picture | null }) {
  const pinned = pins.some((pin) => JSON.stringify(pin) === JSON.stringify(setup));
  const add = () => change({ pins: [...pins, setup] });
  const remove = (index: number) => change({ pins: pins.filter((_, place) => place !== index) });
  return (
    <Panel
      title="Compare"
      tools={
        <button type="button" className="button tight" disabled={pins.length >= MOST_PINS || pinned} onClick={add}>
          Pin current
        </button>
      }
    >
      {pins.length === 0 && <p className="muted small">Pin a set-up, then change device, precision or batch: both stay on the plot.</p>}
      <ul className="pins">
        {pins.map((pin, index) => {
          const label = pinLabel(pin);
          const estimate = pictures.find((found) => found.label === label)?.picture.estimate;
          return (
            <li key={JSON.stringify(pin)}>
              <span className="swatch" style={{ background: PIN_COLOURS[index % PIN_COLOURS.length] }} />
              <button type="button" className="pin-name" title="Show this set-up" onClick={() => change({ setup: pin })}>
                {label}
              </button>
              <button type="button" className="icon-button small-icon" aria-label={`Remove ${label}`} onClick={() => remove(index)}>
                ×
              </button>
              <span className="pin-facts num">
                {estimate ? `${estimate.tier === "ideal" ? "ideal " : ""}${micros(estimate.predicted_time_us, 3)} · ${count(estimate.tokens_per_s)} tok/s` : "…"}
                {estimate && now && <span className="muted"> {against(estimate, now.estimate)}</span>}
              </span>
            </li>
          );
        })}
      </ul>
    </Panel>
  );
});

/** Times are compared with times of the same kind: ideal with ideal where only one of both is expected. */
function against(pinned: Estimate, now: Estimate): string {
  if (pinned.tier === now.tier) return `${times(pinned.predicted_time_us / now.predicted_time_us)} the time`;
  return `${times(pinned.ideal_time_us / now.ideal_time_us)} the ideal time`;
}
