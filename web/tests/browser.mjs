// A browser for the tests: the distribution's Chromium, without a word to anybody.
import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

export function launch() {
  const path = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find((one) => existsSync(one));
  if (!path) throw new Error("no Chromium here: ./dev setup --tests installs it");
  // As root, which CI often is, Chromium runs only without its sandbox; what it opens is our own file.
  const sandbox = process.getuid?.() === 0 ? ["--no-sandbox"] : [];
  const quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run", "--disable-gpu"];
  return chromium.launch({ executablePath: path, args: [...sandbox, ...quiet], timeout: 60_000 });
}

/**
 * A picture for the documentation of what a window of this page shows, if one is wanted: with LOADLINE_PICTURES=FOLDER in the environment it
 * becomes FOLDER/NAME.png.
 */
export async function picture(page, name) {
  const folder = process.env.LOADLINE_PICTURES;
  if (folder) await page.screenshot({ path: `${folder}/${name}.png` });
}

/** Waits until the page shows what it was given. */
export function ready(page) {
  return page.waitForFunction(() => document.documentElement.dataset.ready === "yes", null, { timeout: 60_000 });
}
