/** What to do, from the recommender: asked once the sliders rest. */

import { useMemo } from "react";
import { recommendModel, type RecommendQuestion } from "../../api/calls";
import type { Picture } from "../../api/picture";
import { useAnswer } from "../../data/answer";
import { Command } from "../../parts/Copy";
import { Panel } from "../../parts/Panel";
import { change, changeSetup } from "../../state/store";
import { FIRST, type Setup } from "../../state/view";
import { times } from "../../units/figure";

const REST = 180;

export function AdvicePanel({ setup, picture }: { setup: Setup; picture: Picture | null }) {
  // the recommender searches all precisions: which one is chosen is not part of the question
  const { on, bandwidth, peaks, model, phase, context, batch } = setup;
  const question = useMemo<RecommendQuestion>(
    () => ({ setup: { on, bandwidth, peaks, model, phase, context, batch, precision: "" }, limits: FIRST.limits, ideal: false }),
    [on, bandwidth, peaks, model, phase, context, batch],
  );
  const { value, error } = useAnswer(question, recommendModel, REST);
  const best = value?.outcomes.find((outcome) => outcome.refused === null);
  const plain = best && best.tp === 1 ? best.plan : null;
  return (
    <Panel title="What to do">
      {error && <p className="muted small">{error.message}</p>}
      {value && !error && (
        <>
          {best ? (
            <div>
              <div className="row spread-row">
                <strong>{best.plan}</strong>
                <span className="num">{times(best.gain)}</span>
              </div>
              <p className="muted">{value.reason}</p>
            </div>
          ) : (
            <p>{value.reason}</p>
          )}
          {value.warnings.map((warning) => (
            <p key={warning} className="warning small">
              {warning}
            </p>
          ))}
          {value.commands[0] && <Command text={value.commands[0]} />}
          <div className="row">
            {plain && plain !== setup.precision && (
              <button type="button" className="button tight" onClick={() => changeSetup({ precision: plain })}>
                Show {plain}
              </button>
            )}
            <button type="button" className="button tight" onClick={() => change({ tab: "recommend" })}>
              All plans
            </button>
          </div>
        </>
      )}
      {picture && picture.estimate.advice.length > 0 && (
        <ul className="hints small">
          {picture.estimate.advice.map((advice) => (
            <li key={advice.what}>{advice.text}</li>
          ))}
        </ul>
      )}
      {picture?.device.calibration && picture.estimate.tier === "expected" && <p className="faint small">Expected by: {picture.device.calibration}</p>}
    </Panel>
  );
}
