// Highlighted code in runs of lines, while it comes and when it is complete. Complete lines are highlighted from the
// last point without open constructs; complete code is highlighted once more as a whole.

import { highlight, highlightAll, knows, type ScopeSpan } from './highlight';
import type { CodeNode, CodePart, CodePiece, CodeRun, Piece } from './nodes';
import { reuse } from './reuse';

/** Limits that end a run after the current line. */
const linesPerRun = 12;
const piecesPerRun = 64;

/** Most text before new lines that is highlighted again. */
const longestContext = 4096;

interface OpenRun {
  lines: number;
  pieces: CodePiece[];
}

/** The lines of a code block. */
export class CodeLines {
  #text = '';
  readonly #runs: OpenRun[] = [];
  #drawn: CodeRun[] = [];
  /** Runs before this one are final. */
  #changedFrom = 0;
  #colouredTo = 0;
  /** Position of the last piece without colour: its run, and its index there. */
  #next = { run: 0, piece: 0 };
  #restart = 0;
  #closed = false;

  constructor(readonly lang: string | null) {}

  /** Adds a line with its line break, or a long part of one. */
  add(pieces: readonly Piece[]): void {
    let run = this.#runs.at(-1);
    if (!run || run.lines >= linesPerRun || run.pieces.length >= piecesPerRun) {
      run = { lines: 0, pieces: [] };
      this.#runs.push(run);
    }
    run.lines += 1;
    for (const piece of pieces) {
      this.#text += piece.text;
      run.pieces.push({ ...piece, parts: null });
    }
    this.#changedFrom = Math.min(this.#changedFrom, this.#runs.length - 1);
  }

  /** Marks the code as complete. */
  close(): void {
    this.#closed = true;
    if (!knows(this.lang)) return;
    const all: Painter = new Painter(highlightAll(this.lang, this.#text));
    for (const run of this.#runs) run.pieces = run.pieces.map((piece) => all.paint(piece));
    this.#changedFrom = 0;
  }

  /** The code so far, with the pieces of an incomplete line. */
  node(open: readonly Piece[] = []): CodeNode {
    if (!this.#closed) this.#colour();
    for (let index = this.#changedFrom; index < this.#runs.length; index += 1) {
      this.#drawn[index] = reuse(this.#drawn[index], { id: index, pieces: [...this.#runs[index]!.pieces] });
    }
    this.#changedFrom = this.#runs.length;
    let runs = this.#drawn;
    if (open.length > 0) {
      const last = this.#runs.at(-1);
      const fresh = open.map((piece) => ({ ...piece, parts: null }));
      if (!last || last.lines >= linesPerRun || last.pieces.length >= piecesPerRun) {
        runs = [...runs, { id: runs.length, pieces: fresh }];
      } else {
        runs = [...runs.slice(0, -1), { id: runs.length - 1, pieces: [...last.pieces, ...fresh] }];
      }
    }
    return { kind: 'code', lang: this.lang, runs: [...runs], closed: this.#closed };
  }

  /** Highlights the lines added since the last time. */
  #colour(): void {
    const end = this.#text.length;
    if (this.#colouredTo === end || !knows(this.lang)) return;
    const spans = highlight(this.lang, this.#text.slice(this.#restart));
    const painter = new Painter(spans, this.#colouredTo - this.#restart);
    let { run, piece } = this.#next;
    this.#changedFrom = Math.min(this.#changedFrom, run);
    for (; run < this.#runs.length; run += 1, piece = 0) {
      const { pieces } = this.#runs[run]!;
      for (; piece < pieces.length; piece += 1) pieces[piece] = painter.paint(pieces[piece]!);
      if (run === this.#runs.length - 1) break;
    }
    this.#next = { run, piece };
    this.#colouredTo = end;
    this.#restart = this.#safeRestart(spans);
  }

  /** The last line that starts at the margin, after a line break outside of any construct. */
  #safeRestart(spans: readonly ScopeSpan[]): number {
    const from = this.#restart;
    let index = spans.length - 1;
    for (let at = this.#text.lastIndexOf('\n', this.#text.length - 2); at > from; at = this.#text.lastIndexOf('\n', at - 1)) {
      while (index > 0 && spans[index - 1]!.end + from > at) index -= 1;
      if (spans[index]!.scope === null && /\S/.test(this.#text[at + 1] ?? '')) return at + 1;
    }
    return this.#text.length - from > longestContext ? this.#text.length : from;
  }
}

/** Colours consecutive pieces. */
class Painter {
  #index = 0;

  constructor(
    readonly spans: readonly ScopeSpan[],
    private at = 0,
  ) {}

  paint({ text, ...piece }: CodePiece): CodePiece {
    const parts: CodePart[] = [];
    const end = this.at + text.length;
    for (let from = this.at; from < end;) {
      while (this.#index < this.spans.length && this.spans[this.#index]!.end <= from) this.#index += 1;
      const span = this.spans[this.#index] ?? { end, scope: null };
      const to = Math.min(end, span.end);
      parts.push({ text: text.slice(from - this.at, to - this.at), scope: span.scope });
      from = to;
    }
    this.at = end;
    return { ...piece, text, parts: parts.some((part) => part.scope) ? parts : null };
  }
}

/** Splits pieces after each line break. */
export function linesOf(pieces: readonly Piece[]): Piece[][] {
  const lines: Piece[][] = [[]];
  for (const piece of pieces) {
    let shown: Pick<Piece, 'first' | 'skipped'> =
      piece.skipped === undefined ? { first: piece.first } : { first: piece.first, skipped: piece.skipped };
    for (const text of piece.text.match(/[^\n]*\n|[^\n]+/g) ?? []) {
      lines.at(-1)!.push({ token: piece.token, text, ...shown });
      shown = { first: false };
      if (text.endsWith('\n')) lines.push([]);
    }
  }
  return lines.filter((line) => line.length > 0);
}
