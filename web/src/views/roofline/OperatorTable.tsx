import { memo, useMemo } from "react";
import type { Picture } from "../../api/picture";
import type { Operator } from "../../api/types";
import { SortHeader, sorted, type Column } from "../../parts/sorting";
import { Panel } from "../../parts/Panel";
import { Glyph } from "../../plot/glyphs";
import { change, useView } from "../../state/store";
import { bytes, digits, flops, micros, percent, teraflops } from "../../units/figure";

const COLUMNS: readonly Column<Operator>[] = [
  { key: "site", name: "Operator", of: (op) => op.site, text: true },
  { key: "ai", name: "FLOP/B", of: (op) => op.ai },
  { key: "work", name: "Work", of: (op) => op.flops },
  { key: "moved", name: "Moved", of: (op) => op.bytes },
  { key: "rate", name: "Rate", of: (op) => op.predicted_tflops },
  { key: "ideal", name: "Ideal", of: (op) => op.ideal_time_us },
  { key: "time", name: "Time", of: (op) => op.predicted_time_us },
  { key: "share", name: "Share", of: (op) => op.share },
  { key: "bound", name: "Bound", of: (op) => op.bottleneck, text: true },
];

export const OperatorTable = memo(function OperatorTable({ picture, lit, onLit }: { picture: Picture; lit: string | null; onLit: (site: string | null) => void }) {
  const { sort, find } = useView();
  const { operators } = picture.estimate;
  const rows = useMemo(() => {
    const wanted = find.trim().toLowerCase();
    const kept = wanted ? operators.filter((op) => `${op.site} ${op.class} ${op.bottleneck} ${op.math}`.toLowerCase().includes(wanted)) : operators;
    return sorted(kept, COLUMNS, sort);
  }, [operators, sort, find]);
  return (
    <Panel
      title="Operators"
      flush
      tools={<input className="input filter" type="search" placeholder="Filter: name, class, bound" aria-label="Filter operators" value={find} onChange={(event) => change({ find: event.target.value })} />}
    >
      <div className="table-box operators" tabIndex={0} role="region" aria-label="Operators, table">
        <table>
          <thead>
            <tr>
              {COLUMNS.map((column) => (
                <SortHeader key={column.key} column={column} sort={sort} onSort={(next) => change({ sort: next })} />
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((op) => (
              <tr key={op.site} className={lit === op.site ? "lit" : undefined} onPointerEnter={() => onLit(op.site)} onPointerLeave={() => onLit(null)}>
                <th scope="row">
                  <span className="named">
                    <Glyph kind={op.class} />
                    {op.site}
                    {op.count > 1 && <span className="faint">×{op.count}</span>}
                  </span>
                </th>
                <td className="num">{digits(op.ai, 3)}</td>
                <td className="num">{flops(op.flops)}</td>
                <td className="num">{bytes(op.bytes, 3)}</td>
                <td className="num">{op.flops > 0 ? teraflops(op.predicted_tflops) : "–"}</td>
                <td className="num muted">{micros(op.ideal_time_us, 3)}</td>
                <td className="num">{micros(op.predicted_time_us)}</td>
                <td className="num share" style={{ backgroundSize: `${Math.max(0.5, op.share * 100)}% 100%` }}>{percent(op.share)}</td>
                <td className={`text bound-${op.bottleneck}`}>{op.bottleneck}</td>
              </tr>
            ))}
          </tbody>
        </table>
        {rows.length === 0 && <div className="empty">No operator matches “{find}”.</div>}
      </div>
    </Panel>
  );
});
