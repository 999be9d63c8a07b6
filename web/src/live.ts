// Reads the messages of a run from the console as they come.
import type { Page } from "./page.svelte";
import type { ConsoleView, SessionView } from "./generated/console";
import type { Message } from "./generated/page";
import { SECRET } from "./session";

/** A page that got nothing for so long says so: milliseconds. */
const SILENT = 4000;
/** The time after which a stream that was refused is asked for again: milliseconds. */
const AGAIN = 3000;

/** The address of the messages of the run whose page this is, or null if the page is a file. */
export function streamOf(path: string): string | null {
  const run = apiOf(path);
  return run && `${run}/stream`;
}

/** The address of the run whose page this is in the console's API, or null if the page is a file. */
export function apiOf(path: string): string | null {
  const id = /^\/runs\/([^/]+)\/report\//.exec(path)?.[1];
  return id ? `/api/runs/${id}` : null;
}

/** Follows a run for as long as the page is open. */
export function follow(page: Page, address: string): void {
  let heard = Date.now();
  let source = open();

  function open(): EventSource {
    const stream = new EventSource(address);
    stream.onmessage = (event) => {
      [heard, page.silentSince] = [Date.now(), null];
      page.apply([JSON.parse(event.data as string) as Message]);
    };
    stream.addEventListener("console", (event) => (page.console = JSON.parse(event.data as string) as ConsoleView));
    stream.onopen = () => ([page.silentSince, page.signedOut] = [null, null]);
    // A browser opens a stream again by itself that has broken off, but not one that was refused.
    stream.onerror = () => void (stream.readyState === EventSource.CLOSED && refused());
    return stream;
  }

  /** Asks why the stream was refused: the browser does not say. */
  async function refused(): Promise<void> {
    const session = await fetch("/api/session").then((answer) => (answer.ok ? (answer.json() as Promise<SessionView>) : null), () => null);
    if (session?.sees === false) [page.signedOut, page.silentSince] = [session.how, null];
    else {
      page.silentSince ??= heard;
      setTimeout(() => (source = open()), AGAIN);
    }
  }

  // Another page of the console has signed in.
  addEventListener("storage", (event) => {
    if (event.key === SECRET && event.newValue != null && page.signedOut != null) source = open();
  });
  setInterval(() => {
    // A run that is over sends nothing more.
    const waits = page.signedOut == null && (page.live != null || source.readyState !== EventSource.OPEN);
    if (waits && Date.now() - heard > SILENT) page.silentSince ??= heard;
  }, 1000);
}
