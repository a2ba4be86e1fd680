import { useId, type CSSProperties, type KeyboardEvent } from "react";
import { position, step, valueAt } from "../units/logscale";

interface Props {
  readonly label: string;
  readonly value: number;
  readonly low: number;
  readonly high: number;
  readonly text: (value: number) => string;
  readonly onChange: (value: number) => void;
  /** Differs from the preset. */
  readonly changed?: boolean;
  /** Counts things: whole numbers only. */
  readonly whole?: boolean;
}

/** A slider over powers of two; arrow keys always reach the next number. */
export function LogSlider({ label, value, low, high, text, onChange, changed = false, whole = false }: Props) {
  const id = useId();
  const [from, to] = [position(low), position(high)];
  const at = Math.min(to, Math.max(from, position(value)));
  const keys = (event: KeyboardEvent) => {
    const direction = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (direction === undefined) return;
    event.preventDefault();
    const next = step(value, direction as 1 | -1, low, high, whole);
    if (next !== value) onChange(next);
  };
  const fill = { "--fill": `${((at - from) / (to - from)) * 100}%` } as CSSProperties;
  return (
    <div className="slider">
      <label htmlFor={id}>{label}</label>
      <output htmlFor={id} className={changed ? "changed" : undefined}>
        {text(value)}
      </output>
      <input id={id} type="range" min={from} max={to} step={1} value={at} aria-valuetext={text(value)} style={fill} onKeyDown={keys} onChange={(event) => onChange(clamp(valueAt(event.target.valueAsNumber, whole), low, high))} />
    </div>
  );
}

function clamp(value: number, low: number, high: number): number {
  return Math.min(high, Math.max(low, value));
}
