/** Shapes times precisions, measured one after the other, seen as they come. */

import { useEffect, useMemo, useRef, useState } from "react";
import { machineFields } from "../../api/calls";
import type { JobResult } from "../../api/jobs";
import type { Measurement } from "../../api/types";
import { useCatalogue } from "../../data/catalogue";
import { doubtsOf } from "../../data/follow";
import { useJob } from "../../data/job";
import { activeOf, useJobs } from "../../data/jobs";
import { addMeasured, doubtText, measuredOf } from "../../data/measured";
import { Panel } from "../../parts/Panel";
import { Progress } from "../../parts/Progress";
import { Trouble } from "../../parts/Trouble";
import { precisionColour } from "../../plot/colours";
import { change, useView } from "../../state/store";
import { digits, micros, percent, prefixed, teraflops } from "../../units/figure";
import { BackendSelect, CustomRates } from "../kernel/BackendSelect";
import { backendsOf, chosen, isReal } from "../kernel/backends";
import { chooseDevice, DeviceSelect } from "../roofline/DeviceSelect";
import { JobList } from "./JobList";

const SHAPES = [
  { key: "decode", name: "Decode", shape: "1x4096x4096" },
  { key: "prefill", name: "Prefill", shape: "2048x4096x4096" },
  { key: "square", name: "Square", shape: "4096x4096x4096" },
  { key: "small", name: "Small", shape: "16x1024x1024" },
] as const;
const PRECISIONS = ["fp32", "fp16", "bf16", "fp8", "nvfp4", "int8", "w8a16", "w4a16"] as const;

export default function BenchmarkView() {
  const { setup, shapes, precisions, backend: wanted } = useView();
  const { health } = useCatalogue();
  const backends = useMemo(() => backendsOf(health), [health]);
  const backend = chosen(wanted === "none" ? "" : wanted, backends);
  const job = useJob();
  const { work, busy, take } = job;
  const { jobs, refresh } = useJobs(`${work.id} ${work.state}`);
  const looked = useRef(false);
  useEffect(() => {
    // a job that was going on when the page was opened is taken up, once
    if (jobs === null || looked.current) return;
    looked.current = true;
    const active = activeOf(jobs);
    if (active && work.state === "idle") take(active.id);
  }, [jobs, work.state, take]);
  const chosenShapes = SHAPES.filter(({ key }) => shapes.includes(key));
  const run = () => {
    if (backend === "none") return;
    const played = backend === "null" ? machineFields(setup) : {};
    job.start({ verb: "sweep", measure: true, shapes: chosenShapes.map(({ shape }) => shape), precision: precisions, quick: true, backend, ...played });
  };
  const saturate = () => {
    if (backend !== "none") job.start({ verb: "measure", saturate: true, quick: true, backend });
  };

  if (health && !health.allow_measure) return <Closed />;
  return (
    <div className="sided">
      <div className="stack">
        <Panel title="Benchmark">
          <Boxes legend="Shapes" options={SHAPES.map(({ key, name, shape }) => [key, `${name}, ${shape.replaceAll("x", " × ")}`] as const)} chosen={shapes} onChange={(next) => change({ shapes: next })} />
          <Boxes legend="Precisions" columns options={PRECISIONS.map((name) => [name, name] as const)} chosen={precisions} onChange={(next) => change({ precisions: next })} />
          <BackendSelect value={backend} backends={backends} predicting={false} />
          {backend === "null" && <DeviceSelect label="Device that is played" value={setup.on} onChange={chooseDevice} />}
          {backend === "null" && <CustomRates machine={setup} />}
          <button type="button" className="button primary" disabled={busy || chosenShapes.length === 0 || precisions.length === 0 || backend === "none"} onClick={run}>
            Run benchmarks
          </button>
          <button type="button" className="button" disabled={busy || !isReal(backend)} title={isReal(backend) ? "Products and matrix-vector products large enough to fill the machine" : "Fake times have no highest rate"} onClick={saturate}>
            Saturation sweep
          </button>
          {busy && (
            <button type="button" className="button" disabled={work.id === null} onClick={job.cancel}>
              Cancel
            </button>
          )}
          {work.state !== "idle" && <Progress work={work} />}
        </Panel>
      </div>
      <div className="stack">
        {work.error && <Trouble error={work.error} />}
        <Results points={work.points} skipped={doubtsOf(work)} result={work.result} busy={busy} />
        <JobList jobs={jobs ?? []} followed={work.id} onFollow={take} onChange={refresh} />
      </div>
    </div>
  );
}

export function Results({ points, skipped, result, busy }: { points: readonly Measurement[]; skipped: readonly string[]; result: JobResult | null; busy: boolean }) {
  const [added, setAdded] = useState<readonly Measurement[] | null>(null);
  const place = result && "device" in result ? result : null;
  const device = place?.device ?? null;
  const fake = place?.backend === "null";
  const add = () => {
    if (device) addMeasured(points.map((point) => measuredOf(device, point, place?.backend ?? null)));
    setAdded(points);
  };
  return (
    <Panel
      title={device ? (fake ? `Fake times of the null backend for ${device}` : `Measured on ${device}`) : "Measured"}
      flush
      tools={
        points.length > 0 && device ? (
          <button type="button" className="button tight" disabled={added === points} onClick={add}>
            {added === points ? "Added to the roofline" : "Add to the roofline"}
          </button>
        ) : undefined
      }
    >
      {points.length === 0 ? (
        <div className="empty">{busy ? "The first result comes in a moment." : "Nothing measured yet. Each kernel is checked against a reference, then timed; a row appears as soon as it is finished."}</div>
      ) : (
        <div className="table-box" tabIndex={0} role="region" aria-label="Measured kernels">
          <table>
            <thead>
              <tr>
                <th scope="col">Shape</th>
                <th scope="col" className="text">Precision</th>
                <th scope="col">Time</th>
                <th scope="col">Spread</th>
                <th scope="col">Rate</th>
                <th scope="col">Bandwidth</th>
                <th scope="col">FLOP/B</th>
                <th scope="col">Of roof</th>
                <th scope="col">Samples</th>
                <th scope="col" className="text">Path</th>
                <th scope="col" className="text">Doubts</th>
              </tr>
            </thead>
            <tbody>
              {points.map((point, index) => (
                <tr key={index}>
                  <th scope="row">{point.shape}</th>
                  <td className="text">
                    <span className="named">
                      <span className="swatch round" style={{ background: precisionColour(point.precision) }} />
                      {point.precision}
                    </span>
                  </td>
                  <td className="num">{micros(point.measured_time_us)}</td>
                  <td className="num muted">{micros(point.p5_us, 3)} – {micros(point.p95_us, 3)}</td>
                  <td className="num">{teraflops(point.measured_tflops)}</td>
                  <td className="num">{prefixed(point.measured_bandwidth_gb_s * 1e9, "B/s", 3)}</td>
                  <td className="num">{digits(point.ai, 3)}</td>
                  <td className="num">{percent(point.roof_share, 2)}</td>
                  <td className="num">{point.samples}</td>
                  <td className="text">{point.kernel_path}</td>
                  <td className="text why">{point.warnings.map(doubtText).join("; ")}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {skipped.length > 0 && (
        <ul className="pad small skipped">
          {skipped.map((text) => (
            <li key={text}>{text}</li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

function Boxes({ legend, options, chosen: on, onChange, columns = false }: { legend: string; options: readonly (readonly [string, string])[]; chosen: readonly string[]; onChange: (chosen: readonly string[]) => void; columns?: boolean }) {
  const set = (key: string, checked: boolean) => onChange(options.map(([known]) => known).filter((known) => (known === key ? checked : on.includes(known))));
  return (
    <fieldset className="boxes">
      <legend className="legend">{legend}</legend>
      <div className={columns ? "pair" : "column"}>
        {options.map(([key, name]) => (
          <label key={key} className="check">
            <input type="checkbox" checked={on.includes(key)} onChange={(event) => set(key, event.target.checked)} />
            {name}
          </label>
        ))}
      </div>
    </fieldset>
  );
}

function Closed() {
  return (
    <div className="panel empty">
      <h3>Measuring is off on this server</h3>
      <p>
        A page must not run kernels on a machine whose owner did not say so. <code>roofline serve --allow-measure</code> opens this tab; one job runs at a time, and each can be cancelled.
      </p>
      <p className="small faint">
        On the command line: <code>roofline sweep --measure</code> and <code>roofline measure --saturate</code>; their results can be read in under Compare.
      </p>
    </div>
  );
}
