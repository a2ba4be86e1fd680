/** The view, the address bar that mirrors it, and who wants to know. */

import { useSyncExternalStore } from "react";
import { fromQuery, toQuery } from "./address";
import type { Setup, View } from "./view";

type Listener = () => void;

/** Browsers refuse an address that changes hundreds of times in a row; a drag is written down once it rests. */
const REST = 200;

let view: View = fromQuery(window.location.search);
const listeners = new Set<Listener>();
let timer: number | undefined;

function tell(): void {
  for (const listener of listeners) listener();
}

function write(push: boolean): void {
  window.clearTimeout(timer);
  timer = undefined;
  const address = window.location.pathname + toQuery(view);
  if (address === window.location.pathname + window.location.search) return;
  if (push) window.history.pushState(null, "", address);
  else window.history.replaceState(null, "", address);
}

export function current(): View {
  return view;
}

export function change(patch: Partial<View>): void {
  view = { ...view, ...patch };
  if (patch.tab !== undefined) write(true);
  else {
    window.clearTimeout(timer);
    timer = window.setTimeout(() => write(false), REST);
  }
  tell();
}

export function changeSetup(patch: Partial<Setup>): void {
  change({ setup: { ...view.setup, ...patch } });
}

/** The address of what is seen now, for the clipboard and for files; without a fragment, which may hold a token. */
export function link(): string {
  write(false);
  return window.location.origin + window.location.pathname + toQuery(view);
}

window.addEventListener("popstate", () => {
  view = fromQuery(window.location.search);
  tell();
});

function subscribe(listener: Listener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useView(): View {
  return useSyncExternalStore(subscribe, current);
}
