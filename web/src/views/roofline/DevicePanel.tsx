import { useMemo } from "react";
import type { Picture } from "../../api/picture";
import type { Device } from "../../api/types";
import { useCatalogue } from "../../data/catalogue";
import { LogSlider } from "../../parts/Slider";
import { Panel } from "../../parts/Panel";
import { changeSetup } from "../../state/store";
import { isCustom, type Setup } from "../../state/view";
import { prefixed } from "../../units/figure";
import { chooseDevice, DeviceSelect } from "./DeviceSelect";

type Unit = keyof Device["peaks"];

const RATE = { low: 8, high: 32_768 } as const;
const PEAK = { low: 0.25, high: 32_768 } as const;

export function DevicePanel({ setup, picture }: { setup: Setup; picture: Picture | null }) {
  const { devices } = useCatalogue();
  const device = useMemo(() => devices.find((candidate) => candidate.key === setup.on || candidate.key === setup.on.split("@")[0]), [devices, setup.on]);
  const custom = isCustom(setup);
  const reset = () => changeSetup({ bandwidth: null, peaks: {} });
  const unit = picture?.estimate.formats.math;
  return (
    <Panel
      title={custom ? "Device, custom rates" : "Device"}
      tools={
        custom ? (
          <button type="button" className="button tight" onClick={reset}>
            Back to preset
          </button>
        ) : undefined
      }
    >
      <DeviceSelect value={setup.on} onChange={chooseDevice} />
      {device && <DeviceLine device={device} />}
      {device && <Bandwidth device={device} setup={setup} />}
      {device && unit && device.peaks[unit] !== undefined && <Peak device={device} unit={unit} setup={setup} />}
      {device && (
        <details className="more">
          <summary>Other peaks, source</summary>
          <div className="stack">
            {(Object.keys(device.peaks) as Unit[])
              .filter((name) => name !== unit)
              .map((name) => (
                <Peak key={name} device={device} unit={name} setup={setup} />
              ))}
            <p className="small muted">
              {device.source} ({device.confidence}). {device.notes}
            </p>
          </div>
        </details>
      )}
    </Panel>
  );
}

function DeviceLine({ device }: { device: Device }) {
  const parts = [device.architecture, device.memory.capacity ? prefixed(device.memory.capacity, "B", 3) : null, device.memory.type, device.tdp ? `${device.tdp} W` : null];
  return <p className="small muted">{parts.filter(Boolean).join(" · ")}</p>;
}

function Bandwidth({ device, setup }: { device: Device; setup: Setup }) {
  const preset = device.memory.bandwidth / 1e9;
  const value = setup.bandwidth ?? preset;
  return <LogSlider label={`Bandwidth${device.memory.type ? `, ${device.memory.type}` : ""}`} value={value} {...RATE} text={(rate) => prefixed(rate * 1e9, "B/s", 3)} changed={setup.bandwidth !== null} onChange={(bandwidth) => changeSetup({ bandwidth })} />;
}

function Peak({ device, unit, setup }: { device: Device; unit: Unit; setup: Setup }) {
  const preset = (device.peaks[unit] ?? 0) / 1e12;
  const value = setup.peaks[unit] ?? preset;
  const set = (peak: number) => changeSetup({ peaks: { ...setup.peaks, [unit]: peak } });
  return <LogSlider label={`Peak ${unit.toUpperCase().replace("_TENSOR", " tensor")}`} value={value} {...PEAK} text={(peak) => prefixed(peak * 1e12, "FLOP/s", 3)} changed={setup.peaks[unit] !== undefined} onChange={set} />;
}
