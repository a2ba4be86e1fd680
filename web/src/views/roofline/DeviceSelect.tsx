import { memo, useId, useMemo } from "react";
import { useCatalogue } from "../../data/catalogue";
import type { Device } from "../../api/types";
import { changeSetup } from "../../state/store";

/** All devices by vendor, the newest first. */
export const DeviceSelect = memo(function DeviceSelect({ value, onChange, label = "Preset", none }: { value: string; onChange: (key: string) => void; label?: string; /** What it says where no device is chosen. */ none?: string }) {
  const { devices } = useCatalogue();
  const id = useId();
  const groups = useMemo(() => byVendor(devices), [devices]);
  const known = devices.some((device) => device.key === value);
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      <select id={id} className="select" value={value} onChange={(event) => onChange(event.target.value)}>
        {none !== undefined && <option value="">{none}</option>}
        {!known && value !== "" && <option value={value}>{value}</option>}
        {groups.map(([vendor, group]) => (
          <optgroup key={vendor} label={vendor}>
            {group.map((device) => (
              <option key={device.key} value={device.key}>
                {device.name}
              </option>
            ))}
          </optgroup>
        ))}
      </select>
    </div>
  );
});

/** Another device comes with its own rates. */
export function chooseDevice(on: string): void {
  changeSetup({ on, bandwidth: null, peaks: {} });
}

function byVendor(devices: readonly Device[]): readonly (readonly [string, readonly Device[]])[] {
  const groups = new Map<string, Device[]>();
  for (const device of devices) groups.set(device.vendor, [...(groups.get(device.vendor) ?? []), device]);
  return [...groups]
    .map(([vendor, group]) => [vendor, group.sort((a, b) => (b.year ?? 0) - (a.year ?? 0) || a.name.localeCompare(b.name))] as const)
    .sort((a, b) => b[1].length - a[1].length);
}
