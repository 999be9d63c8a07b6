// What the pages about runs ask of the console, and how they write what they get.
import { access } from "../access.svelte";
import type { RunRow, RunStanding } from "../../generated/console";

/** The content of an answer. If there is none, the error's message says why, for people; `advice` says what to do if the console does not answer. */
export async function ask<T>(path: string, options?: RequestInit, advice = " Reload this page once it runs."): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error(`The console does not answer.${advice}`);
  }
  if (answer.status === 401) access.check();
  const content: unknown = await answer.json().catch(() => null);
  if (answer.ok) return content as T;
  const message = (content as { message?: unknown } | null)?.message;
  throw new Error(typeof message === "string" ? message : `The console answers ${answer.status}.`);
}

/** The pauses between requests that fail, each longer than the one before, and then always the last: milliseconds. */
const PAUSES = [1000, 2000, 5000, 10_000, 30_000];

/** Asks until there is an answer, with growing pauses; `failed` gets why there is none yet, for people. Returns what ends the asking. */
export function askUntil<T>(path: string, taken: (content: T) => void, failed: (why: string) => void): () => void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let isWanted = true;
  const attempt = async (failures: number) => {
    try {
      const content = await ask<T>(path, undefined, "");
      if (isWanted) taken(content);
    } catch (error) {
      if (!isWanted) return;
      const pause = PAUSES[Math.min(failures, PAUSES.length - 1)];
      const message = why(error);
      failed(`${message}${/[.!?]$/.test(message) ? "" : "."} The page asks again in ${pause / 1000} s.`);
      timer = setTimeout(() => void attempt(failures + 1), pause);
    }
  };
  void attempt(0);
  return () => {
    isWanted = false;
    clearTimeout(timer);
  };
}

/** Why something was not done, for people. */
export function why(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** The name of a run: that of its folder. */
export function nameOf(run: RunRow): string {
  return run.path.slice(run.path.lastIndexOf("/") + 1);
}

/** A moment such as 2026-11-28T10:07:29.123Z, to the minute; in UTC, as everywhere in a run. */
export function moment(when: string): string {
  return when.slice(0, 16).replace("T", " ");
}

const STANDINGS: Record<RunStanding, string> = {
  in_progress: "in progress",
  finished: "finished",
  interrupted: "interrupted",
  unreadable: "cannot be read",
};

/** How far a run came, in words. */
export function standing(run: RunRow): string {
  const steps = run.standing === "finished" || run.standing === "unreadable" ? "" : `, ${run.complete} of ${run.planned} steps`;
  return `${STANDINGS[run.standing]}${steps}`;
}
