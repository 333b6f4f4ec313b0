// A fenced code block at the top level, read line by line as it comes. No line is read twice, however long the block.

import { CodeLines } from './code';
import type { CodeNode } from './nodes';
import { PieceCutter, type Source } from './source';

/** Length of the parts of a line without an end. */
const longestPart = 2000;

export const fenceStart = /^(`{3,}|~{3,})/;

export class Fence {
  readonly cutter: PieceCutter;
  readonly #lines: CodeLines;
  readonly #closing: RegExp;
  /** A line that may become the closing fence is not shown yet. */
  readonly #maybeClosing: RegExp;
  readonly #indent: number;
  #lineStart = true;
  #closed = false;

  /** Starts after the opening line `opening`, where the source starts too. */
  constructor(
    readonly source: Source,
    /** Offset of its start. */
    readonly id: number,
    opening: string,
    lang: string | null,
    lastShown: number,
  ) {
    this.cutter = new PieceCutter(source, lastShown);
    this.#lines = new CodeLines(lang);
    this.#indent = /^ */.exec(opening)![0].length;
    const marks = fenceStart.exec(opening.trimStart())![0];
    this.#closing = new RegExp(`^ {0,3}${marks[0]!}{${marks.length},}[ \\t]*\\r?$`);
    this.#maybeClosing = new RegExp(`^ {0,3}${marks[0]!}+[ \\t]*\\r?$`);
  }

  /** Reads new text and frees it in the source. Returns whether the block is closed. */
  read(finished: boolean): boolean {
    while (!this.#closed) {
      const from = this.source.base;
      const lineEnd = this.source.indexOf('\n', from);
      if (lineEnd < 0 || lineEnd - from >= longestPart) {
        if (this.source.end - from >= longestPart) this.#take(from, this.#whole(from + longestPart), false);
        else if (!finished) break;
        else if (from < this.source.end && !this.#isClosing(this.source.slice(from))) this.#take(from, this.source.end, true);
        else this.#close(this.source.end);
        continue;
      }
      if (this.#isClosing(this.source.slice(from, lineEnd))) this.#close(lineEnd + 1);
      else this.#take(from, lineEnd + 1, true);
    }
    return this.#closed;
  }

  node(): CodeNode {
    const { base, end } = this.source;
    if (this.#closed || base === end) return this.#lines.node();
    const line = this.source.slice(base);
    if (this.#lineStart && this.#maybeClosing.test(line)) return this.#lines.node();
    return this.#lines.node(new PieceCutter(this.source, this.cutter.lastShown).range(this.#unindented(base, end), end));
  }

  #isClosing(line: string): boolean {
    return this.#lineStart && this.#closing.test(line);
  }

  #close(end: number): void {
    this.#closed = true;
    this.#lines.close();
    this.source.drop(end);
  }

  #take(from: number, to: number, ends: boolean): void {
    this.#lines.add(this.cutter.range(this.#unindented(from, to), to));
    this.#lineStart = ends;
    this.source.drop(to);
  }

  /** Not between the halves of a surrogate pair. */
  #whole(to: number): number {
    return /[\uD800-\uDBFF]/.test(this.source.slice(to - 1, to)) ? to - 1 : to;
  }

  /** The indentation of a fence is not part of its lines. */
  #unindented(from: number, to: number): number {
    if (!this.#lineStart) return from;
    let at = from;
    while (at < to && at - from < this.#indent && this.source.slice(at, at + 1) === ' ') at += 1;
    return at;
  }
}
