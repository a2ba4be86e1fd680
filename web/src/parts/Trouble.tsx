import { Offline, Refusal } from "../api/client";
import { retry } from "../data/connection";

/** What went wrong, and what to do about it. */
export function Trouble({ error }: { error: Error }) {
  if (error instanceof Offline) return null;
  return (
    <div className="notice bad" role="alert">
      <div>
        <div>{error.message}</div>
        {error instanceof Refusal && error.hint && <div className="muted small">{error.hint}</div>}
      </div>
    </div>
  );
}

export function OfflineBanner() {
  return (
    <div className="banner">
      <div className="notice bad" role="alert">
        <div>
          <strong>The server does not answer.</strong> What you see is the last answer. It is asked again every three seconds; <code>roofline serve</code> starts it.
        </div>
        <button type="button" className="button" onClick={() => void retry()}>
          Try now
        </button>
      </div>
    </div>
  );
}
