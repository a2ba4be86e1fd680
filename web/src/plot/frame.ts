/** The window of a plot: which numbers it shows, and where they are on the screen. */

import { scaleLog, type ScaleLogarithmic } from "d3-scale";
import type { Zoom } from "../state/view";

export interface Size {
  readonly width: number;
  readonly height: number;
}

export interface Margins {
  readonly top: number;
  readonly right: number;
  readonly bottom: number;
  readonly left: number;
}

export interface Domain {
  readonly x: readonly [number, number];
  readonly y: readonly [number, number];
}

/**
 * Whole decades around everything that is drawn. Whole ones, so that the axes stand still while a slider moves and jump only when a
 * point would leave.
 */
export function domainOf(points: readonly { readonly x: number; readonly y: number }[], roofs: readonly number[], ridges: readonly number[]): Domain {
  const drawable = points.filter(({ x, y }) => x > 0 && y > 0 && Number.isFinite(x) && Number.isFinite(y));
  const roof = Math.max(1e12, ...roofs);
  const top = roof * 2.2;
  const floor = Math.min(top / 1e4, ...drawable.map(({ y }) => y / 1.5));
  const left = Math.min(0.3, ...drawable.map(({ x }) => x / 1.5));
  const right = Math.max(10_000, ...ridges.map((ridge) => ridge * 3), ...drawable.map(({ x }) => x * 1.5));
  return { x: [half(left, Math.floor), half(right, Math.ceil)], y: [half(floor, Math.floor), half(top, Math.ceil)] };
}

/** To the next half decade. */
function half(value: number, round: (value: number) => number): number {
  return 10 ** (round(Math.log10(value) * 2) / 2);
}

export interface Frame {
  readonly x: ScaleLogarithmic<number, number>;
  readonly y: ScaleLogarithmic<number, number>;
  readonly left: number;
  readonly right: number;
  readonly top: number;
  readonly bottom: number;
}

/** Scales for a size, seen through a zoom. */
export function frameOf(domain: Domain, size: Size, margins: Margins, zoom: Zoom): Frame {
  const left = margins.left;
  const right = Math.max(left + 10, size.width - margins.right);
  const top = margins.top;
  const bottom = Math.max(top + 10, size.height - margins.bottom);
  const width = right - left;
  const height = bottom - top;
  const x = scaleLog().domain([...domain.x]).range([left, right]);
  const y = scaleLog().domain([...domain.y]).range([bottom, top]);
  // a zoom moves and stretches the picture; what is then seen of it is the new domain
  const seen = (scale: ScaleLogarithmic<number, number>, start: number, end: number, offset: number) =>
    scale.copy().domain([start, end].map((pixel) => scale.invert((pixel - offset) / zoom.k)));
  const zoomedX = seen(x, left, right, left * (1 - zoom.k) + zoom.x * width).range([left, right]);
  const zoomedY = seen(y, bottom, top, top * (1 - zoom.k) + zoom.y * height).range([bottom, top]);
  return { x: zoomedX, y: zoomedY, left, right, top, bottom };
}

export function inside(frame: Frame, x: number, y: number, slack = 0): boolean {
  return x >= frame.left - slack && x <= frame.right + slack && y >= frame.top - slack && y <= frame.bottom + slack;
}
