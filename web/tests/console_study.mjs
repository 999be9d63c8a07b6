// console_study.mjs URL KEY FOLDER [--screenshots FOLDER]: signs in with KEY at the console at URL, makes a quick study of FOLDER from a
// question as people do, starts it, stops its run from the run's page, and looks for it in the list of runs. On standard output: what the
// pages show, as JSON. Whatever is wrong with a page is written to standard error, and makes the exit code 1.
import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { launch, ready } from "./browser.mjs";

const { positionals, values } = parseArgs({ allowPositionals: true, options: { screenshots: { type: "string" } } });
const [url, key, folder] = positionals;
const axe = readFileSync(fileURLToPath(new URL("../node_modules/axe-core/axe.min.js", import.meta.url)), "utf8");
const wrong = [];
const browser = await launch();
const seen = {};
try {
  const page = await open({ viewport: { width: 1280, height: 900 } });
  await page.goto(`${url}#/new`);
  await ready(page);
  await page.getByText("Sign in to act").first().waitFor();
  seen.guest = await page.locator("main").innerText();
  await page.goto(`${url}#/sign-in/${key}`);
  await page.getByRole("button", { name: "Sign out" }).waitFor();
  await page.getByRole("link", { name: "New study" }).click();
  await answer(page, true);
  seen.tiles = await page.locator("#plan .tiles li").allInnerTexts();
  await page.getByText("The study file, evening.toml").click();
  seen.text = await page.locator("#plan pre").textContent();
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Download" }).click()]);
  seen.file = [file.suggestedFilename(), readFileSync(await file.path(), "utf8") === seen.text];

  const state = await page.context().storageState();
  const other = await open({ viewport: { width: 1280, height: 900 }, storageState: state, bypassCSP: true });
  await other.goto(`${url}#/new`);
  await ready(other);
  await look(other, "empty");
  await answer(other, false);
  await other.getByText("More", { exact: true }).click();
  await look(other, "planned");
  await other.getByRole("textbox", { name: "Folder" }).fill("here");
  await other.locator(".fault").waitFor();
  await look(other, "fault");
  // What destroys data needs a permission.
  await option(other, "Existing disks");
  await other.getByRole("textbox", { name: "Devices" }).fill("/dev/loadline-none");
  await other.getByRole("button", { name: "Start…" }).click();
  const start = other.getByRole("button", { name: "Start", exact: true });
  seen.danger = [await other.locator("dialog .lasting").innerText(), await start.isDisabled()];
  await other.locator("dialog input[type=checkbox]").check();
  seen.danger.push(await start.isDisabled());
  await look(other, "dialog");
  await other.getByRole("button", { name: "Cancel" }).click();

  await page.getByRole("button", { name: "Start…" }).click();
  seen.dialog = await page.locator("dialog").innerText();
  await page.getByRole("button", { name: "Start", exact: true }).click();
  await page.waitForURL("**/runs/*/report/report.html", { timeout: 60_000 });
  await page.getByRole("button", { name: "Stop the run" }).waitFor({ timeout: 60_000 });
  seen.page = page.url();
  await other.goto(`${url}#/new`);
  await other.getByText("is in progress").waitFor();
  await other.goto(page.url());
  await other.getByRole("button", { name: "Stop the run" }).click();
  await look(other, "stop");
  await other.context().close();
  await page.getByRole("button", { name: "Stop the run" }).click();
  await page.locator("dialog").getByRole("button", { name: "Stop the run" }).click();
  await page.getByText("The run has been asked to end").or(page.getByText("The run is not finished")).first().waitFor();
  await page.getByText("The run is not finished").waitFor({ timeout: 60_000 });
  seen.resume = await page.locator(".notice", { hasText: "The run is not finished" }).locator("code").allInnerTexts();
  await page.getByRole("link", { name: "All runs in the console" }).click();
  await page.getByText("interrupted").first().waitFor({ timeout: 60_000 });
  seen.list = await page.locator("#runs tbody tr").evaluateAll((all) => all.map((row) => [...row.children].map((cell) => cell.innerText.trim())));
} catch (error) {
  wrong.push(`walk: ${error}`);
} finally {
  await browser.close();
  wrong.forEach((line) => console.error(line));
}
console.log(JSON.stringify(seen));
process.exitCode = wrong.length ? 1 : 0;

/** A page in a context of its own; what it asks of another host or complains of is wrong. */
async function open(options) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  const origin = new URL(url).origin;
  page.on("request", (request) => new URL(request.url()).origin !== origin && !/^(data|blob):/.test(request.url()) && wrong.push(`request: ${request.url()}`));
  page.on("console", (message) => message.type() !== "log" && wrong.push(`console: ${message.text()} (${message.location().url})`));
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => (wrong.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
  return page;
}

/** Chooses an answer by its label. */
function option(page, text) {
  return page.locator("label.option", { hasText: text }).locator("input").check();
}

/** Answers the questions, with one wrong answer before the right one if that is wanted. */
async function answer(page, isWrongFirst) {
  await option(page, "Did it get slower?");
  await option(page, "Files in a folder");
  if (isWrongFirst) {
    await page.getByRole("textbox", { name: "Folder" }).fill("here");
    await page.locator(".fault").waitFor();
    seen.fault = [await page.locator(".fault").innerText(), await page.getByRole("textbox", { name: "Folder" }).getAttribute("aria-invalid")];
  }
  await page.getByRole("textbox", { name: "Folder" }).fill(folder);
  await page.getByLabel("What do the machines do?").selectOption("file-server");
  await page.getByLabel("Machines on each node").fill("1");
  await option(page, "Quick");
  await page.getByLabel("Name of the study").fill("evening");
  await page.getByText("The study file, evening.toml").waitFor();
}

/** How the page looks, light and dark, wide and narrow: nothing that a screen reader stumbles over, nothing wider than the window. */
async function look(page, name) {
  if (!(await page.evaluate(() => "axe" in globalThis))) await page.addScriptTag({ content: axe });
  for (const colorScheme of ["light", "dark"]) {
    for (const width of [1280, 390]) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: 900 });
      const { violations } = await page.evaluate(() => globalThis.axe.run());
      for (const { id, nodes } of violations) wrong.push(`axe (${name}, ${colorScheme}, ${width}): ${id}: ${nodes[0].html.slice(0, 200)}`);
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      if (over > 0) wrong.push(`layout (${name}, ${colorScheme}, ${width}): ${over} px wider than the window`);
      if (values.screenshots) {
        mkdirSync(values.screenshots, { recursive: true });
        await page.screenshot({ path: join(values.screenshots, `study-${name}-${colorScheme}-${width}.png`), fullPage: true });
      }
    }
  }
  await page.emulateMedia({ colorScheme: "light" });
  await page.setViewportSize({ width: 1280, height: 900 });
}
