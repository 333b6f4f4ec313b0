// Parses an answer's Markdown while it comes: a list of top-level blocks of which all but the last are final. Text is
// parsed when blocks are read, and only the unsettled part. No DOM.

import type { RootContent } from 'mdast';
import { Converter } from './convert';
import { blocksOf, continuationAfter, forcedCut, lastCut, lineStart, type Continuation } from './cuts';
import { Fence, fenceStart } from './fence';
import { undecidedLength } from './guard';
import type { MarkdownBlock } from './nodes';
import { parse } from './parse';
import { reuse } from './reuse';
import { PieceCutter, Source } from './source';

/** Longest text parsed at once. A longer block is cut. */
export const longestTail = 8192;

export class MarkdownDocument {
  readonly #source = new Source();
  readonly #settled: MarkdownBlock[] = [];
  #tail: MarkdownBlock[] = [];
  #blocks: readonly MarkdownBlock[] = [];
  #fence: Fence | null = null;
  #continuation: Continuation = {};
  #lastShown = -1;
  #finished = false;
  #changed = false;

  /** Adds the text of the token with index `token`. Indices ascend. Nothing may be added after the end. */
  append(token: number, text: string): void {
    if (this.#finished) throw new Error('the document is finished');
    this.#source.append(token, text);
    this.#changed = true;
  }

  /** Marks the text as complete, which settles everything. */
  finish(): void {
    this.#finished = true;
    this.#changed = true;
  }

  /** The blocks so far. Unchanged ones are the same objects as the last time. */
  get blocks(): readonly MarkdownBlock[] {
    if (this.#changed) {
      this.#changed = false;
      while (this.#fence ? this.#readFence(this.#fence) : this.#readTail());
      this.#blocks = [...this.#settled, ...this.#tail];
    }
    return this.#blocks;
  }

  /** Returns `true` if the fence was closed, so that text may follow. */
  #readFence(fence: Fence): boolean {
    const closed = fence.read(this.#finished);
    const block = { id: fence.id, node: fence.node() };
    this.#tail = closed ? [] : [block];
    if (!closed) return false;
    this.#settled.push(block);
    this.#lastShown = fence.cutter.lastShown;
    this.#fence = null;
    return true;
  }

  /** Parses the unsettled text and settles what can be. Returns whether more can be read. */
  #readTail(): boolean {
    const from = this.#source.base;
    const whole = this.#source.end - from <= longestTail;
    const ended = whole && this.#finished;
    // Later rows of a table mean nothing without its head.
    const head = this.#continuation.table?.head ?? '';
    const base = from - head.length;
    let text = head + this.#source.slice(from, whole ? undefined : from + longestTail);
    if (whole && !ended) text = text.slice(0, text.length - undecidedLength(text));
    const { children } = parse(text);

    const fence = children.find((child) => startsFence(child, text, ended));
    if (fence) return this.#openFence(fence, children, text, base);
    const cut = lastCut(children, text, ended, this.#continuation);
    if (cut) {
      const fresh = this.#convert(children, base, base + cut.at);
      const continuation = continuationAfter(cut, children, text, this.#continuation, fresh.at(-1));
      // A continued table is not settled yet.
      this.#settle(continuation.table ? fresh.slice(0, -1) : fresh, base + cut.at, continuation);
      return true;
    }
    if (!whole) {
      const end = forcedCut(text);
      this.#settle(this.#convert(parse(text.slice(0, end)).children, base, base + end), base + end);
      return true;
    }
    const cutter = new PieceCutter(this.#source, this.#lastShown);
    this.#tail = this.#reused(blocksOf(children, new Converter(cutter, base, ended ? Infinity : base + text.length), this.#continuation));
    return false;
  }

  #openFence(fence: RootContent, children: readonly RootContent[], text: string, base: number): boolean {
    const offset = fence.position!.start.offset!;
    const from = lineStart(text, fence);
    const lineEnd = text.indexOf('\n', offset);
    const end = lineEnd < 0 ? text.length : lineEnd + 1;
    this.#settle(this.#convert(children, base, base + from), base + end);
    const lang = fence.type === 'code' ? (fence.lang ?? null) : null;
    this.#fence = new Fence(this.#source, base + offset, text.slice(from, end), lang, this.#lastShown);
    return true;
  }

  /** Complete blocks before an offset. */
  #convert(children: readonly RootContent[], base: number, before: number): MarkdownBlock[] {
    const cutter = new PieceCutter(this.#source, this.#lastShown);
    const blocks = blocksOf(children, new Converter(cutter, base, Infinity), this.#continuation, before);
    this.#lastShown = cutter.lastShown;
    return blocks;
  }

  #settle(blocks: MarkdownBlock[], to: number, continuation: Continuation = {}): void {
    this.#settled.push(...this.#reused(blocks));
    this.#continuation = continuation;
    this.#source.drop(to);
  }

  #reused(blocks: MarkdownBlock[]): MarkdownBlock[] {
    return blocks.map((block) =>
      reuse(
        this.#tail.find((old) => old.id === block.id),
        block,
      ),
    );
  }
}

/** A fence with a complete opening line. */
function startsFence(child: RootContent, text: string, ended: boolean): boolean {
  if (child.type !== 'code') return false;
  const from = child.position!.start.offset!;
  return fenceStart.test(text.slice(from, from + 3)) && (ended || text.indexOf('\n', from) >= 0);
}
