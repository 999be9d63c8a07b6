// What the page knows: the latest message of each kind, whether the run is finished or not.
import type { Message, Run, StepSeries } from "./generated/page";

export class Page {
  /** What the run came to so far. */
  run = $state.raw<Run | null>(null);
  /** The steps that are complete, by number. */
  steps = $state.raw<ReadonlyMap<number, StepSeries>>(new Map());
  /** Why the data could not be read, if they could not. */
  broken = $state<string | null>(null);

  /** Takes messages in; a later one takes the place of an earlier one. */
  apply(messages: Message[]): void {
    const steps = new Map(this.steps);
    for (const message of messages) {
      if ("run" in message) this.run = message.run;
      else if ("step" in message) steps.set(message.step.step, message.step);
    }
    if (messages.some((message) => "step" in message)) {
      this.steps = new Map([...steps].sort(([a], [b]) => a - b));
    }
  }
}
