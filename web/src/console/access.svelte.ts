// Who uses the page, and how the page asks the console to change something.
//
// This module is the first one that the page loads: it takes the key of a sign-in link out of the address before anything reads the address.
import type { Role, SessionView, SignedIn } from "../generated/console";
import { request, SECRET, why } from "../session";

/** How often the page asks whether its session has ended: milliseconds. */
const ASKS = 30_000;

/** All roles, the least first. */
const ROLES: Role[] = ["viewer", "operator", "admin"];

class Access {
  /** Who uses the page, and what is possible; nothing until the console has answered. */
  session = $state.raw<SessionView | null>(null);
  /** Why signing in has failed. */
  failed = $state<string | null>(null);
  /** Whether the session has ended while the page was open, and nobody signed out. */
  hasEnded = $state(false);
  #secret = $state<string | null>(localStorage.getItem(SECRET));
  /** How often the page has signed in. */
  #signedIn = 0;

  /** Whether the page may ask for actions. */
  get acts(): boolean {
    const role = this.session?.who?.role;
    return this.session?.signed_in === true && this.#secret != null && (role === "operator" || role === "admin");
  }

  /** Whether the page may ask for what needs this role. */
  has(role: Role): boolean {
    return this.acts && ROLES.indexOf(this.session?.who?.role ?? "viewer") >= ROLES.indexOf(role);
  }

  /** Why the page may not ask for actions, for people. */
  get whyNot(): string {
    const who = this.session?.who;
    if (who && !(this.session?.signed_in && this.#secret != null)) return "Sign in to act.";
    if (who) return `${who.name} is a ${who.role}, which may see and not act.`;
    return `To act, sign in. ${this.session?.how ?? ""}`;
  }

  /** Asks the console who uses the page. */
  async load(): Promise<void> {
    const signedIn = this.#signedIn;
    const answer = await fetch("/api/session");
    if (!answer.ok) throw new Error(await why(answer));
    const session = (await answer.json()) as SessionView;
    // An answer from before the page has signed in is not how it is.
    if (signedIn !== this.#signedIn) return;
    if (this.session?.who && !session.who) this.hasEnded = true;
    this.session = session;
  }

  /** Asks again who uses the page, after the console has refused something or a stream has ended: the session may have ended. */
  check(): void {
    void this.load().catch(() => undefined);
  }

  /** Signs in with a key; without one, with the certificate of the browser. */
  async signIn(key: string | null): Promise<boolean> {
    this.failed = null;
    try {
      const body = JSON.stringify(key == null ? {} : { key });
      const answer = await fetch("/api/session", { method: "POST", headers: { "Content-Type": "application/json" }, body });
      if (!answer.ok) throw new Error(await why(answer));
      const { csrf, session } = (await answer.json()) as SignedIn;
      localStorage.setItem(SECRET, csrf);
      [this.#secret, this.session] = [csrf, session];
      [this.#signedIn, this.hasEnded] = [this.#signedIn + 1, false];
      return true;
    } catch (error) {
      this.failed = error instanceof Error ? error.message : String(error);
      return false;
    }
  }

  async signOut(): Promise<void> {
    await this.send("POST", "/api/session/end", {}).catch(() => undefined);
    localStorage.removeItem(SECRET);
    this.#secret = null;
    await this.load();
    this.hasEnded = false;
  }

  /** Sends something that is no GET. What the console refuses is an error with its message. */
  async send<T>(method: "POST" | "PUT", path: string, body: unknown): Promise<T> {
    const answer = await request(method, path, body);
    if (answer.ok) return (await answer.json()) as T;
    // The session may have ended.
    if (answer.status === 401) this.check();
    throw new Error(await why(answer));
  }

  /** Takes the key out of the address, if that is a sign-in link, and signs in with it. The link of a run leads to the page of the run. */
  takeLink(): void {
    const [, key, run] = /^#\/sign-in\/([^/]+)(\/runs\/[\w.-]+)?$/.exec(location.hash) ?? [];
    if (!key) return;
    history.replaceState(null, "", run ? "#/sign-in" : "#/clusters");
    void this.signIn(decodeURIComponent(key)).then((isIn) => {
      if (!isIn) location.hash = "#/sign-in";
      else if (run) location.replace(run);
    });
  }

  /** Another page of the console has signed in or out. */
  follow(): void {
    addEventListener("storage", (event) => {
      if (event.key !== SECRET) return;
      this.#secret = event.newValue;
      this.check();
    });
    setInterval(() => this.check(), ASKS);
  }
}

export const access = new Access();
access.takeLink();
addEventListener("hashchange", () => access.takeLink());
access.follow();
