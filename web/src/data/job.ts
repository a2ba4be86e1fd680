/** One job of this tab: started or taken up, followed live, cancelled. It goes on when the tab is left, and is found again by its id. */

import { useCallback, useEffect, useRef, useState } from "react";
import { isAbort } from "../api/client";
import { cancelJob, createJob, type JobRequest } from "../api/jobs";
import { report } from "./connection";
import { follow, IDLE, isBusy, type Work } from "./follow";

export interface JobControl {
  readonly work: Work;
  readonly busy: boolean;
  readonly start: (body: JobRequest) => void;
  /** Follows a job that is there already. */
  readonly take: (id: string) => void;
  readonly cancel: () => void;
}

export function useJob(): JobControl {
  const [work, setWork] = useState<Work>(IDLE);
  const abort = useRef<AbortController | null>(null);
  useEffect(() => () => abort.current?.abort(), []);

  const run = useCallback((first: Work, find: () => Promise<string>) => {
    abort.current?.abort();
    const mine = new AbortController();
    abort.current = mine;
    const show = (next: Work | ((before: Work) => Work)) => {
      if (!mine.signal.aborted) setWork(next);
    };
    setWork(first);
    const go = async () => {
      const id = await find();
      show((before) => ({ ...before, id }));
      if (!mine.signal.aborted) await follow(id, mine.signal, show);
    };
    go().catch((error: unknown) => {
      if (isAbort(error)) return;
      report(error);
      show((before) => ({ ...before, state: "failed", current: null, error: error instanceof Error ? error : new Error(String(error)) }));
    });
  }, []);

  const start = useCallback((body: JobRequest) => run({ ...IDLE, state: "asking" }, async () => (await createJob(body)).id), [run]);
  const take = useCallback((id: string) => run({ ...IDLE, id, state: "queued" }, () => Promise.resolve(id)), [run]);

  const { id } = work;
  const cancel = useCallback(() => {
    if (id === null) return;
    cancelJob(id).then(
      (cancelled) => {
        // it had ended before: what is shown here is old
        if (!cancelled) take(id);
      },
      (error: unknown) => {
        report(error);
        setWork((before) => (before.id === id ? { ...before, error: error instanceof Error ? error : new Error(String(error)) } : before));
      },
    );
  }, [id, take]);

  return { work, busy: isBusy(work.state), start, take, cancel };
}
