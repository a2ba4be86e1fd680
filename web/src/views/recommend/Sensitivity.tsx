/** How firm the advice is: what other circumstances would change, and what the plan would do on another chip. */

import { useMemo } from "react";
import { sensitivity } from "../../api/calls";
import type { Outcome, Variation } from "../../api/types";
import { useAnswer } from "../../data/answer";
import { Panel } from "../../parts/Panel";
import type { Setup } from "../../state/view";
import { count, times } from "../../units/figure";

const FACTORS = [0.5, 1, 2] as const;
const NAMES: Record<number, string> = { 0.5: "half", 1: "as it is", 2: "twice" };

export function Sensitivity({ setup, best, variations }: { setup: Setup; best: Outcome | undefined; variations: readonly Variation[] }) {
  const precision = best ? best.plan : setup.precision;
  const question = useMemo<Setup>(() => ({ ...setup, precision }), [setup, precision]);
  const { value, error } = useAnswer(question, sensitivity, 120);
  const now = value?.find((row) => row.scale_bandwidth === 1 && row.scale_compute === 1);
  return (
    <Panel title="Sensitivity">
      <ul className="variations">
        {variations.map(({ change, choice, gain, same }) => (
          <li key={change}>
            <span className="muted">{change}</span>
            <span>{same ? "the same" : (choice ?? "nothing keeps the limits")}</span>
            <span className="num">{times(gain)}</span>
          </li>
        ))}
      </ul>
      <h3>{precision} with half and twice of each rate{now ? `, ${now.tier} tier` : ""}</h3>
      {error && <p className="muted small">{error.message}</p>}
      {value && now && (
        <>
          <div className="table-box" tabIndex={0} role="region" aria-label="Other rates">
            <table className="heat">
              <caption className="hidden">Tokens per second with other rates</caption>
              <thead>
                <tr>
                  <th scope="col">bandwidth \ peaks</th>
                  {FACTORS.map((factor) => (
                    <th key={factor} scope="col">{NAMES[factor]}</th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {FACTORS.map((bandwidth) => (
                  <tr key={bandwidth}>
                    <th scope="row">{NAMES[bandwidth]}</th>
                    {FACTORS.map((compute) => {
                      const row = value.find((candidate) => candidate.scale_bandwidth === bandwidth && candidate.scale_compute === compute);
                      if (!row) return <td key={compute}>–</td>;
                      const gain = row.tokens_per_s / now.tokens_per_s;
                      return (
                        <td key={compute} className={gain > 1.01 ? "up" : gain < 0.99 ? "down" : undefined}>
                          <span className="num">{count(row.tokens_per_s)}</span>
                          <span className="small"> tok/s</span>
                          <div className="small">
                            {times(gain)} · <span className={`bound-${row.bottleneck}`}>{row.bottleneck}</span>
                          </div>
                        </td>
                      );
                    })}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          <p className="small faint">What a chip with more or less of one thing would do with the same work: the rate that changes nothing is not the one to pay for.</p>
        </>
      )}
    </Panel>
  );
}
