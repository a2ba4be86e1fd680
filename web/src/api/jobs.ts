/** Work that takes the machine for a while: made, watched, cancelled. */

import { ask, Refusal } from "./client";
import { events } from "./events";
import type { Comparison, Measurement } from "./types";

export type JobState = "queued" | "running" | "done" | "failed" | "cancelled" | "interrupted";

export interface Job {
  readonly id: string;
  readonly verb: string;
  readonly request: Readonly<Record<string, unknown>>;
  readonly state: JobState;
  readonly created: string;
  readonly started: string | null;
  readonly ended: string | null;
  readonly finished: number;
  readonly count: number | null;
  readonly current: string | null;
  readonly error: string | null;
  readonly requests: number;
  readonly disturbed: string | null;
}

/** What a finished job answers: as its command prints it. */
export interface JobResult {
  readonly device?: string;
  readonly device_name?: string;
  readonly backend?: string | null;
  readonly comparisons?: readonly Comparison[];
  readonly measurements?: readonly Measurement[];
  readonly insight?: string | null;
}

export interface JobDetail extends Job {
  readonly ahead: number | null;
  readonly points: readonly Measurement[];
  readonly result: JobResult | null;
}

export interface Skipped {
  readonly shape?: string;
  readonly precision?: string;
  readonly reason?: string;
}

export type JobEvent =
  | { readonly kind: "progress"; readonly finished: number; readonly count: number; readonly current: string }
  | { readonly kind: "point"; readonly point: Measurement }
  | { readonly kind: "skipped"; readonly skipped: Skipped }
  | { readonly kind: "end"; readonly job: Job };

export function createJob(body: Readonly<Record<string, unknown>>): Promise<Job> {
  return ask<Job>("api/jobs", { body });
}

export async function listJobs(signal?: AbortSignal): Promise<readonly Job[]> {
  return (await ask<{ jobs: Job[] }>("api/jobs", { signal })).jobs;
}

export function showJob(id: string, signal?: AbortSignal): Promise<JobDetail> {
  return ask<JobDetail>(`api/jobs/${encodeURIComponent(id)}`, { signal });
}

/** Cancels a job and keeps what it has; whether it had not ended already. */
export async function cancelJob(id: string): Promise<boolean> {
  try {
    await ask<Job>(`api/jobs/${encodeURIComponent(id)}/cancel`, { method: "POST" });
    return true;
  } catch (error) {
    if (error instanceof Refusal && error.status === 409) return false;
    throw error;
  }
}

/** Removes a job that has ended, with its results. */
export async function forgetJob(id: string): Promise<void> {
  await ask<unknown>(`api/jobs/${encodeURIComponent(id)}`, { method: "DELETE" });
}

export async function* jobEvents(id: string, signal: AbortSignal): AsyncGenerator<JobEvent> {
  for await (const { type, data } of events(`api/jobs/${encodeURIComponent(id)}/events`, { signal })) {
    const value: unknown = JSON.parse(data);
    if (type === "progress") yield { kind: "progress", ...(value as { finished: number; count: number; current: string }) };
    else if (type === "point") yield { kind: "point", point: value as Measurement };
    else if (type === "skipped") yield { kind: "skipped", skipped: value as Skipped };
    else if (type === "end") yield { kind: "end", job: value as Job };
  }
}
