/** Work that takes the machine for a while: made, watched, cancelled. */

import { Refusal } from "./client";
import { events } from "./events";
import { address, get, post, remove, type Body, type Schemas } from "./routes";
import type { Measurement } from "./types";

export type Job = Schemas["Job"];
export type JobState = Schemas["JobState"];
/** What a finished job answers: as its command prints it. */
export type JobResult = Schemas["JobResult"];
export type JobDetail = Schemas["JobDetail"];
/** A kernel that was not measured, and why. */
export type Skipped = Schemas["Skipped"];
/** What a finished job of the verb `compare` answers. */
export type Compared = Schemas["CompareAnswer"];

/** A verb with what it takes by its own route. */
export type JobRequest =
  | ({ readonly verb: "measure" } & Body<"/api/measure">)
  | ({ readonly verb: "compare" } & Body<"/api/compare">)
  | ({ readonly verb: "sweep" } & Exclude<Body<"/api/sweep">, readonly string[]>);

type Progress = { readonly [K in "finished" | "count" | "current"]: NonNullable<Job[K]> };

export type JobEvent =
  | ({ readonly kind: "progress" } & Progress)
  | { readonly kind: "point"; readonly point: Measurement }
  | { readonly kind: "skipped"; readonly skipped: Skipped }
  | { readonly kind: "end"; readonly job: Job };

export function createJob(body: JobRequest): Promise<Job> {
  return post("/api/jobs", body);
}

export async function listJobs(signal?: AbortSignal): Promise<readonly Job[]> {
  return (await get("/api/jobs", { signal })).jobs;
}

export function showJob(id: string, signal?: AbortSignal): Promise<JobDetail> {
  return get("/api/jobs/{id}", { path: { id }, signal });
}

/** Cancels a job and keeps what it has; whether it had not ended already. */
export async function cancelJob(id: string): Promise<boolean> {
  try {
    await post("/api/jobs/{id}/cancel", undefined, { path: { id } });
    return true;
  } catch (error) {
    if (error instanceof Refusal && error.status === 409) return false;
    throw error;
  }
}

/** Removes a job that has ended, with its results. */
export async function forgetJob(id: string): Promise<void> {
  await remove("/api/jobs/{id}", { path: { id } });
}

export async function* jobEvents(id: string, signal: AbortSignal): AsyncGenerator<JobEvent> {
  for await (const { type, data } of events(address<"/api/jobs/{id}/events", "get">("/api/jobs/{id}/events", { path: { id } }), { signal })) {
    const value: unknown = JSON.parse(data);
    if (type === "progress") yield { kind: "progress", ...(value as Progress) };
    else if (type === "point") yield { kind: "point", point: value as Measurement };
    else if (type === "skipped") yield { kind: "skipped", skipped: value as Skipped };
    else if (type === "end") yield { kind: "end", job: value as Job };
  }
}
