// console_actions.mjs LINK [--screenshots FOLDER]: signs in by the link that the console has printed, makes a volume, changes and deletes it
// by the page, and signs out. Whatever is wrong is written to standard error, and makes the exit code 1.
import assert from "node:assert/strict";
import { mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { launch, picture, ready } from "./browser.mjs";

const { positionals, values } = parseArgs({ allowPositionals: true, options: { screenshots: { type: "string" } } });
const link = new URL(positionals[0]);
const axe = readFileSync(fileURLToPath(new URL("../node_modules/axe-core/axe.min.js", import.meta.url)), "utf8");
const wrong = [];
const browser = await launch();
const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
try {
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  page.on("console", (message) => message.type() !== "log" && !/status of (401|409)/.test(message.text()) && wrong.push(`console: ${message.text()}`));
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("dialog", (dialog) => (wrong.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
  await withoutSignIn(page);
  await signIn(page);
  await create(page);
  await change(page);
  await remove(page);
  await signOut(page);
} catch (error) {
  wrong.push(String(error.stack));
} finally {
  await browser.close();
  wrong.forEach((line) => console.error(line));
}
process.exitCode = wrong.length ? 1 : 0;

/** Without signing in, the page shows, says why it does not act, and has no button that does. */
async function withoutSignIn(page) {
  await page.goto(link.origin);
  await ready(page);
  await page.waitForSelector("#nodes");
  await page.getByText("To act, sign in.").waitFor();
  assert.equal(await page.getByRole("button", { name: /Actions|Create/ }).count(), 0);
  await page.getByRole("link", { name: "Sign in to act" }).click();
  await page.getByLabel("Key").fill("wrong");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByText("the key is wrong").waitFor();
  await look(page, "sign-in");
}

/** The link signs in, and its key does not stay in the address. */
async function signIn(page) {
  await page.goto("about:blank");
  // The answer to who uses the page comes late, and is one from before signing in.
  let answered;
  const late = new Promise((done) => (answered = done));
  const before = async (route) => {
    if (route.request().method() !== "GET") return route.continue();
    await page.locator(".account").getByText("(admin)").waitFor();
    await route.fulfill({ json: { who: null, signed_in: false, sees: true, how: "" } });
    answered();
  };
  await page.route("**/api/session", before);
  await page.goto(link.href);
  await late;
  await page.unroute("**/api/session", before);
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  assert.equal(await page.locator(".account").getByText("(admin)").count(), 1, "an old answer counts for nothing");
  assert.ok(!page.url().includes("sign-in"), page.url());
  assert.ok(!(await page.content()).includes(link.hash.split("/").at(-1)), "the key is nowhere in the page");
  await page.goBack();
  assert.equal(page.url(), "about:blank");
  await page.goForward();
  await page.getByRole("button", { name: "Create volume" }).waitFor();
  await look(page, "signed-in");
}

/** Opens the dialog of a volume, and chooses what is done. */
async function open(page, name, what) {
  await page.getByRole("button", { name }).click();
  const dialog = page.getByRole("dialog");
  await dialog.waitFor();
  if (what) await dialog.getByLabel("Action").selectOption({ label: what });
  return dialog;
}

/** A volume is made by the keyboard alone. The focus comes back to the button. */
async function create(page) {
  const button = page.getByRole("button", { name: "Create volume" });
  await button.focus();
  await page.keyboard.press("Enter");
  const dialog = page.getByRole("dialog");
  await dialog.waitFor();
  await dialog.getByText("Fill in the fields").waitFor();
  assert.equal(await page.evaluate(() => document.activeElement?.closest("dialog") != null), true, "the focus is in the dialog");
  await page.keyboard.press("Escape");
  await dialog.waitFor({ state: "hidden" });
  assert.equal(await page.evaluate(() => document.activeElement?.textContent), "Create volume", "the focus is back");
  // It is open again before the page hears that it was closed.
  await page.keyboard.press("Enter");
  await dialog.getByText("Fill in the fields").waitFor();
  await page.locator("#volumes button", { hasText: "Create volume" }).evaluate((opens) => (document.querySelector("dialog").close(), opens.click()));
  await page.evaluate(() => new Promise((done) => setTimeout(done, 100)));
  // What cannot be a name is shown as it is, and is not possible.
  await dialog.getByLabel("Name").fill("<img src=x onerror=alert(1)>");
  await dialog.getByText("Not possible now:").waitFor();
  assert.equal(await dialog.locator("img").count(), 0);
  assert.ok(await dialog.getByRole("button", { name: "Create volume" }).isDisabled());
  await look(page, "refused");
  // The size that is offered fits, and one that does not fit is refused before it is sent.
  await dialog.getByLabel("Name").fill("web-1");
  await dialog.getByText(/A volume of .* with 2 copies is made/).waitFor();
  await dialog.getByLabel("Size").fill("9");
  await dialog.getByLabel("Unit").selectOption({ label: "TiB" });
  await dialog.getByText(/Not possible now: there is no room for 2 copies of 9TiB, each with a log of 256MiB: at most .* fit/).waitFor();
  assert.ok(await dialog.getByRole("button", { name: "Create volume" }).isDisabled());
  await dialog.getByLabel("Size").fill("64");
  await dialog.getByLabel("Unit").selectOption({ label: "MiB" });
  await dialog.getByText("A volume of 64MiB with 2 copies is made").waitFor();
  await look(page, "create");
  await page.keyboard.press("Enter");
  await dialog.getByText("Done: volume web-1 of 64MiB is made").waitFor();
  assert.equal(await page.evaluate(() => document.activeElement?.textContent), "Close");
  await look(page, "done");
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Actions for volume web-1" }).waitFor();
}

/** It is attached, and made larger. */
async function change(page) {
  let dialog = await open(page, "Actions for volume web-1", "Resize");
  await dialog.getByLabel("New size; now 64.0 MiB").fill("128");
  await dialog.getByText("attach the volume first").waitFor();
  await dialog.getByLabel("Action").selectOption({ label: "Attach" });
  await dialog.getByLabel("At node").selectOption({ label: "node-2" });
  await dialog.getByText("Node node-2 becomes the owner").waitFor();
  await dialog.getByRole("button", { name: "Attach" }).click();
  await dialog.getByText("Done: volume web-1 is attached at node node-2").waitFor();
  await dialog.getByText("nbd, from anywhere: nbd://").waitFor();
  await look(page, "attached");
  await dialog.getByRole("button", { name: "Close" }).click();
  await page.locator("#volumes tr", { hasText: "web-1" }).getByText("node-2").waitFor();
  dialog = await open(page, "Actions for volume web-1", "Resize");
  await dialog.getByLabel("New size; now 64.0 MiB").fill("128");
  await dialog.getByText("grows by 64MiB, from 64MiB to 128MiB").waitFor();
  await dialog.getByText("cannot be made smaller again").waitFor();
  await dialog.getByRole("button", { name: "Resize" }).click();
  await dialog.getByText("Done: volume web-1 has 128MiB").waitFor();
  await dialog.getByRole("button", { name: "Close" }).click();
  dialog = await open(page, "Actions for node node-3");
  await dialog.getByText("receives no new copies").waitFor();
  await look(page, "drain");
  await dialog.getByLabel("Action").selectOption({ label: "Maintenance" });
  await dialog.getByText("owns no volume").or(dialog.getByText("the owner of")).or(dialog.getByText("the owners of")).first().waitFor();
  await dialog.getByText("This lasts until the maintenance is ended").waitFor();
  await look(page, "maintenance");
  await dialog.getByRole("button", { name: "Cancel" }).click();
}

/** It is deleted once its name is typed. */
async function remove(page) {
  let dialog = await open(page, "Actions for volume web-1", "Delete");
  await dialog.getByText("detach it first").waitFor();
  await dialog.getByLabel("Action").selectOption({ label: "Detach" });
  await dialog.getByText("No node serves volume web-1 afterwards").waitFor();
  await dialog.getByRole("button", { name: "Detach" }).click();
  await dialog.getByText("Done: volume web-1 is detached").waitFor();
  await dialog.getByRole("button", { name: "Close" }).click();
  await page.locator("#volumes tr", { hasText: "web-1" }).getByText("not attached").waitFor();
  dialog = await open(page, "Actions for volume web-1", "Delete");
  await dialog.getByText("Deleted data cannot be restored.").waitFor();
  const button = dialog.getByRole("button", { name: "Delete" });
  const confirm = dialog.getByLabel("To confirm, type the name of the volume");
  await confirm.fill("web");
  assert.ok(await button.isDisabled());
  await confirm.fill("web-1");
  await look(page, "delete");
  await button.click();
  await dialog.getByText("Done: volume web-1 is deleted").waitFor();
  await dialog.getByRole("button", { name: "Close" }).click();
  await page.getByText(/volume web-1 is deleted, by .+ \(admin\)/).waitFor();
}

/** After signing out, the page does not act. */
async function signOut(page) {
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByText("To act, sign in.").waitFor();
  assert.equal(await page.getByRole("button", { name: /Actions|Create/ }).count(), 0);
}

/** How it looks, light and dark, wide and narrow: nothing that a screen reader stumbles over, nothing wider than the window. */
async function look(page, name) {
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    for (const [size, width] of [["narrow", 390], ["wide", 1280]]) {
      await page.setViewportSize({ width, height: 900 });
      await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
      const where = `${name}, ${colorScheme}, ${size}`;
      // The page's policy keeps scripts out, but not what the debugger evaluates.
      if (!(await page.evaluate(() => "axe" in globalThis))) await page.evaluate(`${axe};0`);
      const { violations } = await page.evaluate(() => globalThis.axe.run());
      for (const { id, nodes } of violations) wrong.push(`axe (${where}): ${id}: ${nodes[0].html.slice(0, 200)}`);
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      if (over > 0) wrong.push(`layout (${where}): ${over} px wider than the window`);
      if (name === "delete" && colorScheme === "light" && size === "wide") await picture(page, "console-action");
      if (values.screenshots) {
        mkdirSync(values.screenshots, { recursive: true });
        await page.screenshot({ path: join(values.screenshots, `${name}-${colorScheme}-${size}.png`) });
      }
    }
  }
}
