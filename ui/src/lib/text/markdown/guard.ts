// Guards the parser against input that nests without end, or makes every delimiter search among thousands. Such
// characters are replaced one for one by a placeholder, so offsets stay, and the text is shown as written.

import { placeholder } from './source';

/** Limits of a line: containers, columns of indentation, delimiters in it and in its paragraph. */
export const limits = { markers: 12, indent: 60, lineDelimiters: 240, delimiters: 1500 };

const delimiter = /[*_~[\]!`$<&\\]/g;
const blankOrRow = /^[ \t\r]*(?:\||$)/;
const marker = /[ \t]*(?:>|[-+*](?=[ \t]|$)|\d{1,9}[.)](?=[ \t]|$))/y;

/** Replaces characters beyond the limits. */
export function guarded(text: string): string {
  let paragraph = 0;
  const lines = text.split('\n');
  let changed = false;
  for (let index = 0; index < lines.length; index += 1) {
    const line = lines[index]!;
    // Table rows do not match delimiters of other rows.
    if (blankOrRow.test(line)) paragraph = 0;
    const { text: shallow, prefix } = withoutDepth(line);
    const room = Math.min(limits.lineDelimiters, limits.delimiters - paragraph);
    let count = 0;
    const safe =
      shallow.slice(0, prefix) + shallow.slice(prefix).replace(delimiter, (character) => (++count > room ? placeholder : character));
    paragraph += count;
    if (safe !== line) {
      lines[index] = safe;
      changed = true;
    }
  }
  return changed ? lines.join('\n') : text;
}

/** A line within the limits of containers and indentation, and the end of its containers. */
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

/** Starts of lines whose meaning the next character may change. */
const undecided = /^[ \t>]*(?:[-=*+_#]+|\d{1,9}[.)]?|`+|~+|\||\\|\$+|(?:[-+*]|\d{1,9}[.)])[ \t]+(?:\[[ xX]?\]?|[*_`]+))[ \t]*$/;

/** Length at the end of unfinished text that is better hidden: a `-` may underline a heading. */
export function undecidedLength(text: string): number {
  const line = text.slice(text.lastIndexOf('\n') + 1);
  return line.length < 40 && undecided.test(line) ? line.length : 0;
}
