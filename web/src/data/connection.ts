/** Whether the server answers, and lets us in: reported by every request, shown once under the header. */

import { useSyncExternalStore } from "react";
import { health } from "../api/calls";
import { isAbort, keepToken, Offline, Refusal, takeToken } from "../api/client";

export type Connection = "online" | "offline" | "locked";

const AGAIN = 3000;

let state: Connection = "online";
let timer: number | undefined;
const listeners = new Set<() => void>();

function become(next: Connection): void {
  window.clearTimeout(timer);
  if (next === "offline") timer = window.setTimeout(() => void retry(), AGAIN);
  if (next === state) return;
  state = next;
  for (const listener of listeners) listener();
}

/** What the outcome of a request says about the server; `null` is an answer. */
export function report(error: unknown): void {
  if (isAbort(error)) return;
  if (error instanceof Offline) become("offline");
  else if (error instanceof Refusal && error.status === 401) become("locked");
  else become("online");
}

export async function retry(): Promise<void> {
  try {
    await health();
    report(null);
  } catch (error) {
    report(error);
  }
}

/** Tries a token; whether the server took it. One that does not answer has refused nothing. */
export async function unlock(token: string): Promise<boolean> {
  keepToken(token);
  await retry();
  return state !== "locked";
}

window.addEventListener("hashchange", () => {
  if (takeToken()) void retry();
});

export function useConnection(): Connection {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => state,
  );
}
