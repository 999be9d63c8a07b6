// Curves of the report as series of a chart.
import type { Point, Series } from "./charts/types";
import { count, latency, percent } from "./figures";
import type { Curve, CurvePoint, Spread } from "./generated/page";

/** A figure of a point: IOPS, CPU, the mean or a percentile of the latency. */
export type Figure = "iops" | "host_busy" | "mean" | string;

export function figureOf(point: CurvePoint, figure: Figure): Spread | null {
  if (figure === "iops") return point.iops;
  if (figure === "host_busy") return point.host_busy ?? null;
  if (figure === "mean") return point.mean_us ?? null;
  return (point.percentiles_us as Record<string, Spread>)[figure] ?? null;
}

function text(value: number, figure: Figure): string {
  if (figure === "iops") return `${count(value).text} IOPS`;
  if (figure === "host_busy") return `CPU ${percent(value).text}`;
  return `${figure} ${latency(value).text}`;
}

/** The points of a curve that have a figure. */
export function pointsOf(curve: Curve, x: (point: CurvePoint) => number, figure: Figure): Point[] {
  return curve.points.flatMap((point) => {
    const spread = figureOf(point, figure);
    if (spread == null) return [];
    const range = spread.low === spread.high ? "" : ` (${spread.level == null ? "range" : "95 %"}: ${text(spread.low, figure)} to ${text(spread.high, figure)})`;
    const iops = figure === "iops" ? "" : `${count(point.iops.median).text} IOPS, `;
    const doubt = point.doubtful > 0 ? ", doubtful" : "";
    return [{ x: x(point), y: spread.median, low: spread.low, high: spread.high, title: `${point.name}: ${iops}${text(spread.median, figure)}${range}${doubt}`, doubtful: point.doubtful > 0 }];
  });
}

/** In what a curve differs from the others of its load, in words. */
export function differsIn(curve: Curve, among: Curve[]): string {
  const parts = [curve.policy, curve.condition].filter((one) => one != null);
  const same = among.filter((one) => one.policy === curve.policy && one.condition === curve.condition);
  if (same.length > 1 || parts.length === 0) parts.push(curve.at || "single loads");
  return parts.join(", ");
}

export function seriesOf(curves: Curve[], name: (curve: Curve) => string, x: (point: CurvePoint) => number, figure: Figure): Series[] {
  return curves.map((curve) => ({ name: name(curve), points: pointsOf(curve, x, figure), line: curve.axis !== "nothing" }));
}

/** Where a curve's point stands in the report, for a pointer into report.json. */
export function at(curve: number, point: number): string {
  return `/curves/${curve}/points/${point}`;
}
