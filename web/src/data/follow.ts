/** A job from where it stands to its end, through servers that stop and come back. */

import { Offline, Refusal } from "../api/client";
import { jobEvents, showJob, type JobDetail, type JobResult, type JobState, type Skipped } from "../api/jobs";
import type { Measurement } from "../api/types";
import { report } from "./connection";

export interface Work {
  readonly id: string | null;
  /** `lost`: the server does not answer, and what became of the job is not known. */
  readonly state: JobState | "idle" | "asking" | "lost";
  readonly finished: number;
  readonly count: number | null;
  readonly current: string | null;
  readonly points: readonly Measurement[];
  readonly skipped: readonly Skipped[];
  /** Who used the machine meanwhile, in words. */
  readonly disturbed: string | null;
  readonly result: JobResult | null;
  readonly error: Error | null;
}

export const IDLE: Work = { id: null, state: "idle", finished: 0, count: null, current: null, points: [], skipped: [], disturbed: null, result: null, error: null };

const BUSY: readonly Work["state"][] = ["asking", "queued", "running", "lost"];

export function isBusy(state: Work["state"]): boolean {
  return BUSY.includes(state);
}

/** What was not measured and why, and what else happened, in words. */
export function doubtsOf({ skipped, disturbed }: Pick<Work, "skipped" | "disturbed">): readonly string[] {
  const texts = skipped.map(({ site, op, precision, reason }) => [kernelOf(site, op), precision, reason].join(" · "));
  return disturbed === null ? texts : [...texts, disturbed];
}

function kernelOf(site: string, op: Skipped["op"]): string {
  return "linear" in op ? `${site} ${op.linear.m} x ${op.linear.n} x ${op.linear.k}` : site;
}

const AGAIN = 3000;

/** Shows the job as it goes on and returns when it has ended. Only what a server says makes it end: a stream that breaks off does not. */
export async function follow(id: string, signal: AbortSignal, show: (work: Work) => void, again = AGAIN): Promise<void> {
  let work: Work = { ...IDLE, id, state: "queued" };
  const patch = (next: Partial<Work>) => {
    if (signal.aborted) return;
    work = { ...work, ...next };
    show(work);
  };
  patch({});
  for (;;) {
    // a stream tells everything from the start
    let points: readonly Measurement[] = [];
    let skipped: readonly Skipped[] = [];
    try {
      for await (const event of jobEvents(id, signal)) {
        if (event.kind === "progress") patch({ state: "running", finished: event.finished, count: event.count, current: event.current });
        else if (event.kind === "point") {
          points = [...points, event.point];
          patch({ state: "running", finished: points.length, points });
        } else if (event.kind === "skipped") {
          skipped = [...skipped, event.skipped];
          patch({ skipped });
        } else break;
      }
    } catch (error) {
      if (!passes(error)) throw error;
      report(error);
      patch({ state: "lost", current: null });
    }
    const job = await shown(id, signal, () => patch({ state: "lost", current: null }), again);
    patch(workOf(job, points, skipped));
    if (!isBusy(job.state)) return;
    await pause(again, signal);
  }
}

/** A job as the server keeps it. */
function workOf(job: JobDetail, seen: readonly Measurement[], skipped: readonly Skipped[]): Work {
  const { id, state, finished, count, current, result, disturbed } = job;
  // what is kept is rounded
  const points = seen.length < job.points.length ? job.points : seen;
  return { id, state, finished, count, current, points, result, skipped, disturbed, error: job.error ? new Error(job.error) : null };
}

async function shown(id: string, signal: AbortSignal, lost: () => void, again: number): Promise<JobDetail> {
  for (;;) {
    try {
      const job = await showJob(id, signal);
      report(null);
      return job;
    } catch (error) {
      if (!passes(error)) throw error;
      report(error);
      lost();
    }
    await pause(again, signal);
  }
}

/** A server may come back, and a token may be entered. */
function passes(error: unknown): boolean {
  return error instanceof Offline || (error instanceof Refusal && error.status === 401);
}

function pause(time: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(new DOMException("left", "AbortError"));
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", stop);
      resolve();
    }, time);
    if (signal.aborted) stop();
    else signal.addEventListener("abort", stop, { once: true });
  });
}
