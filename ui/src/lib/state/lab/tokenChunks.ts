// Chunks of an answer's tokens for the picker, so that a new token changes only the last one. No DOM.

import type { TokenEvent } from '../../ipc/schema.gen';
import { runLength } from '../../text/blocks';

/** Tokens that are drawn together. */
export interface TokenChunk {
  /** Index of the first one. */
  readonly start: number;
  readonly tokens: readonly TokenEvent[];
}

/** Chunks of a growing list of tokens. */
export class TokenChunks {
  #tokens: readonly TokenEvent[] | null = null;
  #chunks: readonly TokenChunk[] = [];
  #length = 0;

  /** The chunks of a list, which may have grown since the last call. Unchanged chunks stay the same objects. */
  of(tokens: readonly TokenEvent[]): readonly TokenChunk[] {
    if (tokens !== this.#tokens) {
      this.#tokens = tokens;
      this.#chunks = [];
      this.#length = 0;
    }
    if (tokens.length === this.#length) return this.#chunks;
    const full = Math.floor(this.#length / runLength);
    const chunks = this.#chunks.slice(0, full);
    for (let start = full * runLength; start < tokens.length; start += runLength)
      chunks.push({ start, tokens: tokens.slice(start, start + runLength) });
    this.#chunks = chunks;
    this.#length = tokens.length;
    return chunks;
  }
}
