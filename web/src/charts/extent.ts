// The smallest and the largest of many numbers: spread into Math.max(), a hundred thousand are too many arguments.

export function largest(values: Iterable<number>, least = -Infinity): number {
  let found = least;
  for (const value of values) if (value > found) found = value;
  return found;
}

export function smallest(values: Iterable<number>, most = Infinity): number {
  let found = most;
  for (const value of values) if (value < found) found = value;
  return found;
}
