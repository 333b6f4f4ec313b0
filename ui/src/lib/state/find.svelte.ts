// Find in the open conversation: the query, and which match is the current one. The view looks in the drawn text. No
// DOM.

/** The find bar. */
export class Find {
  /** `true` while the bar is shown. */
  shown = $state(false);
  query = $state('');
  /** Index of the current match; -1 for none. */
  at = $state(-1);
  /** Counts what the reader asked for: another query, or another match. The view scrolls then. */
  moves = $state(0);
  /** Turn of the match that was the current one before the query changed; null for none. */
  #before: number | null = null;
  /** Index of the turn of each match, in order. */
  #turns = $state.raw<readonly number[]>([]);

  /** Number of matches. */
  get count(): number {
    return this.#turns.length;
  }

  /** Shows the bar, with the last query. */
  show(): void {
    this.shown = true;
  }

  /** Hides the bar. The query stays. */
  close(): void {
    this.shown = false;
    this.#turns = [];
    this.#before = null;
    this.at = -1;
  }

  /** Looks for another text, from the turn of the current match on. */
  search(query: string): void {
    this.#before = this.#turns[this.at] ?? this.#before;
    this.query = query;
    this.at = -1;
    this.moves += 1;
  }

  /** Goes to the match after (1) or before (-1) the current one, and around. */
  step(by: -1 | 1): void {
    if (this.count === 0) return;
    this.at = (this.at + by + this.count) % this.count;
    this.moves += 1;
  }

  /** Takes the turns of the matches that were found. At first the current match is the first one from turn `from` on.
   * Later it keeps its place among those of its turn, whose text may have been drawn again. */
  take(turns: readonly number[], from: number): void {
    const turn = this.#turns[this.at];
    const first = turns.findIndex((one) => one >= (turn ?? this.#before ?? from));
    const place = turn !== undefined && turns[first] === turn ? this.at - this.#turns.indexOf(turn) : 0;
    const last = turns.lastIndexOf(turns[first] ?? -1);
    this.at = turns.length === 0 ? -1 : first < 0 ? 0 : Math.min(first + place, last);
    this.#turns = turns;
  }
}
