import { describe, expect, it } from 'vitest';
import type { Host } from '../host';
import { settled } from '../host/testing';
import type { HubCard, HubResult, HubSearch, HubSearchPage } from '../ipc/schema.gen';
import { HubSearchState } from './hubSearch.svelte';

const result = (repository: string): HubResult => ({
  repository,
  downloads: 1,
  likes: null,
  gated: false,
  licence: null,
  updated: null,
  architecture: 'llama',
  parameters: null,
  quantisations: [],
  support: 'runs',
});
const page = (names: string[], next: string | null = null): HubSearchPage => ({ results: names.map(result), next });

interface Waiting {
  command: string;
  args: { search: HubSearch; repository: string };
  answer: (value: HubSearchPage | HubCard) => void;
  fail: (code: string) => void;
}

/** A state whose requests are answered by the test. */
function make() {
  const waiting: Waiting[] = [];
  let asked = 0;
  const invoke = (command: string, args: unknown) =>
    new Promise((resolve, reject) =>
      waiting.push({
        command,
        args: args as Waiting['args'],
        answer: resolve,
        fail: (code) => reject({ code, message: 'No.' } as unknown as Error),
      }),
    );
  const state = new HubSearchState({ invoke } as unknown as Host, { asked: () => (asked += 1) });
  const names = () => state.found?.results.map(({ repository }) => repository);
  return { state, waiting, names, asked: () => asked };
}

describe('a search of the hub', () => {
  it('asks for the typed words in the chosen order and format', async () => {
    const { state, waiting, names, asked } = make();
    await state.search();
    state.order('likes');
    state.inFormat('mlx');
    expect(waiting).toEqual([]);
    state.query = '  qwen3 8b ';
    void state.search();
    expect([state.searching, waiting[0]!.args.search]).toEqual([true, { query: 'qwen3 8b', sort: 'likes', format: 'mlx' }]);
    waiting[0]!.answer(page(['a/b']));
    await settled();
    expect([names(), state.searching, state.error, asked()]).toEqual([['a/b'], false, null, 1]);
    state.order('downloads');
    expect(waiting[1]!.args.search.sort).toBe('downloads');
  });

  it('drops the answer to an earlier search, and its error', async () => {
    const { state, waiting, names } = make();
    state.query = 'first';
    void state.search();
    state.query = 'second';
    void state.search();
    state.query = 'third';
    void state.search();
    waiting[2]!.answer(page(['third/model']));
    waiting[0]!.answer(page(['first/model']));
    waiting[1]!.fail('hub_unreachable');
    await settled();
    expect([names(), state.found?.search.query, state.error, state.searching]).toEqual([['third/model'], 'third', null, false]);
  });

  it('adds pages without repeating a model, and drops a page of an earlier search', async () => {
    const { state, waiting, names } = make();
    state.query = 'x';
    void state.search();
    waiting[0]!.answer(page(['a/1', 'a/2'], 'two'));
    await settled();
    void state.more();
    void state.more();
    expect(waiting).toHaveLength(2);
    expect(waiting[1]!.args.search.cursor).toBe('two');
    waiting[1]!.answer(page(['a/2', 'a/3'], 'three'));
    await settled();
    expect(names()).toEqual(['a/1', 'a/2', 'a/3']);
    void state.more();
    state.query = 'y';
    void state.search();
    waiting[3]!.answer(page(['b/1']));
    waiting[2]!.answer(page(['a/4']));
    await settled();
    expect([names(), state.found?.next]).toEqual([['b/1'], null]);
    await state.more();
    expect(waiting).toHaveLength(4);
  });

  it('keeps the results when a further page fails, and repeats what failed', async () => {
    const { state, waiting, names } = make();
    state.query = 'x';
    void state.search();
    waiting[0]!.answer(page(['a/1'], 'two'));
    await settled();
    void state.more();
    waiting[1]!.fail('hub_unreachable');
    await settled();
    expect([names(), state.error?.code]).toEqual([['a/1'], 'hub_unreachable']);
    void state.retry();
    expect([state.error, waiting[2]!.args.search.cursor]).toEqual([null, 'two']);
    waiting[2]!.answer(page(['a/2']));
    await settled();
    expect(names()).toEqual(['a/1', 'a/2']);
    state.query = 'y';
    void state.search();
    waiting[3]!.fail('hub_token');
    await settled();
    expect([state.found, state.error?.code]).toEqual([null, 'hub_token']);
  });
});

describe('a model card', () => {
  it('is the latest one that was asked for', async () => {
    const { state, waiting } = make();
    void state.showCard('a/slow', 'result');
    void state.showCard('a/fast', 'repository');
    waiting[1]!.answer({ repository: 'a/fast', text: '# Fast', cut: true });
    waiting[0]!.answer({ repository: 'a/slow', text: '# Slow', cut: false });
    await settled();
    expect(state.card).toMatchObject({ repository: 'a/fast', place: 'repository', cut: true, error: null });
    expect(state.card?.blocks).toHaveLength(1);
  });

  it('stays closed when its answer comes late, and says why it cannot be shown', async () => {
    const { state, waiting } = make();
    void state.showCard('a/b', 'result');
    state.closeCard();
    waiting[0]!.answer({ repository: 'a/b', text: 'text', cut: false });
    await settled();
    expect(state.card).toBe(null);
    void state.showCard('a/b', 'result');
    waiting[1]!.fail('hub_gated');
    await settled();
    expect(state.card).toMatchObject({ blocks: null, error: { code: 'hub_gated' } });
  });
});
