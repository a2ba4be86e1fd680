import { useEffect, useState } from "react";

/** Copies a text and says so. */
export function CopyButton({ text, label = "Copy", className = "button tight" }: { text: string | (() => string); label?: string; className?: string }) {
  const [state, setState] = useState<"ready" | "copied" | "refused">("ready");
  useEffect(() => {
    if (state === "ready") return undefined;
    const timer = window.setTimeout(() => setState("ready"), 1600);
    return () => window.clearTimeout(timer);
  }, [state]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(typeof text === "string" ? text : text());
      setState("copied");
    } catch {
      setState("refused");
    }
  };
  return (
    <button type="button" className={className} onClick={() => void copy()}>
      <span aria-live="polite">{state === "ready" ? label : state === "copied" ? "Copied" : "No clipboard"}</span>
    </button>
  );
}

export function Command({ text }: { text: string }) {
  return (
    <div className="command">
      <code tabIndex={0}>{text}</code>
      <CopyButton text={text} />
    </div>
  );
}
