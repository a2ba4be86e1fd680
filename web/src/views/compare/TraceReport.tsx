/** What a profiler recorded: where the time went, how far from the roof, and what to do first. */

import { useMemo, useState } from "react";
import type { Traced, TracedOperator } from "../../api/types";
import { Panel } from "../../parts/Panel";
import { SortHeader, sorted, type Column } from "../../parts/sorting";
import { micros, percent, prefixed, teraflops } from "../../units/figure";
import { Agreement } from "./Agreement";

const COLUMNS: readonly Column<TracedOperator>[] = [
  { key: "operator", name: "Operator", of: (row) => row.operator, text: true },
  { key: "calls", name: "Calls", of: (row) => row.calls },
  { key: "time", name: "Time", of: (row) => row.time_us },
  { key: "share", name: "Share", of: (row) => row.share },
  { key: "roof", name: "Of roof", of: (row) => row.of_roof },
  { key: "bound", name: "Bound", of: (row) => row.bound, text: true },
  { key: "ideal", name: "Ideal", of: (row) => row.ideal_time_us },
  { key: "rate", name: "Rate", of: (row) => row.tflops },
  { key: "bandwidth", name: "Bandwidth", of: (row) => row.gb_s },
];

const SOURCES: Readonly<Record<NonNullable<Traced["trace"]>["source"], string>> = {
  torch: "torch.profiler, kernels of a GPU",
  processor: "torch.profiler, operators of a processor",
  ncu: "Nsight Compute",
};

export function TraceReport({ answer }: { answer: Traced }) {
  const [sort, setSort] = useState("");
  const [lit, setLit] = useState<string | null>(null);
  const told = answer.trace;
  const rows = useMemo(() => sorted(told?.operators ?? [], COLUMNS, sort), [told, sort]);
  if (!told) return null;
  return (
    <>
      <Panel>
        <div className="row spread-row">
          <h2 className="big">{answer.subject}</h2>
          <div className="row">
            <span className="tag">{answer.device_name}</span>
            <span className="tag">{SOURCES[told.source]}</span>
          </div>
        </div>
        <dl className="inline-facts">
          <div><dt>time in all</dt><dd className="num">{micros(told.time_us)}</dd></div>
          <div><dt>with a roof</dt><dd className="num">{percent(told.known_share)}</dd></div>
          <div><dt>without an operator</dt><dd className="num">{percent(told.unattributed.share)}</dd></div>
          {told.occupations.map((one) => (
            <div key={one.gpu}><dt>GPU {one.gpu} idle</dt><dd className="num">{percent(one.idle_share)}</dd></div>
          ))}
        </dl>
        {told.first.length > 0 && (
          <ol className="findings first" aria-label="What to do first">
            {told.first.map((one) => (
              <li key={one}>{one}</li>
            ))}
          </ol>
        )}
        <p className="finding">{answer.verdict}</p>
        {(answer.notes ?? []).map((note) => (
          <p key={note.text} className="small muted">{note.text}</p>
        ))}
      </Panel>
      <Panel title="Operators" flush>
        <div className="table-box" tabIndex={0} role="region" aria-label="Operators of the trace">
          <table>
            <thead>
              <tr>
                {COLUMNS.map((column) => (
                  <SortHeader key={column.key} column={column} sort={sort} onSort={setSort} />
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={`${row.operator} ${String(row.attributed)}`}>
                  <th scope="row" className="operator" title={row.kernel_names.join("\n") || undefined}>{row.operator}</th>
                  <td className="num">{row.calls}</td>
                  <td className="num">{micros(row.time_us)}</td>
                  <td className="num share" style={{ backgroundSize: `${100 * row.share}% 70%` }}>{percent(row.share)}</td>
                  <td className="num">{percent(row.of_roof)}</td>
                  <td className={`text bound-${row.bound ?? "none"}`}>{row.bound ?? "–"}</td>
                  <td className="num muted">{micros(row.ideal_time_us)}</td>
                  <td className="num">{teraflops(row.tflops)}</td>
                  <td className="num">{row.gb_s === null ? "–" : prefixed(row.gb_s * 1e9, "B/s", 3)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </Panel>
      {answer.comparisons.length > 0 && <Agreement comparisons={answer.comparisons} lit={lit} onLit={setLit} />}
    </>
  );
}
