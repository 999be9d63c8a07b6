// What the page knows: the latest message of each kind, whether the run is finished or not.
import type { ConsoleView } from "./generated/console";
import type { LiveRun, Message, Run, StepSeries } from "./generated/page";

export class Page {
  /** What the run came to so far. */
  run = $state.raw<Run | null>(null);
  /** The steps that are complete, by number. */
  steps = $state.raw<ReadonlyMap<number, StepSeries>>(new Map());
  /** What the run does at this second; null if no process works on it, and in a file. */
  live = $state.raw<LiveRun | null>(null);
  /** Whether a console sends the messages as they come. */
  served = $state(false);
  /** What the console has pages of; null until it has said so, and in a file. */
  console = $state.raw<ConsoleView | null>(null);
  /** Since when nothing has come from the console: milliseconds since 1970. */
  silentSince = $state<number | null>(null);
  /** How one can sign in, if the console lets this page see the run no more. */
  signedOut = $state<string | null>(null);
  /** Why the run cannot be read any more. */
  unreadable = $state<string | null>(null);
  /** Why the data could not be read, if they could not. */
  broken = $state<string | null>(null);

  /** Takes messages in; a later one takes the place of an earlier one. */
  apply(messages: Message[]): void {
    const steps = new Map(this.steps);
    for (const message of messages) {
      if ("run" in message) [this.run, this.unreadable] = [message.run, null];
      else if ("live" in message) this.live = message.live ?? null;
      else if ("unreadable" in message) this.unreadable = message.unreadable;
      else if ("step" in message) steps.set(message.step.step, message.step);
    }
    if (messages.some((message) => "step" in message)) {
      this.steps = new Map([...steps].sort(([a], [b]) => a - b));
    }
  }
}
