/** Which trace, and which device it was made on. */

import { useId, useState, type ChangeEvent, type DragEvent } from "react";
import type { TraceQuestion } from "../../api/calls";
import { Panel } from "../../parts/Panel";
import { DeviceSelect } from "../roofline/DeviceSelect";

export function TracePanel({ asked, onAsk, waiting }: { asked: TraceQuestion | null; onAsk: (question: TraceQuestion | null) => void; waiting: boolean }) {
  const [on, setOn] = useState("");
  const [over, setOver] = useState(false);
  const note = useId();
  const take = (file: File | undefined) => {
    if (file) onAsk({ file, choice: (asked?.choice ?? 0) + 1, on });
  };
  const device = (key: string) => {
    setOn(key);
    if (asked) onAsk({ ...asked, on: key });
  };
  const drop = (event: DragEvent) => {
    event.preventDefault();
    setOver(false);
    take(event.dataTransfer.files[0]);
  };
  const choose = (event: ChangeEvent<HTMLInputElement>) => {
    take(event.target.files?.[0]);
    // the same file may be chosen again after it was written anew
    event.target.value = "";
  };
  return (
    <Panel title="Trace of a profiler">
      <DeviceSelect label="Recorded on" value={on} onChange={device} none="as the trace says" />
      <label
        className={over ? "file drop over" : "file drop"}
        onDragOver={(event) => {
          event.preventDefault();
          setOver(true);
        }}
        onDragLeave={() => setOver(false)}
        onDrop={drop}
      >
        <span>{asked ? asked.file.name : "Choose a trace, or drop it here"}</span>
        <input type="file" aria-label="Trace" aria-describedby={note} accept=".json,.gz,.csv" onChange={choose} />
      </label>
      {waiting && <div className="small" role="status">Reading the trace</div>}
      <p id={note} className="small faint">
        What <code>export_chrome_trace</code> of torch.profiler writes (.json, .json.gz; <code>record_shapes=True</code> gives operators their roof), or a table of <code>ncu --csv</code>. It is read by the server and not kept.
      </p>
    </Panel>
  );
}
