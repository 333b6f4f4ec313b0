import { describe, expect, it } from 'vitest';
import app from '../../../../tests/ui/fixtures/fixture-app.json';
import { eagle, library as recorded, models as listed } from '../../../../tests/ui/fixtures/library';
import type { Host } from '../host';
import { ReplayLibrary, type RecordedLibrary } from '../../../../tests/ui/replay/library';
import { settled } from '../host/testing';
import { dispatch } from '../ipc/commands';
import type { LoadRequest } from '../ipc/schema.gen';
import { Comparison } from './comparison.svelte';
import { LibraryState } from './library.svelte';
import { Pairing, suits } from './pairing.svelte';
import { Settings } from './settings.svelte';
import { modelsOn } from './testing';

const named = (part: string) => listed.find(({ name }) => name.includes(part))!;

function make(extra: Partial<RecordedLibrary> = {}) {
  const engine = new ReplayLibrary(structuredClone({ ...recorded, ...extra }), structuredClone(listed), '/models');
  const loads: LoadRequest[] = [];
  const measured: LoadRequest[] = [];
  const asked: string[] = [];
  const timers: (() => void)[] = [];
  const invoke = async (command: string, args: Record<string, unknown>) => {
    asked.push(command);
    const request = args['request'] as LoadRequest;
    if (command === 'measure_pair') return measured.push(request);
    if (command === 'load_models') {
      loads.push(request);
      return { ...app.info.loaded, target: engine.find(request.target), draft: request.draft === null ? null : engine.find(request.draft) };
    }
    if (!(command in engine.handlers)) return null;
    return structuredClone(await dispatch(engine.handlers, command, args, () => {}));
  };
  const host = { invoke, openChannel: () => 0 } as unknown as Host;
  const library = new LibraryState(host);
  const models = modelsOn(host, new Settings(), { library });
  const comparison = new Comparison(host, () => {});
  const clock = { after: (_: number, then: () => void) => (timers.push(then), () => void timers.splice(timers.indexOf(then), 1)) };
  return { pairing: new Pairing(host, { models, comparison, clock }), models, comparison, engine, loads, measured, asked, timers };
}

describe('a target', () => {
  it('is requested with its default context, and gets the best available draft', async () => {
    const { pairing } = make();
    pairing.show(named('7b'));
    await settled();
    await settled();
    expect(pairing.offers?.offers.length).toBeGreaterThan(3);
    expect(pairing.suited.every(({ verdict }) => verdict.kind === 'suits' || verdict.kind === 'expected')).toBe(true);
    expect(pairing.unsuited.length).toBeGreaterThan(0);
    expect(pairing.draft).toBe(named('0.5b').path);
    expect([pairing.fit?.context, pairing.fit?.draft === null]).toEqual([8192, false]);
  });

  it('can have a draft with another tokeniser, which is not chosen without a measurement', async () => {
    const { pairing, engine } = make();
    const known = await engine.handlers.draft_offers({ target: named('7b').path, context: null }, () => {});
    const offer = known.offers.find(suits)!;
    const translated = { ...offer, predicted: null, measured: null, verdict: { kind: 'translated', shared: 3, of: 4 } as const };
    engine.handlers.draft_offers = () => ({ ...known, offers: [translated] });
    pairing.show(named('7b'));
    await settled();
    await settled();
    expect([pairing.suited, pairing.unsuited, pairing.draft]).toEqual([[translated], [], null]);
  });

  it('that cannot be used is not requested', async () => {
    const { pairing, asked } = make();
    pairing.show(named('half-a-download'));
    await settled();
    expect([pairing.target, asked]).toEqual([null, []]);
  });

  it('is loaded with a head in place of a draft', async () => {
    const { pairing, loads } = make({ heads: { [named('7b').name]: [eagle] } });
    pairing.show(named('7b'));
    await settled();
    await settled();
    expect([pairing.suitedHeads.map(({ name }) => name), pairing.unsuitedHeads]).toEqual([['eagle3'], []]);
    await pairing.loadWithHead(eagle.path);
    expect(loads).toEqual([{ target: named('7b').path, draft: null, head: eagle.path, context: null }]);
    pairing.chooseDraft(named('0.5b').path);
    expect([pairing.head, pairing.request()]).toEqual([null, { target: named('7b').path, draft: named('0.5b').path, context: null }]);
    pairing.show(named('1.5b'));
    await settled();
    expect([pairing.suitedHeads, pairing.unsuitedHeads[0]?.problem]).toEqual([[], expect.stringContaining('another target')]);
  });

  it('keeps the draft chosen by the user, even none', async () => {
    const { pairing } = make();
    pairing.show(named('7b'));
    pairing.chooseDraft(null);
    await settled();
    await settled();
    expect(pairing.draft).toBeNull();
    pairing.chooseDraft(named('1.5b').path);
    pairing.refresh();
    await settled();
    expect(pairing.draft).toBe(named('1.5b').path);
    expect(pairing.fit?.draft?.weights).toBe(named('1.5b').size_bytes);
  });

  it('offers contexts from the smallest to its largest, and requests a settled one', async () => {
    const { pairing, timers, asked } = make();
    pairing.show(named('smollm2'));
    await settled();
    expect(pairing.contexts).toEqual([512, 1024, 2048, 4096, 8192]);
    const before = asked.length;
    pairing.chooseContext(512);
    pairing.chooseContext(1024);
    expect([asked.length, timers.length]).toEqual([before, 1]);
    pairing.moveContext(2048);
    timers[0]?.();
    await settled();
    expect(asked.slice(before)).toEqual(['fit']);
    pairing.chooseContext(1024);
    timers.at(-1)?.();
    await settled();
    expect([pairing.fit?.context, pairing.offers?.context]).toEqual([1024, 1024]);
  });

  it('is loaded with the current choices, once its drafts are known', async () => {
    const { pairing, loads } = make();
    pairing.show(named('7b'));
    await pairing.load();
    expect(loads).toEqual([{ target: named('7b').path, draft: named('0.5b').path, context: null }]);
    expect(pairing.inMemory).toBe(true);
    pairing.chooseContext(4096);
    await pairing.loadWith(null);
    expect(loads.at(-1)).toEqual({ target: named('7b').path, draft: null, context: 4096 });
  });

  it('in memory keeps its context when only the draft changes', async () => {
    const { pairing, models, loads } = make();
    await models.load({ target: named('7b').path, draft: null, context: 4096 }, '7b');
    models.loaded = { ...models.loaded!, context: 4096 };
    pairing.show(named('7b'));
    await pairing.loadWith(named('0.5b').path);
    expect(loads.at(-1)).toEqual({ target: named('7b').path, draft: named('0.5b').path, context: 4096 });
    await settled();
    expect([pairing.context, pairing.fit?.context]).toEqual([4096, 4096]);
  });

  it('loses a chosen draft that no longer exists', async () => {
    const { pairing, engine } = make();
    pairing.show(named('7b'));
    pairing.chooseDraft(named('0.5b').path);
    await settled();
    engine.removeModel(named('0.5b').path);
    pairing.refresh();
    await settled();
    await settled();
    expect(pairing.draft).not.toBe(named('0.5b').path);
  });

  it('that cannot fit is not loaded', async () => {
    const { pairing, loads } = make();
    pairing.show(named('30b'));
    await settled();
    await pairing.load();
    expect([pairing.fit?.verdict, loads]).toEqual(['too_large', []]);
    expect(pairing.fit?.smaller.map(({ kind }) => kind)).toEqual(['model', 'catalogue']);
  });

  it('is measured with a draft, one at a time', async () => {
    const { pairing, comparison, measured } = make();
    pairing.show(named('7b'));
    await settled();
    const [first, second] = [named('0.5b'), named('1.5b')];
    await pairing.measure(first);
    await pairing.measure(second);
    expect(measured).toEqual([{ target: named('7b').path, draft: first.path, context: null }]);
    expect([comparison.running, pairing.measured?.draft]).toEqual([true, first.title]);
  });
});
