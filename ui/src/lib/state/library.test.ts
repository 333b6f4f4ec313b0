import { describe, expect, it } from 'vitest';
import { library as recorded, models } from '../../../../tests/ui/fixtures/library';
import type { Host } from '../host';
import { ReplayLibrary } from '../../../../tests/ui/replay/library';
import { settled } from '../host/testing';
import { dispatch } from '../ipc/commands';
import type { ModelEntry } from '../ipc/schema.gen';
import { LibraryState } from './library.svelte';
import { ModelList } from './modelList.svelte';

function make() {
  const engine = new ReplayLibrary(structuredClone(recorded), structuredClone(models), '/models');
  const calls: string[] = [];
  const picks: (string | null)[] = [];
  const invoke = async (command: string, args: Record<string, unknown>) => {
    calls.push(command);
    if (command === 'choose_folder') return picks.shift() ?? null;
    if (command === 'reveal_model') throw { code: 'invalid_request', message: `${args['path'] as string} is not in the library.` };
    return structuredClone(await dispatch(engine.handlers, command, args, () => {}));
  };
  const host = { invoke } as unknown as Host;
  const library = new LibraryState(host);
  const memory: { target: string | null } = { target: null };
  return { engine, calls, picks, library, memory, modelList: new ModelList(library, () => memory.target) };
}

describe('the library', () => {
  it('loads once for calls meanwhile, and once more afterwards', async () => {
    const { library, calls } = make();
    await Promise.all([library.refresh(), library.refresh(), library.refresh()]);
    expect(calls).toEqual(['library', 'library']);
    expect([library.known, library.models.length]).toEqual([true, models.length]);
  });

  it('requests verdicts of usable models once they are wanted, and of new ones', async () => {
    const { engine, library, calls } = make();
    await library.ask();
    expect(calls).toEqual(['library']);
    library.judge();
    library.judge();
    await expect.poll(() => Object.keys(library.fits).length).toBe(models.filter(({ problem }) => problem === null).length);
    // All in one request, without searching for alternatives.
    expect(calls).toEqual(['library', 'fit_verdicts']);
    expect(
      Object.entries(library.fits)
        .filter(([, fit]) => fit === 'too_large')
        .map(([path]) => library.at(path)?.name),
    ).toEqual(['qwen3-30b-a3b-q4_k_m']);
    calls.length = 0;
    await library.refresh();
    await settled();
    expect(calls).toEqual(['library']);
    const { id } = engine.start({ repository: 'Qwen/Qwen3-4B-GGUF', file: 'Qwen3-4B-Q4_K_M.gguf' });
    engine.move(id, { phase: 'done' });
    await library.refresh();
    await settled();
    expect(calls).toEqual(['library', 'library', 'fit_verdicts']);
  });

  it('tries the chat template of a model once, and again after a failure', async () => {
    const { engine, library, calls } = make();
    await library.ask();
    const [good, bad] = library.models.filter(({ has_template: has, problem }) => has && problem === null);
    if (!good || !bad) throw new Error('two models with templates');
    engine.handlers.template_note = ({ path }) => {
      if (calls.filter((name) => name === 'template_note').length === 1) throw { code: 'io', message: 'The disk is gone.' };
      return path === bad.path ? 'It ended the process.' : null;
    };
    await library.tryTemplate(bad);
    expect(library.templateNotes).toEqual({});
    await library.tryTemplate(bad);
    await library.tryTemplate(bad);
    await library.tryTemplate(good);
    await library.tryTemplate({ ...good, problem: 'It is damaged.' });
    expect(calls).toEqual(['library', 'template_note', 'template_note', 'template_note']);
    expect(library.templateNotes).toEqual({ [bad.path]: 'It ended the process.', [good.path]: null });
  });

  it('adds a chosen folder, removes it, and reports failures', async () => {
    const { library, picks } = make();
    picks.push('/more', null, '/more');
    await library.addFolder();
    expect(library.folders.at(-1)).toMatchObject({ path: '/more', source: 'added' });
    await library.addFolder();
    expect([library.folders.length, library.error]).toEqual([5, null]);
    await library.addFolder();
    expect(library.error?.params).toEqual({ folder: '/more', reason: 'folder_known' });
    await library.removeFolder('/more');
    expect([library.folders.length, library.error]).toEqual([4, null]);
  });

  it('reports why a file cannot be shown in the file manager', async () => {
    const { library } = make();
    await library.reveal('/etc/passwd');
    expect(library.error?.message).toBe('/etc/passwd is not in the library.');
  });

  it('deletes models of its own folder only', async () => {
    const { library } = make();
    await library.ask();
    const of = (source: string) => library.models.find((model) => model.source === source)!.path;
    await library.remove(of('lm_studio'));
    expect(library.error?.message).toContain('not in Hunch’s own folder');
    const own = of('hunch');
    await library.remove(own);
    expect([library.at(own), library.error]).toEqual([null, null]);
  });
});

describe('the list of models', () => {
  it('shows the loaded target until another model is chosen, and the first model without one', async () => {
    const { library, memory, modelList } = make();
    await library.ask();
    expect(modelList.current?.path).toBe(modelList.found[0]?.path);
    memory.target = modelList.found[2]!.path;
    expect(modelList.current?.path).toBe(memory.target);
    modelList.select(modelList.found[1]!.path);
    expect(modelList.current?.path).toBe(modelList.found[1]?.path);
  });

  it('finds by every typed word: title, file name, family, quantisation, source, parameters', async () => {
    const { library, modelList } = make();
    await library.ask();
    const found = (query: string) => {
      modelList.query = query;
      return modelList.found.map(({ name }) => name);
    };
    expect(found('coder 7B')).toEqual(['qwen2.5-coder-7b-instruct-q4_k_m']);
    expect(found('hugging')).toEqual(['llama-3.2-3b-instruct-q6_k', 'phi-4-mini-q4_k_m']);
    expect(found('q4_1')).toEqual(['smollm2-135m-instruct-q4_1']);
    expect(found('coder-7b')).toEqual(found('coder 7B'));
    expect(found('LLAMA q6')).toEqual(['llama-3.2-3b-instruct-q6_k']);
    expect(found('nothing like it')).toEqual([]);
    expect(modelList.current).toBeNull();
  });

  it('orders by title, and shows the file name of models that share title and quantisation', async () => {
    const { library, modelList } = make();
    await library.ask();
    const usable = modelList.found.filter(({ problem }) => problem === null);
    expect(usable.map((model) => library.titleOf(model)).slice(0, 3)).toEqual([
      'Llama 3.2 3B Instruct',
      'Mistral 7B v0.1',
      'Qwen2.5 Coder 0.5B Instruct',
    ]);
    const [first, second] = usable as [ModelEntry, ModelEntry];
    const alike = { ...first, name: 'another-file', path: '/another-file.gguf' };
    const quantisedOtherwise = { ...second, name: 'larger', path: '/larger.gguf', quantisation: 'Q8_0' };
    library.models = [...library.models, alike, quantisedOtherwise];
    expect([first, alike].map((model) => library.titleOf(model))).toEqual([first.name, 'another-file']);
    expect([second, quantisedOtherwise].map((model) => library.fullTitleOf(model))).toEqual([
      'Mistral 7B v0.1 Q4_0',
      'Mistral 7B v0.1 Q8_0',
    ]);
    // A file name contains the quantisation already.
    expect(library.fullTitleOf(alike)).toBe('another-file');
  });

  it('puts unusable models last in any order', async () => {
    const { library, modelList } = make();
    await library.ask();
    expect(modelList.found.slice(-2).every(({ problem }) => problem !== null)).toBe(true);
    modelList.sort = 'size';
    expect(modelList.found[0]?.name).toBe('qwen3-30b-a3b-q4_k_m');
    modelList.sort = 'speed';
    expect(modelList.found[0]?.tokens_per_second).toBe(96.2);
    expect(modelList.found.at(-1)?.problem).not.toBeNull();
  });

  it('filters by source, family, quantisation and fit, and counts the models of each value', async () => {
    const { library, modelList } = make();
    await library.ask();
    library.judge();
    await settled();
    modelList.toggle('source', 'lm_studio');
    expect(modelList.found).toHaveLength(3);
    expect(modelList.values('architecture').find(({ value }) => value === 'qwen3')?.count).toBe(1);
    // A facet is counted without its own filter.
    expect(modelList.values('source').find(({ value }) => value === 'hunch')?.count).toBe(4);
    modelList.fitting = true;
    await expect.poll(() => modelList.found.length).toBe(2);
    modelList.toggle('source', 'lm_studio');
    expect(modelList.filtered).toBe(true);
    modelList.clear();
    expect([modelList.filtered, modelList.found.length]).toEqual([false, models.length]);
  });

  it('selects the first model, then the chosen one while it is listed', async () => {
    const { library, modelList } = make();
    await library.ask();
    expect(modelList.current).toBe(modelList.found[0]);
    const third = modelList.found[2]!;
    modelList.select(third.path);
    expect(modelList.current).toBe(third);
    modelList.sort = 'size';
    expect(modelList.current?.path).toBe(third.path);
  });
});
