/** Jobs of the server: asked again while any of them goes on. */

import { useCallback, useEffect, useState } from "react";
import { isAbort } from "../api/client";
import { listJobs, type Job } from "../api/jobs";
import { report, useConnection } from "./connection";

const AGAIN = 2000;

export interface Jobs {
  /** The latest first; nothing until the server has answered. */
  readonly jobs: readonly Job[] | null;
  readonly refresh: () => void;
}

export function isActive(job: Job): boolean {
  return job.state === "queued" || job.state === "running";
}

/** The job that holds the machine, or the one that comes next. */
export function activeOf(jobs: readonly Job[]): Job | undefined {
  return jobs.find((job) => job.state === "running") ?? jobs.findLast((job) => job.state === "queued");
}

/** Asks when `reason` changes, too. */
export function useJobs(reason: unknown): Jobs {
  const [jobs, setJobs] = useState<readonly Job[] | null>(null);
  const [round, setRound] = useState(0);
  const connection = useConnection();
  const refresh = useCallback(() => setRound((count) => count + 1), []);
  useEffect(() => {
    if (connection !== "online") return undefined;
    const abort = new AbortController();
    let timer: number | undefined;
    const look = () => {
      listJobs(abort.signal).then(
        (found) => {
          if (abort.signal.aborted) return;
          setJobs(found);
          if (found.some(isActive)) timer = window.setTimeout(look, AGAIN);
        },
        (error: unknown) => {
          if (!isAbort(error)) report(error);
        },
      );
    };
    look();
    return () => {
      abort.abort();
      window.clearTimeout(timer);
    };
  }, [reason, round, connection]);
  return { jobs, refresh };
}
