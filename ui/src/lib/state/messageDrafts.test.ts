import { describe, expect, it } from 'vitest';
import { SilentHost } from '../host/testing';
import type { Attachment } from '../ipc/schema.gen';
import type { AttachedFile } from './attachedFile';
import { Preferences } from './preferences.svelte';
import { MessageDrafts } from './messageDrafts.svelte';

/** A host that stores preferences. */
class KeepingHost extends SilentHost {
  kept: Record<string, unknown> = {};
  writes = 0;

  override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    if (command === 'preferences') return this.kept;
    if (command !== 'set_preference') throw new Error(command);
    this.writes += 1;
    this.kept = { ...this.kept, [args['key'] as string]: args['value'] };
    return null;
  }
}

async function make(host = new KeepingHost()) {
  const preferences = new Preferences(host);
  await preferences.load();
  const timers: (() => void)[] = [];
  const dropped = { count: 0 };
  const clock = {
    after: (_: number, then: () => void) => {
      timers.push(then);
      return () => {};
    },
  };
  const messageDrafts = new MessageDrafts(preferences, () => (dropped.count += 1), clock);
  const later = async () => {
    timers.splice(0).forEach((then) => then());
    await Promise.resolve();
    await preferences.set('view', 'rich');
  };
  return { host, messageDrafts, timers, dropped, later };
}

const question = (prompt: string, attachments: readonly Attachment[] = []) => ({ prompt, attachments });

/** A file that was read from `/folder/name`. */
const file = (name: string, text: string, folder = 'a'): AttachedFile => ({
  attachment: { name, text },
  tokens: 3,
  path: `/${folder}/${name}`,
  countedBy: '/models/some.gguf',
});

describe('files of drafts', () => {
  it('are stored with them and restored on restart, without the count of another model', async () => {
    const { host, messageDrafts, later } = await make();
    messageDrafts.attach(7, [file('notes.md', 'blue sky'), file('main.rs', 'fn main')]);
    await later();
    const again = await make(host);
    expect(again.messageDrafts.filesOf(7)).toEqual([
      { attachment: { name: 'notes.md', text: 'blue sky' }, tokens: null, path: '/a/notes.md', countedBy: null },
      { attachment: { name: 'main.rs', text: 'fn main' }, tokens: null, path: '/a/main.rs', countedBy: null },
    ]);
    again.messageDrafts.attach(7, again.messageDrafts.filesOf(7).slice(1));
    await again.later();
    expect((await make(host)).messageDrafts.filesOf(7).map(({ attachment }) => attachment.name)).toEqual(['main.rs']);
    again.messageDrafts.keepOnly([]);
    const { messageDrafts: last, later: afterwards } = await make(host);
    last.keepOnly([]);
    await afterwards();
    expect(host.kept['draft_files']).toEqual({});
  });

  it('of a question are stored until it is answered', async () => {
    const { host, messageDrafts, later } = await make();
    messageDrafts.attach(7, [file('notes.md', 'blue sky')]);
    const sent = messageDrafts.sentFilesOf(7);
    messageDrafts.attach(7, []);
    messageDrafts.ask(7, question('Why?', sent));
    await later();
    expect([messageDrafts.filesOf(7), (await make(host)).messageDrafts.filesOf(7).length]).toEqual([[], 1]);
    messageDrafts.asked(7);
    await later();
    expect(host.kept['draft_files']).toEqual({});
  });

  it('of the same name are sent with the folders that differ, and return as they were', async () => {
    const { messageDrafts } = await make();
    const files = [file('mod.rs', 'one', 'src/a'), file('mod.rs', 'two', 'src/b'), file('main.rs', 'three')];
    messageDrafts.attach(null, files);
    const sent = messageDrafts.sentFilesOf(null);
    expect(sent.map(({ name }) => name)).toEqual(['a/mod.rs', 'b/mod.rs', 'main.rs']);
    expect(sent.map((attachment) => messageDrafts.fileOf(attachment))).toEqual(files);
  });

  it('that take more room than the store has are left out, and the others are kept', async () => {
    const { host, messageDrafts, later } = await make();
    messageDrafts.attach(1, [file('large.txt', '\u0001'.repeat(200_000)), file('small.txt', 'a')]);
    messageDrafts.attach(2, [file('other.txt', 'b')]);
    await later();
    const kept = host.kept['draft_files'] as Record<string, readonly { name: string }[]>;
    expect(Object.values(kept).flatMap((files) => files.map(({ name }) => name))).toEqual(['other.txt', 'small.txt']);
    expect(JSON.stringify(kept).length).toBeLessThan(1_048_576);
    expect(messageDrafts.filesOf(1).length).toBe(2);
  });
});

describe('files that were stored earlier', () => {
  it('stay in the window when those of this session take their room, with one note', async () => {
    const first = await make();
    first.messageDrafts.attach(1, [file('old.txt', 'o'.repeat(600_000))]);
    await first.later();
    const { host, messageDrafts, dropped, later } = await make(first.host);
    messageDrafts.attach(2, [file('new.txt', 'n'.repeat(600_000))]);
    await later();
    expect(Object.keys(host.kept['draft_files'] as object)).toEqual(['c2']);
    expect([messageDrafts.filesOf(1)[0]?.attachment.name, dropped.count]).toEqual(['old.txt', 1]);
    messageDrafts.attach(2, []);
    await later();
    expect(Object.keys(host.kept['draft_files'] as object)).toEqual(['c1']);
  });

  it('are attached once if a moved question has them too, under their own name', async () => {
    const { messageDrafts } = await make();
    messageDrafts.attach(1, [file('mod.rs', 'one')]);
    messageDrafts.attach(null, [file('mod.rs', 'two')]);
    messageDrafts.move(1, null);
    expect(messageDrafts.sentFilesOf(null)).toEqual([{ name: 'mod.rs', text: 'one' }]);
  });
});

describe('drafts', () => {
  it('are stored a moment after the first change, and restored on restart', async () => {
    const { host, messageDrafts, timers, later } = await make();
    messageDrafts.type(null, 'a');
    messageDrafts.type(null, 'ab');
    messageDrafts.type(7, 'for the seventh');
    expect([timers.length, host.writes]).toEqual([1, 0]);
    await later();
    expect(host.kept['drafts']).toEqual({ new: 'ab', c7: 'for the seventh' });
    messageDrafts.type(7, '');
    await later();
    const again = (await make(host)).messageDrafts;
    expect([again.draftOf(null), again.draftOf(7), again.draftOf(8)]).toEqual(['ab', '', '']);
  });

  it('are stored at once when the window closes, and not again without a change', async () => {
    const { host, messageDrafts, later } = await make();
    messageDrafts.type(7, 'a');
    messageDrafts.keep();
    await later();
    const { writes } = host;
    messageDrafts.keep();
    messageDrafts.type(7, 'a');
    await later();
    // Only the other preference was written.
    expect([host.kept['drafts'], host.writes]).toEqual([{ c7: 'a' }, writes + 1]);
  });

  it('hold a question until it is answered, without being shown', async () => {
    const { host, messageDrafts, later } = await make();
    messageDrafts.ask(null, question('waits for a model'));
    await later();
    expect([host.kept['drafts'], messageDrafts.draftOf(null), (await make(host)).messageDrafts.draftOf(null)]).toEqual([
      { new: 'waits for a model' },
      '',
      'waits for a model',
    ]);
    messageDrafts.asked(null);
    await later();
    expect([host.kept['drafts'], messageDrafts.draftOf(null)]).toEqual([{}, '']);
    // Neither text is lost.
    messageDrafts.type(7, 'typed');
    messageDrafts.ask(7, question('asked next to it'));
    await later();
    expect(host.kept['drafts']).toEqual({ c7: 'asked next to it\n\ntyped' });
  });

  it('move to their conversation when it begins', async () => {
    const { messageDrafts } = await make();
    messageDrafts.type(null, 'typed behind the first question');
    messageDrafts.move(null, 4);
    expect([messageDrafts.draftOf(null), messageDrafts.draftOf(4)]).toEqual(['', 'typed behind the first question']);
  });

  it('of new conversations that were never asked are joined at the next start', async () => {
    const host = new KeepingHost();
    host.kept = { drafts: { new: 'typed', new1: 'first', new3: 'third' } };
    const { messageDrafts, later } = await make(host);
    const place = messageDrafts.newPlace();
    messageDrafts.ask(place, question('of this session'));
    messageDrafts.keepOnly([]);
    await later();
    expect(host.kept['drafts']).toEqual({ new: 'typed\n\nfirst\n\nthird', new2: 'of this session' });
  });

  it('of deleted conversations are deleted, so that none gets another one\u2019s', async () => {
    const host = new KeepingHost();
    host.kept = { drafts: { new: 'n', c1: 'one', c2: 'two', c3: 'three', c4: 5 } };
    const { messageDrafts, later } = await make(host);
    messageDrafts.type(3, 'three again');
    messageDrafts.keepOnly([1]);
    await later();
    expect(host.kept['drafts']).toEqual({ new: 'n', c1: 'one', c3: 'three again' });
  });

  it.each([
    [1, 2],
    [2, 1],
  ])('that are too long to be kept stay until the window closes, and the others are kept: %i, then %i', async (...order) => {
    const { host, messageDrafts, later } = await make();
    const texts = ['x'.repeat(200_000), 'short'];
    for (const place of order) messageDrafts.type(place, texts[place - 1] ?? '');
    await later();
    expect([host.kept['drafts'], messageDrafts.draftOf(1).length]).toEqual([{ c2: 'short' }, 200_000]);
  });
});
