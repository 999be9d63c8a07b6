// Times of the day, on the reader's clock: hours, minutes and seconds.
const format = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** A time of the day; of milliseconds since 1970. */
export function time(ms: number): string {
  return format.format(ms);
}

const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });
const DAY = 86_400;

/** When something is, so many seconds after a time (seconds since 1970): the day, and how far off it is. Beyond a year it is no date. */
export function inTime(seconds: number, now: number): string {
  if (seconds === 0) return "now";
  if (seconds > 365 * DAY) return "in more than a year";
  const off = seconds < 2 * 3600 ? `${Math.ceil(seconds / 60)} minutes` : seconds < 2 * DAY ? `${Math.round(seconds / 3600)} hours` : `${Math.round(seconds / DAY)} days`;
  return `${day.format((now + seconds) * 1000)}, in ${off}`;
}
