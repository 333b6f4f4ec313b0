// Maps characters to their tokens, and cuts shown text into pieces of tokens. All it knows of Markdown is how a
// parser changes the characters of a leaf: escapes, entities, indentation.

import { decodeString } from 'micromark-util-decode-string';
import type { Piece } from './nodes';

/** Replaces a character that the parser must not see. Takes one place and has no meaning in Markdown. */
export const placeholder = '\uE000';

/** Text of the tokens that is still needed, by offset in the whole. */
export class Source {
  /** Offset of the first kept character. */
  base = 0;
  #text = '';
  readonly #starts: number[] = [];
  readonly #tokens: number[] = [];

  get end(): number {
    return this.base + this.#text.length;
  }

  append(token: number, text: string): void {
    if (text === '') return;
    this.#starts.push(this.end);
    this.#tokens.push(token);
    this.#text += text;
  }

  /** Frees all text before an offset. */
  drop(before: number): void {
    this.#text = this.#text.slice(before - this.base);
    this.base = before;
  }

  slice(from: number, to = this.end): string {
    return this.#text.slice(from - this.base, to - this.base);
  }

  indexOf(text: string, from: number): number {
    const found = this.#text.indexOf(text, from - this.base);
    return found < 0 ? -1 : found + this.base;
  }

  /** Ordinal, among tokens with text, of the token at an offset. */
  ordinalAt(place: number): number {
    let low = 0;
    let high = this.#starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.#starts[middle]! <= place) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  tokenAt(place: number): number {
    return this.#tokens[this.ordinalAt(place)] ?? 0;
  }

  /** Start of the token with an ordinal; the end for a future one. */
  startOf(ordinal: number): number {
    return this.#starts[ordinal] ?? this.end;
  }
}

type Shown = Pick<Piece, 'first' | 'skipped'>;

/** Cuts leaves into pieces in text order, and marks the first visible piece of each token. */
export class PieceCutter {
  constructor(
    readonly source: Source,
    /** The last visible token. */
    public lastShown: number,
  ) {}

  /** The first token of a range, marked as visible. */
  mark(from: number, to: number): { token: number; lastToken: number } & Shown {
    const token = this.source.tokenAt(from);
    return { token, lastToken: this.source.tokenAt(Math.max(from, to - 1)), ...this.#show(token) };
  }

  /** Pieces of a range that is shown as written. */
  range(from: number, to: number): Piece[] {
    const pieces: Piece[] = [];
    let ordinal = this.source.ordinalAt(from);
    for (let at = from; at < to; ordinal += 1) {
      const next = Math.min(to, this.source.startOf(ordinal + 1));
      const token = this.source.tokenAt(at);
      pieces.push({ token, text: this.source.slice(at, next), ...this.#show(token) });
      at = next;
    }
    return pieces;
  }

  /** Pieces of a parser's value of a range. `spaced`: line breaks may have become spaces. */
  value(value: string, from: number, to: number, spaced = false): Piece[] {
    const written = this.source.slice(from, to);
    if (value === written) return this.range(from, to);
    const { text, places } = align(value, written, spaced);
    const pieces: Piece[] = [];
    for (let at = 0; at < text.length;) {
      const token = this.source.tokenAt(from + places[at]!);
      let next = at + 1;
      while (next < text.length && this.source.tokenAt(from + places[next]!) === token) next += 1;
      pieces.push({ token, text: text.slice(at, next), ...this.#show(token) });
      at = next;
    }
    return pieces;
  }

  #show(token: number): Shown {
    if (token <= this.lastShown) return { first: false };
    const skipped = token - this.lastShown - 1;
    this.lastShown = token;
    return skipped > 0 ? { first: true, skipped } : { first: true };
  }
}

const entity = /&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[a-zA-Z][a-zA-Z\d]{1,31});/y;

/** Finds the source of each character of a value. Offsets only ascend. */
export function align(value: string, written: string, spaced: boolean): { text: string; places: number[] } {
  const places: number[] = [];
  let text = '';
  let at = 0;
  while (text.length < value.length) {
    const wanted = value[text.length]!;
    if (at < written.length && written[at] === '&') {
      const decoded = entityAt(written, at);
      if (decoded && value.startsWith(decoded.text, text.length)) {
        for (let each = 0; each < decoded.text.length; each += 1) places.push(at);
        text += decoded.text;
        at += decoded.length;
        continue;
      }
    }
    let found = at;
    while (found < written.length && !canComeFrom(wanted, written[found]!, spaced)) found += 1;
    if (found === written.length) {
      // Not in the source (further columns of a tab): it belongs to the character before.
      places.push(Math.max(0, at - 1));
      text += wanted;
      continue;
    }
    places.push(found);
    text += wanted === placeholder ? written[found]! : wanted;
    at = found + 1;
    if (written[found] === '\t' && wanted === ' ' && value[text.length] === ' ') at = found;
  }
  return { text, places };
}

/** Returns `true` if a shown character can come from a source character. */
function canComeFrom(shown: string, written: string, spaced: boolean): boolean {
  if (shown === written || shown === placeholder) return true;
  if (shown === ' ') return written === '\t' || (spaced && (written === '\n' || written === '\r'));
  return shown === '\uFFFD' && written === '\0';
}

function entityAt(written: string, at: number): { text: string; length: number } | null {
  entity.lastIndex = at;
  const found = entity.exec(written)?.[0];
  if (!found) return null;
  const text = decodeString(found);
  return text === found ? null : { text, length: found.length };
}
