/** A question to the server as a hook: the last answer stays until the next one is there. */

import { useEffect, useRef, useState } from "react";
import { Latest } from "../api/latest";
import { report, useConnection } from "./connection";

export interface Answer<A> {
  /** The newest answer; of an older question where there is an error. */
  readonly value: A | null;
  readonly error: Error | null;
}

/** Asks when `question` changes in content; `rest` waits until it has not changed for so many milliseconds. */
export function useAnswer<Q, A>(question: Q | null, asker: (question: Q, signal: AbortSignal) => Promise<A>, rest = 0): Answer<A> {
  const [state, setState] = useState<Answer<A>>({ value: null, error: null });
  const connection = useConnection();
  const latest = useRef<Latest<Q, A> | null>(null);
  const key = question === null ? null : JSON.stringify(question);

  useEffect(() => {
    const asked = new Latest<Q, A>(asker, (_, value, error) => {
      report(error);
      setState((before) => (value === null ? { ...before, error: error instanceof Error ? error : new Error(String(error)) } : { value, error: null }));
    });
    latest.current = asked;
    return () => asked.stop();
  }, [asker]);

  useEffect(() => {
    // asked again when the server comes back or lets us in
    if (question === null || connection !== "online") return undefined;
    if (rest === 0) {
      latest.current?.ask(question);
      return undefined;
    }
    const timer = window.setTimeout(() => latest.current?.ask(question), rest);
    return () => window.clearTimeout(timer);
    // the question is compared by content
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [key, rest, connection, asker]);

  return state;
}
