// Loads over their repeats, and which of them are one sweep.
import { largest, smallest } from "./charts/extent";
import { count, latency } from "./figures";
import type { StepRow } from "./generated/page";
import { isDoubtful, median, percentile } from "./steps";

/** One load over its complete repeats. */
export interface Level {
  label: string;
  steps: StepRow[];
  workers: number;
  /** I/Os that each worker keeps outstanding; null of a load with a rate. */
  each: number | null;
  /** I/Os a second that are offered to the fleet; null of a closed loop. */
  offered: number | null;
  iops: number;
}

/** The loads of these steps; a load that differs in anything has a label of its own. */
export function levels(steps: StepRow[]): Level[] {
  const byLabel = new Map<string, StepRow[]>();
  for (const step of steps) byLabel.set(step.label, [...(byLabel.get(step.label) ?? []), step]);
  return [...byLabel].map(([label, all]) => {
    const [first] = all;
    return {
      label,
      steps: all,
      workers: first.workers,
      each: first.outstanding == null ? null : first.outstanding / first.workers,
      offered: first.rate_iops ?? null,
      iops: median(all.map((step) => step.iops)) ?? 0,
    };
  });
}

export interface Sweep {
  name: string;
  levels: Level[];
}

/** Levels of which one thing varies, each set in its order; and those that belong to no set. */
export function sweeps(all: Level[]): Sweep[] {
  const found: Sweep[] = [];
  const add = (name: string, set: Level[], of: (level: Level) => number) => {
    const values = new Set(set.map(of));
    if (values.size > 1) found.push({ name, levels: [...set].sort((a, b) => of(a) - of(b)) });
  };
  const group = (set: Level[], of: (level: Level) => number): Map<number, Level[]> => {
    const groups = new Map<number, Level[]>();
    for (const level of set) groups.set(of(level), [...(groups.get(of(level)) ?? []), level]);
    return groups;
  };
  const closed = all.filter((level) => level.offered == null);
  const offered = all.filter((level) => level.offered != null);
  for (const [workers, set] of group(closed, (level) => level.workers)) add(`depths, ${workers} workers`, set, (level) => level.each ?? 0);
  for (const [each, set] of group(closed, (level) => level.each ?? 0)) add(`workers, ${count(each).text} outstanding each`, set, (level) => level.workers);
  for (const [workers, set] of group(offered, (level) => level.workers)) add(`rates, ${workers} workers`, set, (level) => level.offered ?? 0);
  const single = all.filter((level) => !found.some((sweep) => sweep.levels.includes(level)));
  return single.length > 0 ? [...found, { name: found.length > 0 ? "others" : "loads", levels: single }] : found;
}

/** What a chart needs of a level: IOPS, or a percentile, which every repeat must have. */
export function pointOf(level: Level, x: (level: Level) => number, name?: string) {
  const figures = level.steps.map((step) => (name ? percentile(step.latency_us, name) : step.iops)).filter((figure) => figure != null);
  const y = median(figures) ?? 0;
  const repeats = level.steps.length > 1 ? `, ${level.steps.length} repeats` : "";
  const what = name ? `${count(level.iops).text} IOPS, ${name} ${latency(y).text}` : `${count(level.iops).text} IOPS`;
  return {
    x: x(level),
    y,
    low: figures.length > 1 ? smallest(figures) : undefined,
    high: figures.length > 1 ? largest(figures) : undefined,
    title: `${level.label}${repeats}: ${what}`,
    doubtful: level.steps.some(isDoubtful),
  };
}
