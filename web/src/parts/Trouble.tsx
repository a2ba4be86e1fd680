import { useId, useState } from "react";
import { hasToken, Offline, Refusal } from "../api/client";
import { retry, unlock } from "../data/connection";

/** What went wrong, and what to do about it. */
export function Trouble({ error, kept = false }: { error: Error; /** Whether an older answer is still shown. */ kept?: boolean }) {
  // the banner under the header says it already
  if (error instanceof Offline || (error instanceof Refusal && error.status === 401)) return null;
  return (
    <div className="notice bad" role="alert">
      <div>
        <div>{error.message}</div>
        {kept && <div className="muted small">What is shown is the answer to the question before.</div>}
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

export function TokenBanner() {
  const [token, setToken] = useState("");
  const [refused, setRefused] = useState(hasToken);
  const note = useId();
  const enter = async () => {
    setRefused(false);
    setRefused(!(await unlock(token.trim())));
  };
  return (
    <div className="banner">
      <form
        className="notice warn"
        onSubmit={(event) => {
          event.preventDefault();
          void enter();
        }}
      >
        <div>
          <strong>This server asks for a token:</strong> the one that <code>roofline serve --token</code> was started with. It is kept until this tab is closed.
          <div id={note} role="alert" className="refusal">
            {refused && "The server refused this token."}
          </div>
        </div>
        <input className="input token" type="password" aria-label="Token" aria-invalid={refused} aria-describedby={refused ? note : undefined} autoComplete="off" value={token} onChange={(event) => setToken(event.target.value)} />
        <button type="submit" className="button" disabled={token.trim() === ""}>
          Enter
        </button>
      </form>
    </div>
  );
}
