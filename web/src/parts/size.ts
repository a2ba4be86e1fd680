import { useLayoutEffect, useState, type RefObject } from "react";
import type { Size } from "../plot/frame";

/** The size of an element on the screen, whole pixels. */
export function useSize(target: RefObject<HTMLElement | null>, first: Size): Size {
  const [size, setSize] = useState(first);
  useLayoutEffect(() => {
    const element = target.current;
    if (!element) return undefined;
    const read = () => {
      const width = Math.round(element.clientWidth);
      const height = Math.round(element.clientHeight);
      if (width > 0 && height > 0) setSize((before) => (before.width === width && before.height === height ? before : { width, height }));
    };
    read();
    const observer = new ResizeObserver(read);
    observer.observe(element);
    return () => observer.disconnect();
  }, [target]);
  return size;
}
