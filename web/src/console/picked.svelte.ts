// What the reader looks at: a time, and one node or one volume of a cluster. The address has both, so that a bookmark shows the same.

/** A node or a volume. */
export interface Part {
  kind: "node" | "volume";
  name: string;
}

/** The times that charts show: seconds. */
export const SPANS = [
  { value: 15 * 60, text: "15 minutes" },
  { value: 3600, text: "1 hour" },
  { value: 6 * 3600, text: "6 hours" },
  { value: 24 * 3600, text: "24 hours" },
];

const query = new URLSearchParams(location.search);
const named = (kind: Part["kind"]): Part | null => {
  const name = query.get(kind);
  return name ? { kind, name } : null;
};
const span = Number(query.get("span"));

class Picked {
  part = $state<Part | null>(named("node") ?? named("volume"));
  span = $state(SPANS.some((one) => one.value === span) ? span : SPANS[0].value);
  /** The page is for a screen on a wall. */
  readonly wall = query.has("wall");
  #cluster = "";

  /** Looks at that, or at the whole cluster. */
  choose(part: Part | null): void {
    this.part = part;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    document.getElementById("charts")?.scrollIntoView({ behavior: calm ? "instant" : "smooth" });
  }

  /** The page shows this cluster: a node or volume of another one is not looked at any more. */
  enter(cluster: string): void {
    if (this.#cluster && this.#cluster !== cluster) this.part = null;
    this.#cluster = cluster;
  }

  /** The address that shows the same. */
  get address(): string {
    const of = new URLSearchParams();
    if (this.wall) of.set("wall", "");
    if (this.span !== SPANS[0].value) of.set("span", String(this.span));
    if (this.part) of.set(this.part.kind, this.part.name);
    const text = of.toString().replace(/=(?=&|$)/g, "");
    return `${location.pathname}${text ? `?${text}` : ""}${location.hash}`;
  }
}

export const picked = new Picked();
