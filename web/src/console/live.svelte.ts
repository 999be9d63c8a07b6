// What the page knows of a cluster: the past in columns, and the last second.
import type { EventRow, Now, PastView } from "../generated/console";

/** Seconds that the charts show. */
export const SPAN = 15 * 60;
/** Events that are listed. */
const EVENTS = 200;
/** A page that got nothing for so long says so: milliseconds. */
const SILENT = 4000;

/** The columns of the past that the page draws, each with the figure of a second. */
type Column = (now: Now) => number;
const COLUMNS: Record<string, Column> = {
  reads: (now) => now.total.reads,
  writes: (now) => now.total.writes,
  read_bytes: (now) => now.total.read_bytes,
  write_bytes: (now) => now.total.write_bytes,
  read_p50: (now) => now.total.read_latency?.p50 ?? -1,
  read_p99: (now) => now.total.read_latency?.p99 ?? -1,
  read_p999: (now) => now.total.read_latency?.p999 ?? -1,
  write_p50: (now) => now.total.write_latency?.p50 ?? -1,
  write_p99: (now) => now.total.write_latency?.p99 ?? -1,
  write_p999: (now) => now.total.write_latency?.p999 ?? -1,
  log_bytes: (now) => now.total.log_bytes,
  destage_bytes: (now) => now.total.destage_bytes,
  resync_bytes: (now) => now.total.resync_bytes,
  scrub_bytes: (now) => now.total.scrub_bytes,
};

export class Live {
  now = $state.raw<Now | null>(null);
  /** The seconds of the charts, ascending, and their columns. A value that is not known is null. */
  time = $state.raw<number[]>([]);
  columns = $state.raw<Record<string, (number | null)[]>>({});
  events = $state.raw<EventRow[]>([]);
  /** Since when nothing has come, if the console does not answer: milliseconds since 1970. */
  silentSince = $state<number | null>(null);
  /** The seconds of the charts, of which the page gets copies. */
  #kept: { time: number[]; columns: Record<string, (number | null)[]> } = { time: [], columns: {} };
  #source: EventSource | null = null;
  #heard = Date.now();
  #timer: ReturnType<typeof setInterval> | undefined;

  /** Follows a cluster, and no other one any more. */
  follow(cluster: string): void {
    this.close();
    [this.now, this.time, this.columns, this.events] = [null, [], {}, []];
    this.#kept = { time: [], columns: {} };
    [this.#heard, this.silentSince] = [Date.now(), null];
    const source = new EventSource(`/api/clusters/${encodeURIComponent(cluster)}/stream?past=${SPAN}`);
    const take = <T>(name: string, apply: (content: T) => void) =>
      source.addEventListener(name, (event) => {
        [this.#heard, this.silentSince] = [Date.now(), null];
        apply(JSON.parse((event as MessageEvent<string>).data) as T);
      });
    take<PastView>("past", (past) => this.#addPast(past));
    take<EventRow[]>("events", (events) => (this.events = events.slice(0, EVENTS)));
    take<Now>("now", (now) => this.#addNow(now));
    this.#source = source;
    this.#timer = setInterval(() => {
      if (Date.now() - this.#heard > SILENT) this.silentSince ??= this.#heard;
    }, 1000);
  }

  close(): void {
    this.#source?.close();
    clearInterval(this.#timer);
  }

  #addPast(past: PastView): void {
    const at = new Map(past.columns.map((name, n) => [name, n]));
    const last = this.#kept.time.at(-1) ?? 0;
    const rows = past.at.map((time, n) => [time, past.rows[n]] as const).filter(([time]) => time > last);
    for (const [time, row] of rows) this.#push(time, (name) => row[at.get(name) ?? -1] ?? -1);
    this.#show();
  }

  #addNow(now: Now): void {
    this.now = now;
    if (now.events.length > 0) {
      const newest = this.events[0]?.number ?? 0;
      const more = now.events.filter((event) => event.number > newest).reverse();
      this.events = [...more, ...this.events].slice(0, EVENTS);
    }
    if (now.at > (this.#kept.time.at(-1) ?? 0)) {
      // Of a second for which no node has reported nothing is known.
      const isReported = now.nodes.length > now.missing.length;
      this.#push(now.at, (name) => (isReported ? COLUMNS[name](now) : -1));
      this.#show();
    }
  }

  #push(time: number, of: (name: string) => number): void {
    const kept = this.#kept;
    const last = kept.time.at(-1);
    // Seconds that the console has not seen are a gap, and not a line.
    const gap = last != null && time - last > 3;
    if (gap) kept.time.push(last + 1);
    kept.time.push(time);
    for (const name of Object.keys(COLUMNS)) {
      const column = (kept.columns[name] ??= []);
      if (gap) column.push(null);
      const value = of(name);
      column.push(value < 0 ? null : value);
    }
    while (kept.time.length > 0 && kept.time[0] < time - SPAN) {
      kept.time.shift();
      for (const column of Object.values(kept.columns)) column.shift();
    }
  }

  #show(): void {
    this.time = [...this.#kept.time];
    this.columns = Object.fromEntries(Object.entries(this.#kept.columns).map(([name, column]) => [name, [...column]]));
  }
}
