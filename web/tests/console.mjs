// console.mjs URL [--screenshots FOLDER]: prints what the console's page shows, each time that a line comes on standard input, until
// there are no more. The line says what is done before: `read`, nothing; `click NAME`, a button; `span SECONDS`, the time of the charts; `picture CLUSTER`, one for the documentation;
// `freeze`, the browser stops the page, as it does with one that sleeps, until `wake`. Whatever is wrong with the page is written to standard
// error, and makes the exit code 1.
import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { launch, picture as documented, ready } from "./browser.mjs";

const { positionals, values } = parseArgs({ allowPositionals: true, options: { screenshots: { type: "string" } } });
const url = new URL(positionals[0]);
const axe = readFileSync(fileURLToPath(new URL("../node_modules/axe-core/axe.min.js", import.meta.url)), "utf8");
const wrong = [];
const browser = await launch();
try {
  const page = await open({ viewport: { width: 1280, height: 900 } });
  const client = await page.context().newCDPSession(page);
  for await (const line of createInterface({ input: process.stdin })) {
    const [, command, value] = /^(\w+) ?(.*)$/.exec(line) ?? [];
    if (command === "click") await page.getByRole("button", { name: value, exact: true }).first().click();
    if (command === "span") await page.getByLabel("Show the last").selectOption(value);
    if (command === "freeze" || command === "wake") await client.send("Page.setWebLifecycleState", { state: command === "freeze" ? "frozen" : "active" });
    if (command === "picture") {
      const other = await open({ viewport: { width: 1280, height: 1000 } }, `#/clusters/${value}`);
      await other.waitForSelector("#charts canvas", { timeout: 20_000 });
      await documented(other, "console-cluster");
      await other.context().close();
    }
    // A page that is frozen is not asked.
    console.log(JSON.stringify(command === "freeze" ? null : await read(page)));
  }
  await look();
} finally {
  await browser.close();
  wrong.forEach((line) => console.error(line));
}
process.exitCode = wrong.length ? 1 : 0;

/** Opens the page; what it asks of another host or complains of is wrong. */
async function open(options, query = "") {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.on("request", (request) => new URL(request.url()).origin !== url.origin && !/^data:/.test(request.url()) && wrong.push(`request: ${request.url()}`));
  page.on("console", (message) => message.type() !== "log" && wrong.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => (wrong.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
  await page.goto(new URL(query, url).href);
  await ready(page);
  await page.waitForSelector(".tiles", { timeout: 20_000 });
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
      charted: document.querySelector("#charts-title")?.textContent,
      known: Number(document.querySelector("#charts")?.dataset.known),
      gaps: Number(document.querySelector("#charts")?.dataset.gaps),
      alerts: [...document.querySelectorAll("[role=alert]")].map((one) => one.textContent),
    };
  });
}

/** How it looks, light and dark, wide and narrow, on a wall: nothing that a screen reader stumbles over, nothing wider than the window. */
async function look() {
  const forms = [
    ["wide", { width: 1280, height: 900 }, ""],
    ["narrow", { width: 390, height: 900 }, ""],
    ["wall", { width: 1920, height: 1080 }, "?wall"],
    ["small-wall", { width: 1280, height: 720 }, "?wall"],
  ];
  for (const colorScheme of ["light", "dark"]) {
    for (const [name, viewport, query] of forms) {
      const page = await open({ viewport, colorScheme, bypassCSP: true }, query);
      // The page's policy keeps even axe out, so that it is bypassed here.
      // The charts come with the third second.
      await page.waitForSelector("#charts canvas", { timeout: 20_000 });
      await page.addScriptTag({ content: axe });
      const { violations } = await page.evaluate(() => globalThis.axe.run());
      for (const { id, nodes } of violations) wrong.push(`axe (${colorScheme}, ${name}): ${id}: ${nodes[0].html.slice(0, 200)}`);
      await fits(page, `${colorScheme}, ${name}`);
      await picture(page, `${colorScheme}-${name}`, !query);
      if (name === "wide" && colorScheme === "light") {
        // On paper: A4 across, without its margins.
        await page.setViewportSize({ width: 1047, height: 718 });
        await page.emulateMedia({ media: "print" });
        await fits(page, "print");
        await picture(page, "print", true);
      }
      await page.context().close();
    }
  }
}

async function fits(page, form) {
  const { over, wide } = await page.evaluate(() => ({
    over: document.documentElement.scrollWidth - innerWidth,
    // The outermost of what sticks out.
    wide: [...document.body.querySelectorAll("*")].filter((one) => one.getBoundingClientRect().right > innerWidth && one.parentElement.getBoundingClientRect().right <= innerWidth).map((one) => `${one.tagName} ${one.className} of ${one.closest("section")?.id}`),
  }));
  if (over > 0) wrong.push(`layout (${form}): ${over} px wider than the window: ${wide.join(", ")}`);
  const { alone, hidden, tall } = await page.evaluate(() => {
    const rows = new Map();
    for (const tile of document.querySelectorAll(".tiles li")) rows.set(tile.offsetTop, (rows.get(tile.offsetTop) ?? 0) + 1);
    const counts = [...rows.values()];
    const table = document.querySelector("#devices .table");
    const heights = [...document.querySelectorAll("#volumes tbody tr")].map((row) => row.offsetHeight);
    return { alone: counts.length > 1 && counts.at(-1) < counts[0] / 2, hidden: table ? table.scrollWidth - table.clientWidth : 0, tall: Math.max(0, ...heights) };
  });
  if (alone) wrong.push(`layout (${form}): a tile stands alone`);
  if (hidden > 0 && form.endsWith("wide")) wrong.push(`layout (${form}): ${hidden} px of the table of devices are out of sight`);
  if (tall > 110 && form.endsWith("wide")) wrong.push(`layout (${form}): a row of a volume is ${tall} px high`);
}

async function picture(page, name, fullPage) {
  if (!values.screenshots) return;
  mkdirSync(values.screenshots, { recursive: true });
  await page.screenshot({ path: join(values.screenshots, `${name}.png`), fullPage });
}
