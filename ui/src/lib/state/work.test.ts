import { describe, expect, it } from 'vitest';
import { createWindow } from '../../window';
import type { CompareRequest } from '../ipc/schema.gen';
import { KeepingHost } from './testing';

async function make() {
  const window = createWindow(new KeepingHost());
  await window.models.start();
  return window;
}

describe('running work', () => {
  it('is on screen only where it is visible: an answer in its conversation', async () => {
    const { chat, conversation, navigation, work } = await make();
    expect(work.here).toBe(false);
    await chat.open(1);
    await conversation.ask('one');
    expect([work.running, work.here]).toEqual([true, true]);
    navigation.goTo('lab');
    expect(work.here).toBe(false);
    await chat.open(2);
    expect([work.running, work.here]).toEqual([true, false]);
    chat.create();
    expect(work.here).toBe(false);
    chat.showWriting();
    expect(work.here).toBe(true);
  });

  it('is on screen only where it is visible: a comparison', async () => {
    const { comparison, navigation, work } = await make();
    void comparison.start({} as CompareRequest);
    const seen = (['chat', 'compare', 'lab', 'library'] as const).filter((place) => (navigation.goTo(place), work.here));
    expect([work.running, work.comparing, seen]).toEqual([true, true, ['compare']]);
    expect(work.stopping).toBe(false);
    work.stop();
    expect([comparison.stopping, work.stopping]).toEqual([true, true]);
  });

  it('is on screen only where it is visible: a measurement of costs', async () => {
    const { lab, navigation, work } = await make();
    void lab.costs.measure();
    lab.widget = 'costs';
    const seen = (['chat', 'compare', 'lab', 'library'] as const).filter((place) => (navigation.goTo(place), work.here));
    expect([work.running, work.measuring, work.stopping, seen]).toEqual([true, true, false, ['lab']]);
    navigation.goTo('lab');
    lab.widget = 'rules';
    expect(work.here).toBe(false);
    work.stop();
    expect([lab.costs.stopping, work.stopping]).toEqual([true, true]);
  });

  it('is on screen only where it is visible: a measured pair', async () => {
    const { comparison, library, navigation, pairing, work } = await make();
    const [target, draft] = library.models;
    pairing.show(target ?? null);
    void pairing.measure({ title: draft?.name ?? '', path: draft?.path ?? '' });
    navigation.goTo('library');
    expect([comparison.running, work.here]).toEqual([true, true]);
    navigation.showLibrary('catalogue');
    expect(work.here).toBe(false);
    navigation.showLibrary();
    pairing.show(draft ?? null);
    expect(work.here).toBe(false);
  });
});
