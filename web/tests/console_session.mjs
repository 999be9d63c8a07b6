// console_session.mjs URL KEY OTHER-KEY FILE: signs in with a key, removes its line from the file of keys while pages of the console are open, and
// signs in with the other key. Prints what the pages show, as JSON. Whatever is wrong with them is written to standard error, and makes the
// exit code 1.
import { readFileSync, writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { launch, ready } from "./browser.mjs";

const { positionals } = parseArgs({ allowPositionals: true, options: { screenshots: { type: "string" } } });
const [url, key, other, file] = positionals;
const wrong = [];
const seen = {};
const browser = await launch();
try {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  const runs = await open(context, "#/runs");
  await signIn(runs, key);
  await runs.locator("#runs tbody tr").first().waitFor();
  const cluster = await open(context, "#/clusters/lab");
  await cluster.locator(".account", { hasText: "anna (operator)" }).waitFor();
  const report = await open(context, (await runs.locator("#runs tbody a").first().getAttribute("href")).replace("#/runs/", "runs/"));
  await report.locator(".verdict-tiles").first().waitFor();
  seen.before = new URL(report.url()).pathname;
  const lines = readFileSync(file, "utf8").split("\n");
  writeFileSync(file, lines.filter((line) => !line.endsWith(" anna")).join("\n"));
  const ended = (page) => page.locator(".notice", { hasText: "The session has ended" }).innerText({ timeout: 60_000 });
  [seen.runs, seen.cluster, seen.report] = await Promise.all([runs, cluster, report].map(ended));
  seen.account = (await Promise.all([runs, cluster].map((page) => page.getByText("anna (operator)").count()))).reduce((a, b) => a + b);
  // Signing in leads back to the page of the run, and other pages go on.
  await report.getByRole("link", { name: "Sign in" }).click();
  await signIn(report, other);
  await report.locator(".verdict-tiles").first().waitFor();
  seen.back = new URL(report.url()).pathname;
  await runs.locator("#runs tbody tr").first().waitFor();
  seen.runs_again = await runs.locator("#runs").innerText();
} catch (error) {
  wrong.push(`walk: ${error.stack}`);
} finally {
  await browser.close();
  wrong.forEach((line) => console.error(line));
}
console.log(JSON.stringify(seen));
process.exitCode = wrong.length ? 1 : 0;

async function open(context, path) {
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  page.on("console", (message) => message.type() !== "log" && !/status of (401|503)|ERR_INCOMPLETE/.test(message.text()) && wrong.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  await page.goto(new URL(path, url).href);
  await ready(page);
  return page;
}

async function signIn(page, key) {
  await page.getByLabel("Key").fill(key);
  await page.getByRole("button", { name: "Sign in" }).click();
}
