import { useEffect, useId, useState } from "react";
import type { Shape } from "../../state/view";

const PRESETS: readonly (readonly [string, Shape])[] = [
  ["Decode", { m: 1, n: 4096, k: 4096 }],
  ["FFN up", { m: 1, n: 14_336, k: 4096 }],
  ["FFN down", { m: 1, n: 4096, k: 14_336 }],
  ["Prefill", { m: 2048, n: 4096, k: 4096 }],
];
const SIDES = [
  ["m", "M, tokens"],
  ["n", "N, outputs"],
  ["k", "K, inputs"],
] as const;

export function ShapeFields({ shape, onChange }: { shape: Shape; onChange: (shape: Shape) => void }) {
  return (
    <>
      <div className="presets" role="group" aria-label="Presets">
        {PRESETS.map(([name, preset]) => (
          <button key={name} type="button" className="button tight" title={`${preset.m} x ${preset.n} x ${preset.k}`} aria-pressed={preset.m === shape.m && preset.n === shape.n && preset.k === shape.k} onClick={() => onChange(preset)}>
            {name}
          </button>
        ))}
      </div>
      <div className="triple">
        {SIDES.map(([side, label]) => (
          <Side key={side} label={label} value={shape[side]} onChange={(value) => onChange({ ...shape, [side]: value })} />
        ))}
      </div>
    </>
  );
}

/** A whole number above zero; what is half typed changes nothing yet. */
function Side({ label, value, onChange }: { label: string; value: number; onChange: (value: number) => void }) {
  const id = useId();
  const [text, setText] = useState(String(value));
  useEffect(() => setText((before) => (Number(before) === value ? before : String(value))), [value]);
  const type = (next: string) => {
    setText(next);
    const number = Number(next);
    if (Number.isInteger(number) && number >= 1 && number <= 1_000_000) onChange(number);
  };
  const wrong = !(Number.isInteger(Number(text)) && Number(text) >= 1 && Number(text) <= 1_000_000);
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      <input id={id} className="input num" inputMode="numeric" value={text} aria-invalid={wrong} onChange={(event) => type(event.target.value.trim())} onBlur={() => setText(String(value))} />
    </div>
  );
}
