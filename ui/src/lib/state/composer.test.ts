import { describe, expect, it } from 'vitest';
import { createWindow } from '../../window';
import type { CompareRequest } from '../ipc/schema.gen';
import { language } from '../strings/index.svelte';
import { KeepingHost } from './testing';

/** A host with text files, whose reading a test controls. */
class ReadingHost extends KeepingHost {
  files: Record<string, string> = { '/a/notes.md': 'blue sky' };
  /** Ends the reading of a file; with `false`, it fails. */
  read: ((readable: boolean) => void)[] = [];

  override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    if (command === 'choose_attachments') return Object.keys(this.files);
    if (command === 'train_drafter') return 1;
    if (command === 'training_outlook') return new Promise(() => {});
    if (command !== 'read_attachment') return super.invoke(command, args);
    if (!(await new Promise<boolean>((resolve) => this.read.push(resolve)))) throw { code: 'not_text', message: 'Not text.' };
    const path = args['path'] as string;
    return { attachment: { name: path.split('/').at(-1), text: this.files[path] }, tokens: null };
  }
}

async function make() {
  const host = new ReadingHost();
  const window = createWindow(host);
  await window.models.start();
  const settled = () => new Promise((resolve) => setTimeout(resolve, 0));
  const texts = () => host.named('answer').map(({ request }) => (request as { asking: { text: string } }).asking.text);
  return { ...window, host, settled, texts, words: language.strings.composer };
}

describe('a question with files that are still read', () => {
  it('waits for them, and can be sent then', async () => {
    const { attachments, composer, conversation, host, settled, texts, words } = await make();
    const choosing = attachments.choose();
    await settled();
    conversation.draft = 'Why?';
    expect([attachments.reading, composer.enabled, composer.hint]).toEqual([['notes.md'], true, '']);
    expect(composer.send()).toBe(false);
    expect([composer.waits, composer.enabled, composer.hint, composer.ready()]).toEqual([true, false, words.sentWhenRead, false]);
    host.read.shift()?.(true);
    await choosing;
    expect([composer.ready(), composer.send(), composer.waits]).toEqual([true, true, false]);
    await settled();
    expect(texts()).toEqual(['Why?']);
    expect(conversation.turns[0]?.attachments.map(({ name }) => name)).toEqual(['notes.md']);
  });

  it('is not sent without one that could not be read', async () => {
    const { attachments, composer, conversation, host, settled, texts } = await make();
    const choosing = attachments.choose();
    await settled();
    conversation.draft = 'Why?';
    composer.send();
    host.read.shift()?.(false);
    await choosing;
    expect([composer.ready(), composer.waits, texts(), conversation.draft]).toEqual([false, false, [], 'Why?']);
    expect(composer.enabled).toBe(true);
  });

  it('is not sent once another conversation is shown, or its text is changed', async () => {
    const { attachments, chat, composer, conversation, settled } = await make();
    void attachments.choose();
    await settled();
    conversation.draft = 'Why?';
    composer.send();
    await chat.open(1);
    expect([composer.ready(), composer.waits]).toEqual([false, false]);
    chat.create();
    composer.send();
    composer.stopWaiting();
    expect([composer.ready(), composer.waits]).toEqual([false, false]);
  });
});

describe('a question while the engine works elsewhere', () => {
  it('waits until training is paused, and the training can be shown', async () => {
    const { composer, conversation, library, modelList, navigation, training, work, words } = await make();
    const [model] = library.models;
    training.show(model ?? null);
    await training.start();
    conversation.draft = 'Why?';
    const { elsewhere } = composer;
    expect([elsewhere?.text, elsewhere?.pausable]).toEqual([words.training(library.titleOf(model!)), true]);
    expect([composer.enabled, composer.send(), composer.waits, composer.hint]).toEqual([false, false, false, '']);
    modelList.query = 'no such model';
    elsewhere?.show();
    expect([navigation.place, navigation.libraryPart, modelList.current?.path]).toEqual(['library', 'here', model?.path]);
    work.stop();
    expect([training.pausing, work.stopping]).toEqual([true, true]);
  });

  it('waits for the end of a comparison, which can be stopped', async () => {
    const { comparison, composer, conversation, navigation, words } = await make();
    void comparison.start({} as CompareRequest);
    conversation.draft = 'Why?';
    expect([composer.elsewhere?.text, composer.elsewhere?.pausable, composer.enabled]).toEqual([words.comparing, false, false]);
    composer.elsewhere?.show();
    expect(navigation.place).toBe('compare');
  });
});
