import { isBusy, type Work } from "../data/follow";

const WORDS: Readonly<Record<string, string>> = {
  asking: "Asking",
  queued: "Waits for another job",
  running: "Running",
  lost: "Out of sight: the server does not answer",
  done: "Done",
  failed: "Failed",
  cancelled: "Cancelled; what was measured is kept",
  interrupted: "Interrupted; what was measured is kept",
};

export function Progress({ work }: { work: Work }) {
  const { state, finished, count, current } = work;
  const text = [WORDS[state] ?? state, count !== null && `${Math.min(finished, count)} of ${count}`, state === "running" && current].filter(Boolean).join(" · ");
  const busy = isBusy(state);
  return (
    <div className="progress" role="status">
      <span className="small muted">{text}</span>
      {busy && <progress aria-label="Progress" max={count ?? 1} {...(count === null ? {} : { value: finished })} />}
    </div>
  );
}
