// How figures are written: one way for each unit, everywhere.

/** A figure in a table: what is shown, and which figure of which file it is. */
export interface Figure {
  text: string;
  /** The figure itself, for programs that read the page. */
  value?: number;
  /** Where it comes from: a JSON pointer into report.json, or FILE#POINTER. */
  at?: string;
  /** What one of the text's number is in the figure's own unit. */
  scale?: number;
}

/** A load in a table: its name, and the code that identifies it beneath. */
export interface Named {
  text: string;
  code: string;
}

export type Cell = string | Figure | Named;

export function isNamed(cell: Cell): cell is Named {
  return typeof cell !== "string" && "code" in cell;
}

/** A load by its name, with its code; a load that has no other name is only its code. */
export function loadCell(names: Record<string, string>, code: string): Cell {
  const text = names[code];
  return text == null || text === code ? code : { text, code };
}

// As the text of the report rounds: 5318.5 is 5,318 in both.
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0, roundingMode: "halfEven" } as Intl.NumberFormatOptions);

const none: Figure = { text: "–" };

/** I/Os a second, or anything that is counted. */
export function count(value: number | null | undefined, at?: string): Figure {
  if (value == null) return none;
  // A rate of two a second is not two exactly.
  if (Math.abs(value) < 100 && !Number.isInteger(value)) return { text: value.toFixed(1), value, at, scale: 1 };
  return { text: whole.format(value), value, at, scale: 1 };
}

/** A latency in microseconds, in the unit that suits it. */
export function latency(us: number | null | undefined, at?: string): Figure {
  if (us == null) return none;
  if (us < 1e3) return { text: `${us.toFixed(1)} us`, value: us, at, scale: 1 };
  if (us < 1e6) return { text: `${(us / 1e3).toFixed(2)} ms`, value: us, at, scale: 1e3 };
  return { text: `${(us / 1e6).toFixed(2)} s`, value: us, at, scale: 1e6 };
}

/** Milliseconds. */
export function milliseconds(ms: number | null | undefined, at?: string): Figure {
  return ms == null ? none : { text: `${whole.format(ms)} ms`, value: ms, at, scale: 1 };
}

/** Bytes a second, in megabytes (10^6). */
export function throughput(bytes: number | null | undefined, at?: string): Figure {
  if (bytes == null) return none;
  const mb = bytes / 1e6;
  return { text: `${mb < 10 ? mb.toFixed(1) : whole.format(mb)} MB/s`, value: bytes, at, scale: 1e6 };
}

/** A share of 1, in percent. */
export function percent(share: number | null | undefined, at?: string): Figure {
  return share == null ? none : { text: `${(100 * share).toFixed(1)} %`, value: share, at, scale: 0.01 };
}

/** How much more than a ratio of 1, in percent, with its sign; the figure is the ratio. */
export function change(ratio: number | null | undefined): Figure {
  if (ratio == null) return none;
  const by = 100 * (ratio - 1);
  return { text: `${by > 0 ? "+" : by < 0 ? "−" : "±"}${Math.abs(by).toFixed(1)} %`, value: ratio };
}

/** Bytes, in the unit that suits them (2^10 each). */
export function bytes(value: number | null | undefined): string {
  if (value == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) [value, at] = [value / 1024, at + 1];
  return `${at === 0 ? value : value.toFixed(1)} ${units[at]}`;
}

/** A number of seconds, short. */
export function seconds(s: number): string {
  const [hours, minutes, rest] = [Math.floor(s / 3600), Math.floor((s % 3600) / 60), Math.floor(s % 60)];
  if (s < 60) return `${Math.floor(s)} s`;
  if (hours === 0) return rest ? `${minutes} m ${rest} s` : `${minutes} m`;
  return minutes ? `${hours} h ${minutes} m` : `${hours} h`;
}

/** How many, and of what. */
export function counted(number: number, one: string): string {
  return `${whole.format(number)} ${one}${number === 1 ? "" : "s"}`;
}

/** For an axis. */
export function short(value: number): string {
  const size = Math.abs(value);
  if (size >= 1e9) return `${+(value / 1e9).toPrecision(3)}G`;
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e3) return `${+(value / 1e3).toPrecision(3)}k`;
  return `${+value.toPrecision(3)}`;
}

/** A latency in microseconds, for an axis. */
export function shortLatency(us: number): string {
  if (us === 0) return "0";
  if (us < 1) return `${+(us * 1e3).toPrecision(3)} ns`;
  if (us < 1e3) return `${+us.toPrecision(3)} us`;
  if (us < 1e6) return `${+(us / 1e3).toPrecision(3)} ms`;
  return `${+(us / 1e6).toPrecision(3)} s`;
}

/** What is shown of a cell. */
export function textOf(cell: Cell): string {
  return typeof cell === "string" ? cell : cell.text;
}

/** Rows as CSV (RFC 4180): figures as they are and not as they are shown, and loads by their codes. */
export function csv(titles: string[], rows: Cell[][]): string {
  const field = (cell: Cell): string => {
    const text = typeof cell === "string" ? cell : isNamed(cell) ? cell.code : cell.value == null ? "" : String(cell.value);
    // A spreadsheet takes what begins so for a formula.
    const plain = (typeof cell === "string" || isNamed(cell)) && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
  };
  return [titles, ...rows].map((row) => row.map(field).join(",") + "\r\n").join("");
}
