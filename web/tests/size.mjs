// size.mjs FILE: prints how many bytes the script of a page has, compressed with gzip.
import { readFileSync } from "node:fs";
import { argv } from "node:process";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

/** The compressed bytes of all scripts in a page. */
export function compressedScript(page) {
  const scripts = [...page.matchAll(/<script[^>]*>([\s\S]*?)<\/script>/g)].map(([, script]) => script);
  return gzipSync(scripts.join("\n")).length;
}

if (argv[1] === fileURLToPath(import.meta.url)) console.log(compressedScript(readFileSync(argv[2], "utf8")));
