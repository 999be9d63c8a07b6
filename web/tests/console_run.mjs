// console_run.mjs URL [--screenshots FOLDER]: watches the page of a run. For each line on standard input it prints what the page shows, as
// JSON, one line each. The line says what is done before: `read`, nothing; `look`, the page is opened in all its forms; `median`, the median is chosen for latency against IOPS; `cluster`, the page of
// the run's cluster is opened beside it. Whatever is wrong with a page is written to standard error, and makes the exit code 1.
import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { launch, picture, ready } from "./browser.mjs";

const { positionals, values } = parseArgs({ allowPositionals: true, options: { screenshots: { type: "string" } } });
const url = positionals[0];
const axe = readFileSync(fileURLToPath(new URL("../node_modules/axe-core/axe.min.js", import.meta.url)), "utf8");
const wrong = [];
const browser = await launch();
try {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  const page = await open(context, url);
  let cluster = null;
  for await (const line of createInterface({ input: process.stdin })) {
    if (line === "look") await look(page);
    if (line === "median") await page.locator("#load-line label", { hasText: "Percentile" }).locator("select").selectOption("p50");
    if (line === "cluster") cluster = await open(context, await page.locator("a.cluster").evaluate((link) => link.href));
    console.log(JSON.stringify({ ...(await read(page)), cluster: cluster && (await readCluster(cluster)) }));
  }
} finally {
  await browser.close();
  wrong.forEach((line) => console.error(line));
}
process.exitCode = wrong.length ? 1 : 0;

/** Opens a page; what it asks of another host or complains of is wrong. */
async function open(context, address) {
  const page = await context.newPage();
  const origin = new URL(url).origin;
  page.on("request", (request) => new URL(request.url()).origin !== origin && !/^(data|blob):/.test(request.url()) && wrong.push(`request: ${request.url()}`));
  page.on("console", (message) => message.type() !== "log" && !/ERR_CONNECTION|ERR_INCOMPLETE/.test(message.text()) && wrong.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => (wrong.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
  await page.goto(address);
  // A sign-in link leads to another page.
  if (address.includes("/#/sign-in/")) await page.waitForURL("**/report.html");
  await ready(page);
  return page;
}

function readCluster(page) {
  return page.evaluate(() => ({
    state: document.querySelector(".status")?.innerText ?? null,
    nodes: document.querySelectorAll("#nodes tbody th button.quiet").length,
    links: [...document.querySelectorAll("nav.pages a")].map((one) => one.innerText),
  }));
}

function read(page) {
  return page.evaluate(() => {
    const texts = (selector) => [...document.querySelectorAll(selector)].map((one) => one.innerText.trim());
    return {
      path: location.pathname,
      stops: [...document.querySelectorAll("button")].some((one) => one.innerText === "Stop the run"),
      ended: texts("main .note[role=status]")[0] ?? null,
      alarms: texts(".notice").filter((text) => text.includes("Nothing has come")),
      title: document.querySelector("h1")?.innerText,
      doing: document.querySelector("#live p")?.innerText ?? null,
      progress: document.querySelector("#live .progress")?.innerText ?? null,
      tiles: texts("#live .tiles li"),
      charts: document.querySelectorAll("#live canvas").length,
      workers: [...document.querySelectorAll("#live .table tbody tr")].map((row) => [...row.children].map((cell) => cell.innerText.trim())),
      warnings: texts("#live .warnings li"),
      notices: texts("main > .notice"),
      verdict: texts(".verdict-tiles .headline"),
      begun: document.querySelector("header .muted")?.innerText,
      now: {
        circles: document.querySelectorAll("#load-line svg .now").length,
        text: texts("#load-line figure .note").find((text) => text.includes("now")) ?? null,
        alternative: document.querySelector("#load-line svg[role=img]")?.getAttribute("aria-label") ?? null,
      },
      all_runs: document.querySelector("a.all-runs")?.href ?? null,
      cluster_link: document.querySelector("a.cluster")?.href ?? null,
      links: [...document.querySelectorAll(".files a")].map((one) => one.href),
    };
  });
}

/** How it looks while the run goes on, light and dark, wide and narrow. */
async function look(page) {
  for (const colorScheme of ["light", "dark"]) {
    for (const [name, width] of [["wide", 1280], ["narrow", 390]]) {
      // The page's policy keeps even axe out, so that it is bypassed here.
      const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme, bypassCSP: true });
      const other = await context.newPage();
      await other.goto(page.url());
      await ready(other);
      await other.waitForSelector("#live canvas", { timeout: 30_000 });
      await other.addScriptTag({ content: axe });
      const { violations } = await other.evaluate(() => globalThis.axe.run());
      for (const { id, nodes } of violations) wrong.push(`axe (${colorScheme}, ${name}): ${id}: ${nodes[0].html.slice(0, 200)}`);
      const over = await other.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      if (over > 0) wrong.push(`layout (${colorScheme}, ${name}): ${over} px wider than the window`);
      if (process.env.LOADLINE_PICTURES && colorScheme === "light" && name === "wide") await other.waitForTimeout(8000);
      if (colorScheme === "light" && name === "wide") await picture(other, "console-run");
      if (values.screenshots) {
        mkdirSync(values.screenshots, { recursive: true });
        await other.screenshot({ path: join(values.screenshots, `run-${colorScheme}-${name}.png`), fullPage: true });
      }
      await context.close();
    }
  }
}
