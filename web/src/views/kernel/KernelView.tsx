/** One product: what theory says of it, and what it does here. */

import { useCallback, useEffect, useMemo, useState } from "react";
import { gemm, machineFields, precisions as askPrecisions, recommendGemm, type GemmQuestion } from "../../api/calls";
import { Refusal } from "../../api/client";
import type { Compared } from "../../api/jobs";
import type { GemmAnswer } from "../../api/types";
import { useAnswer } from "../../data/answer";
import { useCatalogue } from "../../data/catalogue";
import { doubtsOf } from "../../data/follow";
import { useJob } from "../../data/job";
import { addMeasured, clearMeasured, measuredOf, useMeasured } from "../../data/measured";
import { Command } from "../../parts/Copy";
import { Panel } from "../../parts/Panel";
import { Progress } from "../../parts/Progress";
import { Trouble } from "../../parts/Trouble";
import { gemmMark, measuredMark } from "../../plot/marks";
import { RooflinePlot } from "../../plot/RooflinePlot";
import { change, useView } from "../../state/store";
import { type Shape, type Zoom } from "../../state/view";
import { percent, times } from "../../units/figure";
import { chooseDevice, DeviceSelect } from "../roofline/DeviceSelect";
import { PrecisionSelect } from "../roofline/WorkloadPanel";
import { BackendSelect, CustomRates, MeasuringOff } from "./BackendSelect";
import { backendsOf, chosen, isReal } from "./backends";
import { comparedOf, resultOf } from "./matching";
import { ResultTable } from "./ResultTable";
import { ShapeFields } from "./ShapeFields";

/** What "all" means, in this order. */
const ALL = ["fp16", "bf16", "fp8", "nvfp4", "int8", "w4a16"] as const;

export default function KernelView() {
  const { setup, kernel, kernelZoom: zoom, backend: wanted, band } = useView();
  const { health } = useCatalogue();
  const backends = useMemo(() => backendsOf(health), [health]);
  const backend = chosen(wanted, backends);
  const [rounds, setRounds] = useState(0);
  const { on, bandwidth, peaks } = setup;
  const machine = useMemo(() => (isReal(backend) ? { on: "this", bandwidth: null, peaks: {} } : { on, bandwidth, peaks }), [backend, on, bandwidth, peaks]);
  const shape = useMemo<Shape>(() => ({ m: kernel.m, n: kernel.n, k: kernel.k }), [kernel.m, kernel.n, kernel.k]);

  const known = useAnswer(machine.on, askPrecisionsOf).value;
  const available = useMemo(() => (known ?? []).filter((precision) => precision.unavailable === null).map((precision) => precision.name), [known]);
  const wantedPrecisions = useMemo(() => (kernel.all ? ALL.filter((name) => known === null || available.includes(name)) : [kernel.precision]), [kernel.all, kernel.precision, known, available]);
  const question = useMemo(() => ({ machine, shape, precision: wantedPrecisions, rounds }), [machine, shape, wantedPrecisions, rounds]);
  const predicted = useAnswer(question, askGemm);
  const advice = useAnswer(question, askAdvice, 80);

  const { work, busy, start, cancel } = useJob();
  const compared = comparedOf(work.result);
  useEffect(() => {
    if (work.state !== "done" || !compared) return;
    addMeasured(compared.comparisons.map((found) => measuredOf(compared.device, found, compared.backend)));
    // the first measurement also finds out what this machine is made of
    setRounds((count) => count + 1);
  }, [work.state, compared]);

  const picture = predicted.value;
  const result = resultOf(work.result, shape, picture?.device.key, backend);
  const all = useMeasured();
  const measured = useMemo(() => all.filter((point) => point.device === picture?.device.key), [all, picture]);
  const marks = useMemo(() => [...(picture?.estimates ?? []).map(gemmMark), ...measured.map(measuredMark)], [picture, measured]);
  const used = useMemo(() => [...new Set((picture?.estimates ?? []).map((estimate) => estimate.formats.math))], [picture]);
  const setZoom = useCallback((next: Zoom) => change({ kernelZoom: next }), []);
  const [lit, setLit] = useState<string | null>(null);
  const light = useCallback((name: string | null) => setLit(name), []);

  const analyze = () => {
    setRounds((count) => count + 1);
    if (backend !== "none") start({ verb: "compare", subject: "gemm", ...shape, precision: wantedPrecisions, backend, quick: true, ...(backend === "null" ? machineFields(machine) : {}) });
  };
  const unknown = predicted.error instanceof Refusal && predicted.error.status === 409 && machine.on === "this";
  return (
    <div className="sided">
      <div className="stack">
        <Panel title="Kernel spot check">
          <ShapeFields shape={shape} onChange={(next) => change({ kernel: { ...kernel, ...next } })} />
          <PrecisionSelect value={kernel.precision} precisions={known ?? []} onChange={(precision) => change({ kernel: { ...kernel, precision, all: false } })} />
          <label className="check">
            <input type="checkbox" checked={kernel.all} onChange={(event) => change({ kernel: { ...kernel, all: event.target.checked } })} />
            all of FP16, BF16, FP8, NVFP4, INT8, INT4
          </label>
          <BackendSelect value={backend} backends={backends} />
          {!isReal(backend) && <DeviceSelect label="Device" value={on} onChange={chooseDevice} />}
          {!isReal(backend) && <CustomRates machine={setup} />}
          <div className="row">
            <button type="button" className="button primary grow" disabled={busy} onClick={analyze}>
              Analyze GEMM
            </button>
            {busy && (
              <button type="button" className="button" onClick={cancel}>
                Cancel
              </button>
            )}
          </div>
          {work.state !== "idle" && <Progress work={work} />}
        </Panel>
        {health && !health.allow_measure && <MeasuringOff />}
        {advice.value && <Advice answer={advice.value} />}
      </div>
      <div className="stack">
        {work.error && <Trouble error={work.error} />}
        {doubtsOf(work).map((text) => (
          <div className="notice" key={text}>
            <div>{text}</div>
          </div>
        ))}
        {unknown ? (
          <div className="notice">
            <div>What this machine is made of is not known yet. “Analyze GEMM” finds out with the first measurement, in about half a minute.</div>
          </div>
        ) : (
          predicted.error && <Trouble error={predicted.error} />
        )}
        {picture && (
          <Panel flush className="plot-panel">
            <div className="plot-head">
              <div className="legend-row">
                <span>{picture.device.name}</span>
                <span>
                  <svg width="11" height="11" viewBox="-6 -6 12 12" aria-hidden="true"><circle r="4.6" fill="currentColor" /></svg>
                  predicted
                </span>
                <span>
                  <svg className="ring" width="11" height="11" viewBox="-6 -6 12 12" aria-hidden="true"><circle r="4.4" /></svg>
                  measured
                </span>
              </div>
              <div className="legend-row">
                {measured.length > 0 && (
                  <button type="button" className="button tight" onClick={() => clearMeasured(picture.device.key)}>
                    Clear {measured.length} measured
                  </button>
                )}
              </div>
            </div>
            <RooflinePlot title={`Products on ${picture.device.name}`} ceilings={picture.ceilings} memories={picture.memories} used={used} marks={marks} band={band} zoom={zoom} onZoom={setZoom} lit={lit} onLit={light} />
          </Panel>
        )}
        {picture && <ResultTable estimates={picture.estimates} comparisons={result?.comparisons ?? []} title={titleOf(result)} lit={lit} onLit={setLit} />}
        {result?.insight && <p className="muted">{result.insight}</p>}
      </div>
    </div>
  );
}

function titleOf(result: Compared | null): string {
  if (!result) return "Predicted";
  return result.backend === "null" ? `Predicted, and the null backend's fake times for ${result.device_name}` : `Predicted and measured on ${result.device_name}`;
}

type Round = GemmQuestion & { readonly rounds: number };

function askGemm({ machine, shape, precision }: Round, signal: AbortSignal) {
  return gemm({ machine, shape, precision }, signal);
}

function askAdvice({ machine, shape }: Round, signal: AbortSignal) {
  return recommendGemm({ machine, shape }, signal);
}

function askPrecisionsOf(on: string, signal: AbortSignal) {
  return askPrecisions(on, signal);
}

function Advice({ answer }: { answer: GemmAnswer }) {
  const { recommendation: best } = answer;
  return (
    <Panel title="What to do">
      <div className="row spread-row">
        <strong>{best.precision}</strong>
        {best.predicted_speedup > 1 && <span className="num">{times(best.predicted_speedup)}</span>}
      </div>
      <p className="muted">{best.reason}</p>
      {best.memory_savings_pct > 0 && <p className="small muted">{percent(best.memory_savings_pct / 100)} less memory for weights, by {best.method}</p>}
      {answer.warnings.map((warning) => (
        <p key={warning} className="warning small">{warning}</p>
      ))}
      {answer.commands[0] && <Command text={answer.commands[0]} />}
    </Panel>
  );
}
