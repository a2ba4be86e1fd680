import { memo, type ReactNode } from "react";
import type { Picture } from "../../api/picture";
import { bytes, count, digits, micros, prefixed } from "../../units/figure";

/** Eight numbers of the whole pass. */
export const Summary = memo(function Summary({ picture }: { picture: Picture }) {
  const { estimate } = picture;
  const range = estimate.tier === "expected" ? `${micros(estimate.lo_us, 3)} – ${micros(estimate.hi_us, 3)}, ${estimate.basis}` : "ideal: no kernel can be faster";
  return (
    <dl className="panel strip">
      <Item name={estimate.tier === "expected" ? "Expected time" : "Ideal time"} value={micros(estimate.predicted_time_us)} note={range} />
      <Item name="Throughput" value={<>{count(estimate.tokens_per_s, 4)} <small>tok/s</small></>} note={estimate.tier === "expected" ? `ideal time ${micros(estimate.ideal_time_us, 3)}` : "at that time"} />
      <Item name="Bound by" value={<span className={`bound-${estimate.bottleneck}`}>{estimate.bottleneck.toUpperCase()}</span>} note={`ridge at ${digits(estimate.critical_ai, 3)} FLOP/B`} />
      <Item name="Intensity" value={<>{digits(estimate.ai, 4)} <small>FLOP/B</small></>} note="all operators together" />
      <Item name="Work" value={prefixed(estimate.flops, "FLOP", 4)} note={`${count(picture.parameters)} parameters`} />
      <Item name="Bytes moved" value={bytes(estimate.bytes)} note={fits(picture)} bad={estimate.fits === false} />
      <Item name="Weights" value={<>{digits(estimate.bits_per_weight, 4)} <small>bit each</small></>} note={`${bytes(estimate.weight_bytes)} in all`} />
      <Item name="KV cache" value={<>{digits(estimate.bits_per_kv, 4)} <small>bit each</small></>} note={`${bytes(estimate.kv_bytes)} in all`} />
    </dl>
  );
});

function fits(picture: Picture): string {
  const { fits: room, memory_bytes, shortfall } = picture.estimate;
  if (room === null) return `${bytes(memory_bytes)} of memory needed`;
  if (room) return `${bytes(memory_bytes)} of memory, fits: ${kept(picture)}`;
  const cure = [shortfall?.precision && `${shortfall.precision} would fit`, shortfall?.tensor_parallel && `${shortfall.tensor_parallel} of them would do`].filter(Boolean).join(", ");
  return `${bytes(shortfall?.missing_bytes, 3)} too much${cure ? `: ${cure}` : " for the memory"}`;
}

/** What of the device's memory is not the model's. */
function kept(picture: Picture): string {
  const { room } = picture.estimate;
  if (!room) return "";
  const system = room.system > 0 ? `${bytes(room.system, 3)} the system's, ` : "";
  return `${system}${bytes(room.reserve, 3)} kept free`;
}

function Item({ name, value, note, bad = false }: { name: string; value: ReactNode; note: string; bad?: boolean }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>
        {value}
        <div className={bad ? "note bad" : "note"} title={note}>
          {note}
        </div>
      </dd>
    </div>
  );
}
