// Separates a model's thought from its answer: the text between <think> and </think> at the start. Some prompts end
// in <think>, and the answer has only the closing tag. No DOM.

/** Part of the text. */
export type Part = 'thought' | 'answer';

/** A piece of a token's text. */
export interface ThinkingSpan {
  part: Part;
  token: number;
  text: string;
}

const opening = '<think>';
/** The tag that ends a thought. */
export const closing = '</think>';

/** Separates the tokens of an answer as they come. Tags belong to neither part. */
export class Thinking {
  #state: 'undecided' | 'thinking' | 'answering' = 'undecided';
  /** Held text that may be the start of a tag. */
  #held: { token: number; text: string }[] = [];

  /** `true` if the model is thinking now. */
  get thinking(): boolean {
    return this.#state === 'thinking';
  }

  /** Adds a token's text. Returns the decided pieces in order. */
  push(token: number, text: string): ThinkingSpan[] {
    this.#held.push({ token, text });
    return this.#release(false);
  }

  /** Returns the held text, when no tag can follow. */
  finish(): ThinkingSpan[] {
    return this.#release(true);
  }

  #release(over: boolean): ThinkingSpan[] {
    const out: ThinkingSpan[] = [];
    for (;;) {
      const text = this.#held.map((piece) => piece.text).join('');
      if (this.#state === 'undecided') {
        const begun = text.trimStart();
        if (begun.startsWith(opening)) {
          this.#take(text.length - begun.length + opening.length);
          this.#state = 'thinking';
          continue;
        }
        if (!over && opening.startsWith(begun)) return out;
        this.#state = 'answering';
        continue;
      }
      const part: Part = this.#state === 'thinking' ? 'thought' : 'answer';
      const at = this.#state === 'thinking' ? text.indexOf(closing) : -1;
      if (at >= 0) {
        out.push(...this.#take(at).map((piece) => ({ part, ...piece })));
        this.#take(closing.length);
        this.#state = 'answering';
        continue;
      }
      const kept = over || this.#state === 'answering' ? 0 : overlap(text, closing);
      out.push(...this.#take(text.length - kept).map((piece) => ({ part, ...piece })));
      return out;
    }
  }

  /** Removes the first `length` characters of the held text. */
  #take(length: number): { token: number; text: string }[] {
    const taken: { token: number; text: string }[] = [];
    let left = length;
    while (left > 0) {
      const piece = this.#held[0];
      if (!piece) break;
      taken.push({ token: piece.token, text: piece.text.slice(0, left) });
      if (piece.text.length > left) this.#held[0] = { token: piece.token, text: piece.text.slice(left) };
      else this.#held.shift();
      left -= piece.text.length;
    }
    return taken.filter(({ text }) => text !== '');
  }
}

/** Number of characters at the end of `text` that start `tag`. */
function overlap(text: string, tag: string): number {
  for (let length = Math.min(text.length, tag.length - 1); length > 0; length--) {
    if (tag.startsWith(text.slice(-length))) return length;
  }
  return 0;
}

/** Returns `true` if a text closes a thought that it never opened, as all text before the tag was one. */
export const endsUnbegunThought = (text: string): boolean =>
  text.includes(closing) && !text.trimStart().startsWith(opening) && text.indexOf(closing) < (text.indexOf(opening) + 1 || Infinity);

/** The answer of a whole text, without its thought. */
export function withoutThought(text: string): string {
  const thinking = new Thinking();
  const whole = endsUnbegunThought(text) ? opening + text : text;
  const spans = [...thinking.push(0, whole), ...thinking.finish()];
  return spans
    .filter(({ part }) => part === 'answer')
    .map((span) => span.text)
    .join('')
    .trimStart();
}
