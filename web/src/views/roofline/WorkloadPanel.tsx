import { memo, useCallback, useId } from "react";
import { precisions as askPrecisions } from "../../api/calls";
import type { Picture } from "../../api/picture";
import type { Precision } from "../../api/types";
import { useAnswer } from "../../data/answer";
import { useCatalogue } from "../../data/catalogue";
import { Choice } from "../../parts/Choice";
import { Panel } from "../../parts/Panel";
import { LogSlider } from "../../parts/Slider";
import { changeSetup } from "../../state/store";
import { BATCH, CONTEXT, type Phase, type Setup } from "../../state/view";
import { count, digits, tokens } from "../../units/figure";

const PHASES: readonly (readonly [Phase, string])[] = [
  ["prefill", "Prefill"],
  ["decode", "Decode"],
];

const NONE: readonly Precision[] = [];

export function chooseModel(model: string): void {
  changeSetup({ model });
}

function choosePrecision(precision: string): void {
  changeSetup({ precision });
}

export function WorkloadPanel({ setup, picture }: { setup: Setup; picture: Picture | null }) {
  const ask = useCallback((on: string, signal: AbortSignal) => askPrecisions(on, signal), []);
  const precisions = useAnswer(setup.on, ask).value ?? NONE;
  return (
    <Panel title="Workload">
      <ModelSelect value={setup.model} onChange={chooseModel} />
      <PrecisionSelect value={setup.precision} precisions={precisions} onChange={choosePrecision} />
      <Choice label="Phase" value={setup.phase} options={PHASES} onChange={(phase) => changeSetup({ phase })} />
      <LogSlider label={setup.phase === "decode" ? "Context, tokens in the cache" : "Context, tokens of the prompt"} value={setup.context} {...CONTEXT} whole text={tokens} onChange={(context) => changeSetup({ context })} />
      {picture?.maxContext && setup.context > picture.maxContext && picture.model === setup.model && <p className="warning small">The model was made for {tokens(picture.maxContext)} tokens.</p>}
      <LogSlider label="Batch, sequences" value={setup.batch} {...BATCH} whole text={String} onChange={(batch) => changeSetup({ batch })} />
      {picture && <Stored picture={picture} precisions={precisions} />}
    </Panel>
  );
}

export const ModelSelect = memo(function ModelSelect({ value, onChange }: { value: string; onChange: (key: string) => void }) {
  const { models } = useCatalogue();
  const id = useId();
  const known = models.some((model) => model.key === value);
  return (
    <div className="field">
      <label htmlFor={id}>Model</label>
      <select id={id} className="select" value={value} onChange={(event) => onChange(event.target.value)}>
        {!known && <option value={value}>{value}</option>}
        {models.map((model) => (
          <option key={model.key} value={model.key}>
            {model.name} · {count(model.parameters)}
          </option>
        ))}
      </select>
    </div>
  );
});

export const PrecisionSelect = memo(function PrecisionSelect({ value, precisions, onChange, label = "Precision" }: { value: string; precisions: readonly Precision[]; onChange: (name: string) => void; label?: string }) {
  const id = useId();
  const known = precisions.some((precision) => precision.name === value);
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      <select id={id} className="select" value={value} onChange={(event) => onChange(event.target.value)}>
        {!known && <option value={value}>{value}</option>}
        {precisions.map((precision) => (
          <option key={precision.name} value={precision.name} disabled={precision.unavailable !== null} title={precision.unavailable ?? precision.summary}>
            {precision.name} · {digits(precision.stored_bits_per_weight, 3)} bit{precision.unavailable ? ", not on this device" : ""}
          </option>
        ))}
      </select>
    </div>
  );
});

/** Which format at which place, and who multiplies. */
function Stored({ picture, precisions }: { picture: Picture; precisions: readonly Precision[] }) {
  const layers = picture.estimate.formats;
  const precision = precisions.find((candidate) => candidate.name === picture.estimate.precision);
  return (
    <dl className="facts small">
      <dt>weights</dt>
      <dd className="num">
        {layers.weights}
        {precision && <span className="muted"> {digits(precision.stored_bits_per_weight, 4)} bit</span>}
      </dd>
      <dt>activations</dt>
      <dd className="num">{layers.activations}</dd>
      <dt>KV cache</dt>
      <dd className="num">{layers.kv}</dd>
      <dt>multiplied by</dt>
      <dd className="num">
        {layers.math.toUpperCase()}
        {precision?.peak_tflops ? <span className="muted"> {digits(precision.peak_tflops, 4)} TFLOP/s</span> : null}
      </dd>
    </dl>
  );
}
