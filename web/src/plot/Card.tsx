/** What is known of a point, beside it. */

import type { Size } from "./frame";

export interface CardContent {
  readonly title: string;
  readonly note: string;
  readonly rows: readonly (readonly [string, string])[];
  readonly spoken: string;
}

const WIDTH = 216;

export function Card({ content, x, y, size }: { content: CardContent; x: number; y: number; size: Size }) {
  const height = 46 + content.rows.length * 18;
  const left = x + 18 + WIDTH < size.width ? x + 18 : Math.max(4, x - 18 - WIDTH);
  const top = Math.max(4, Math.min(y - height / 2, size.height - height - 4));
  return (
    <div className="card" style={{ left, top, width: WIDTH }} aria-hidden="true">
      <strong>{content.title}</strong>
      <div className="card-note">{content.note}</div>
      <dl className="facts">
        {content.rows.map(([name, value]) => (
          <div key={name} className="fact">
            <dt>{name}</dt>
            <dd className={name === "bound by" ? `num bound-${value}` : "num"}>{value}</dd>
          </div>
        ))}
      </dl>
    </div>
  );
}
