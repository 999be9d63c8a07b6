// Whether the page is being printed: then nothing is folded, and no row is left out.
import { flushSync } from "svelte";

class Printing {
  now = $state(false);
}

export const printing = new Printing();

addEventListener("beforeprint", () => flushSync(() => (printing.now = true)));
addEventListener("afterprint", () => (printing.now = false));
