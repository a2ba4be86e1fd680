/** Which format to use: every plan predicted, ranked by a goal within limits. */

import { useMemo } from "react";
import { recommendModel, type RecommendQuestion } from "../../api/calls";
import { Refusal } from "../../api/client";
import type { ModelAnswer, Outcome } from "../../api/types";
import { useAnswer } from "../../data/answer";
import { Command } from "../../parts/Copy";
import { Panel } from "../../parts/Panel";
import { SortHeader, sorted, type Column } from "../../parts/sorting";
import { Trouble } from "../../parts/Trouble";
import { precisionColour } from "../../plot/colours";
import { Scatter, type Axis } from "../../plot/Scatter";
import { change, changeSetup, useView } from "../../state/store";
import { bytes, count, digits, prefixed, seconds, times } from "../../units/figure";
import { GoalPanel } from "./GoalPanel";
import { dotOf, energyOf, inner, keyOf, knownAs, lossOf, named } from "./outcome";
import { Sensitivity } from "./Sensitivity";

const TIME: Axis = { title: "time", log: true, text: (time) => seconds(time, 2) };
const LOSS: Axis = { title: "rise of the perplexity, at most", log: false, text: (loss) => `${digits(loss * 100, 2)} %` };

/** Plans that are seen at first. */
const FEW = 14;

const COLUMNS: readonly Column<Outcome>[] = [
  { key: "name", name: "Plan", of: (plan) => plan.plan, text: true },
  { key: "time", name: "Time", of: (plan) => plan.time },
  { key: "rate", name: "Tokens/s", of: (plan) => plan.tokens_per_s },
  { key: "gain", name: "Speed-up", of: (plan) => plan.gain },
  { key: "bound", name: "Bound", of: (plan) => plan.bottleneck, text: true },
  { key: "memory", name: "Memory", of: (plan) => plan.memory.total },
  { key: "energy", name: "Per token", of: (plan) => plan.energy_per_token?.joules ?? null },
  { key: "quality", name: "Perplexity", of: (plan) => plan.loss },
  { key: "runtimes", name: "Known as", of: knownAs, text: true },
  { key: "why", name: "Why not", of: (plan) => plan.refused ?? plan.lost, text: true },
];

export default function RecommendView() {
  const { setup, limits, tier } = useView();
  const ideal = tier === "ideal";
  const question = useMemo<RecommendQuestion>(() => ({ setup, limits, ideal }), [setup, limits, ideal]);
  const { value, error } = useAnswer(question, recommendModel, 60);
  const best = value?.outcomes.find((plan) => plan.refused === null);
  return (
    <div className="sided">
      <GoalPanel error={error} />
      <div className="stack">
        {error && <Trouble error={error} kept={value !== null} />}
        {value && (
          <div className={error instanceof Refusal ? "stack stale" : "stack"}>
            <Verdict answer={value} best={best} />
            <div className="two">
              <Front answer={value} />
              <Sensitivity setup={setup} best={best} variations={value.sensitivity} />
            </div>
            <Ranked answer={value} best={best} />
          </div>
        )}
      </div>
    </div>
  );
}

function Verdict({ answer, best }: { answer: ModelAnswer; best: Outcome | undefined }) {
  return (
    <Panel className="verdict">
      <div className="row spread-row">
        <h2 className="big">{best ? named(best) : "Nothing keeps the limits"}</h2>
        <span className="tag">{answer.tier} tier</span>
      </div>
      <p>{answer.reason}</p>
      {best && (
        <dl className="inline-facts">
          <div><dt>time</dt><dd className="num">{seconds(best.time)}</dd></div>
          <div><dt>speed-up over 16 bit</dt><dd className="num">{times(best.gain)}</dd></div>
          <div><dt>tokens/s</dt><dd className="num">{count(best.tokens_per_s, 4)}</dd></div>
          <div><dt>memory</dt><dd className="num">{bytes(best.memory.total)}{best.memory.capacity ? <span className="muted"> of {prefixed(best.memory.capacity, "B", 4)}</span> : null}</dd></div>
          {best.energy_per_token && <div><dt>energy per token</dt><dd className="num">{energyOf(best)}</dd></div>}
          {best.dollars_per_million_tokens !== null && <div><dt>a million tokens</dt><dd className="num">{digits(best.dollars_per_million_tokens, 3)} $</dd></div>}
          <div><dt>perplexity</dt><dd className="num">{lossOf(best)}</dd></div>
          <div><dt>known as</dt><dd>{knownAs(best)}</dd></div>
        </dl>
      )}
      {answer.prefill && <p className="small muted">{answer.prefill.sentence}</p>}
      {answer.warnings.map((warning) => (
        <p key={warning} className="warning small">{warning}</p>
      ))}
      {answer.commands.length > 0 && (
        <div className="stack commands">
          {answer.commands.map((command) => (
            <Command key={command} text={command} />
          ))}
        </div>
      )}
    </Panel>
  );
}

/** What speed costs in quality: plans that no other beats are filled and joined. */
function Front({ answer }: { answer: ModelAnswer }) {
  const dots = useMemo(() => answer.outcomes.filter((plan) => plan.loss !== null).map(dotOf), [answer]);
  const front = useMemo(() => answer.outcomes.filter((plan) => plan.pareto && plan.loss !== null).map(keyOf), [answer]);
  const unknown = answer.outcomes.length - dots.length;
  return (
    <Panel title="Speed against quality" flush>
      {dots.length > 0 ? <Scatter title="Time against the rise of the perplexity" x={TIME} y={LOSS} dots={dots} line={front} /> : <div className="empty">Nothing is known about the quality of these plans.</div>}
      <p className="small faint pad">
        Filled and joined: no other plan is at least as fast, as small and as good. A bar spans the estimate.{unknown > 0 ? ` ${unknown} plans of unknown quality are not drawn.` : ""}
      </p>
    </Panel>
  );
}

function Ranked({ answer, best }: { answer: ModelAnswer; best: Outcome | undefined }) {
  const { plans } = useView();
  const { sort, all } = plans;
  const rows = useMemo(() => sorted(answer.outcomes, COLUMNS, sort), [answer, sort]);
  const shown = all ? rows : rows.slice(0, FEW);
  const refused = answer.outcomes.filter((plan) => plan.refused !== null).length;
  return (
    <Panel title={`${answer.outcomes.length} plans${refused > 0 ? `, ${refused} refused` : ""}`} flush>
      <div className="table-box" tabIndex={0} role="region" aria-label="Ranked plans">
        <table>
          <thead>
            <tr>
              {COLUMNS.map((column) => (
                <SortHeader key={column.key} column={column} sort={sort} onSort={(next) => change({ plans: { ...plans, sort: next } })} />
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.map((plan) => (
              <tr key={keyOf(plan)} className={plan === best ? "lit" : plan.refused ? "refused" : undefined}>
                <th scope="row">
                  <span className="named">
                    <span className="swatch round" style={{ background: precisionColour(inner(plan)) }} />
                    {plan.refused === null && plan.tp === 1 ? (
                      <button type="button" className="link" title="Show it on the roofline" onClick={() => changeSetup({ precision: plan.plan })}>{plan.plan}</button>
                    ) : (
                      named(plan)
                    )}
                    {plan.pareto && <span className="tag good" title="No other plan is at least as fast, as small and as good">front</span>}
                  </span>
                </th>
                <td className="num">{seconds(plan.time)}</td>
                <td className="num">{count(plan.tokens_per_s)}</td>
                <td className="num">{times(plan.gain)}</td>
                <td className={`text bound-${plan.bottleneck}`}>{plan.bottleneck}</td>
                <td className="num">{bytes(plan.memory.total, 3)}</td>
                <td className="num">{energyOf(plan)}</td>
                <td className="num">{lossOf(plan)}</td>
                <td className="text muted">{knownAs(plan)}</td>
                <td className="text why">{plan.refused ?? plan.lost}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {all && rows.length > FEW && (
        <div className="pad">
          <button type="button" className="button tight" onClick={() => change({ plans: { ...plans, all: false } })}>Show {FEW}</button>
        </div>
      )}
      {rows.length > shown.length && (
        <div className="pad">
          <button type="button" className="button tight" onClick={() => change({ plans: { ...plans, all: true } })}>Show all {rows.length}</button>
        </div>
      )}
    </Panel>
  );
}
