/** One job of this tab: started, followed live, cancelled. It goes on when the tab is left, and is found again by its id. */

import { useCallback, useEffect, useRef, useState } from "react";
import { isAbort } from "../api/client";
import { createJob, jobEvents, removeJob, showJob, type JobResult, type JobState, type Skipped } from "../api/jobs";
import type { Measurement } from "../api/types";
import { report } from "./connection";

export interface Work {
  readonly id: string | null;
  readonly state: JobState | "idle" | "asking";
  readonly finished: number;
  readonly count: number | null;
  readonly current: string | null;
  readonly points: readonly Measurement[];
  readonly skipped: readonly Skipped[];
  readonly result: JobResult | null;
  readonly error: Error | null;
}

const IDLE: Work = { id: null, state: "idle", finished: 0, count: null, current: null, points: [], skipped: [], result: null, error: null };

export interface JobControl {
  readonly work: Work;
  readonly busy: boolean;
  readonly start: (body: Readonly<Record<string, unknown>>) => void;
  readonly cancel: () => void;
}

export function useJob(): JobControl {
  const [work, setWork] = useState<Work>(IDLE);
  const abort = useRef<AbortController | null>(null);
  useEffect(() => () => abort.current?.abort(), []);

  const start = useCallback((body: Readonly<Record<string, unknown>>) => {
    abort.current?.abort();
    const mine = new AbortController();
    abort.current = mine;
    const patch = (next: (before: Work) => Work) => {
      if (!mine.signal.aborted) setWork(next);
    };
    setWork({ ...IDLE, state: "asking" });
    const run = async () => {
      const job = await createJob(body);
      patch((before) => ({ ...before, id: job.id, state: job.state }));
      for await (const event of jobEvents(job.id, mine.signal)) {
        if (event.kind === "progress") patch((before) => ({ ...before, state: "running", finished: event.finished, count: event.count, current: event.current }));
        else if (event.kind === "point") patch((before) => ({ ...before, state: "running", finished: before.points.length + 1, points: [...before.points, event.point] }));
        else if (event.kind === "skipped") patch((before) => ({ ...before, skipped: [...before.skipped, event.skipped] }));
        else {
          const { result } = await showJob(job.id, mine.signal);
          const failure = event.job.error ? new Error(event.job.error) : null;
          const doubt = event.job.disturbed ? [{ reason: event.job.disturbed }] : [];
          patch((before) => ({ ...before, state: event.job.state, current: null, result, error: failure, skipped: [...before.skipped, ...doubt] }));
        }
      }
    };
    run().catch((error: unknown) => {
      if (isAbort(error)) return;
      report(error);
      patch((before) => ({ ...before, state: "failed", current: null, error: error instanceof Error ? error : new Error(String(error)) }));
    });
  }, []);

  const cancel = useCallback(() => {
    if (work.id) removeJob(work.id).catch((error: unknown) => setWork((before) => ({ ...before, error: error as Error })));
  }, [work.id]);

  return { work, busy: work.state === "asking" || work.state === "queued" || work.state === "running", start, cancel };
}
