/** What the chosen model does on the chosen device, and why not more. */

import { useCallback, useEffect, useMemo, useState } from "react";
import { picture as askPicture, type PictureQuestion } from "../../api/calls";
import { Refusal } from "../../api/client";
import type { Picture } from "../../api/picture";
import { useAnswer } from "../../data/answer";
import { useMeasured } from "../../data/measured";
import { Panel } from "../../parts/Panel";
import { Trouble } from "../../parts/Trouble";
import { PIN_COLOURS } from "../../plot/colours";
import { measuredMark, pictureMarks, pinMarks } from "../../plot/marks";
import { RooflinePlot } from "../../plot/RooflinePlot";
import { change, useView } from "../../state/store";
import { pinLabel, type Setup, type Zoom } from "../../state/view";
import { AdvicePanel } from "./AdvicePanel";
import { DevicePanel } from "./DevicePanel";
import { Legend } from "./Legend";
import { OperatorTable } from "./OperatorTable";
import { PinsPanel } from "./PinsPanel";
import { Summary } from "./Summary";
import { WorkloadPanel } from "./WorkloadPanel";
import { ExportMenu } from "./ExportMenu";

/** When the first picture was there, for those who measure the page. */
const FIRST_PICTURE = "roofline:first-picture";

export function RooflineView() {
  const view = useView();
  const { setup } = view;
  const ideal = view.tier === "ideal";
  const question = useMemo<PictureQuestion>(() => ({ setup, ideal }), [setup, ideal]);
  const answer = useAnswer(question, askPicture);
  const pins = usePins(view.pins, ideal);
  const [lit, setLit] = useState<string | null>(null);
  const all = useMeasured();
  const picture = answer.value;
  const refused = answer.error instanceof Refusal;
  const key = picture?.device.key;
  const measured = useMemo(() => all.filter((point) => point.device === key), [all, key]);
  useEffect(() => {
    if (picture && performance.getEntriesByName(FIRST_PICTURE).length === 0) performance.mark(FIRST_PICTURE);
  }, [picture]);
  const marks = useMemo(
    () => (picture ? [...pins.flatMap((pin) => pinMarks(pin.picture, pin.label, pin.colour)), ...pictureMarks(picture), ...measured.map(measuredMark)] : []),
    [picture, pins, measured],
  );
  const used = useMemo(() => (picture ? [picture.estimate.formats.math] : []), [picture]);
  const zoom = useCallback((next: Zoom) => change({ zoom: next }), []);

  return (
    <div className="workbench">
      <div className="stack">
        <DevicePanel setup={setup} picture={picture} />
        <WorkloadPanel setup={setup} picture={picture} />
      </div>
      <div className="stack">
        {answer.error && <Trouble error={answer.error} kept={picture !== null} />}
        {picture ? (
          <div className={refused ? "stack stale" : "stack"}>
            <Summary picture={picture} />
            <Panel flush className="plot-panel">
              <Legend picture={picture} band={view.band} ideal={ideal} measured={measured} tools={<ExportMenu picture={picture} measured={measured} />} />
              <RooflinePlot title={`Roofline of ${picture.modelName} on ${picture.device.name}`} ceilings={picture.ceilings} memories={picture.memories} used={used} marks={marks} band={view.band} zoom={view.zoom} onZoom={zoom} lit={lit} onLit={setLit} />
            </Panel>
            <OperatorTable picture={picture} lit={lit} onLit={setLit} />
          </div>
        ) : (
          !answer.error && <div className="panel plot-wait" aria-busy="true" />
        )}
      </div>
      <div className="stack aside">
        <AdvicePanel setup={setup} picture={picture} />
        <PinsPanel setup={setup} pins={view.pins} pictures={pins} now={picture} />
      </div>
    </div>
  );
}

export interface PinnedPicture {
  readonly picture: Picture;
  readonly label: string;
  readonly colour: string;
}

/** The answer of each pinned set-up, asked once. */
function usePins(pins: readonly Setup[], ideal: boolean): readonly PinnedPicture[] {
  const [kept, setKept] = useState<ReadonlyMap<string, Picture>>(new Map());
  useEffect(() => {
    const abort = new AbortController();
    for (const pin of pins) {
      const key = JSON.stringify([pin, ideal]);
      if (kept.has(key)) continue;
      askPicture({ setup: pin, ideal }, abort.signal).then(
        (found) => setKept((before) => new Map(before).set(key, found)),
        () => undefined,
      );
    }
    return () => abort.abort();
    // answers that arrive must not ask again
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [pins, ideal]);
  return useMemo(
    () =>
      pins.flatMap((pin, index) => {
        const found = kept.get(JSON.stringify([pin, ideal]));
        return found ? [{ picture: found, label: pinLabel(pin), colour: PIN_COLOURS[index % PIN_COLOURS.length]! }] : [];
      }),
    [pins, ideal, kept],
  );
}
