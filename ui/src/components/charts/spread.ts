// Where labels stand that would lie over each other: as near to what they name as they can, in order.

/** Places for labels that are to stand `apart` at least, between `from` and `to`. */
export function spread(wanted: readonly number[], apart: number, from: number, to: number): number[] {
  const order = wanted.map((_, i) => i).sort((a, b) => (wanted[a] ?? 0) - (wanted[b] ?? 0));
  const places = [...wanted];
  let next = from;
  for (const i of order) {
    places[i] = Math.max(next, wanted[i] ?? 0);
    next = (places[i] ?? 0) + apart;
  }
  // What was pushed past the end comes back, and pushes those before it.
  let most = to;
  for (const i of order.toReversed()) {
    places[i] = Math.min(most, places[i] ?? 0);
    most = (places[i] ?? 0) - apart;
  }
  return places;
}
