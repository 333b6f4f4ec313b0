// How well a title fits what was typed, by rules a person can foresee.

/** How a word that was typed can be found in a title, best last. */
const scattered = 1;
const inside = 2;
const wordStarts = 3;
const wordStart = 4;
const start = 5;

/** Without capitals and accents. */
function plain(text: string): string {
  return text.normalize('NFD').replace(/\p{M}/gu, '').toLowerCase();
}

/** 0 when a title does not fit; more, the better it fits. Every word that was typed must be in it. */
export function fit(typed: string, title: string, also = ''): number {
  const text = plain(title);
  const more = plain(also);
  let total = 0;
  for (const word of plain(typed).split(/\s+/).filter(Boolean)) {
    const found = place(word, text) || (` ${more}`.includes(` ${word}`) ? inside : 0);
    if (found === 0) return 0;
    total += found;
  }
  return total;
}

/** Whether every word that was typed is somewhere in a text. */
export function has(typed: string, text: string): boolean {
  const whole = plain(text);
  return plain(typed)
    .split(/\s+/)
    .every((word) => whole.includes(word));
}

/** Those that fit, best first; equal ones stay in their order. Nothing typed: all of them. */
export function fitting<T>(typed: string, all: readonly T[], words: (one: T) => { title: string; also?: string }): T[] {
  if (typed.trim() === '') return [...all];
  return all
    .map((one) => ({ one, score: fit(typed, words(one).title, words(one).also) }))
    .filter(({ score }) => score > 0)
    .sort((a, b) => b.score - a.score)
    .map(({ one }) => one);
}

function place(word: string, text: string): number {
  if (text.startsWith(word)) return start;
  const words = text.split(/[^\p{L}\p{N}]+/u).filter(Boolean);
  if (words.some((other) => other.startsWith(word))) return wordStart;
  if (word.length > 1 && startsOf(word, words)) return wordStarts;
  if (text.includes(word)) return inside;
  return word.length > 2 && inOrder(word, text) ? scattered : 0;
}

/** Whether it is put together from the starts of words, in order: "neco" is in "new conversation". */
function startsOf(typed: string, words: readonly string[]): boolean {
  if (typed === '') return true;
  return words.some((word, at) => {
    for (let length = Math.min(word.length, typed.length); length > 0; length--) {
      if (word.startsWith(typed.slice(0, length)) && startsOf(typed.slice(length), words.slice(at + 1))) return true;
    }
    return false;
  });
}

function inOrder(typed: string, text: string): boolean {
  let at = 0;
  for (const letter of typed) {
    at = text.indexOf(letter, at) + 1;
    if (at === 0) return false;
  }
  return true;
}
