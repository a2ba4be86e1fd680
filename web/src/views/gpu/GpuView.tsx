/** What the GPU of the server does now, and what holds it back. */

import { Refusal } from "../../api/client";
import type { Telemetry } from "../../api/types";
import { KEPT, useTelemetry } from "../../data/telemetry";
import { useCatalogue } from "../../data/catalogue";
import { Panel } from "../../parts/Panel";
import { Sparkline } from "../../plot/Sparkline";
import { digits } from "../../units/figure";

interface Gauge {
  readonly name: string;
  readonly unit: string;
  readonly of: (look: Telemetry) => number | null | undefined;
  readonly most: (look: Telemetry) => number | null | undefined;
  readonly note: string;
}

const GAUGES: readonly Gauge[] = [
  { name: "Power", unit: "W", of: (look) => look.power_draw_w, most: (look) => look.power_limit_w, note: "limit" },
  { name: "SM clock", unit: "MHz", of: (look) => look.sm_clock_mhz ?? look.gpu_clock_mhz, most: (look) => look.sm_clock_max_mhz ?? look.gpu_clock_max_mhz, note: "maximum" },
  { name: "Memory clock", unit: "MHz", of: (look) => look.mem_clock_mhz, most: (look) => look.mem_clock_max_mhz, note: "maximum" },
  { name: "Temperature", unit: "°C", of: (look) => look.temperature_c, most: (look) => look.temperature_throttle_c ?? 95, note: "slows down at" },
  { name: "Memory", unit: "GiB", of: (look) => gib(look.mem_used_mb), most: (look) => gib(look.mem_total_mb), note: "of" },
  { name: "Busy", unit: "%", of: (look) => look.gpu_utilization_pct, most: () => 100, note: "some kernel ran, of" },
];

const REASONS: Readonly<Record<NonNullable<Telemetry["throttle_reasons"]>[number], string>> = {
  gpu_idle: "idle: nothing runs",
  sw_power_cap: "at its power limit: usual in large products; compare rates at the clock that was reached",
  sw_thermal_slowdown: "too hot: what is measured now says little",
  hw_thermal_slowdown: "too hot: what is measured now says little",
  hw_slowdown: "heat or power supply ask for less",
  hw_power_brake_slowdown: "the server's power brake is on",
  applications_clocks_setting: "somebody set the clocks",
  sync_boost: "another GPU sets the clock",
  display_clock_setting: "a display sets the clock",
};

export default function GpuView() {
  const { health } = useCatalogue();
  const { looks, error } = useTelemetry(health?.nvml === true);
  const now = looks[looks.length - 1];
  if (!now) return error || health?.nvml === false ? <NoGpu error={error} /> : <div className="empty" aria-busy="true">Asking the driver</div>;
  const reasons = now.throttle_reasons ?? [];
  return (
    <div className="stack">
      <Panel>
        <div className="row spread-row">
          <h2 className="big">{now.device_name ?? "GPU"}</h2>
          <span className="muted small">
            {now.compute_capability?.length ? `compute capability ${now.compute_capability.join(".")} · ` : ""}
            {now.driver_version ? `driver ${now.driver_version}` : ""}
          </span>
        </div>
        {reasons.length > 0 ? (
          <ul>
            {reasons.map((reason) => (
              <li key={reason} className={reason === "gpu_idle" ? "muted" : "warning"}>{REASONS[reason]}</li>
            ))}
          </ul>
        ) : (
          <p className="muted">Nothing holds the clocks back.</p>
        )}
        {error && <p className="warning small">{error.message}</p>}
      </Panel>
      <div className="gauges">
        {GAUGES.map((gauge) => (
          <GaugePanel key={gauge.name} gauge={gauge} looks={looks} now={now} />
        ))}
      </div>
      <p className="small faint">Two looks a second, two minutes back. Busy says that some kernel ran, not how full the GPU was.</p>
    </div>
  );
}

function GaugePanel({ gauge, looks, now }: { gauge: Gauge; looks: readonly Telemetry[]; now: Telemetry }) {
  const value = gauge.of(now) ?? null;
  const values = looks.map((look) => gauge.of(look) ?? null);
  const limit = gauge.most(now) ?? null;
  const most = limit ?? Math.max(1, ...values.map((past) => past ?? 0));
  return (
    <Panel className="gauge">
      <div className="row spread-row">
        <h2>{gauge.name}</h2>
        <span className="small faint">{limit === null ? "" : `${gauge.note} ${digits(limit, 4)} ${gauge.unit}`}</span>
      </div>
      <div className="gauge-value num">
        {digits(value, 4)} <small>{gauge.unit}</small>
      </div>
      <Sparkline values={values} most={most} slots={KEPT} label={`${gauge.name}, now ${digits(value, 4)} ${gauge.unit}`} />
    </Panel>
  );
}

function NoGpu({ error }: { error: Error | null }) {
  const hint = error instanceof Refusal ? error.hint : null;
  return (
    <div className="panel empty">
      <h3>No GPU is seen from the server</h3>
      {error && <p>{error.message}{hint ? `: ${hint}` : ""}.</p>}
      <p>Clocks, power, temperature and memory of an NVIDIA GPU appear here when its driver answers. Everything else on this page works without one.</p>
      <p className="small faint">On a machine far away: <code>roofline serve</code> there, <code>ssh -L 8000:localhost:8000 HOST</code> here.</p>
    </div>
  );
}

function gib(mib: number | null | undefined): number | null {
  return mib === null || mib === undefined ? null : mib / 1024;
}
