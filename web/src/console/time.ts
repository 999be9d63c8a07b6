// Times of the day, on the reader's clock: hours, minutes and seconds.
const format = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** A time of the day; of milliseconds since 1970. */
export function time(ms: number): string {
  return format.format(ms);
}
