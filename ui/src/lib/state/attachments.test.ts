import { describe, expect, it } from 'vitest';
import app from '../../../../tests/ui/fixtures/fixture-app.json';
import { createWindow } from '../../window';
import { SilentHost } from '../host/testing';
import type { Asking, ErrorInfo, LoadedModels } from '../ipc/schema.gen';
import { sentNames, shownName } from './attachedFile';

const binary: ErrorInfo = { code: 'not_text', message: 'Not text.', params: { name: 'picture.png' } };
const busy: ErrorInfo = { code: 'busy', message: 'Busy.' };

/** A host whose dialog chooses files, and whose model has a context of 100 tokens. A word is a token. */
class FileHost extends SilentHost {
  files: Record<string, string | ErrorInfo> = {};
  asked: Asking[] = [];
  refuses = false;
  loaded = { ...(app.info.loaded as unknown as LoadedModels), context: 100 } as LoadedModels | null;
  /** Tokens of each word in the loaded model. */
  fine = 1;
  /** Reading a file waits for it. */
  reading: () => Promise<void> = async () => {};

  override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    if (command === 'app_info') return { ...app.info, loaded: this.loaded };
    if (command === 'library') return { models: app.models, folders: [], machine: { total: 16e9, usable: 11e9 } };
    if (command === 'list_conversations') return [];
    if (command === 'set_system_prompt') return 7;
    if (command === 'choose_attachments') return Object.keys(this.files);
    if (command === 'answer') {
      this.asked.push((args['request'] as { asking: Asking }).asking);
      if (this.refuses) throw busy;
      const id = 10 * this.asked.length;
      return { conversation: 1, question: id, answer: id + 1, generation_id: id, prefix: [] };
    }
    if (command === 'attachment_tokens') return this.#tokens(args['text'] as string);
    if (command !== 'read_attachment') return null;
    await this.reading();
    const path = args['path'] as string;
    const text = this.files[path];
    if (typeof text !== 'string') throw text;
    const counted = args['count'] === true && this.loaded !== null;
    return { attachment: { name: path.split('/').at(-1), text }, tokens: counted ? this.#tokens(text) : null };
  }

  #tokens(text: string): number {
    return this.fine * text.split(' ').length;
  }
}

async function make(files: FileHost['files'], loaded = new FileHost().loaded) {
  const host = new FileHost();
  host.loaded = loaded;
  host.files = files;
  const window = createWindow(host);
  await window.models.start();
  await window.attachments.choose();
  return { ...window, host, names: () => window.attachments.files.map(({ attachment }) => attachment.name) };
}

describe('attached files', () => {
  it('are sent with the question, then gone from the composer', async () => {
    const { attachments, conversation, host, names } = await make({ '/a/notes.md': 'blue sky', '/a/main.rs': 'fn main' });
    expect([names(), attachments.tokens, attachments.exceeded]).toEqual([['notes.md', 'main.rs'], 4, null]);
    conversation.draft = 'Why?';
    await conversation.send();
    const files = [
      { name: 'notes.md', text: 'blue sky' },
      { name: 'main.rs', text: 'fn main' },
    ];
    expect(host.asked).toEqual([{ kind: 'question', parent: null, text: 'Why?', attachments: files }]);
    expect(conversation.turns[0]?.attachments).toEqual(files);
    expect(names()).toEqual([]);
  });

  it('stay with an edited question', async () => {
    const { conversation, host } = await make({ '/a/notes.md': 'blue sky' });
    host.refuses = true;
    conversation.draft = 'Why?';
    await conversation.send();
    host.refuses = false;
    const [refused] = conversation.turns;
    if (refused) await conversation.edit(refused, 'Why not?');
    expect(host.asked.at(-1)).toMatchObject({ text: 'Why not?', attachments: [{ name: 'notes.md' }] });
    expect(conversation.turns.map(({ prompt, attachments }) => [prompt, attachments.length])).toEqual([['Why not?', 1]]);
  });

  it('return to the composer with a refused question', async () => {
    const { conversation, host, names } = await make({ '/a/notes.md': 'blue sky' });
    host.refuses = true;
    conversation.draft = 'Why?';
    await conversation.send();
    expect([conversation.draft, names()]).toEqual(['Why?', ['notes.md']]);
    // Sent again from its card, the question has its files, and the composer is empty.
    host.refuses = false;
    const [refused] = conversation.turns;
    if (refused) await conversation.regenerate(refused);
    expect(host.asked.at(-1)).toMatchObject({ attachments: [{ name: 'notes.md' }] });
    expect([conversation.draft, names()]).toEqual(['', []]);
  });

  it('stay if they were added after the question that is asked again was refused', async () => {
    const { attachments, conversation, host, names } = await make({ '/a/notes.md': 'blue sky' });
    host.refuses = true;
    conversation.draft = 'Why?';
    await conversation.send();
    host.files = { '/a/later.md': 'red sky' };
    await attachments.choose();
    host.refuses = false;
    const [refused] = conversation.turns;
    if (refused) await conversation.regenerate(refused);
    expect([conversation.draft, names()]).toEqual(['', ['later.md']]);
  });

  it('are not counted by the loaded model while a server answers, which has a context of its own', async () => {
    const { attachments, servers } = await make({ '/a/notes.md': 'blue sky' });
    expect(attachments.tokens).toBe(2);
    servers.choose({ address: 'http://127.0.0.1:8080/v1', model: 'large' });
    await attachments.choose();
    expect(attachments.files.map(({ tokens }) => tokens)).toEqual([null]);
  });

  it('stay with a queued question that is cancelled', async () => {
    const { attachments, conversation, names } = await make({ '/a/notes.md': 'blue sky' });
    await conversation.ask('first');
    conversation.clear();
    await attachments.choose();
    conversation.draft = 'second';
    await conversation.send();
    expect(names()).toEqual([]);
    const [queued] = conversation.queue;
    if (queued) conversation.cancelQueued(queued.turn);
    expect([conversation.draft, names()]).toEqual(['second', ['notes.md']]);
  });

  it('stay with their conversation', async () => {
    const { conversation, host, names } = await make({ '/a/notes.md': 'blue sky' });
    await conversation.ask('Why?');
    expect(names()).toEqual(['notes.md']);
    conversation.clear();
    expect(names()).toEqual([]);
    expect(host.asked).toEqual([{ kind: 'question', parent: null, text: 'Why?' }]);
  });

  it('that are still read go to the conversation that they were chosen for', async () => {
    const { attachments, conversation, host, messageDrafts, names } = await make({});
    host.files = { '/a/notes.md': 'blue sky', '/a/main.rs': 'fn main' };
    const read: (() => void)[] = [];
    host.reading = () => new Promise((resolve) => read.push(resolve));
    const choosing = attachments.choose();
    await expect.poll(() => attachments.reading).toEqual(['notes.md', 'main.rs']);
    // It is asked, and another one is shown.
    await conversation.ask('Why?');
    expect(attachments.reading).toEqual(['notes.md', 'main.rs']);
    conversation.clear();
    expect(attachments.reading).toEqual([]);
    read.shift()?.();
    await expect.poll(() => read.length).toBe(1);
    read.shift()?.();
    await choosing;
    expect(names()).toEqual([]);
    expect(messageDrafts.filesOf(1).map(({ attachment }) => attachment.name)).toEqual(['notes.md', 'main.rs']);
    conversation.showWriting();
    expect([names(), attachments.reading]).toEqual([['notes.md', 'main.rs'], []]);
  });

  it('that cannot be read are reported, and the others attached', async () => {
    const { names, notices } = await make({ '/a/picture.png': binary, '/a/notes.md': 'blue sky' });
    expect([names(), notices.failure]).toEqual([
      ['notes.md'],
      '“picture.png” is not UTF-8 text, so it is not used. Choose a text file, or save it as UTF-8.',
    ]);
  });

  it('are at most as many as the engine takes', async () => {
    const many = Object.fromEntries(Array.from({ length: 17 }, (_, at) => [`/a/${at}.txt`, 'text']));
    const { names, notices } = await make(many);
    expect(names()).toHaveLength(16);
    expect(notices.failure).toBe('A question can have 16 files. The others were not attached.');
  });

  it('of the same name in other folders are both kept, and shown with their folders', async () => {
    const files = { '/a/x/mod.rs': 'one', '/a/y/mod.rs': 'two', '/b/y/mod.rs': 'three', '/a/main.rs': 'four' };
    const { attachments, conversation, host, names } = await make(files);
    expect(names()).toEqual(['mod.rs', 'mod.rs', 'mod.rs', 'main.rs']);
    const shown = () => attachments.files.map((file) => shownName(file, attachments.files));
    expect(shown()).toEqual(['x/mod.rs', 'a/y/mod.rs', 'b/y/mod.rs', 'main.rs']);
    host.refuses = true;
    conversation.draft = 'Why?';
    await conversation.send();
    // They return with their folders.
    expect(shown()).toEqual(['x/mod.rs', 'a/y/mod.rs', 'b/y/mod.rs', 'main.rs']);
    const [, second, third] = attachments.files;
    if (second) attachments.remove(second);
    if (third) attachments.remove(third);
    expect(shown()).toEqual(['mod.rs', 'main.rs']);
  });

  it('of the same name that were sent without folders are numbered below the question', () => {
    const sent = ['mod.rs', 'main.rs', 'mod.rs'].map((name) => ({ name, text: '' }));
    expect(sentNames(sent)).toEqual(['mod.rs (1)', 'main.rs', 'mod.rs (2)']);
  });

  it('are counted again by another model, and block nothing before', async () => {
    const { attachments, host, models } = await make({ '/a/1.txt': 'word '.repeat(40) });
    expect([attachments.tokens, attachments.exceeded]).toEqual([41, null]);
    await attachments.count();
    expect(attachments.tokens).toBe(41);
    host.fine = 3;
    const loaded = host.loaded;
    if (loaded) models.loaded = { ...loaded, target: { ...loaded.target, path: '/other.gguf' } };
    expect([attachments.tokens, attachments.exceeded]).toEqual([0, null]);
    await attachments.count();
    expect([attachments.tokens, attachments.exceeded]).toEqual([123, 100]);
    models.loaded = null;
    await attachments.count();
    expect([attachments.tokens, attachments.exceeded]).toEqual([0, null]);
  });

  it('that were attached without a model are counted once one is loaded', async () => {
    const { attachments, models } = await make({ '/a/1.txt': 'word '.repeat(120) }, null);
    models.loaded = null;
    await attachments.choose();
    expect([attachments.files.length, attachments.tokens]).toEqual([1, 0]);
    models.loaded = new FileHost().loaded;
    await attachments.count();
    expect(attachments.exceeded).toBe(100);
  });

  it('replace an earlier text of the same file, and can be removed', async () => {
    const { attachments, host, names } = await make({ '/a/notes.md': 'blue sky' });
    host.files = { '/a/notes.md': 'red sky at night' };
    await attachments.choose();
    expect(attachments.files).toMatchObject([
      { attachment: { name: 'notes.md', text: 'red sky at night' }, tokens: 4, path: '/a/notes.md' },
    ]);
    const [file] = attachments.files;
    if (file) attachments.remove(file);
    expect(names()).toEqual([]);
  });

  it('that exceed the context together are counted', async () => {
    const { attachments } = await make({ '/a/1.txt': 'word '.repeat(60), '/a/2.txt': 'word '.repeat(60) });
    expect([attachments.tokens, attachments.exceeded]).toEqual([122, 100]);
  });
});
