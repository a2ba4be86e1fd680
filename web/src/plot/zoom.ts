/** Zoom and pan: wheel with Ctrl (or once the plot has the focus), drag, two fingers, keys, buttons. One finger scrolls the page. */

import { select } from "d3-selection";
import { zoom as d3zoom, zoomIdentity, type D3ZoomEvent, type ZoomBehavior } from "d3-zoom";
import { useCallback, useEffect, useRef, type RefObject } from "react";
import type { Size, Margins } from "./frame";
import { STILL, type Zoom } from "../state/view";

export interface ZoomControl {
  readonly by: (factor: number) => void;
  readonly move: (x: number, y: number) => void;
  readonly reset: () => void;
}

const MOST = 40;

export function useZoom(target: RefObject<SVGSVGElement | null>, size: Size, margins: Margins, zoom: Zoom, changed: (zoom: Zoom) => void): ZoomControl {
  const behaviour = useRef<ZoomBehavior<SVGSVGElement, unknown> | null>(null);
  const told = useRef<Zoom>(zoom);
  const listener = useRef(changed);
  useEffect(() => {
    listener.current = changed;
  }, [changed]);
  const width = Math.max(1, size.width - margins.left - margins.right);
  const height = Math.max(1, size.height - margins.top - margins.bottom);
  const { left, top } = margins;

  useEffect(() => {
    const element = target.current;
    if (!element) return undefined;
    const area: [[number, number], [number, number]] = [[left, top], [left + width, top + height]];
    const made = d3zoom<SVGSVGElement, unknown>()
      .extent(area)
      .translateExtent([[left - width * 0.25, top - height * 0.25], [left + width * 1.25, top + height * 1.25]])
      .scaleExtent([1, MOST])
      .filter((event: Event) => {
        if (event instanceof WheelEvent) return event.ctrlKey || event.metaKey || element.contains(document.activeElement);
        if (event.type === "dblclick") return false;
        if ("touches" in event) return (event as TouchEvent).touches.length > 1;
        return !(event instanceof MouseEvent && event.button !== 0);
      })
      .on("zoom", (event: D3ZoomEvent<SVGSVGElement, unknown>) => {
        const { k, x, y } = event.transform;
        const next = { k, x: (x - left * (1 - k)) / width, y: (y - top * (1 - k)) / height };
        const rounded = k === 1 && Math.abs(next.x) < 1e-3 && Math.abs(next.y) < 1e-3 ? STILL : next;
        told.current = rounded;
        listener.current(rounded);
      });
    behaviour.current = made;
    const selection = select(element);
    selection.call(made);
    selection.on("dblclick.zoom", null);
    // an ordinary drag on a phone must go on scrolling the page
    element.style.touchAction = "pan-x pan-y";
    return () => {
      selection.on(".zoom", null);
    };
  }, [target, width, height, left, top]);

  // a link or the back button may bring another zoom
  useEffect(() => {
    const element = target.current;
    const made = behaviour.current;
    if (!element || !made) return;
    const before = told.current;
    const same = before.k === zoom.k && before.x === zoom.x && before.y === zoom.y;
    const held = select(element).property("__zoom") as { k: number } | undefined;
    if (same && held && held.k === zoom.k) return;
    told.current = zoom;
    const transform = zoomIdentity.translate(left * (1 - zoom.k) + zoom.x * width, top * (1 - zoom.k) + zoom.y * height).scale(zoom.k);
    select(element).property("__zoom", transform);
  }, [target, zoom, width, height, left, top]);

  const by = useCallback(
    (factor: number) => {
      if (target.current && behaviour.current) select(target.current).call(behaviour.current.scaleBy, factor);
    },
    [target],
  );
  const move = useCallback(
    (x: number, y: number) => {
      if (target.current && behaviour.current) select(target.current).call(behaviour.current.translateBy, x, y);
    },
    [target],
  );
  const reset = useCallback(() => {
    if (target.current && behaviour.current) select(target.current).call(behaviour.current.transform, zoomIdentity);
  }, [target]);
  return { by, move, reset };
}
