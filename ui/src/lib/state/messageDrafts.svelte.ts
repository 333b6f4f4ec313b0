// Unsent questions by conversation: drafts, whose text is stored, their files, open edits, and refused questions. The key null is the new
// conversation; one that was asked and has no number yet has a name. No DOM.

import type { Attachment, ReadAttachment } from '../ipc/schema.gen';
import { pageClock, type Clock } from '../ipc/stream';
import type { Preferences } from './preferences.svelte';
import type { Place, Refused, Turn } from './thread.svelte';

/** Delay before a changed draft is stored, in milliseconds: what a crash may lose. */
const keptAfterMs = 300;
/** Limit on characters of stored drafts. As JSON they stay below the engine's limit for a preference. */
const mostKept = 150_000;

/** A file of the next question. */
export interface AttachedFile extends ReadAttachment {
  /** Its path when it was read; null if unknown. */
  readonly path: string | null;
  /** File of the model that counted its tokens; null if none did. */
  readonly countedBy: string | null;
}

/** Key of a stored draft, and the reverse. */
const nameOf = (place: Place): string => (place === null ? 'new' : typeof place === 'string' ? place : `c${place}`);
const placeOf = (name: string): Place => (name === 'new' ? null : isUnnumbered(name) ? name : Number(name.slice(1)));
/** Returns `true` for the name of an asked conversation without a number. */
const isUnnumbered = (name: string): boolean => /^new\d+$/.test(name);

/** Unsent text. */
export class MessageDrafts {
  /** Drafts changed since the start. Empty ones were sent or deleted. */
  #typed = $state.raw<Readonly<Record<string, string>>>({});
  /** Files of the next questions. They last until the window closes. */
  #files = $state.raw<Readonly<Record<string, readonly AttachedFile[]>>>({});
  /** Attached files by their text as it is sent, so that a question can return with them. */
  readonly #attached = new WeakMap<Attachment, AttachedFile>();
  /** Open edits, by turn. */
  #edits = $state.raw<Readonly<Record<string, string>>>({});
  // Handed to threads, never drawn from.
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  readonly #refused = new Map<Place, readonly Refused[]>();
  readonly #preferences: Preferences;
  readonly #clock: Clock;
  #waits = false;
  #unnumbered = 0;
  /** Questions being asked or queued, stored as drafts until their answers begin. */
  #asked: Readonly<Record<string, string>> = {};

  constructor(preferences: Preferences, clock: Clock = pageClock) {
    this.#preferences = preferences;
    this.#clock = clock;
  }

  /** The draft of a conversation. */
  draftOf(place: Place): string {
    return this.#typed[nameOf(place)] ?? this.#preferences.drafts[nameOf(place)] ?? '';
  }

  /** Changes the draft of a conversation. It is stored after a delay. */
  type(place: Place, text: string): void {
    if (text === this.draftOf(place)) return;
    this.#typed = { ...this.#typed, [nameOf(place)]: text };
    this.#keepSoon();
  }

  /** Files of the next question in a conversation. */
  filesOf(place: Place): readonly AttachedFile[] {
    return this.#files[nameOf(place)] ?? [];
  }

  /** Sets the files of the next question in a conversation. */
  attach(place: Place, files: readonly AttachedFile[]): void {
    for (const file of files) this.#attached.set(file.attachment, file);
    this.#files = { ...this.#files, [nameOf(place)]: files };
  }

  /** The attached file of a sent text. */
  fileOf(attachment: Attachment): AttachedFile {
    return this.#attached.get(attachment) ?? { attachment, tokens: null, path: null, countedBy: null };
  }

  /** Keeps a question as a draft while it is being asked or queued, which may take long. */
  ask(place: Place, text: string): void {
    if (this.draftOf(place) !== '') return;
    // Stored in place of the draft, but not shown.
    this.#typed = { ...this.#typed, [nameOf(place)]: '' };
    this.#asked = { ...this.#asked, [nameOf(place)]: text };
    this.#keepSoon();
  }

  /** Forgets a question once it is being answered, was refused or cancelled. */
  asked(place: Place): void {
    const { [nameOf(place)]: asked, ...others } = this.#asked;
    if (asked === undefined) return;
    this.#asked = others;
    this.#keepSoon();
  }

  #keepSoon(): void {
    if (this.#waits) return;
    this.#waits = true;
    // Delayed from the first change, so that continuous typing loses no more than pauses do.
    this.#clock.after(keptAfterMs, () => this.keep());
  }

  /** Stores changed drafts now. */
  keep(): void {
    if (!this.#waits) return;
    this.#waits = false;
    const { drafts } = this.#preferences;
    const asked = this.#asked;
    const typed = Object.entries(this.#typed).map(([name, text]): [string, string] => [name, text || (asked[name] ?? '')]);
    const changed = typed.filter(([name, text]) => text !== (drafts[name] ?? ''));
    if (changed.length === 0) return;
    // Drafts of this session are dropped last.
    const others = Object.entries(drafts).filter(([name]) => !changed.some(([other]) => other === name));
    const kept: [string, string][] = [];
    let room = mostKept;
    for (const [name, text] of [...others, ...changed].reverse()) {
      // A draft that does not fit leaves its room to others.
      if (text === '' || text.length > room) continue;
      room -= text.length;
      kept.unshift([name, text]);
    }
    void this.#preferences.set('drafts', Object.fromEntries(kept));
  }

  /** Deletes drafts of deleted conversations, whose numbers may be reused. Questions of new conversations that an earlier
   * session did not ask become the draft of the new one. */
  keepOnly(places: readonly number[]): void {
    const unasked = Object.keys(this.#preferences.drafts).filter((name) => isUnnumbered(name) && this.#typed[name] === undefined);
    for (const name of unasked) this.move(name, null);
    // Drafts of this session belong to existing conversations.
    const there = [...[null, ...places].map(nameOf), ...Object.keys(this.#typed)];
    for (const name of Object.keys(this.#preferences.drafts)) if (!there.includes(name)) this.type(placeOf(name), '');
  }

  /** Text of an edit; null if the question is not being edited. */
  editOf(turn: Turn): string | null {
    return this.#edits[editName(turn)] ?? null;
  }

  /** Sets the text of an edit; null closes it. */
  edit(turn: Turn, text: string | null): void {
    const others = Object.entries(this.#edits).filter(([name]) => name !== editName(turn));
    this.#edits = Object.fromEntries(text === null ? others : [...others, [editName(turn), text]]);
  }

  /** Refused questions of a conversation. */
  refusedIn(place: Place): readonly Refused[] {
    return this.#refused.get(place) ?? [];
  }

  /** Sets the refused questions of a conversation. */
  setRefused(place: Place, refused: readonly Refused[]): void {
    if (refused.length > 0) this.#refused.set(place, refused);
    else this.#refused.delete(place);
  }

  /** A name for a new conversation that is asked. No other has it, also no stored one. */
  newPlace(): string {
    do this.#unnumbered += 1;
    while (`new${this.#unnumbered}` in this.#preferences.drafts);
    return `new${this.#unnumbered}`;
  }

  /** Moves everything unsent to another place, after what is there. */
  move(from: Place, to: Place): void {
    const texts = [this.draftOf(to), this.draftOf(from)].filter((text) => text !== '');
    this.type(to, texts.join('\n\n'));
    this.type(from, '');
    this.attach(to, [...this.filesOf(to), ...this.filesOf(from)]);
    this.attach(from, []);
    this.setRefused(to, [...this.refusedIn(to), ...this.refusedIn(from)]);
    this.setRefused(from, []);
  }
}

/** Questions on sibling branches have their own edits. A turn without a number uses its key. */
const editName = ({ question, key }: Turn): string => (question === null ? key : `q${question}`);
