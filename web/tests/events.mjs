// The list of events has each event once, the newest first, in whatever order nodes and the console have sent them.
import assert from "node:assert";
import { readFileSync } from "node:fs";
import { transformWithEsbuild } from "vite";

const file = new URL("../src/console/events.ts", import.meta.url);
const { code } = await transformWithEsbuild(readFileSync(file, "utf8"), file.pathname, { sourcemap: false });
const { withMore } = await import(`data:text/javascript,${encodeURIComponent(code)}`);
const event = (number, at) => ({ number, at });
const numbers = (list) => list.map((one) => one.number);

// The line that came second was written first: the newest by its time has not the highest number.
const first = withMore([], [event(1, 48), event(2, 47)]);
assert.deepEqual(numbers(first), [1, 2]);
assert.deepEqual(numbers(withMore(first, [event(1, 48), event(2, 47)])), [1, 2], "what comes twice is listed once");
assert.deepEqual(numbers(withMore(first, [event(2, 47), event(3, 48), event(4, 40)])), [3, 1, 2, 4]);
const many = withMore([], Array.from({ length: 300 }, (_, n) => event(n, n)));
assert.deepEqual([many.length, many[0].number], [200, 299], "the list has an end");
