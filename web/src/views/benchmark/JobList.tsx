/** Jobs of this server, also those of earlier days. */

import { useEffect, useState } from "react";
import { listJobs, removeJob, showJob, type Job, type JobDetail } from "../../api/jobs";
import { Panel } from "../../parts/Panel";
import { Results } from "./BenchmarkView";

const SHOWN = 12;
const TAGS: Readonly<Record<string, string>> = { done: "good", failed: "bad", cancelled: "warn", interrupted: "warn" };

export function JobList({ rounds }: { rounds: number }) {
  const [jobs, setJobs] = useState<readonly Job[]>([]);
  const [open, setOpen] = useState<JobDetail | null>(null);
  const [changed, setChanged] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    listJobs(abort.signal).then(setJobs, () => undefined);
    return () => abort.abort();
  }, [rounds, changed]);
  if (jobs.length === 0) return null;
  const show = (id: string) => showJob(id).then(setOpen, () => undefined);
  const forget = (id: string) =>
    removeJob(id).then(
      () => {
        setOpen((before) => (before?.id === id ? null : before));
        setChanged((count) => count + 1);
      },
      () => undefined,
    );
  return (
    <>
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
                <tr key={job.id} className={open?.id === job.id ? "lit" : undefined}>
                  <th scope="row" className="num">{job.created.replace("T", " ").replace(/(\.\d+)?Z$/, "")}</th>
                  <td className="text wrap">{words(job)}</td>
                  <td className="text"><span className={`tag ${TAGS[job.state] ?? ""}`}>{job.state}</span></td>
                  <td className="num">{job.count === null ? job.finished : `${job.finished} of ${job.count}`}</td>
                  <td>
                    <button type="button" className="button quiet tight" onClick={() => void show(job.id)}>Show</button>
                    <button type="button" className="button quiet tight" onClick={() => void forget(job.id)}>{job.ended ? "Forget" : "Cancel"}</button>
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

function words(job: Job): string {
  const { subject, shapes, precision, saturate, m, n, k, backend } = job.request as Record<string, unknown>;
  const what = saturate ? "saturation" : Array.isArray(shapes) ? shapes.join(", ") : [subject, m !== undefined ? `${String(m)}x${String(n)}x${String(k)}` : null].filter(Boolean).join(" ");
  return [job.verb, what, Array.isArray(precision) ? precision.join(", ") : precision, backend].filter(Boolean).join(" · ");
}
