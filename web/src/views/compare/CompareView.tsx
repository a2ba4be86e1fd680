/** Theory against measurements made elsewhere. */

import { useId, useMemo, useState, type ChangeEvent, type DragEvent } from "react";
import { trace, validate, type CompareQuestion, type TraceQuestion } from "../../api/calls";
import type { Comparison, SlowKernel, Validation } from "../../api/types";
import { useAnswer } from "../../data/answer";
import { useCatalogue } from "../../data/catalogue";
import { addMeasured, doubtText, measuredOf } from "../../data/measured";
import { Panel } from "../../parts/Panel";
import { SortHeader, sorted, type Column } from "../../parts/sorting";
import { Trouble } from "../../parts/Trouble";
import { precisionColour } from "../../plot/colours";
import { readMeasurements, type Imported } from "../../state/import";
import { change, useView } from "../../state/store";
import { digits, micros, percent, signedPercent } from "../../units/figure";
import { chooseDevice, DeviceSelect } from "../roofline/DeviceSelect";
import { Agreement } from "./Agreement";
import { gradeTag } from "./errors";
import { TracePanel } from "./TracePanel";
import { TraceReport } from "./TraceReport";

/** Products of one row, measured on an H200 with this program's kernels: docs/results/2026-11-15-h200.md. */
const EXAMPLE = `m,n,k,precision,time_us
1,4096,4096,bf16,9.07
1,4096,4096,w4a16,4.23
1,4096,14336,bf16,27.4
1,4096,14336,nf4,12.2
1,8192,8192,bf16,31.1
1,57344,8192,bf16,205
1,57344,8192,w4a16,58.8`;

const COLUMNS: readonly Column<Comparison>[] = [
  { key: "shape", name: "Kernel", of: (row) => row.shape, text: true },
  { key: "precision", name: "Precision", of: (row) => row.precision, text: true },
  { key: "ideal", name: "Ideal", of: (row) => row.ideal_time_us },
  { key: "predicted", name: "Predicted", of: (row) => row.predicted_time_us },
  { key: "measured", name: "Measured", of: (row) => row.measured_time_us },
  { key: "error", name: "Error", of: (row) => row.error_pct },
  { key: "of", name: "Of ideal", of: (row) => row.efficiency },
  { key: "bound", name: "Bound", of: (row) => row.bottleneck, text: true },
  { key: "why", name: "What explains it", of: (row) => row.diagnoses[0]?.text ?? null, text: true },
];

const NOTHING = { error: null } as const;

export default function CompareView() {
  const { setup } = useView();
  const [text, setText] = useState("");
  const [read, setRead] = useState<Imported | null>(null);
  const [recorded, setRecorded] = useState<TraceQuestion | null>(null);
  const question = useMemo<CompareQuestion | null>(() => (!recorded && read && read.rows.length > 0 ? { on: setup.on, rows: read.rows } : null), [recorded, read, setup.on]);
  const judged = useAnswer(question, validate);
  const traced = useAnswer(recorded, trace);
  const { error } = recorded ? traced : question ? judged : NOTHING;
  const rows = (given: string) => {
    setRecorded(null);
    setRead(readMeasurements(given));
  };
  return (
    <div className="sided">
      <div className="stack">
        <Import text={text} onText={setText} read={read} onRead={rows} on={setup.on} />
        <TracePanel asked={recorded} onAsk={setRecorded} waiting={recorded !== null && traced.error === null && traced.value?.subject !== recorded.file.name} />
      </div>
      <div className="stack">
        {error && <Trouble error={error} />}
        {!recorded && !question && (
          <div className="panel empty">
            <h3>Predicted against measured</h3>
            <p>Paste timings of matrix products, or drop a file: each is predicted for the chosen device, and the error is shown with what may explain it.</p>
            <p>Or choose what a profiler recorded of a whole program: its kernels by operator, how far each is from the roof, and what to do first.</p>
          </div>
        )}
        {!recorded && question && judged.value && !error && <Report answer={judged.value} />}
        {recorded && traced.value && !error && <TraceReport answer={traced.value} />}
      </div>
    </div>
  );
}

function Import({ text, onText, read, onRead, on }: { text: string; onText: (text: string) => void; read: Imported | null; onRead: (text: string) => void; on: string }) {
  const id = useId();
  const [example, setExample] = useState(false);
  const take = async (file: File | undefined) => {
    if (!file) return;
    const content = await file.text();
    onText(content);
    onRead(content);
  };
  const takeExample = () => {
    onText(EXAMPLE);
    onRead(EXAMPLE);
    chooseDevice("h200_sxm");
  };
  const drop = (event: DragEvent) => {
    event.preventDefault();
    void take(event.dataTransfer.files[0]);
  };
  return (
    <Panel title="Import">
      <DeviceSelect label="Measured on" value={on} onChange={chooseDevice} />
      <div className="field">
        <label htmlFor={id}>CSV or JSON</label>
        <textarea id={id} className="input num import-text" rows={8} spellCheck={false} value={text} placeholder="m,n,k,precision,time_us" onChange={(event) => onText(event.target.value)} onDragOver={(event) => event.preventDefault()} onDrop={drop} />
      </div>
      <div className="row">
        <button type="button" className="button primary grow" disabled={text.trim() === ""} onClick={() => onRead(text)}>
          Validate and compare
        </button>
        <label className="button file">
          File
          <input type="file" accept=".csv,.json,.jsonl,.txt" onChange={(event: ChangeEvent<HTMLInputElement>) => void take(event.target.files?.[0])} />
        </label>
      </div>
      {read && (
        <div className="small" role="status">
          {read.rows.length} read{read.errors.length > 0 ? `, ${read.errors.length} refused` : ""}
          {read.errors.length > 0 && (
            <ul className="skipped">
              {read.errors.slice(0, 3).map((one) => (
                <li key={one}>{one}</li>
              ))}
            </ul>
          )}
        </div>
      )}
      <div className="row">
        <button type="button" className="button tight" aria-expanded={example} onClick={() => setExample(!example)}>
          {example ? "Hide example" : "Show example"}
        </button>
        <button type="button" className="button tight" onClick={takeExample}>
          Use example
        </button>
      </div>
      {example && <pre className="example" tabIndex={0}>{EXAMPLE}</pre>}
      <p className="small faint">
        CSV with a header, or JSON: a list, <code>benchmarks</code>, <code>points</code>, <code>simplified</code>, or what <code>roofline measure --json</code> printed. The example was measured on an H200.
      </p>
    </Panel>
  );
}

function Report({ answer }: { answer: Validation }) {
  const { summary } = answer;
  const { devices } = useCatalogue();
  const { setup } = useView();
  const key = devices.find((device) => device.name === answer.hardware)?.key ?? setup.on;
  const tiers = [...new Set(answer.results.map((row) => row.tier))];
  const { compared: sort } = useView();
  const [lit, setLit] = useState<string | null>(null);
  const [added, setAdded] = useState<Validation | null>(null);
  const keyed = useMemo(() => answer.results.map((row, index) => ({ row, key: String(index) })), [answer]);
  const rows = useMemo(() => sorted(keyed, COLUMNS.map((column) => ({ ...column, of: ({ row }: { row: Comparison }) => column.of(row) })), sort), [keyed, sort]);
  const add = () => {
    addMeasured(answer.results.map((row) => measuredOf(key, row, null)));
    setAdded(answer);
  };
  return (
    <>
      <Panel>
        <div className="row spread-row">
          <h2 className="big">{answer.hardware}</h2>
          <div className="row">
            {tiers.map((tier) => (
              <span key={tier} className="tag">{tier} tier</span>
            ))}
            <button type="button" className="button tight" disabled={added === answer} onClick={add}>
              {added === answer ? "Added to the roofline" : "Add to the roofline"}
            </button>
          </div>
        </div>
        <dl className="inline-facts">
          <div><dt>verdict</dt><dd><span className={`tag ${gradeTag(summary.grade)}`}>{summary.verdict.toLowerCase()}</span></dd></div>
          <div><dt>mean error</dt><dd className="num">{digits(summary.mean_error_pct, 3)} %</dd></div>
          <div><dt>worst</dt><dd className="num">{digits(summary.max_error_pct, 3)} %</dd></div>
          <div><dt>kernels</dt><dd className="num">{summary.num_benchmarks}</dd></div>
        </dl>
        <p className="finding">{answer.verdict}</p>
        {answer.insight && <p className="finding">{answer.insight}</p>}
        {answer.slow_kernels.length > 0 && <SlowKernels all={answer.slow_kernels} />}
      </Panel>
      <Agreement comparisons={answer.results} lit={lit} onLit={setLit} />
      <Panel title="Kernels" flush>
        <div className="table-box" tabIndex={0} role="region" aria-label="Comparisons">
          <table>
            <thead>
              <tr>
                {COLUMNS.map((column) => (
                  <SortHeader key={column.key} column={column} sort={sort} onSort={(next) => change({ compared: next })} />
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.map(({ row, key }) => (
                <tr key={key} className={lit === key ? "lit" : undefined} onPointerEnter={() => setLit(key)} onPointerLeave={() => setLit(null)}>
                  <th scope="row">{row.shape}</th>
                  <td className="text">
                    <span className="named">
                      <span className="swatch round" style={{ background: precisionColour(row.precision) }} />
                      {row.precision}
                    </span>
                  </td>
                  <td className="num muted">{micros(row.ideal_time_us)}</td>
                  <td className="num">{micros(row.predicted_time_us)}</td>
                  <td className="num">{micros(row.measured_time_us)}</td>
                  <td className="num"><span className={`tag ${gradeTag(row.grade)}`}>{signedPercent(row.signed_pct)}</span></td>
                  <td className="num">{percent(row.efficiency)}</td>
                  <td className={`text bound-${row.bottleneck}`}>{row.bottleneck}</td>
                  <td className="text why">{row.diagnoses.map(doubtText).join("; ")}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </Panel>
    </>
  );
}

function SlowKernels({ all }: { all: readonly SlowKernel[] }) {
  return (
    <ul className="findings" aria-label="Slow kernels">
      {all.map((one) => (
        <li key={`${one.phase ?? ""} ${one.shape} ${one.precision}`}>
          {[one.phase, one.shape, one.precision].filter(Boolean).join(" ")}: <span className="num">{digits(one.of_roof_pct, 2)} %</span> of its roof, <span className="num">{digits(one.share_pct, 2)} %</span> of the time
        </li>
      ))}
    </ul>
  );
}
