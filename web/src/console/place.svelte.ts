// Where the reader is: a page of the console and what it shows, in the address, so that a bookmark shows the same.

/** The pages of the console. */
const PAGES = ["clusters", "runs", "new", "sign-in"] as const;
export type PageName = (typeof PAGES)[number];

/** The address of a page, as a fragment; names after it say what the page shows. */
export function address(page: PageName, ...names: string[]): string {
  return ["#", page, ...names.filter((name, n) => name || names.slice(n).some(Boolean)).map(encodeURIComponent)].join("/");
}

function read(): { page: PageName; name: string; rest: string[] } {
  const [, page, name = "", ...rest] = location.hash.split("/");
  return { page: PAGES.find((one) => one === page) ?? "clusters", name: decoded(name), rest: rest.map(decoded) };
}

/** A part of an address as text. What is not well formed is no text. */
function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

/** The page that the address names, the name of what it shows, or nothing, and the names after that. */
export const place = $state(read());
addEventListener("hashchange", () => Object.assign(place, read()));
