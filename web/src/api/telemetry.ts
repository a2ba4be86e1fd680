import { events } from "./events";

/** What a GPU says of itself; what its driver does not tell is missing. */
export interface Telemetry {
  readonly device_name?: string | null;
  readonly driver_version?: string | null;
  readonly compute_capability?: readonly number[] | null;
  readonly sm_clock_mhz?: number | null;
  readonly sm_clock_max_mhz?: number | null;
  readonly gpu_clock_mhz?: number | null;
  readonly gpu_clock_max_mhz?: number | null;
  readonly mem_clock_mhz?: number | null;
  readonly mem_clock_max_mhz?: number | null;
  readonly power_draw_w?: number | null;
  readonly power_limit_w?: number | null;
  readonly temperature_c?: number | null;
  readonly temperature_throttle_c?: number | null;
  readonly mem_used_mb?: number | null;
  readonly mem_total_mb?: number | null;
  readonly gpu_utilization_pct?: number | null;
  readonly mem_utilization_pct?: number | null;
  readonly throttle_reasons?: readonly string[] | null;
}

/** A look every half second, until aborted. */
export async function* looks(signal: AbortSignal): AsyncGenerator<Telemetry> {
  for await (const event of events("api/nvml/stream", { signal })) {
    if (event.type === "error") throw new Error(event.data);
    yield JSON.parse(event.data) as Telemetry;
  }
}
