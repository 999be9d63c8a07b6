// The report: shows what is in the page's own data.
import { mount } from "svelte";
import Report from "./Report.svelte";
import type { Message } from "./generated/page";
import { Page } from "./page.svelte";
import { follow, streamOf } from "./live";
import { embedded } from "./stream";
import "./style.css";

const page = new Page();
const target = document.getElementById("page");
if (target) mount(Report, { target, props: { page } });

async function read(): Promise<void> {
  const address = location.protocol.startsWith("http") ? streamOf(location.pathname) : null;
  if (address) {
    page.served = true;
    return follow(page, address);
  }
  const messages: Message[] = [];
  for await (const message of embedded(document.getElementById("data")?.textContent ?? "")) messages.push(message);
  page.apply(messages);
}

read().catch((error: unknown) => {
  page.broken = `The data in this file cannot be read (${String(error)}): it is cut short or damaged. Write it anew with loadline report.`;
});
