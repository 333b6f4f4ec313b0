// Shortens a model's title next to another one, so that narrow places show how they differ.

/** Number of words at the start of `first` that `second` has there too. */
function shared(first: string[], second: string[]): number {
  const end = first.findIndex((word, i) => word !== second[i]);
  return end === -1 ? first.length : end;
}

/** The words of a title that set it apart from `other`: what both begin or end with is left out. Never empty. */
export function shortTitle(title: string, other: string): string {
  const [words, others] = [title.split(' '), other.split(' ')];
  const start = shared(words, others);
  const rest = words.slice(start);
  const end = shared(rest.toReversed(), others.slice(start).toReversed());
  return rest.slice(0, rest.length - end).join(' ') || title;
}
