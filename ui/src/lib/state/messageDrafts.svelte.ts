// Unsent questions by conversation: stored drafts with their files, open edits, and refused questions. The key null is
// the new conversation; one that was asked and has no number yet has a name. No DOM.

import type { Attachment } from '../ipc/schema.gen';
import { pageClock, type Clock } from '../ipc/stream';
import { ofKept, shownName, toKept, type AttachedFile, type KeptFile } from './attachedFile';
import type { Preferences, Values } from './preferences.svelte';
import type { Place, Question, Refused, Turn } from './thread.svelte';

/** Delay before a changed draft is stored, in milliseconds: what a crash may lose. */
const keptAfterMs = 300;
/** Limit on characters of stored drafts. As JSON they stay below the engine's limit for a preference. */
const mostKept = 150_000;
/** Limit on bytes of stored files, as JSON. The engine keeps a mebibyte for each preference. */
const mostKeptFiles = 1_000_000;

/** Key of a stored draft, and the reverse. */
const nameOf = (place: Place): string => (place === null ? 'new' : typeof place === 'string' ? place : `c${place}`);
const placeOf = (name: string): Place => (name === 'new' ? null : isUnnumbered(name) ? name : Number(name.slice(1)));
/** Two texts with a blank line between them, unless one is empty. */
const joined = (first: string, second: string): string => [first, second].filter((text) => text !== '').join('\n\n');
const isSame = (one: unknown, other: unknown): boolean => JSON.stringify(one) === JSON.stringify(other);
/** Returns `true` for the name of an asked conversation without a number. */
const isUnnumbered = (name: string): boolean => /^new\d+$/.test(name);

/** Unsent text. */
export class MessageDrafts {
  /** Drafts changed since the start. Empty ones were sent or deleted. */
  #typed = $state.raw<Readonly<Record<string, string>>>({});
  /** Files of next questions that were changed since the start. */
  #files = $state.raw<Readonly<Record<string, readonly AttachedFile[]>>>({});
  /** Stored files. Other preferences do not change them. */
  readonly #kept = $derived.by(() => this.#preferences.draftFiles);
  /** Files that an earlier session stored. */
  readonly #storedFiles = $derived.by((): Readonly<Record<string, readonly AttachedFile[]>> =>
    Object.fromEntries(Object.entries(this.#kept).map(([name, files]) => [name, files.map(ofKept)])),
  );
  /** Stored files from before files were stored again, which may have dropped some. */
  #pinned = $state.raw<Readonly<Record<string, readonly AttachedFile[]>>>({});
  /** Attached files by their text as it is sent, so that a question can return with them. */
  readonly #attached = new WeakMap<Attachment, AttachedFile>();
  /** Open edits, by turn. */
  #edits = $state.raw<Readonly<Record<string, string>>>({});
  // Handed to threads, never drawn from.
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  readonly #refused = new Map<Place, readonly Refused[]>();
  readonly #preferences: Preferences;
  readonly #clock: Clock;
  readonly #filesDropped: () => void;
  #waits = false;
  #filesChanged = false;
  /** `true` once the user knows that some files are not stored. */
  #notified = false;
  #unnumbered = 0;
  /** Questions being asked or queued, stored as drafts until their answers begin. */
  #asked: Readonly<Record<string, Question>> = {};

  /** `filesDropped` is called when some files do not fit into the store, and are lost at closing. */
  constructor(preferences: Preferences, filesDropped: () => void, clock: Clock = pageClock) {
    this.#preferences = preferences;
    this.#filesDropped = filesDropped;
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
    const name = nameOf(place);
    return this.#files[name] ?? this.#pinned[name] ?? this.#storedFiles[name] ?? [];
  }

  /** Files of the next question as they are sent. Equal names get the folders that differ. */
  sentFilesOf(place: Place): readonly Attachment[] {
    const files = this.filesOf(place);
    return files.map((file) => {
      const name = shownName(file, files);
      const sent = name === file.attachment.name ? file.attachment : { ...file.attachment, name };
      this.#attached.set(sent, file);
      return sent;
    });
  }

  /** Sets the files of the next question in a conversation. */
  attach(place: Place, files: readonly AttachedFile[]): void {
    for (const file of files) this.#attached.set(file.attachment, file);
    const before = this.filesOf(place);
    if (files.length === 0 && before.length === 0) return;
    this.#files = { ...this.#files, [nameOf(place)]: files };
    // Counted tokens are not stored.
    if (files.length === before.length && files.every(({ attachment }, at) => attachment === before[at]?.attachment)) return;
    this.#filesChanged = true;
    this.#keepSoon();
  }

  /** The attached file of a sent text. */
  fileOf(attachment: Attachment): AttachedFile {
    return this.#attached.get(attachment) ?? { attachment, tokens: null, path: null, countedBy: null };
  }

  /** Instructions of the next new conversation: those that were typed for it, else those of every new one. */
  get instructions(): string {
    return this.#preferences.newInstructions ?? this.#preferences.defaultInstructions;
  }

  /** Sets the instructions of the next new conversation; null for those of every new one. */
  instruct(system: string | null): void {
    const { defaultInstructions, newInstructions } = this.#preferences;
    const own = system === defaultInstructions ? null : system;
    if (own !== newInstructions) void this.#preferences.set('newInstructions', own);
  }

  /** Takes back the instructions of a conversation that is new again, unless others were typed meanwhile. */
  giveBackInstructions(system: string): void {
    if (this.#preferences.newInstructions === null) this.instruct(system);
  }

  /** Keeps a question as a draft while it is being asked or queued, which may take long. */
  ask(place: Place, question: Question): void {
    // Stored before the draft, but not shown.
    this.#typed = { ...this.#typed, [nameOf(place)]: this.draftOf(place) };
    this.#files = { ...this.#files, [nameOf(place)]: this.filesOf(place) };
    this.#asked = { ...this.#asked, [nameOf(place)]: question };
    this.#filesChanged ||= question.attachments.length > 0;
    this.#keepSoon();
  }

  /** Forgets a question once it is being answered, was refused or cancelled. */
  asked(place: Place): void {
    const { [nameOf(place)]: asked, ...others } = this.#asked;
    if (asked === undefined) return;
    this.#asked = others;
    this.#filesChanged ||= asked.attachments.length > 0;
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
    this.#keepTexts();
    if (this.#filesChanged) this.#keepFiles();
  }

  /** Stores files, those of this session first, as long as they fit. */
  #keepFiles(): void {
    this.#filesChanged = false;
    const earlier = { ...this.#storedFiles, ...this.#pinned };
    this.#pinned = earlier;
    const places = [...Object.keys(this.#files).reverse(), ...Object.keys(earlier).filter((name) => !(name in this.#files))];
    let room = mostKeptFiles;
    let dropped = false;
    const kept: [string, readonly KeptFile[]][] = [];
    for (const name of places) {
      const files: KeptFile[] = [];
      for (const file of (this.#unsentFiles(name) ?? earlier[name] ?? []).map(toKept)) {
        const bytes = new TextEncoder().encode(JSON.stringify(file)).length + 1;
        if (bytes > room) {
          dropped = true;
          continue;
        }
        room -= bytes;
        files.push(file);
      }
      if (files.length > 0) kept.push([name, files]);
    }
    void this.#preferences.set('draftFiles', Object.fromEntries(kept));
    if (dropped && !this.#notified) this.#filesDropped();
    this.#notified = dropped;
  }

  /** Files of this session to store, those of a question being asked included; undefined if none were changed. */
  #unsentFiles(name: string): readonly AttachedFile[] | undefined {
    const asked = this.#asked[name]?.attachments.map((attachment) => this.fileOf(attachment)) ?? [];
    const files = this.#files[name];
    return files && [...asked, ...files];
  }

  #keepTexts(): void {
    const { drafts } = this.#preferences;
    const asked = this.#asked;
    const typed = Object.entries(this.#typed).map(([name, text]): [string, string] => [name, joined(asked[name]?.prompt ?? '', text)]);
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

  /** Deletes drafts of deleted conversations, whose numbers may be reused. Questions of new conversations that an
   * earlier session did not ask become the draft of the new one. */
  keepOnly(places: readonly number[]): void {
    const { drafts, draftFiles } = this.#preferences;
    const stored = Object.keys({ ...drafts, ...draftFiles, ...this.#pinned });
    const isOfThisSession = (name: string) => this.#typed[name] !== undefined || this.#files[name] !== undefined;
    for (const name of stored) if (isUnnumbered(name) && !isOfThisSession(name)) this.move(placeOf(name), null);
    // Drafts of this session belong to existing conversations.
    const there = [null, ...places].map(nameOf);
    for (const name of stored) {
      if (there.includes(name) || isOfThisSession(name)) continue;
      this.type(placeOf(name), '');
      this.attach(placeOf(name), []);
    }
  }

  /** Brings everything unsent into another store, which has taken the place of one with the drafts `before`. `places`
   * are those that mean the same there. Unsent text of other places goes to the new conversation. */
  bringTo(places: readonly Place[], before: Pick<Values, 'drafts' | 'draftFiles'>): void {
    const { drafts, draftFiles } = this.#preferences;
    const typed: Record<string, string> = { ...before.drafts, ...this.#typed };
    const earlier = Object.entries(before.draftFiles).map(([name, files]) => [name, files.map(ofKept)] as const);
    const files: Record<string, readonly AttachedFile[]> = { ...Object.fromEntries(earlier), ...this.#pinned, ...this.#files };
    this.#typed = {};
    this.#files = {};
    this.#pinned = {};
    // The preferences of the new store were not read, so these are still those of the old one.
    if (places.length === 0 && isSame(drafts, before.drafts)) for (const name in drafts) this.type(placeOf(name), '');
    if (places.length === 0 && isSame(draftFiles, before.draftFiles)) for (const name in draftFiles) this.attach(placeOf(name), []);
    // Texts of known places come first, because others are added to them.
    const isKnown = (name: string) => places.includes(placeOf(name));
    const names = Object.keys({ ...typed, ...files }).toSorted((a, b) => Number(isKnown(b)) - Number(isKnown(a)));
    for (const name of names) {
      const place = placeOf(name);
      if (isKnown(name)) {
        this.type(place, typed[name] ?? this.draftOf(place));
        this.attach(place, files[name] ?? this.filesOf(place));
      } else this.#add(null, typed[name] ?? '', files[name] ?? []);
    }
    this.#bringRefused(places);
  }

  /** Brings edits and refused questions into another store: to their places, else to the new conversation. */
  #bringRefused(places: readonly Place[]): void {
    const isLeft = ([place]: [Place, unknown]) => place !== null && !places.includes(place);
    const left = [...this.#refused].filter(isLeft);
    for (const [place] of left) this.setRefused(place, []);
    // Their answers are not in the new conversation.
    const moved = left.flatMap(([, refused]) => refused.map(({ turn }) => ({ turn, after: null })));
    this.setRefused(null, [...this.refusedIn(null), ...moved]);
    // Without any conversation of before, no question of before is left to edit.
    if (places.some((place) => place !== null)) return;
    for (const text of Object.values(this.#edits)) this.#add(null, text, []);
    this.#edits = {};
  }

  /** Adds text and files to those of a place, unless it has them. */
  #add(place: Place, text: string, files: readonly AttachedFile[]): void {
    if (!this.draftOf(place).includes(text)) this.type(place, joined(this.draftOf(place), text));
    // A file that is in both is attached once, as it was read last.
    const others = this.filesOf(place).filter(({ path }) => path === null || files.every((file) => file.path !== path));
    this.attach(place, [...others, ...files]);
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
    while (`new${this.#unnumbered}` in { ...this.#preferences.drafts, ...this.#preferences.draftFiles });
    return `new${this.#unnumbered}`;
  }

  /** Moves everything unsent to another place, after what is there. */
  move(from: Place, to: Place): void {
    this.type(to, joined(this.draftOf(to), this.draftOf(from)));
    this.type(from, '');
    this.#add(to, '', this.filesOf(from));
    this.attach(from, []);
    this.setRefused(to, [...this.refusedIn(to), ...this.refusedIn(from)]);
    this.setRefused(from, []);
  }
}

/** Questions on sibling branches have their own edits. A turn without a number uses its key. */
const editName = ({ question, key }: Turn): string => (question === null ? key : `q${question}`);
