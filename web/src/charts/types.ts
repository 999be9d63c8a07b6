// What a chart of points is given.

export interface Point {
  x: number;
  y: number;
  /** Ends of an interval of y. */
  low?: number;
  high?: number;
  /** What the point is, when it is pointed at. */
  title: string;
  /** Drawn hollow, in amber. */
  doubtful?: boolean;
}

export interface Axis {
  label: string;
  format: (value: number) => string;
  log?: boolean;
  /** Ticks at whole numbers only, or at powers of ten. */
  whole?: boolean;
  /** Values that must be on the axis, beside those of the points. */
  include?: number[];
}

export interface Series {
  name: string;
  points: Point[];
  /** Whether a line joins the points. */
  line?: boolean;
}

/** A line across a panel, with its text. */
export interface Mark {
  x?: number;
  y?: number;
  text: string;
  strong?: boolean;
}

/** A range of y over a range of x, drawn as an area behind the points. */
export interface Area {
  from: number;
  to: number;
  low: number;
  high: number;
}

/** One of several charts above each other that share the horizontal axis; a series has the same style in all of them. */
export interface Panel {
  y: Axis;
  series: Series[];
  marks?: Mark[];
  areas?: Area[];
  /** The present second: a hollow circle, which belongs to no series. */
  now?: Point;
}
