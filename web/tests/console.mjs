// console.mjs URL [--screenshots FOLDER]: prints what the console's page shows, each time that a line comes on standard input, until
// there are no more. Whatever is wrong with the page is written to standard error, and makes the exit code 1.
import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { launch, ready } from "./browser.mjs";

const { positionals, values } = parseArgs({ allowPositionals: true, options: { screenshots: { type: "string" } } });
const url = new URL(positionals[0]);
const axe = readFileSync(fileURLToPath(new URL("../node_modules/axe-core/axe.min.js", import.meta.url)), "utf8");
const wrong = [];
const browser = await launch();
try {
  const page = await open({ viewport: { width: 1280, height: 900 } });
  for await (const _ of createInterface({ input: process.stdin })) console.log(JSON.stringify(await read(page)));
  await look();
} finally {
  await browser.close();
  wrong.forEach((line) => console.error(line));
}
process.exitCode = wrong.length ? 1 : 0;

/** Opens the page; what it asks of another host or complains of is wrong. */
async function open(options) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.on("request", (request) => new URL(request.url()).origin !== url.origin && !/^data:/.test(request.url()) && wrong.push(`request: ${request.url()}`));
  page.on("console", (message) => message.type() !== "log" && wrong.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => (wrong.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
  await page.goto(url.href);
  await ready(page);
  await page.waitForSelector("#nodes", { timeout: 20_000 });
  return page;
}

/** The tables as rows of cells, and the rest as text. */
function read(page) {
  return page.evaluate(() => {
    const rows = (id) => [...document.querySelectorAll(`#${id} tbody tr`)].map((row) => [...row.children].map((cell) => cell.textContent.trim()));
    return {
      overall: document.querySelector(".status strong")?.textContent,
      why: [...document.querySelectorAll(".status li")].map((one) => one.textContent),
      tiles: [...document.querySelectorAll(".tiles li")].map((one) => one.textContent),
      nodes: rows("nodes"),
      volumes: rows("volumes"),
      devices: rows("devices"),
      resyncs: rows("resyncs"),
      events: [...document.querySelectorAll(".events li")].map((one) => one.textContent),
      charts: document.querySelectorAll("#charts canvas").length,
      alerts: [...document.querySelectorAll("[role=alert]")].map((one) => one.textContent),
    };
  });
}

/** How it looks, light and dark, wide and narrow: nothing that a screen reader stumbles over, nothing wider than the window. */
async function look() {
  for (const colorScheme of ["light", "dark"]) {
    for (const [name, width] of [["wide", 1280], ["narrow", 390]]) {
      const page = await open({ viewport: { width, height: 900 }, colorScheme, bypassCSP: true });
      // The page's policy keeps even axe out, so that it is bypassed here.
      // The charts come with the third second.
      await page.waitForSelector("#charts canvas", { timeout: 20_000 });
      await page.addScriptTag({ content: axe });
      const { violations } = await page.evaluate(() => globalThis.axe.run());
      for (const { id, nodes } of violations) wrong.push(`axe (${colorScheme}, ${name}): ${id}: ${nodes[0].html.slice(0, 200)}`);
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      if (over > 0) wrong.push(`layout (${colorScheme}, ${name}): ${over} px wider than the window`);
      if (values.screenshots) {
        mkdirSync(values.screenshots, { recursive: true });
        await page.screenshot({ path: join(values.screenshots, `${colorScheme}-${name}.png`), fullPage: true });
      }
      await page.context().close();
    }
  }
}
