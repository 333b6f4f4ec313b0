// What was typed and is in no conversation yet: drafts, which outlive the program, questions that are being said
// differently, and questions that were refused. By conversation; null is the one that has not begun. No DOM.

import { pageClock, type Clock } from '../ipc/stream';
import type { Preferences } from './preferences.svelte';
import type { Refused, Turn } from './thread.svelte';

/** Milliseconds between a change of a draft and keeping it: what a crash may cost. */
const keptAfterMs = 300;
/** Characters of drafts that are kept in all: as JSON they stay below what the engine takes for one preference. */
const mostKept = 150_000;

type Place = number | null;

/** The name a draft goes by where it is kept, and the other way round. */
const nameOf = (place: Place): string => (place === null ? 'new' : `c${place}`);
const placeOf = (name: string): Place => (name === 'new' ? null : Number(name.slice(1)));

/** What was typed and not sent. */
export class Unsent {
  /** Drafts that were changed since the start; empty ones were sent or taken away. */
  #typed = $state.raw<Readonly<Record<string, string>>>({});
  /** Questions being said differently, by turn. */
  #edits = $state.raw<Readonly<Record<string, string>>>({});
  // Handed to threads, never drawn from.
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  readonly #refused = new Map<Place, readonly Refused[]>();
  readonly #preferences: Preferences;
  readonly #clock: Clock;
  #waits = false;
  /** What is being asked and has not begun to be answered: until then it is kept like a draft. */
  #asked: { name: string; text: string } | null = null;

  constructor(preferences: Preferences, clock: Clock = pageClock) {
    this.#preferences = preferences;
    this.#clock = clock;
  }

  /** What is typed for a conversation. */
  draftOf(place: Place): string {
    return this.#typed[nameOf(place)] ?? this.#preferences.drafts[nameOf(place)] ?? '';
  }

  /** Changes what is typed for a conversation. It is kept a moment later. */
  type(place: Place, text: string): void {
    if (text === this.draftOf(place)) return;
    this.#typed = { ...this.#typed, [nameOf(place)]: text };
    this.#keepSoon();
  }

  /** This is asked in a conversation, which may take as long as models take to load. */
  ask(place: Place, text: string): void {
    if (this.draftOf(place) !== '') return;
    // It is kept in the place of the draft, and not to be seen there.
    this.#typed = { ...this.#typed, [nameOf(place)]: '' };
    this.#asked = { name: nameOf(place), text };
    this.#keepSoon();
  }

  /** What was asked is being answered, or was refused. */
  asked(): void {
    if (!this.#asked) return;
    this.#asked = null;
    this.#keepSoon();
  }

  #keepSoon(): void {
    if (this.#waits) return;
    this.#waits = true;
    // Counted from the first change: whoever types on and on loses no more than whoever pauses.
    this.#clock.after(keptAfterMs, () => this.keep());
  }

  /** Keeps the drafts now, if any has changed. */
  keep(): void {
    if (!this.#waits) return;
    this.#waits = false;
    const { drafts } = this.#preferences;
    const asked = this.#asked;
    const typed = Object.entries(this.#typed).map(([name, text]): [string, string] => [name, text || (asked?.name === name ? asked.text : '')]);
    const changed = typed.filter(([name, text]) => text !== (drafts[name] ?? ''));
    if (changed.length === 0) return;
    // What was typed since the start is the last to be left out.
    const others = Object.entries(drafts).filter(([name]) => !changed.some(([other]) => other === name));
    const kept: [string, string][] = [];
    let room = mostKept;
    for (const [name, text] of [...others, ...changed].reverse()) {
      // One that does not fit takes no room from the others.
      if (text === '' || text.length > room) continue;
      room -= text.length;
      kept.unshift([name, text]);
    }
    void this.#preferences.set('drafts', Object.fromEntries(kept));
  }

  /** Forgets drafts of conversations that are not there any more: their numbers may be given again. */
  keepOnly(places: readonly number[]): void {
    // What was typed since the start is for one that is there.
    const there = [...[null, ...places].map(nameOf), ...Object.keys(this.#typed)];
    for (const name of Object.keys(this.#preferences.drafts)) if (!there.includes(name)) this.type(placeOf(name), '');
  }

  /** What a question is being changed to; null when it is not. */
  editOf(turn: Turn): string | null {
    return this.#edits[editName(turn)] ?? null;
  }

  /** Says what a question is being changed to; null takes the change away. */
  edit(turn: Turn, text: string | null): void {
    const others = Object.entries(this.#edits).filter(([name]) => name !== editName(turn));
    this.#edits = Object.fromEntries(text === null ? others : [...others, [editName(turn), text]]);
  }

  /** Questions that were refused in a conversation. */
  refusedIn(place: Place): readonly Refused[] {
    return this.#refused.get(place) ?? [];
  }

  /** Says which questions were refused in a conversation. */
  setRefused(place: Place, refused: readonly Refused[]): void {
    if (refused.length > 0) this.#refused.set(place, refused);
    else this.#refused.delete(place);
  }

  /** The conversation that had not begun has, under this number, and all that is typed for it goes along. */
  begun(place: number): void {
    this.type(place, this.draftOf(null));
    this.type(null, '');
    this.setRefused(place, this.refusedIn(null));
    this.setRefused(null, []);
  }
}

/** Branches beside each other have questions of their own, and a turn without a number has its key. */
const editName = ({ question, key }: Turn): string => (question === null ? key : `q${question}`);
