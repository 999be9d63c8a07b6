// The past of a cluster, of a node or of a volume, over a time that the reader chooses: asked of the console, and kept up to date.
import { access } from "./access.svelte";
import type { Fault, PastView } from "../generated/console";
import { Kept, type Columns } from "./columns";
import type { Part } from "./picked.svelte";

/** Rows that a chart draws, about. */
const ROWS = 900;

export class Past {
  shown = $state.raw<Columns>({ time: [], columns: {} });
  /** The seconds of a row; 0 before the first answer. */
  step = $state(0);
  failed = $state<string | null>(null);
  #kept: Kept | null = null;
  #isAsking = false;
  readonly #path: string;

  constructor(cluster: string, part: Part | null, readonly span: number) {
    const of = part ? `/${part.kind}s/${encodeURIComponent(part.name)}` : "";
    this.#path = `/api/clusters/${encodeURIComponent(cluster)}${of}/past`;
  }

  /** That second is over: asks for what has come since, if a row of it is complete. */
  async refresh(now: number): Promise<void> {
    const kept = this.#kept;
    if (this.#isAsking || (kept && now < kept.last + this.step)) return;
    // The last row may not have been complete: it is asked for again.
    const from = Math.max(kept?.last ?? 0, now - this.span + 1);
    const step = kept ? this.step : Math.max(1, Math.ceil(this.span / ROWS));
    this.#isAsking = true;
    try {
      const answer = await fetch(`${this.#path}?from=${from}&seconds=${now - from + 1}&step=${step}`);
      if (answer.status === 401) access.check();
      if (!answer.ok) throw new Error(((await answer.json()) as Fault).message);
      this.#take((await answer.json()) as PastView, now);
      this.failed = null;
    } catch (error) {
      this.failed = error instanceof Error ? error.message : String(error);
    } finally {
      this.#isAsking = false;
    }
  }

  #take(past: PastView, now: number): void {
    if (past.rows.length === 0) return;
    if (this.#kept && past.step !== this.step) {
      // Rows of two lengths are not mixed: the next second asks for all of them again.
      this.#kept = null;
      return;
    }
    const kept = (this.#kept ??= new Kept(past.columns));
    this.step = past.step;
    past.at.forEach((time, n) => kept.add(time, past.step, (name) => past.rows[n][past.columns.indexOf(name)]));
    kept.dropBefore(now - this.span);
    this.shown = kept.copy();
  }
}
