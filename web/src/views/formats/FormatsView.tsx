/** What a number costs: size, range, error, and who multiplies it. */

import { useCallback, useMemo } from "react";
import { formats as askFormats } from "../../api/calls";
import type { Format } from "../../api/types";
import { useAnswer } from "../../data/answer";
import { Panel } from "../../parts/Panel";
import { SortHeader, sorted, type Column } from "../../parts/sorting";
import { Trouble } from "../../parts/Trouble";
import { precisionColour } from "../../plot/colours";
import { Scatter, type Axis, type Dot } from "../../plot/Scatter";
import { change, useView } from "../../state/store";
import { digits, percent } from "../../units/figure";
import { useState } from "react";
import { NumberLine } from "./NumberLine";

const BITS: Axis = { title: "stored bits per weight, scales included", log: false, text: (bits) => digits(bits, 3) };
const ERROR: Axis = { title: "relative error, Gaussian", log: true, text: (error) => `${digits(error * 100, 2)} %` };

const COLUMNS: readonly Column<Format>[] = [
  { key: "name", name: "Format", of: (format) => format.name, text: true },
  { key: "bits", name: "Bits", of: (format) => format.element_bits },
  { key: "stored", name: "Stored", of: (format) => format.stored_bits },
  { key: "overhead", name: "Overhead", of: (format) => format.overhead_pct },
  { key: "block", name: "Block", of: (format) => format.block },
  { key: "max", name: "± max", of: (format) => format.range_max ?? format.element_max },
  { key: "levels", name: "Levels", of: (format) => format.positive_levels },
  { key: "error", name: "Gaussian", of: (format) => format.error_gaussian },
  { key: "tails", name: "Heavy tails", of: (format) => format.error_student_t5 },
  { key: "devices", name: "Devices", of: (format) => format.native_devices.length },
  { key: "scale", name: "Scale", of: (format) => format.scale, text: true },
];

export default function FormatsView() {
  const ask = useCallback((_: string, signal: AbortSignal) => askFormats(signal), []);
  const { value, error } = useAnswer("all", ask);
  const { format: chosen, formats: sort } = useView();
  const [lit, setLit] = useState<string | null>(null);
  const all = useMemo(() => value?.formats ?? [], [value]);
  const rows = useMemo(() => sorted(all, COLUMNS, sort), [all, sort]);
  const dots = useMemo(() => all.filter((format) => format.element_bits <= 8 && format.error_gaussian > 0).map(dotOf), [all]);
  const format = all.find((candidate) => candidate.name === chosen) ?? all[0];
  const pick = (name: string) => change({ format: name });
  if (error) return <Trouble error={error} />;
  if (!value || !format) return <div className="empty" aria-busy="true">Encoding and decoding a quarter of a million weights in each format</div>;
  return (
    <div className="stack">
      <div className="two formats-top">
        <Panel title="Size against error, 8 bits and below" tools={<span className="small faint">hollow: no device multiplies it as it is stored</span>} flush>
          <Scatter title="Stored size against relative error" x={BITS} y={ERROR} dots={dots} lit={lit ?? format.name} onLit={setLit} onPick={pick} />
        </Panel>
        <Detail format={format} all={all} />
      </div>
      <FourBits all={all} />
      <Panel title={`All formats, a tensor of ${value.rows} × ${value.columns}`} flush>
        <div className="table-box" tabIndex={0} role="region" aria-label="All formats, table">
          <table>
            <thead>
              <tr>
                {COLUMNS.map((column) => (
                  <SortHeader key={column.key} column={column} sort={sort} onSort={(next) => change({ formats: next })} />
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={row.name} className={row.name === format.name || row.name === lit ? "lit" : undefined} onPointerEnter={() => setLit(row.name)} onPointerLeave={() => setLit(null)}>
                  <th scope="row">
                    <button type="button" className="link" onClick={() => pick(row.name)}>
                      <span className="swatch round" style={{ background: precisionColour(row.name) }} />
                      {row.name}
                    </button>
                  </th>
                  <td className="num">{row.element_bits}</td>
                  <td className="num">{row.stored_bits.toFixed(3)}</td>
                  <td className="num">{row.overhead_pct > 0 ? `${row.overhead_pct.toFixed(1)} %` : "–"}</td>
                  <td className="num">{row.block ?? "–"}</td>
                  <td className="num">{size(row.range_max ?? row.element_max)}</td>
                  <td className="num">{row.positive_levels ?? "–"}</td>
                  <td className="num">{row.error_gaussian > 0 ? percent(row.error_gaussian) : "–"}</td>
                  <td className="num">{row.error_student_t5 > 0 ? percent(row.error_student_t5) : "–"}</td>
                  <td className="num">{row.native_devices.length || "–"}</td>
                  <td className="text muted">{row.scale}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
        <p className="small faint pad">
          The error is ‖W − Q(W)‖ / ‖W‖, found by encoding and decoding Gaussian weights and Student-t weights with five degrees of freedom. Devices: how many of the registry multiply the format as it is stored.
        </p>
      </Panel>
    </div>
  );
}

function Detail({ format, all }: { format: Format; all: readonly Format[] }) {
  return (
    <Panel
      title="One format"
      tools={
        <select className="select narrow" aria-label="Format" value={format.name} onChange={(event) => change({ format: event.target.value })}>
          {all.map(({ name }) => (
            <option key={name}>{name}</option>
          ))}
        </select>
      }
    >
      <p>{format.summary}</p>
      <Layout format={format} />
      {format.codebook && <NumberLine format={format} />}
      <dl className="facts">
        <dt>stored</dt>
        <dd className="num">{digits(format.stored_bits, 5)} bit, {digits(format.size_of_fp16, 3)} of FP16</dd>
        <dt>scale</dt>
        <dd>{format.scale}{format.block ? `, blocks of ${format.block}` : ""}</dd>
        <dt>range</dt>
        <dd className="num">± {size(format.element_max)}{format.range_max ? `, with scales ± ${size(format.range_max)}` : ""}</dd>
        <dt>error</dt>
        <dd className="num">{percent(format.error_gaussian)} Gaussian, {percent(format.error_student_t5)} heavy tails</dd>
        <dt>multiplied by</dt>
        <dd>{format.native_units.length ? `${format.native_units.map((unit) => unit.toUpperCase()).join(", ")} on ${format.native_devices.length} devices` : "nobody as it is: converted first"}</dd>
        <dt>loaded by</dt>
        <dd>{format.runtimes.join(", ") || "no runtime known"}</dd>
        <dt>source</dt>
        <dd>{format.source}</dd>
      </dl>
    </Panel>
  );
}

/** The bits of an element, one box each. */
function Layout({ format }: { format: Format }) {
  const { element_bits: all, exponent_bits: exponent, mantissa_bits: mantissa } = format;
  if (all > 16) return null;
  const bits = exponent === null || mantissa === null ? Array.from({ length: all }, (_, index) => (index === 0 ? "s" : "i")) : [...Array(Math.max(0, all - exponent - mantissa)).fill("s"), ...Array(exponent).fill("e"), ...Array(mantissa).fill("m")];
  const words: Record<string, string> = { s: "sign", e: "exponent", m: "mantissa", i: "integer" };
  const said = [...new Set(bits as string[])].map((bit) => `${bits.filter((other) => other === bit).length} ${words[bit]}`).join(", ");
  return (
    <div className="row">
      <div className="bits" role="img" aria-label={`${all} bits: ${said}`}>
        {(bits as string[]).map((bit, index) => (
          <span key={index} className={`bit ${bit}`}>
            {bit}
          </span>
        ))}
      </div>
      <span className="small muted">{said}</span>
    </div>
  );
}

/** The code books of four bits under each other, each to its own maximum. */
function FourBits({ all }: { all: readonly Format[] }) {
  const wanted = ["int4-g128", "nf4", "mxfp4", "nvfp4"];
  const found = wanted.flatMap((name) => all.filter((format) => format.name === name && format.codebook));
  if (found.length === 0) return null;
  return (
    <Panel title="Sixteen codes, spent four ways">
      <div className="lines">
        {found.map((format) => (
          <div key={format.name} className="line-row">
            <button type="button" className="link" onClick={() => change({ format: format.name })}>
              <span className="swatch round" style={{ background: precisionColour(format.name) }} />
              {format.name}
            </button>
            <NumberLine format={format} bare />
            <span className="num small">
              {digits(format.stored_bits, 4)} bit · {percent(format.error_gaussian)} · {percent(format.error_student_t5)}
            </span>
          </div>
        ))}
      </div>
      <p className="small faint">Each line runs from the largest code to its negative: what a block's scale stretches over its weights. Even steps suit weights without outliers, dense ones near zero suit bells, and small blocks suit heavy tails. Stored bits, error on Gaussian and on heavy-tailed weights.</p>
    </Panel>
  );
}

function dotOf(format: Format): Dot {
  const rows = [
    ["stored", `${digits(format.stored_bits, 4)} bit`],
    ["error", percent(format.error_gaussian)],
    ["heavy tails", percent(format.error_student_t5)],
    ["devices", String(format.native_devices.length)],
  ] as const;
  return {
    key: format.name,
    x: format.stored_bits,
    y: format.error_gaussian,
    colour: precisionColour(format.name),
    label: format.name,
    filled: format.native_devices.length > 0,
    card: { title: format.name, note: format.summary ?? "", rows, spoken: `${format.name}: ${rows.map((row) => row.join(" ")).join(", ")}` },
  };
}

function size(value: number): string {
  return value >= 1e6 ? value.toExponential(2).replace("e+", "e") : digits(value, 4);
}
