// console.mjs LOADLINE LARGE_CLUSTER [--seconds N] [--viewers N] [--day]: what the console costs with a large cluster, and what its page costs a
// browser. `./dev bench console` runs it. It prints figures beside what they should be, and judges nothing: machines differ.
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { get } from "node:http";
import { createInterface } from "node:readline";
import { setTimeout as pause } from "node:timers/promises";
import { parseArgs } from "node:util";
import { launch } from "../tests/browser.mjs";
import { compressedScript } from "../tests/size.mjs";

const { positionals, values } = parseArgs({
  allowPositionals: true,
  options: {
    seconds: { type: "string", default: "20" },
    viewers: { type: "string", default: "20" },
    nodes: { type: "string", default: "100" },
    volumes: { type: "string", default: "1000" },
    day: { type: "boolean", default: false },
  },
});
const [loadline, large] = positionals;
const seconds = Number(values.seconds);
const size = ["--nodes", values.nodes, "--volumes", values.volumes];
const children = [];

/** Starts a program, and waits for its first line. */
async function start(program, ...args) {
  const child = spawn(program, args, { stdio: ["ignore", "pipe", "inherit"] });
  children.push(child);
  for await (const line of createInterface({ input: child.stdout })) return [child.pid, line];
  throw new Error(`${program} has ended`);
}

/** CPU time that a process has used, seconds; its resident memory, MiB. */
function used(pid) {
  const stat = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").pop().split(" ");
  const status = readFileSync(`/proc/${pid}/status`, "utf8");
  return [(Number(stat[11]) + Number(stat[12])) / 100, Number(/VmRSS:\s+(\d+)/.exec(status)[1]) / 1024];
}

/** A page that reads the stream and does nothing with it. */
function view(url, stats) {
  get(url, (answer) =>
    answer.on("data", (data) => {
      stats.bytes += data.length;
      if (data.includes("event: now")) stats.seconds++;
    }),
  ).on("error", () => {});
}

const row = (what, is, should) => console.log(`${what.padEnd(44)} ${String(is).padStart(14)}   ${should}`);

try {
  if (values.day) {
    const [, line] = await start(large, ...size, "--history");
    console.log(line);
  }
  const [, at] = await start(large, ...size);
  const [server, where] = await start(loadline, "console", "--port", "0", `large=${at}`);
  const url = /http:\/\/[^;]+/.exec(where)[0];
  const stats = { bytes: 0, seconds: 0 };
  await pause(3000);
  for (let n = 0; n < Number(values.viewers); n++) view(`${url}/api/clusters/large/stream`, stats);
  await pause(5000);

  const browser = await launch();
  const page = await (await browser.newContext({ viewport: { width: 1280, height: 900 } })).newPage();
  await page.goto(url);
  await page.waitForSelector("#volumes tbody tr");
  const paint = await page.evaluate(() => [performance.getEntriesByName("first-contentful-paint")[0]?.startTime, performance.now()]);
  await pause(5000);
  await page.evaluate(() => {
    globalThis.updates = [];
    const note = () => {
      const last = globalThis.updates.at(-1) ?? 0;
      if (performance.now() - last > 200) globalThis.updates.push(performance.now());
    };
    new MutationObserver(note).observe(document.querySelector("#nodes"), { subtree: true, characterData: true, childList: true });
  });
  const client = await page.context().newCDPSession(page);
  await client.send("Performance.enable");
  const metrics = async () => Object.fromEntries((await client.send("Performance.getMetrics")).metrics.map(({ name, value }) => [name, value]));
  const [first, [cpu], sent] = [await metrics(), used(server), { ...stats }];
  const begun = performance.now();
  await pause(seconds * 1000);
  const [last, [cpuAfter, memory]] = [await metrics(), used(server)];
  const took = (performance.now() - begun) / 1000;
  const share = (name) => `${(((last[name] - first[name]) / took) * 100).toFixed(1)} %`;
  const updates = await page.evaluate(() => globalThis.updates);
  const gaps = updates.slice(1).map((at, n) => at - updates[n]);
  console.log(`\n${values.nodes} nodes, ${values.volumes} volumes, ${values.viewers} viewers and a browser, ${took.toFixed(0)} s`);
  row("CPU of the console, share of a core", `${(((cpuAfter - cpu) / took) * 100).toFixed(1)} %`, "below 20 %");
  row("memory of the console", `${memory.toFixed(0)} MiB`, "below 300 MiB after a day (--day)");
  row("a second, as JSON", `${((stats.bytes - sent.bytes) / (stats.seconds - sent.seconds) / 1024).toFixed(0)} KiB`, "");
  row("main thread of the browser, busy", share("TaskDuration"), "below 50 %");
  row("  of it: script", share("ScriptDuration"), "");
  row("  of it: layout and style", `${(((last.LayoutDuration + last.RecalcStyleDuration - first.LayoutDuration - first.RecalcStyleDuration) / took) * 100).toFixed(1)} %`, "");
  row("first paint", `${paint[0]?.toFixed(0)} ms`, "below 1000 ms");
  row("figures on the page", `${paint[1].toFixed(0)} ms`, "");
  row("updates of the page, a second", (updates.length / took).toFixed(2), "1");
  row("  the longest time without one", `${Math.max(...gaps).toFixed(0)} ms`, "");
  row("heap of the page", `${(last.JSHeapUsedSize / 2 ** 20).toFixed(0)} MiB`, "");
  row("script of the page, gzip", `${(compressedScript(await (await fetch(url)).text()) / 1024).toFixed(0)} KiB`, "below 250 KiB");
  await browser.close();
} finally {
  children.forEach((child) => child.kill());
}
process.exit(0);
