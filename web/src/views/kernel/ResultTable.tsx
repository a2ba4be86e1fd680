import type { Comparison, Doubt, GemmEstimate } from "../../api/types";
import { doubtText } from "../../data/measured";
import { Panel } from "../../parts/Panel";
import { precisionColour } from "../../plot/colours";
import { digits, micros, percent, prefixed, signedPercent, teraflops } from "../../units/figure";
import { gradeTag } from "../compare/errors";

/** Theory and reality of one product, a row per precision. */
export function ResultTable({ estimates, comparisons, title, lit, onLit }: { estimates: readonly GemmEstimate[]; comparisons: readonly Comparison[]; title: string; lit: string | null; onLit: (name: string | null) => void }) {
  const measured = comparisons.length > 0;
  return (
    <Panel title={title} flush>
      <div className="table-box" tabIndex={0} role="region" aria-label="Results">
        <table>
          <thead>
            <tr>
              <th scope="col">Precision</th>
              <th scope="col">FLOP/B</th>
              <th scope="col">Ideal</th>
              <th scope="col">Predicted</th>
              <th scope="col">Range</th>
              <th scope="col" className="text">Bound</th>
              {measured && (
                <>
                  <th scope="col">Measured</th>
                  <th scope="col">Spread</th>
                  <th scope="col">Error</th>
                  <th scope="col">Rate</th>
                  <th scope="col">Bandwidth</th>
                  <th scope="col">Of ideal</th>
                  <th scope="col" className="text">Path</th>
                </>
              )}
              {!measured && <th scope="col">Rate</th>}
            </tr>
          </thead>
          <tbody>
            {estimates.map((estimate) => {
              const found = comparisons.find((comparison) => comparison.precision === estimate.precision);
              return (
                <tr key={estimate.precision} className={lit === estimate.precision ? "lit" : undefined} onPointerEnter={() => onLit(estimate.precision)} onPointerLeave={() => onLit(null)}>
                  <th scope="row">
                    <span className="named">
                      <span className="swatch round" style={{ background: precisionColour(estimate.precision) }} />
                      {estimate.precision}
                    </span>
                  </th>
                  <td className="num">{digits(estimate.ai, 3)}</td>
                  <td className="num muted">{micros(found?.ideal_time_us ?? estimate.ideal_time_us)}</td>
                  <td className="num">{micros(found?.predicted_time_us ?? estimate.predicted_time_us)}</td>
                  <td className="num muted">{range(found ?? estimate)}</td>
                  <td className={`text bound-${estimate.bottleneck}`}>{estimate.bottleneck}</td>
                  {measured && found && <Measured found={found} />}
                  {measured && !found && <td className="text muted" colSpan={7}>not measured</td>}
                  {!measured && <td className="num">{teraflops(estimate.predicted_tflops)}</td>}
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      <Doubts comparisons={comparisons} />
    </Panel>
  );
}

/** What may be wrong with a measurement, and what explains its distance from theory; once for all precisions it is true of. */
function Doubts({ comparisons }: { comparisons: readonly Comparison[] }) {
  const found = new Map<string, string[]>();
  for (const comparison of comparisons) {
    // a diagnosis says more than a warning of the same kind
    const explained = new Set<Doubt["kind"]>(comparison.diagnoses.map(({ kind }) => kind));
    for (const doubt of [...comparison.diagnoses, ...comparison.warnings.filter(({ kind }) => !explained.has(kind))]) {
      const text = doubtText(doubt);
      found.set(text, [...(found.get(text) ?? []), comparison.precision]);
    }
  }
  if (found.size === 0) return null;
  return (
    <ul className="pad small doubts">
      {[...found].map(([text, precisions]) => (
        <li key={text}>
          <span className="muted">{precisions.join(", ")}:</span> {text}
        </li>
      ))}
    </ul>
  );
}

function Measured({ found }: { found: Comparison }) {
  return (
    <>
      <td className="num">{micros(found.measured_time_us)}</td>
      <td className="num muted">{found.p5_us !== null && found.p95_us !== null ? `${micros(found.p5_us, 3)} – ${micros(found.p95_us, 3)}` : "–"}</td>
      <td className="num"><span className={`tag ${gradeTag(found.grade)}`}>{signedPercent(found.signed_pct)}</span></td>
      <td className="num">{teraflops(found.measured_tflops)}</td>
      <td className="num">{prefixed(found.measured_bandwidth_gb_s * 1e9, "B/s", 3)}</td>
      <td className="num">{percent(found.efficiency)}</td>
      <td className="text">{found.kernel_path ?? "–"}</td>
    </>
  );
}

function range({ lo_us, hi_us }: { readonly lo_us: number | null; readonly hi_us: number | null }): string {
  return lo_us === null || hi_us === null ? "–" : `${micros(lo_us, 3)} – ${micros(hi_us, 3)}`;
}
