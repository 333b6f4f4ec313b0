import { describe, expect, it } from 'vitest';
import { SilentHost } from '../host/testing';
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
  const clock = {
    after: (_: number, then: () => void) => {
      timers.push(then);
      return () => {};
    },
  };
  const messageDrafts = new MessageDrafts(preferences, clock);
  const later = async () => {
    timers.splice(0).forEach((then) => then());
    await Promise.resolve();
    await preferences.set('view', 'rich');
  };
  return { host, messageDrafts, timers, later };
}

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
    messageDrafts.ask(null, 'waits for a model');
    await later();
    expect([host.kept['drafts'], messageDrafts.draftOf(null), (await make(host)).messageDrafts.draftOf(null)]).toEqual([
      { new: 'waits for a model' },
      '',
      'waits for a model',
    ]);
    messageDrafts.asked(null);
    await later();
    expect([host.kept['drafts'], messageDrafts.draftOf(null)]).toEqual([{}, '']);
    // The typed text is not overwritten.
    messageDrafts.type(7, 'typed');
    messageDrafts.ask(7, 'asked next to it');
    await later();
    expect(host.kept['drafts']).toEqual({ c7: 'typed' });
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
    messageDrafts.ask(place, 'of this session');
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
