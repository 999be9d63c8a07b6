// The list of events, as the page keeps it.

import type { EventRow } from "../generated/console";

/** Events that are listed. */
const MOST = 200;

/** The newest first, as the console sorts them: nodes send the lines that they keep one node after the other. */
const newestFirst = (a: EventRow, b: EventRow): number => b.at - a.at || b.number - a.number;

/** Adds events to a list of events. What comes twice is listed once: the last second, which a page is sent first, names events that the list has. */
export function withMore(list: EventRow[], more: EventRow[]): EventRow[] {
  const listed = new Set(list.map((event) => event.number));
  return [...more.filter((event) => !listed.has(event.number)), ...list].sort(newestFirst).slice(0, MOST);
}
