// Finds a text in the parts of a page, whatever the case and the kind of space. No DOM.

/** A part of a page's text. */
export interface TextPart {
  readonly text: string;
  /** `true` if it starts a paragraph or the like. No match reaches across its start. */
  readonly starts: boolean;
}

/** A place in the text: the index of its part, and the offset there. */
interface TextPlace {
  readonly part: number;
  readonly offset: number;
}

/** A match: its start, and the place after its end. */
export interface TextMatch {
  readonly start: TextPlace;
  readonly end: TextPlace;
}

/** A character that no query has. */
const border = '\u0000';

/** Text in lower case with plain spaces. Every character keeps its place. */
function folded(text: string): string {
  const lower = text.toLowerCase();
  // The lower case of some characters is longer, such as that of İ.
  const even =
    lower.length === text.length ? lower : [...text].map((c) => (c.toLowerCase().length === c.length ? c.toLowerCase() : c)).join('');
  return even.replace(/\s/g, ' ');
}

/** Returns the matches of a query in order. They do not overlap. */
export function findText(parts: readonly TextPart[], query: string): TextMatch[] {
  const wanted = folded(query);
  if (wanted.trim() === '') return [];
  const starts: number[] = [];
  let all = '';
  for (const { text, starts: isStart } of parts) {
    if (isStart) all += border;
    starts.push(all.length);
    all += folded(text);
  }
  const matches: TextMatch[] = [];
  let part = 0;
  /** The place of a character. Called in ascending order. */
  const placeOf = (at: number): TextPlace => {
    while ((starts[part + 1] ?? Infinity) <= at) part += 1;
    return { part, offset: at - (starts[part] ?? 0) };
  };
  for (let at = all.indexOf(wanted); at >= 0; at = all.indexOf(wanted, at + wanted.length)) {
    const start = placeOf(at);
    const last = placeOf(at + wanted.length - 1);
    matches.push({ start, end: { part: last.part, offset: last.offset + 1 } });
  }
  return matches;
}
