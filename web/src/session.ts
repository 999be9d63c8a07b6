// How a page asks the console to change something: with the cookie of its session and the secret that belongs to it.
import type { Fault } from "./generated/console";

/** Where the secret of the session is kept. Only pages of this origin, which is also one port, can read it. */
export const SECRET = "loadline-session";

/** Where a browser tab keeps the path of the page to which signing in returns. */
const RETURN = "loadline-return";

/** The page that is shown now is the one to which signing in returns. */
export function returnHere(): void {
  sessionStorage.setItem(RETURN, location.pathname);
}

/** The path of the page to which signing in returns, once; null if there is none. Only the page of a run is one. */
export function takeReturn(): string | null {
  const path = sessionStorage.getItem(RETURN);
  sessionStorage.removeItem(RETURN);
  return path != null && /^\/runs\/[^/\\]+(\/report\/report\.html)?$/.test(path) ? path : null;
}

/** Why a session can have ended, for people. */
export const ENDED = "The session has ended: its key was removed, it has expired, the console was started again, or you have signed out on another page.";

/** What the console answers when it does not do something, for people. */
export async function why(answer: Response): Promise<string> {
  const text = await answer.text();
  try {
    return (JSON.parse(text) as Fault).message;
  } catch {
    return `the console answers ${answer.status}`;
  }
}

/** Sends something that is no GET, with the secret of the session. */
export function request(method: "POST" | "PUT", path: string, body: unknown): Promise<Response> {
  const headers = { "Content-Type": "application/json", "X-Loadline-CSRF": localStorage.getItem(SECRET) ?? "" };
  return fetch(path, { method, headers, body: JSON.stringify(body) });
}
