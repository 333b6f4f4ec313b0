// Tells what a model thinks from what it says: the text between <think> and </think> at the beginning of an
// answer. Some prompts end in <think>, and the answer has the closing tag alone. No DOM.

/** Where a stretch of text belongs. */
export type Part = 'thought' | 'said';

/** A stretch of a token's text. */
export interface Stretch {
  part: Part;
  token: number;
  text: string;
}

const opening = '<think>';
const closing = '</think>';

/** Sorts the tokens of an answer as they come. Tags belong to neither part. */
export class Thinking {
  #state: 'undecided' | 'thinking' | 'said' = 'undecided';
  /** What may still be the beginning of a tag. */
  #held: { token: number; text: string }[] = [];

  /** Whether the model is thinking now. */
  get thinking(): boolean {
    return this.#state === 'thinking';
  }

  /** Takes a token's text, and gives what is certain now, in order. */
  push(token: number, text: string): Stretch[] {
    this.#held.push({ token, text });
    return this.#release(false);
  }

  /** Gives what was held: no tag will come of it any more. */
  finish(): Stretch[] {
    return this.#release(true);
  }

  #release(over: boolean): Stretch[] {
    const out: Stretch[] = [];
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
        this.#state = 'said';
        continue;
      }
      const part: Part = this.#state === 'thinking' ? 'thought' : 'said';
      const at = this.#state === 'thinking' ? text.indexOf(closing) : -1;
      if (at >= 0) {
        out.push(...this.#take(at).map((piece) => ({ part, ...piece })));
        this.#take(closing.length);
        this.#state = 'said';
        continue;
      }
      const kept = over || this.#state === 'said' ? 0 : overlap(text, closing);
      out.push(...this.#take(text.length - kept).map((piece) => ({ part, ...piece })));
      return out;
    }
  }

  /** Takes the first `length` characters out of what is held. */
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

/** How many characters at the end of `text` begin `tag`. */
function overlap(text: string, tag: string): number {
  for (let length = Math.min(text.length, tag.length - 1); length > 0; length--) {
    if (tag.startsWith(text.slice(-length))) return length;
  }
  return 0;
}

/** Whether a text ends a thought that it never began: then all before the tag was one. */
export const endsUnbegunThought = (text: string): boolean =>
  text.includes(closing) && !text.trimStart().startsWith(opening) && text.indexOf(closing) < (text.indexOf(opening) + 1 || Infinity);

/** What a whole text says, without what was thought before. */
export function saidOf(text: string): string {
  const sorting = new Thinking();
  const whole = endsUnbegunThought(text) ? opening + text : text;
  const stretches = [...sorting.push(0, whole), ...sorting.finish()];
  return stretches.filter(({ part }) => part === 'said').map((stretch) => stretch.text).join('').trimStart();
}
