// Where things stand on an axis, and where its ticks are.

import { largest, smallest } from "./extent";

export interface Scale {
  /** The place of a value, from 0 to 1. */
  at: (value: number) => number;
  ticks: number[];
}

/** Seconds between two ticks of time. */
export const TICKS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400];

/** Labels of an axis: of those that follow each other and are the same, only the first. */
export function distinct(labels: string[]): string[] {
  return labels.map((label, n) => (n > 0 && label === labels[n - 1] ? "" : label));
}

/** A linear scale, with ticks at whole numbers only if asked, that begins at zero, unless all values are below it. */
export function linear(values: number[], whole = false): Scale {
  const most = largest(values, 0);
  const least = smallest(values, 0);
  const span = most - least || 1;
  // Few whole numbers have a tick each.
  const rough = !whole ? span / 5 : span <= 16 ? 1 : Math.max(span / 8, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough) ?? rough;
  const [low, high] = [Math.floor(least / step) * step, Math.ceil(most / step) * step || 1];
  const places: number[] = [];
  for (let n = 0; low + n * step <= high + step / 2; n++) places.push(low + n * step);
  return { at: (value) => (value - low) / (high - low), ticks: places };
}

/** A logarithmic scale of positive values, with ticks at powers of ten only if asked. */
export function logarithmic(values: number[], powers = false): Scale {
  const positive = values.filter((value) => value > 0);
  const [least, most] = [smallest(positive), largest(positive)];
  if (positive.length === 0) return { at: () => 0, ticks: [] };
  // A little room, so that no point lies on the frame.
  const low = Math.log10(least) - 0.08;
  const high = Math.max(Math.log10(most), Math.log10(least) + 0.3) + 0.08;
  const decades = high - low;
  const factors = powers || decades > 4 ? [1] : decades > 2 ? [1, 3] : decades > 0.8 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 7];
  const places: number[] = [];
  for (let power = Math.floor(low); power <= high; power++) {
    for (const factor of factors) {
      const value = factor * 10 ** power;
      if (Math.log10(value) >= low && Math.log10(value) <= high) places.push(value);
    }
  }
  return { at: (value) => (Math.log10(Math.max(value, least)) - low) / (high - low), ticks: places };
}
