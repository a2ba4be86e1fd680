/** The last two minutes of a GPU. */

import { useEffect, useState } from "react";
import { isAbort, Offline, Refusal } from "../api/client";
import { looks } from "../api/telemetry";
import type { Telemetry } from "../api/types";
import { report, useConnection } from "./connection";

export const KEPT = 240;

export interface Recording {
  readonly looks: readonly Telemetry[];
  readonly error: Error | null;
}

/** Watches while `wanted`; goes on when the server comes back or lets us in. */
export function useTelemetry(wanted: boolean): Recording {
  const [recording, setRecording] = useState<Recording>({ looks: [], error: null });
  const [attempt, setAttempt] = useState(0);
  const connection = useConnection();
  useEffect(() => {
    if (!wanted || connection !== "online") return undefined;
    const abort = new AbortController();
    let timer: number | undefined;
    const again = () => {
      timer = window.setTimeout(() => setAttempt((count) => count + 1), 3000);
    };
    const watch = async () => {
      try {
        for await (const look of looks(abort.signal)) setRecording((before) => ({ looks: [...before.looks, look].slice(-KEPT), error: null }));
        again();
      } catch (error) {
        if (isAbort(error) || abort.signal.aborted) return;
        report(error);
        if (error instanceof Offline) return;
        setRecording((before) => ({ ...before, error: error instanceof Error ? error : new Error(String(error)) }));
        // a driver that stumbles may get up; a server that refuses has decided
        if (!(error instanceof Refusal)) again();
      }
    };
    void watch();
    return () => {
      abort.abort();
      window.clearTimeout(timer);
    };
  }, [attempt, wanted, connection]);
  return recording;
}
