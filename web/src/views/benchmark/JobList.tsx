/** Jobs of this server, also those of earlier days. */

import { useState } from "react";
import { cancelJob, forgetJob, showJob, type Job, type JobDetail } from "../../api/jobs";
import { isActive } from "../../data/jobs";
import { report } from "../../data/connection";
import { Panel } from "../../parts/Panel";
import { Trouble } from "../../parts/Trouble";
import { Results } from "./BenchmarkView";

const SHOWN = 12;
const TAGS: Readonly<Record<string, string>> = { done: "good", failed: "bad", cancelled: "warn", interrupted: "warn" };

interface Props {
  readonly jobs: readonly Job[];
  /** The job that is followed above. */
  readonly followed: string | null;
  readonly onFollow: (id: string) => void;
  readonly onChange: () => void;
}

export function JobList({ jobs, followed, onFollow, onChange }: Props) {
  const [open, setOpen] = useState<JobDetail | null>(null);
  const [error, setError] = useState<Error | null>(null);
  if (jobs.length === 0) return null;
  const attempt = async (action: () => Promise<unknown>) => {
    try {
      await action();
      setError(null);
    } catch (reason) {
      report(reason);
      setError(reason instanceof Error ? reason : new Error(String(reason)));
    }
    onChange();
  };
  const show = (job: Job) => {
    if (!isActive(job)) return attempt(async () => setOpen(await showJob(job.id)));
    setOpen(null);
    onFollow(job.id);
    return undefined;
  };
  const cancel = (id: string) =>
    attempt(async () => {
      // one that had ended before is shown as if it ran: looked at again
      if (!(await cancelJob(id)) && followed === id) onFollow(id);
    });
  const forget = (id: string) =>
    attempt(async () => {
      await forgetJob(id);
      setOpen((before) => (before?.id === id ? null : before));
    });
  const lit = open?.id ?? followed;
  return (
    <>
      {error && <Trouble error={error} />}
      {open && <Results points={open.points} skipped={[open.error, open.disturbed].filter((text) => text !== null)} result={open.result} busy={false} />}
      <Panel title={`Jobs of this server, ${jobs.length}`} flush>
        <div className="table-box" tabIndex={0} role="region" aria-label="Jobs">
          <table>
            <thead>
              <tr>
                <th scope="col">Made</th>
                <th scope="col" className="text">Job</th>
                <th scope="col" className="text">State</th>
                <th scope="col">Kernels</th>
                <th scope="col"><span className="hidden">Actions</span></th>
              </tr>
            </thead>
            <tbody>
              {jobs.slice(0, SHOWN).map((job) => (
                <tr key={job.id} className={lit === job.id ? "lit" : undefined}>
                  <th scope="row" className="num">{job.created.replace("T", " ").replace(/(\.\d+)?Z$/, "")}</th>
                  <td className="text wrap">{words(job)}</td>
                  <td className="text"><span className={`tag ${TAGS[job.state] ?? ""}`}>{job.state}</span></td>
                  <td className="num">{job.count === null ? job.finished : `${job.finished} of ${job.count}`}</td>
                  <td>
                    <button type="button" className="button quiet tight" onClick={() => void show(job)}>{isActive(job) ? "Follow" : "Show"}</button>
                    {isActive(job) ? (
                      <button type="button" className="button quiet tight" onClick={() => void cancel(job.id)}>Cancel</button>
                    ) : (
                      <Forget onForget={() => void forget(job.id)} />
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </Panel>
    </>
  );
}

/** What was measured is gone afterwards: asked twice. */
function Forget({ onForget }: { onForget: () => void }) {
  const [asked, setAsked] = useState(false);
  if (!asked) return <button type="button" className="button quiet tight" onClick={() => setAsked(true)}>Forget</button>;
  return (
    <span role="group" aria-label="Remove this job and its results?" onKeyDown={(event) => event.key === "Escape" && setAsked(false)}>
      <button type="button" className="button tight" onClick={onForget}>Remove its results</button>
      <button type="button" className="button quiet tight" autoFocus onClick={() => setAsked(false)}>Keep</button>
    </span>
  );
}

function words(job: Job): string {
  const { subject, shapes, precision, saturate, m, n, k, backend } = job.request as Record<string, unknown>;
  const what = saturate ? "saturation" : Array.isArray(shapes) ? shapes.join(", ") : [subject, m !== undefined ? `${String(m)}x${String(n)}x${String(k)}` : null].filter(Boolean).join(" ");
  return [job.verb, what, Array.isArray(precision) ? precision.join(", ") : precision, backend].filter(Boolean).join(" · ");
}
