// Names in a sentence: the first ones, and how many more there are.

/** Names that are written out. */
const MOST = 5;

export function some(names: string[]): string {
  const first = names.slice(0, MOST).join(", ");
  return names.length > MOST ? `${first} and ${names.length - MOST} more` : first;
}
