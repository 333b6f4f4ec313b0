// What the parser is kept from: input whose only purpose, or accident, is to nest without end or to make
// every delimiter look for a partner among thousands. Such characters are replaced one for one by a
// placeholder, so places stay, and the text is shown as it was written.

import { placeholder } from './source';

/** Containers that a line may open, columns it may be indented, delimiters it and its paragraph may have. */
export const limits = { markers: 12, indent: 60, lineDelimiters: 240, delimiters: 1500 };

const delimiter = /[*_~[\]!`$<&\\]/g;
const blankOrRow = /^[ \t\r]*(?:\||$)/;
const marker = /[ \t]*(?:>|[-+*](?=[ \t]|$)|\d{1,9}[.)](?=[ \t]|$))/y;

/** The same text without what would be too much. */
export function guarded(text: string): string {
  let paragraph = 0;
  const lines = text.split('\n');
  let changed = false;
  for (let index = 0; index < lines.length; index += 1) {
    const line = lines[index]!;
    // A table's rows do not look for partners in each other.
    if (blankOrRow.test(line)) paragraph = 0;
    const { text: shallow, prefix } = withoutDepth(line);
    const room = Math.min(limits.lineDelimiters, limits.delimiters - paragraph);
    let count = 0;
    const safe =
      shallow.slice(0, prefix) +
      shallow.slice(prefix).replace(delimiter, (character) => (++count > room ? placeholder : character));
    paragraph += count;
    if (safe !== line) {
      lines[index] = safe;
      changed = true;
    }
  }
  return changed ? lines.join('\n') : text;
}

/** A line with no more containers and indentation than allowed, and how far its containers reach. */
function withoutDepth(line: string): { text: string; prefix: number } {
  const indent = /^[ \t]*/.exec(line)![0].length;
  if (indent > limits.indent) {
    return { text: line.slice(0, limits.indent) + placeholder.repeat(indent - limits.indent) + line.slice(indent), prefix: indent };
  }
  let end = 0;
  for (let count = 0; ; count += 1) {
    marker.lastIndex = end;
    const found = marker.exec(line);
    if (!found) return { text: line, prefix: end };
    if (count === limits.markers) {
      const rest = /^[\s>\-+*\d.)]*/.exec(line.slice(end))![0];
      return { text: line.slice(0, end) + rest.replace(/[^ \t\r]/g, placeholder) + line.slice(end + rest.length), prefix: end };
    }
    end = marker.lastIndex;
  }
}

/** Line beginnings that mean one thing now and may mean another with the next character. */
const undecided = /^[ \t>]*(?:[-=*+_#]+|\d{1,9}[.)]?|`+|~+|\||\\|\$+|(?:[-+*]|\d{1,9}[.)])[ \t]+(?:\[[ xX]?\]?|[*_`]+))[ \t]*$/;

/** How much at the end of a text that goes on had better not be shown yet: a `-` may be a heading's line. */
export function undecidedLength(text: string): number {
  const line = text.slice(text.lastIndexOf('\n') + 1);
  return line.length < 40 && undecided.test(line) ? line.length : 0;
}
