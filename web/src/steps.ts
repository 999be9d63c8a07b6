// Questions to the rows of a report that several sections ask.
import type { LatencySummary, Report, StepRow } from "./generated/page";

export const PERCENTILES = ["p50", "p90", "p95", "p99", "p99.9", "p99.99", "p99.999"] as const;
export type Percentile = (typeof PERCENTILES)[number];

/** A percentile of a summary, microseconds; null if there were too few I/Os for it. */
export function percentile(latency: LatencySummary, name: string): number | null {
  return (latency as unknown as Record<string, number | null | undefined>)[name] ?? null;
}

export function isCeiling(step: StepRow): boolean {
  return step.purpose === "ceiling";
}

export function isSearch(step: StepRow): boolean {
  return typeof step.purpose === "object";
}

export function isDoubtful(step: StepRow): boolean {
  return step.lost_workers > 0 || step.errors > 0 || step.findings.some((f) => f.severity === "doubt");
}

/** "step 3: 4K random read, 8 outstanding, repeat 1" */
export function title(step: StepRow, names: Record<string, string>): string {
  return `step ${step.step}: ${names[step.label] ?? step.label}, repeat ${step.repeat}`;
}

export function unique<T>(values: Iterable<T>): T[] {
  return [...new Set(values)];
}

export function median(values: number[]): number | null {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  const half = sorted.length >> 1;
  if (sorted.length === 0) return null;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

/** The place of a step among the report's steps, for a pointer into report.json. */
export function pointer(report: Report, step: StepRow): string {
  return `/steps/${report.steps.indexOf(step)}`;
}
