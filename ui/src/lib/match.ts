// Ranks titles against a typed text, by predictable rules.

/** Kinds of a match, best last. */
const scattered = 1;
const inside = 2;
const wordStarts = 3;
const wordStart = 4;
const start = 5;

/** Lower case, without accents. */
function plain(text: string): string {
  return text.normalize('NFD').replace(/\p{M}/gu, '').toLowerCase();
}

/** Rank of a title; 0 if it does not match. Every typed word must match. */
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

/** Returns `true` if a text contains every typed word. */
export function has(typed: string, text: string): boolean {
  const whole = plain(text);
  return plain(typed)
    .split(/\s+/)
    .every((word) => whole.includes(word));
}

/** Matching items, best first. Equal ones keep their order. Without a text, all items. */
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

/** Returns `true` if a word consists of starts of words, in order: "neco" matches "new conversation". */
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
