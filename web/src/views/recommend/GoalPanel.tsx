import { useCallback, useId } from "react";
import { refusedLimit, type LimitKey } from "../../api/calls";
import { Refusal } from "../../api/client";
import { Choice } from "../../parts/Choice";
import { Panel } from "../../parts/Panel";
import { LogSlider } from "../../parts/Slider";
import { change, changeSetup, useView } from "../../state/store";
import { BATCH, CONTEXT, GOALS, type Goal, type Limits, type Phase } from "../../state/view";
import { tokens } from "../../units/figure";
import { chooseDevice, DeviceSelect } from "../roofline/DeviceSelect";
import { chooseModel, ModelSelect } from "../roofline/WorkloadPanel";

const AIMS: Readonly<Record<Goal, string>> = {
  latency: "the shortest time",
  throughput: "the most tokens per second",
  memory: "the least memory",
  energy: "the least energy per token",
  cost: "the least money per token",
};
const RUNTIMES = ["vllm", "llama.cpp", "transformers"] as const;
const PHASES: readonly (readonly [Phase, string])[] = [
  ["prefill", "Prefill"],
  ["decode", "Decode"],
];

export function GoalPanel({ error }: { error: Error | null }) {
  const { setup, limits, tier } = useView();
  const goalId = useId();
  const runtimeId = useId();
  const refused = refusedLimit(error);
  const wrong = (key: LimitKey) => (refused === key && error ? said(error) : null);
  const set = useCallback((patch: Partial<Limits>) => change({ limits: { ...limits, ...patch } }), [limits]);
  return (
    <div className="stack">
      <Panel title="Where">
        <DeviceSelect label="Device" value={setup.on} onChange={chooseDevice} />
        <ModelSelect value={setup.model} onChange={chooseModel} />
        <Choice label="Phase" value={setup.phase} options={PHASES} onChange={(phase) => changeSetup({ phase })} />
        <LogSlider label="Context, tokens" value={setup.context} {...CONTEXT} whole text={tokens} onChange={(context) => changeSetup({ context })} />
        <LogSlider label="Batch, sequences" value={setup.batch} {...BATCH} whole text={String} onChange={(batch) => changeSetup({ batch })} />
      </Panel>
      <Panel title="Goal and limits">
        <div className="field">
          <label htmlFor={goalId}>Goal</label>
          <select id={goalId} className="select" value={limits.goal} onChange={(event) => set({ goal: event.target.value as Goal, price: event.target.value === "cost" && !limits.price ? "2.50" : limits.price })}>
            {GOALS.map((goal) => (
              <option key={goal} value={goal}>{AIMS[goal]}</option>
            ))}
          </select>
        </div>
        {(limits.goal === "cost" || limits.price !== "") && <Field label="Dollars per hour of the device" placeholder="such as 2.50" value={limits.price} wrong={wrong("price")} onChange={(price) => set({ price })} />}
        <Field label="Perplexity may rise by" placeholder="such as 2%" value={limits.loss} wrong={wrong("loss")} onChange={(loss) => set({ loss })} />
        <Field label="Memory may be used up to" placeholder="such as 8GB" value={limits.memory} wrong={wrong("memory")} onChange={(memory) => set({ memory })} />
        <Field label="Weights may take" placeholder="such as 5GB" value={limits.weights} wrong={wrong("weights")} onChange={(weights) => set({ weights })} />
        <Field label="Bits for each weight, at most" placeholder="such as 4.3" value={limits.bits} wrong={wrong("bits")} onChange={(bits) => set({ bits })} />
        <Field label="Tokens per second, at least" placeholder="such as 30" value={limits.rate} wrong={wrong("rate")} onChange={(rate) => set({ rate })} />
        <Field label="First token within" placeholder="such as 200ms" value={limits.first} wrong={wrong("first")} onChange={(first) => set({ first })} />
        <div className="field">
          <label htmlFor={runtimeId}>Loaded by</label>
          <select id={runtimeId} className="select" value={limits.runtime} onChange={(event) => set({ runtime: event.target.value })}>
            <option value="">any runtime</option>
            {RUNTIMES.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </div>
        <label className="check">
          <input type="checkbox" checked={limits.any} onChange={(event) => set({ any: event.target.checked })} />
          also plans of poor or unknown quality
        </label>
        <label className="check">
          <input type="checkbox" checked={limits.native} onChange={(event) => set({ native: event.target.checked })} />
          only formats a unit multiplies as stored
        </label>
        <label className="check">
          <input type="checkbox" checked={tier === "ideal"} onChange={(event) => change({ tier: event.target.checked ? "ideal" : "best" })} />
          ideal times, every plan
        </label>
      </Panel>
    </div>
  );
}

function said(error: Error): string {
  return error instanceof Refusal && error.hint && !error.hint.startsWith("see ") ? `${error.message}: ${error.hint}` : error.message;
}

function Field({ label, placeholder, value, wrong, onChange }: { label: string; placeholder: string; value: string; /** Why the server does not take it. */ wrong: string | null; onChange: (value: string) => void }) {
  const id = useId();
  const note = useId();
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      <input id={id} className="input" value={value} placeholder={placeholder} aria-invalid={wrong !== null} aria-describedby={wrong ? note : undefined} onChange={(event) => onChange(event.target.value)} />
      {wrong && <p id={note} className="small wrong">{wrong}</p>}
    </div>
  );
}
