// ready.mjs FILE: prints how many milliseconds a page takes until it can be used, the median of five.
import { pathToFileURL } from "node:url";
import { launch, ready } from "./browser.mjs";

const browser = await launch();
const took = [];
for (let n = 0; n < 5; n++) {
  const context = await browser.newContext();
  const page = await context.newPage();
  const begun = performance.now();
  await page.goto(pathToFileURL(process.argv[2]).href);
  await ready(page);
  // What is drawn after it was ready must not keep the reader from clicking.
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => setTimeout(done))));
  took.push(performance.now() - begun);
  await context.close();
}
await browser.close();
console.log(took.sort((a, b) => a - b)[2].toFixed(0));
