import { useId } from "react";
import { change, changeSetup } from "../../state/store";
import { isCustom, type Machine } from "../../state/view";
import type { Backend } from "./backends";

export function BackendSelect({ value, backends, predicting = true }: { value: string; backends: readonly Backend[]; predicting?: boolean }) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>Measured by</label>
      <select id={id} className="select" value={value} disabled={backends.length === 0} onChange={(event) => change({ backend: event.target.value })}>
        {(predicting || backends.length === 0) && <option value="none">nothing: predict only</option>}
        {backends.map(({ key, name }) => (
          <option key={key} value={key}>
            {name}
          </option>
        ))}
      </select>
    </div>
  );
}

/** Rates that were set on another tab hold here, too, and are not to be seen. */
export function CustomRates({ machine }: { machine: Machine }) {
  if (!isCustom(machine)) return null;
  return (
    <div className="row spread-row">
      <span className="small muted">with rates of your own</span>
      <button type="button" className="button tight" onClick={() => changeSetup({ bandwidth: null, peaks: {} })}>
        Back to preset
      </button>
    </div>
  );
}

export function MeasuringOff() {
  return (
    <div className="notice warn">
      <div>
        Measuring is off on this server. <code>roofline serve --allow-measure</code> lets this page run kernels there; predictions work as they are.
      </div>
    </div>
  );
}
