/** Whether the server answers: reported by every request, shown once in the header. */

import { useSyncExternalStore } from "react";
import { health } from "../api/calls";

let online = true;
let timer: number | undefined;
const listeners = new Set<() => void>();

export function report(answers: boolean): void {
  if (answers !== online) {
    online = answers;
    for (const listener of listeners) listener();
  }
  window.clearTimeout(timer);
  if (!online) timer = window.setTimeout(() => void retry(), 3000);
}

export async function retry(): Promise<void> {
  try {
    await health();
    report(true);
  } catch {
    report(false);
  }
}

export function useOnline(): boolean {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => online,
  );
}
