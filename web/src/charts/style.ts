// How series are told apart: by colour, by dash or pattern, and by marker. All three repeat after eight.

/** A chart with fewer points is not drawn: its figures are in a table or in the text. */
export const FEWEST_POINTS = 3;

/** The colour of the nth of several things. */
export function colour(n: number): string {
  return `var(--series-${(n % 8) + 1})`;
}

/** The dashes of the nth line, in pixels; empty: a solid line. */
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [14, 4], [5, 2, 1, 2, 1, 2], [1, 5], [4, 2]];

export function dashes(n: number): number[] {
  return DASHES[n % 8];
}

export function dash(n: number): string | undefined {
  return dashes(n).join(" ") || undefined;
}

/** The outline of the nth marker around a point, as the path of a drawing. */
export function marker(n: number, x: number, y: number, r = 4): string {
  const at = (points: [number, number][]) => `M${points.map(([dx, dy]) => `${(x + dx * r).toFixed(1)},${(y + dy * r).toFixed(1)}`).join("L")}Z`;
  switch (n % 8) {
    case 1:
      return at([[-1, -1], [1, -1], [1, 1], [-1, 1]]);
    case 2:
      return at([[0, -1.3], [1.25, 0.95], [-1.25, 0.95]]);
    case 3:
      return at([[0, -1.4], [1.4, 0], [0, 1.4], [-1.4, 0]]);
    case 4:
      return at([[0, 1.3], [1.25, -0.95], [-1.25, -0.95]]);
    case 5:
      return at([[-0.4, -1.3], [0.4, -1.3], [0.4, -0.4], [1.3, -0.4], [1.3, 0.4], [0.4, 0.4], [0.4, 1.3], [-0.4, 1.3], [-0.4, 0.4], [-1.3, 0.4], [-1.3, -0.4], [-0.4, -0.4]]);
    case 6:
      return at([[-1.3, -0.6], [1.3, -0.6], [1.3, 0.6], [-1.3, 0.6]]);
    case 7:
      return at([[-0.6, -1.3], [0.6, -1.3], [0.6, 1.3], [-0.6, 1.3]]);
    default:
      return `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`;
  }
}

/** A, B, C: what stands at a line where there is no room for its name. */
export function letter(n: number): string {
  return String.fromCharCode(65 + (n % 26));
}

/** About how wide a text is in a chart, in pixels. */
export function textWidth(text: string, size = 12): number {
  return text.length * size * 0.56;
}

/** A text that fits into so many pixels. */
export function fitted(text: string, room: number, size = 12): string {
  const most = Math.max(3, Math.floor(room / (size * 0.56)));
  return text.length <= most ? text : `${text.slice(0, most - 1).trimEnd()}…`;
}

/** Places that are at least `gap` apart, in the order of the given ones and as near to them as that allows, from `low` to `high`. */
export function apart(places: number[], gap: number, low: number, high: number): number[] {
  const order = places.map((_, n) => n).sort((a, b) => places[a] - places[b]);
  const found = [...places];
  let last = low - gap;
  for (const n of order) {
    found[n] = Math.max(places[n], last + gap);
    last = found[n];
  }
  let next = high + gap;
  for (const n of order.reverse()) {
    found[n] = Math.min(found[n], next - gap);
    next = found[n];
  }
  return found;
}
