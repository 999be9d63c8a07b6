// console_runs.mjs URL EMPTY KEY [--screenshots FOLDER]: signs in with KEY, goes through the pages about runs of the console at URL, as people do, and looks at the
// list of the console at EMPTY, which has no runs. On standard output: what the pages show, as JSON. Whatever is wrong with a page is
// written to standard error, and makes the exit code 1.
import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { launch, picture, ready } from "./browser.mjs";

const { positionals, values } = parseArgs({ allowPositionals: true, options: { screenshots: { type: "string" } } });
const [url, empty, key] = positionals;
const axe = readFileSync(fileURLToPath(new URL("../node_modules/axe-core/axe.min.js", import.meta.url)), "utf8");
const wrong = [];
/** The pages, each with what is there once it shows something. */
const pages = [];
const browser = await launch();
let shown;
try {
  shown = await walk();
  await look();
} finally {
  await browser.close();
  wrong.forEach((line) => console.error(line));
}
console.log(JSON.stringify(shown));
process.exitCode = wrong.length ? 1 : 0;

/** Opens a page of the console; what it asks of another host or complains of is wrong. */
async function open(address, waits, options) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const origin = new URL(address).origin;
  page.on("request", (request) => new URL(request.url()).origin !== origin && !/^(data|blob):/.test(request.url()) && wrong.push(`request: ${request.url()}`));
  page.on("console", (message) => message.type() !== "log" && wrong.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => (wrong.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
  await page.goto(address);
  await ready(page);
  await page.waitForSelector(waits, { timeout: 30_000 });
  return page;
}

/** A choice, by the beginning of its label. */
function choice(page, label) {
  return page.locator("label.choice", { hasText: label }).locator("select");
}

/** The rows of a table as texts. */
function rows(page, section) {
  return page.locator(`#${section} tbody tr`).evaluateAll((all) => all.map((row) => [...row.children].map((cell) => cell.innerText.trim())));
}

/** The figures of a table, each of which is shown as it is, to the last digit. */
async function figures(page, section) {
  const all = await page.locator(`#${section} data`).evaluateAll((all) => all.map((one) => ({ value: Number(one.value), scale: Number(one.dataset.scale), text: one.textContent })));
  for (const { value, scale, text } of all.filter((one) => one.scale)) {
    const number = text.replaceAll(",", "").match(/-?\d+(\.(\d+))?/);
    const half = number && 0.5 * 10 ** -(number[2]?.length ?? 0) * (1 + 1e-9);
    if (!number || Math.abs(Number(number[0]) - value / scale) > half) wrong.push(`figure: ${value} is "${text}" on the page`);
  }
  return all.map((one) => one.value);
}

async function walk() {
  const seen = {};
  const page = await open(`${url}#/sign-in/${key}`, ".account button", { viewport: { width: 1280, height: 900 } });
  await page.evaluate(() => (location.hash = "#/runs"));
  await page.waitForSelector("#runs tbody tr", { timeout: 30_000 });
  pages.push(["list", `${url}#/runs`, "#runs tbody tr"]);
  seen.list = await rows(page, "runs");
  await page.getByRole("searchbox").fill("paced AFTER");
  await page.waitForFunction(() => document.querySelectorAll("#runs tbody tr").length === 1);
  seen.found = await rows(page, "runs");
  await page.getByRole("searchbox").fill("no such run");
  await page.waitForSelector("#runs .missing");
  await page.getByRole("searchbox").fill("");
  await page.waitForSelector("#runs tbody tr");

  await page.getByRole("checkbox", { name: "Compare after" }).check();
  await page.getByRole("checkbox", { name: "Compare before" }).check();
  if (await page.getByRole("checkbox", { name: "Compare short-0" }).isEnabled()) wrong.push("list: a third run can be chosen");
  await page.getByRole("link", { name: "Compare before with after" }).click();
  await page.waitForSelector("#compare tbody tr");
  pages.push(["compare", page.url(), "#compare tbody tr"]);
  seen.compared = { rows: await rows(page, "compare"), figures: await figures(page, "compare"), sentences: await page.locator("#compare .sentences").innerText() };

  seen.legend = await page.locator("#compare .how").innerText();
  await page.getByRole("link", { name: "All runs" }).click();
  // Two runs of one repeat each.
  const ids = await Promise.all(["short-0", "short-1"].map((name) => page.getByRole("link", { name, exact: true }).getAttribute("href")));
  await page.goto(`${url}#/runs/compare/${ids.map((href) => href.split("/").at(-1)).join("/")}`);
  await page.waitForFunction(() => document.querySelector("#compare .how")?.innerText.includes("fewer than four repeats"));
  seen.uncompared = await page.locator("#compare tbody tr").first().locator("td").allInnerTexts();
  await page.getByRole("link", { name: "All runs" }).click();
  await page.getByRole("link", { name: "after", exact: true }).click();
  await page.waitForSelector("#run tbody tr");
  seen.report = await page.getByRole("link", { name: "Open the report" }).getAttribute("href");
  seen.tiles = await page.locator("#run .tile .headline").allInnerTexts();
  seen.run = await figures(page, "run");
  await page.getByLabel("Tags, with commas between them").fill("gold, <b>bold</b>, gold");
  await page.getByRole("textbox", { name: "Note" }).fill("New disks.\n<script>alert(1)</script>");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByText("Saved.").waitFor();
  seen.tags = await page.getByLabel("Tags, with commas between them").inputValue();
  pages.push(["run", page.url(), "#run tbody tr"]);

  await page.getByRole("link", { name: "All runs" }).click();
  await choice(page, /^\s*Tag/).selectOption("<b>bold</b>");
  await page.waitForFunction(() => document.querySelectorAll("#runs tbody tr").length === 1);
  seen.tagged = await rows(page, "runs");

  const trend = `${url}#/runs/trend/short`;
  await page.goto(trend);
  await page.waitForSelector("#trend svg[role=img]");
  pages.push(["trend", trend, "#trend svg[role=img]"]);
  seen.trend = await rows(page, "trend");
  seen.areas = await page.locator("#trend svg[role=img] rect").count();
  await choice(page, /^\s*Figure/).selectOption("mean_us");
  await page.waitForFunction(() => document.querySelector("#trend thead").innerText.includes("mean response time"));
  seen.address = new URL(page.url()).hash;
  await page.context().close();

  seen.again = await asksAgain(`${url}#/runs/${idOf(seen.report)}`);

  const none = await open(`${empty}#/runs`, "#runs .missing", { viewport: { width: 1280, height: 900 } });
  await none.waitForFunction(() => document.querySelector("#runs").innerText.includes("There are no runs"));
  pages.push(["empty", `${empty}#/runs`, "#runs code"]);
  seen.empty = await none.locator("#runs").innerText();
  await none.context().close();
  return seen;
}

/** The id in the address of a report. */
function idOf(address) {
  return address.split("/").at(-1);
}

/** What the page of a run shows while it gets no answer, and then. That requests fail is what the browser complains of here. */
async function asksAgain(address) {
  const context = await browser.newContext();
  const page = await context.newPage();
  let asked = 0;
  await page.route(/\/api\/runs\/[^/]+$/, (route) => {
    asked += 1;
    if (asked === 1) return route.abort();
    if (asked === 2) return route.fulfill({ status: 503, json: { message: "the index of runs is not open yet" } });
    return route.continue();
  });
  await page.goto(address);
  const alert = page.locator("main [role=alert]");
  await alert.filter({ hasText: "does not answer" }).waitFor();
  const first = await alert.innerText();
  await alert.filter({ hasText: "not open yet" }).waitFor();
  const second = await alert.innerText();
  await page.waitForSelector("#run tbody tr");
  const left = await alert.count();
  await context.close();
  return { first, second, left };
}

/** How each page looks, light and dark, wide and narrow: nothing that a screen reader stumbles over, nothing wider than the window. */
async function look() {
  for (const [page, address, waits] of pages) {
    for (const colorScheme of ["light", "dark"]) {
      for (const width of [1280, 390]) {
        const name = `${page}, ${colorScheme}, ${width}`;
        // The page's policy keeps even axe out, so that it is bypassed here.
        const opened = await open(address, waits, { viewport: { width, height: 900 }, colorScheme, bypassCSP: true });
        await opened.addScriptTag({ content: axe });
        const { violations } = await opened.evaluate(() => globalThis.axe.run());
        for (const { id, nodes } of violations) wrong.push(`axe (${name}): ${id}: ${nodes[0].html.slice(0, 200)}`);
        const over = await opened.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        if (over > 0) wrong.push(`layout (${name}): ${over} px wider than the window`);
        if (page === "trend" && colorScheme === "light" && width === 1280) await picture(opened, "console-trend");
        if (values.screenshots) {
          mkdirSync(values.screenshots, { recursive: true });
          await opened.screenshot({ path: join(values.screenshots, `${page}-${colorScheme}-${width}.png`), fullPage: true });
        }
        await opened.context().close();
      }
    }
  }
}
