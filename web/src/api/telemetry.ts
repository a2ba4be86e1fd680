import { events } from "./events";
import { address } from "./routes";
import type { Telemetry } from "./types";

/** A look every half second, until aborted. */
export async function* looks(signal: AbortSignal): AsyncGenerator<Telemetry> {
  for await (const event of events(address<"/api/nvml/stream", "get">("/api/nvml/stream", {}), { signal })) {
    if (event.type === "error") throw new Error(event.data);
    yield JSON.parse(event.data) as Telemetry;
  }
}
