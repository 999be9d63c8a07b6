// What the page knows of a cluster: the past in columns, and the last second.
import { access } from "./access.svelte";
import type { EventRow, Now, PastView } from "../generated/console";
import { Kept } from "./columns";
import { withMore } from "./events";

/** Seconds that the charts show. */
export const SPAN = 15 * 60;
/** A page that got nothing for so long says so: milliseconds. */
const SILENT = 4000;
/** A connection over which nothing has come for so long is given up, and opened again: a computer that slept does not see that it has ended. */
const GIVE_UP = 15_000;

/** The columns of the past that the page draws, each with the figure of a second. */
type Column = (total: NonNullable<Now["total"]>) => number;
const COLUMNS: Record<string, Column> = {
  reads: (total) => total.reads,
  writes: (total) => total.writes,
  read_bytes: (total) => total.read_bytes,
  write_bytes: (total) => total.write_bytes,
  read_p50: (total) => total.read_latency?.p50 ?? -1,
  read_p99: (total) => total.read_latency?.p99 ?? -1,
  read_p999: (total) => total.read_latency?.p999 ?? -1,
  write_p50: (total) => total.write_latency?.p50 ?? -1,
  write_p99: (total) => total.write_latency?.p99 ?? -1,
  write_p999: (total) => total.write_latency?.p999 ?? -1,
  log_bytes: (total) => total.log_bytes,
  destage_bytes: (total) => total.destage_bytes,
  resync_bytes: (total) => total.resync_bytes,
  scrub_bytes: (total) => total.scrub_bytes,
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
  #kept = new Kept(Object.keys(COLUMNS));
  /** The last second, while no one sees the page: it is drawn once it is seen. */
  #unseen: Now | null = null;
  #cluster = "";
  #source: EventSource | null = null;
  #opened = 0;
  #heard = Date.now();
  #timer: ReturnType<typeof setInterval> | undefined;
  readonly #check = () => {
    if (!document.hidden && this.#unseen) this.#draw(this.#unseen);
    if (Date.now() - this.#heard > SILENT) this.silentSince ??= this.#heard;
    if (Date.now() - Math.max(this.#heard, this.#opened) > GIVE_UP) this.#open();
  };

  /** Follows a cluster, and no other one any more. */
  follow(cluster: string): void {
    this.close();
    [this.now, this.time, this.columns, this.events] = [null, [], {}, []];
    [this.#kept, this.#unseen, this.#cluster] = [new Kept(Object.keys(COLUMNS)), null, cluster];
    [this.#heard, this.silentSince] = [Date.now(), null];
    this.#open();
    this.#timer = setInterval(this.#check, 1000);
    // A page that was frozen, or hidden, is old at once, and not a second after it is seen.
    document.addEventListener("resume", this.#check);
    document.addEventListener("visibilitychange", this.#check);
  }

  close(): void {
    this.#source?.close();
    clearInterval(this.#timer);
    document.removeEventListener("resume", this.#check);
    document.removeEventListener("visibilitychange", this.#check);
  }

  #open(): void {
    this.#source?.close();
    this.#opened = Date.now();
    const source = new EventSource(`/api/clusters/${encodeURIComponent(this.#cluster)}/stream?past=${SPAN}`);
    const take = <T>(name: string, apply: (content: T) => void) =>
      source.addEventListener(name, (event) => {
        [this.#heard, this.silentSince] = [Date.now(), null];
        apply(JSON.parse((event as MessageEvent<string>).data) as T);
      });
    take<PastView>("past", (past) => this.#addPast(past));
    take<EventRow[]>("events", (events) => (this.events = withMore([], events)));
    take<Now>("now", (now) => this.#addNow(now));
    // The browser does not say why a stream is refused.
    source.onerror = () => access.check();
    this.#source = source;
  }

  #addPast(past: PastView): void {
    const at = new Map(past.columns.map((name, n) => [name, n]));
    const last = this.#kept.last;
    past.at.forEach((time, n) => time > last && this.#kept.add(time, 1, (name) => past.rows[n][at.get(name) ?? -1] ?? -1));
    this.#kept.dropBefore(this.#kept.last - SPAN);
    this.#show();
  }

  #addNow(now: Now): void {
    if (now.events.length > 0) this.events = withMore(this.events, now.events);
    if (now.at > this.#kept.last) {
      // Of a second for which no node has reported nothing is known.
      const { total } = now;
      this.#kept.add(now.at, 1, (name) => (total ? COLUMNS[name](total) : -1));
      this.#kept.dropBefore(now.at - SPAN);
    }
    // No second follows: nothing is waited for.
    if (now.overall === "ended") this.close();
    if (document.hidden && now.overall !== "ended") this.#unseen = now;
    else this.#draw(now);
  }

  #draw(now: Now): void {
    [this.now, this.#unseen] = [now, null];
    this.#show();
  }

  #show(): void {
    ({ time: this.time, columns: this.columns } = this.#kept.copy());
  }
}
