/** The last two minutes of a GPU. */

import { useEffect, useState } from "react";
import { isAbort, Offline } from "../api/client";
import { looks, type Telemetry } from "../api/telemetry";
import { report } from "./connection";

export const KEPT = 240;

export interface Recording {
  readonly looks: readonly Telemetry[];
  readonly error: Error | null;
}

export function useTelemetry(): Recording {
  const [recording, setRecording] = useState<Recording>({ looks: [], error: null });
  const [attempt, setAttempt] = useState(0);
  useEffect(() => {
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
        if (error instanceof Offline) again();
        setRecording((before) => ({ ...before, error: error as Error }));
      }
    };
    void watch();
    return () => {
      abort.abort();
      window.clearTimeout(timer);
    };
  }, [attempt]);
  return recording;
}
