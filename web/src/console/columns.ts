// Columns of figures over time, as charts draw them: rows come one after the other, and those that are too old go.

/** Seconds, ascending, and the figures of each. What is not known is null. */
export interface Columns {
  time: number[];
  columns: Record<string, (number | null)[]>;
}

export class Kept {
  time: number[] = [];
  columns: Record<string, (number | null)[]> = {};

  constructor(readonly names: readonly string[]) {
    for (const name of names) this.columns[name] = [];
  }

  /** The last time, or 0. */
  get last(): number {
    return this.time.at(-1) ?? 0;
  }

  /** Adds a row; of the last time again, it replaces that row. A figure below 0 is not known. A row that does not follow the last one within
   * three steps is beyond a gap. */
  add(time: number, step: number, of: (name: string) => number): void {
    if (this.time.length > 0 && time <= this.last) {
      if (time < this.last) return;
      this.time.pop();
      for (const name of this.names) this.columns[name].pop();
    }
    const gap = this.time.length > 0 && time - this.last > 3 * step;
    if (gap) this.time.push(this.last + step);
    this.time.push(time);
    for (const name of this.names) {
      const value = of(name);
      if (gap) this.columns[name].push(null);
      this.columns[name].push(value < 0 ? null : value);
    }
  }

  /** Drops what was before that time. */
  dropBefore(time: number): void {
    let old = 0;
    while (old < this.time.length && this.time[old] < time) old++;
    if (old === 0) return;
    this.time.splice(0, old);
    for (const name of this.names) this.columns[name].splice(0, old);
  }

  /** A copy, which stays as it is. */
  copy(): Columns {
    return { time: [...this.time], columns: Object.fromEntries(this.names.map((name) => [name, [...this.columns[name]]])) };
  }
}
