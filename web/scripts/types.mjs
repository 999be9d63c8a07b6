// Makes the page's types of the schema of the messages that it is made of. They are not kept in the repository, so that
// they cannot be of another schema than the published one.
import { mkdirSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { compileFromFile } from "json-schema-to-typescript";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const types = await compileFromFile(here("../../docs/reference/report-page.schema.json"), {
  additionalProperties: false,
  bannerComment: "// Made by scripts/types.mjs of docs/reference/report-page.schema.json.",
  format: false,
});
mkdirSync(here("../src/generated"), { recursive: true });
writeFileSync(here("../src/generated/page.ts"), types);
