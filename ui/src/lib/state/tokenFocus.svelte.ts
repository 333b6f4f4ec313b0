// Tokens that stand out: the one whose card is shown, and the class that is not dimmed. No DOM.

import type { MarkClass } from '../strings/keys';
import type { Answer, TokenDetail } from './answer.svelte';

/** The rectangle of a token in the window, in pixels. */
export interface Anchor {
  left: number;
  right: number;
  top: number;
  bottom: number;
  /** Right edge of its text. */
  edge: number;
}

/** The token that the card describes. */
export interface Pointed {
  answer: Answer;
  detail: TokenDetail;
  anchor: Anchor;
  /** `true` if the card stays until it is closed, so that its buttons can be pressed. */
  pinned: boolean;
}

/** Tokens that stand out. */
export class TokenFocus {
  /** The token whose card is shown; null for none. */
  pointed = $state.raw<Pointed | null>(null);
  /** The one class of tokens that is not dimmed; null dims none. */
  only = $state<MarkClass | null>(null);

  /** Shows the card of a token, unless another one is pinned. A missing token hides the card. */
  point(answer: Answer, index: number, anchor: Anchor): void {
    if (this.pointed?.pinned && !this.#isPointed(answer, index)) return;
    this.#show(answer, index, anchor, this.pointed?.pinned ?? false);
  }

  /** Shows the card of a token until `unpin`. */
  pin(answer: Answer, index: number, anchor: Anchor): void {
    this.#show(answer, index, anchor, true);
  }

  /** Hides the card, unless it is pinned. */
  unpoint(): void {
    if (!this.pointed?.pinned) this.pointed = null;
  }

  /** Hides the card. */
  unpin(): void {
    this.pointed = null;
  }

  /** Dims every class of tokens but this one. Called again with the same class, dims none. */
  toggleOnly(mark: MarkClass): void {
    this.only = this.only === mark ? null : mark;
  }

  #show(answer: Answer, index: number, anchor: Anchor, pinned: boolean): void {
    const detail = answer.detail(index);
    this.pointed = detail ? { answer, detail, anchor, pinned } : null;
  }

  #isPointed(answer: Answer, index: number): boolean {
    return this.pointed?.answer === answer && this.pointed.detail.index === index;
  }
}
