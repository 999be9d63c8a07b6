// page.mjs REPORT.html [--brief] [--screenshots FOLDER]: opens a report's page as readers do, and says what is wrong with
// it, a line each. Exit code 1 if anything is. On standard output: what the page shows, as JSON. With --brief it opens the
// page once, and unfolds nothing.
import { mkdirSync, readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { launch, ready } from "./browser.mjs";

const { positionals, values } = parseArgs({ allowPositionals: true, options: { brief: { type: "boolean" }, screenshots: { type: "string" } } });
const [file] = positionals;
const { brief, screenshots } = values;
const axe = readFileSync(fileURLToPath(new URL("../node_modules/axe-core/axe.min.js", import.meta.url)), "utf8");
const wrong = [];
const browser = await launch();
let shown;
try {
  shown = await read();
  if (!brief) await look();
} finally {
  await browser.close();
}
console.log(JSON.stringify(shown));
wrong.forEach((line) => console.error(line));
// Not exit(): what a pipe has not taken yet would be lost.
process.exitCode = wrong.length ? 1 : 0;

/** Opens the page; what it asks for or complains of is wrong. */
async function open(options) {
  // Its policy keeps even axe out.
  const context = await browser.newContext({ bypassCSP: true, acceptDownloads: true, ...options });
  const page = await context.newPage();
  const url = pathToFileURL(resolve(file)).href;
  page.on("request", (request) => request.url() !== url && !/^(blob|data):/.test(request.url()) && wrong.push(`request: ${request.url()}`));
  page.on("console", (message) => message.type() !== "log" && wrong.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => (wrong.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
  await page.goto(url);
  await ready(page);
  return { context, page };
}

/** Unfolds everything. */
async function unfold(page) {
  await page.evaluate(() => document.querySelectorAll("details").forEach((one) => (one.open = true)));
  await page.waitForTimeout(200);
}

/** What it shows, and whether that is what the files say. */
async function read() {
  const { context, page } = await open({ viewport: { width: 1280, height: 900 } });
  await keyboard(page);
  if (!brief) await unfold(page);
  // A button goes when it is pressed.
  const more = page.getByRole("button", { name: /^Show all/ });
  for (let left = brief ? 0 : await more.count(); left > 0; left--) await more.first().click();
  const figures = await page.locator("data[data-at]").evaluateAll((all) =>
    all.map((one) => ({ at: one.dataset.at, value: Number(one.value), scale: Number(one.dataset.scale), text: one.textContent })),
  );
  compare(figures);
  await points(page);
  await columns(page);
  await downloads(page);
  const seen = await page.evaluate(() => ({
    title: document.title,
    text: document.querySelector("main").innerText,
    sections: [...document.querySelectorAll("main section")].map((one) => one.id),
    missing: [...document.querySelectorAll(".missing")].map((one) => one.textContent),
    links: [...document.querySelectorAll(".files a")].map((one) => one.getAttribute("href")),
    charts: document.querySelectorAll("[role=img]").length,
    tables: document.querySelectorAll("table caption").length,
  }));
  for (const link of seen.links) {
    try {
      readFileSync(join(dirname(resolve(file)), decodeURIComponent(link)));
    } catch {
      wrong.push(`link: ${link} leads nowhere`);
    }
  }
  await context.close();
  return { ...seen, figures: figures.length };
}

/** Every figure is the file's, to the last digit that is shown. */
function compare(figures) {
  const files = new Map();
  const open = (name) => {
    if (!files.has(name)) files.set(name, JSON.parse(first(readFileSync(join(dirname(resolve(file)), name), "utf8"))));
    return files.get(name);
  };
  // A step's result has a line of checksum behind it.
  const first = (text) => (/^crc32c/m.test(text) ? text.slice(0, text.lastIndexOf("\ncrc32c")) : text);
  for (const { at, value, scale, text } of figures) {
    const [name, pointer] = at.includes("#") ? at.split("#") : ["report.json", at];
    const parts = pointer.split("/").slice(1).map((part) => part.replaceAll("~1", "/").replaceAll("~0", "~"));
    const found = parts.reduce((inside, part) => inside?.[part], open(name));
    const number = text.replaceAll(",", "").match(/-?\d+(\.(\d+))?/);
    const half = number && 0.5 * 10 ** -(number[2]?.length ?? 0) * (1 + 1e-9);
    if (found !== value) wrong.push(`figure: ${at} is ${found} in ${name}, and ${value} on the page`);
    else if (!number || Math.abs(Number(number[0]) - value / scale) > half) wrong.push(`figure: ${at} is ${value}, and "${text}" on the page`);
  }
}

/** Each download is a file with something in it. */
async function downloads(page) {
  for (const button of await page.getByRole("button", { name: /^Download / }).all()) {
    const name = (await button.textContent()).trim().replace("Download ", "");
    // Chromium takes ten files at once from a page, and asks its user about more.
    await page.waitForTimeout(300);
    const waited = page.waitForEvent("download", { timeout: 10_000 });
    await button.click();
    try {
      const download = await waited;
      if (download.suggestedFilename() !== name) wrong.push(`download: ${download.suggestedFilename()} came for ${name}`);
      if (readFileSync(await download.path()).length < 20) wrong.push(`download: ${name} is empty`);
    } catch (error) {
      wrong.push(`download: ${name}: ${error.message}`);
    }
  }
}

/** The first thing that a keyboard reaches leads to the verdict. */
async function keyboard(page) {
  await page.keyboard.press("Tab");
  const reached = await page.evaluate(() => document.activeElement?.getAttribute("href"));
  if (reached !== "#verdict") wrong.push(`keyboard: the first stop is ${reached}`);
}

/** The arrow keys go from point to point in a chart, and each says what it is. */
async function points(page) {
  const chart = page.locator(".pointed-at").first();
  if ((await chart.count()) === 0) return;
  await chart.focus();
  for (const key of ["ArrowRight", "End"]) {
    await page.keyboard.press(key);
    const [tip, said] = [await chart.locator(".tip").textContent(), await chart.locator("[aria-live]").textContent()];
    if (!tip || tip !== said) wrong.push(`keyboard: after ${key} a point shows "${tip}" and says "${said}"`);
  }
  await page.keyboard.press("Escape");
  if ((await chart.locator(".tip").count()) > 0) wrong.push("keyboard: Escape leaves a point's text");
}

/** No table has a column in which no row has anything. */
async function columns(page) {
  const empty = await page.locator(".table table:not(.map)").evaluateAll((tables) =>
    tables.flatMap((table) => {
      const rows = [...table.tBodies[0].rows];
      return [...table.tHead.rows[0].cells].filter((_, n) => rows.length > 0 && rows.every((row) => ["", "–"].includes(row.cells[n].innerText.trim()))).map((title) => `${table.caption.innerText}: ${title.innerText}`);
    }),
  );
  for (const one of empty) wrong.push(`table: an empty column, ${one}`);
}

/** Two texts of a drawing do not cover each other. */
async function covered(page, name) {
  const found = await page.locator("svg[role=img]").evaluateAll((drawings) =>
    drawings.flatMap((drawing) => {
      const texts = [...drawing.querySelectorAll("text")].filter((one) => one.textContent.trim()).map((one) => ({ text: one.textContent.trim(), box: one.getBoundingClientRect() }));
      return texts.flatMap((a, n) => texts.slice(n + 1).filter((b) => {
        const across = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
        const down = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
        return across > 2 && down > 5;
      }).map((b) => `"${a.text}" and "${b.text}" in ${drawing.getAttribute("aria-label")}`));
    }),
  );
  for (const one of found) wrong.push(`drawing (${name}): ${one} cover each other`);
}

/** In light and dark, wide and narrow: no rule of accessibility is broken, and nothing is cut off. */
async function look() {
  for (const colorScheme of ["light", "dark"]) {
    for (const [name, width] of [["wide", 1280], ["narrow", 390]]) {
      const { context, page } = await open({ viewport: { width, height: 900 }, colorScheme });
      await unfold(page);
      await page.addScriptTag({ content: axe });
      const { violations } = await page.evaluate(() => globalThis.axe.run());
      for (const { id, nodes } of violations) {
        wrong.push(`axe (${colorScheme}, ${name}): ${id}: ${nodes[0].html.slice(0, 200)}`);
      }
      await covered(page, `${colorScheme}, ${name}`);
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      if (over > 0) wrong.push(`layout (${colorScheme}, ${name}): ${over} px wider than the window`);
      if (screenshots) {
        mkdirSync(screenshots, { recursive: true });
        await page.screenshot({ path: join(screenshots, `${colorScheme}-${name}.png`), fullPage: true });
      }
      await context.close();
    }
  }
}
