// Makes the pages' types of the published schemas of what they are sent. They are not kept in the repository, so that they
// cannot be of another schema than the published one.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { compile, compileFromFile } from "json-schema-to-typescript";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const options = (source) => ({
  additionalProperties: false,
  bannerComment: `// Made by scripts/types.mjs of docs/reference/${source}.`,
  format: false,
});
mkdirSync(here("../src/generated"), { recursive: true });

const schema = "report-page.schema.json";
const page = await compileFromFile(here(`../../docs/reference/${schema}`), options(schema));
writeFileSync(here("../src/generated/page.ts"), page);

const description = "console.openapi.json";
const { components } = JSON.parse(readFileSync(here(`../../docs/reference/${description}`), "utf8"));
const all = { $defs: components.schemas, type: "object", properties: {} };
for (const name of Object.keys(components.schemas)) all.properties[name] = { $ref: `#/$defs/${name}` };
const text = JSON.stringify(all).replaceAll("#/components/schemas/", "#/$defs/");
const api = await compile(JSON.parse(text), "All", { ...options(description), unreachableDefinitions: true });
writeFileSync(here("../src/generated/console.ts"), api);
