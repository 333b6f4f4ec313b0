// Lays out an answer's tokens as blocks: paragraphs and fenced code, each in small runs, so that a new token changes
// only the last run. Closed runs keep their identity and never change. No DOM, no origins, no figures.

/** A piece of one token's text. A token across block borders has several. */
export interface Piece {
  /** Index of the token in the answer. */
  token: number;
  text: string;
  /** `true` if it is the token's first piece. */
  first: boolean;
  /** Number of hidden tokens right before a first piece; missing for none. */
  skipped?: number;
}

/** Pieces that are drawn together. */
export interface Run {
  readonly id: number;
  readonly pieces: readonly Piece[];
}

/** A paragraph or a fenced code block with its fences. */
export interface Block {
  readonly id: number;
  readonly kind: 'text' | 'code';
  readonly runs: readonly Run[];
}

/** Most pieces in a run. */
export const runLength = 64;

const fence = /^ {0,3}```/;

/** Lays out tokens as they come. The joined pieces equal the joined tokens. */
export class Layout {
  #blocks: Block[] = [];
  #nextId = 0;
  #lastToken = -1;
  /** The current line so far, and the number of its pieces in the last block. */
  #line = '';
  #linePieces = 0;
  #lineIsFence = false;
  /** Kind of the block that the next piece starts, if any. */
  #pending: Block['kind'] | null = 'text';

  /** The blocks so far. Unchanged blocks and runs are the same objects as before. */
  get blocks(): readonly Block[] {
    return this.#blocks;
  }

  /** Adds the text of the token with index `token`. */
  append(token: number, text: string): void {
    const skipped = token - this.#lastToken - 1;
    let first = true;
    for (const part of lines(text)) {
      this.#appendPart({ token, text: part, first, ...(first && skipped > 0 ? { skipped } : {}) });
      first = false;
    }
    this.#lastToken = token;
  }

  /** Adds text with at most one line break, at its end. */
  #appendPart(piece: Piece): void {
    this.#line += piece.text;
    if (!this.#lineIsFence && fence.test(this.#line)) this.#beginFence();
    if (this.#pending) this.#open(this.#pending);
    this.#push(piece);
    this.#linePieces += 1;
    if (piece.text.endsWith('\n')) this.#endLine();
  }

  /** Handles a line that is a fence. Outside of code, it starts a block with its pieces so far. */
  #beginFence(): void {
    this.#lineIsFence = true;
    if (this.#insideCode || this.#pending === 'code') return;
    const moved = this.#pending ? [] : this.#removeLast(this.#linePieces);
    this.#open('code');
    for (const piece of moved) this.#push(piece);
  }

  #endLine(): void {
    const blank = this.#line.trim() === '';
    if (this.#insideCode) {
      // The first line of a block opens it. A later fence closes it.
      const opening = this.#blockPieces === this.#linePieces;
      if (this.#lineIsFence && !opening) this.#pending = 'text';
    } else if (blank) {
      this.#pending = 'text';
    }
    this.#line = '';
    this.#linePieces = 0;
    this.#lineIsFence = false;
  }

  get #insideCode(): boolean {
    return this.#pending === null && this.#blocks.at(-1)?.kind === 'code';
  }

  get #blockPieces(): number {
    return this.#blocks.at(-1)?.runs.reduce((sum, run) => sum + run.pieces.length, 0) ?? 0;
  }

  #open(kind: Block['kind']): void {
    this.#blocks = [...this.#blocks, { id: this.#nextId++, kind, runs: [] }];
    this.#pending = null;
  }

  #push(piece: Piece): void {
    const block = this.#lastBlock();
    const run = block.runs.at(-1);
    const runs =
      run && run.pieces.length < runLength
        ? [...block.runs.slice(0, -1), { id: run.id, pieces: [...run.pieces, piece] }]
        : [...block.runs, { id: this.#nextId++, pieces: [piece] }];
    this.#replaceLast({ ...block, runs });
  }

  /** Removes the last pieces from the last block, and the block if it is empty. */
  #removeLast(count: number): Piece[] {
    const taken: Piece[] = [];
    while (taken.length < count) {
      const block = this.#lastBlock();
      const run = block.runs.at(-1);
      const piece = run?.pieces.at(-1);
      if (!run || !piece) break;
      taken.unshift(piece);
      const rest = run.pieces.slice(0, -1);
      const kept = block.runs.slice(0, -1);
      this.#replaceLast({ ...block, runs: rest.length > 0 ? [...kept, { id: run.id, pieces: rest }] : kept });
    }
    if (this.#lastBlock().runs.length === 0) this.#blocks = this.#blocks.slice(0, -1);
    return taken;
  }

  #lastBlock(): Block {
    const block = this.#blocks.at(-1);
    if (!block) throw new Error('a block is open whenever pieces are added or taken back');
    return block;
  }

  #replaceLast(block: Block): void {
    this.#blocks = [...this.#blocks.slice(0, -1), block];
  }
}

/** Splits text after each line break. No part is empty. */
function lines(text: string): string[] {
  return text.match(/[^\n]*\n|[^\n]+/g) ?? [];
}
