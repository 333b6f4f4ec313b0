import { describe, expect, it } from 'vitest';
import type { Host } from '../host';
import type { LoadedModels, MeasurementMessage, SkipSearchEvent } from '../ipc/schema.gen';
import { LayerSearch } from './layerSearch.svelte';

const best = { skipped: [3, 5], acceptance: 0.6, cost: 0.8, depth: 1, predicted_speedup: 1.1 };
const found = { model: 'a model', layers: 12, best, path: [best] };

/** A search over the model `a`, with the commands that it sends. */
function make(start: () => unknown = () => 7) {
  let channel: (message: unknown) => void = () => {};
  const calls: string[] = [];
  const host = {
    inWindow: false,
    invoke: async (command: string) => {
      calls.push(command);
      return command === 'search_skipped_layers' ? start() : null;
    },
    openChannel: (receive: (message: unknown) => void) => ((channel = receive), 0),
  } as unknown as Host;
  const models = {
    loaded: { target: { path: 'a' } } as LoadedModels | null,
    refresh: async () => void calls.push('refresh'),
  };
  const search = new LayerSearch(host, models, { after: () => () => {} });
  let seq = 0;
  const say = (...events: SkipSearchEvent[]) => {
    channel({ id: 7, seq, events } satisfies MeasurementMessage<SkipSearchEvent>);
    seq += events.length;
  };
  return { search, models, calls, say };
}

describe('a search for layers', () => {
  it('shows its step, then its result for the model that it searched', async () => {
    const { search, calls, say } = make();
    await search.start();
    await search.start();
    expect(calls).toEqual(['search_skipped_layers']);
    say({ type: 'answering', done: 1, of: 4 });
    say({ type: 'trying', skipped: 2, done: 0, of: 4 });
    expect([search.running, search.step]).toEqual([true, { type: 'trying', skipped: 2, done: 0, of: 4 }]);
    say({ type: 'finished', found });
    expect([search.running, search.found, search.stopped, calls.at(-1)]).toEqual([false, found, false, 'refresh']);
    await search.start();
    expect([search.running, search.found, search.stopped]).toEqual([true, null, false]);
  });

  it('is stopped without a result', async () => {
    const { search, calls, say } = make();
    await search.start();
    search.stop();
    expect([search.stopping, calls.at(-1)]).toEqual([true, 'stop_measurement']);
    say({ type: 'finished', found: null });
    expect([search.running, search.stopped, search.found]).toEqual([false, true, null]);
  });

  it('keeps the reason of a refusal and of a failure', async () => {
    const busy = { code: 'busy', message: 'An answer runs.' };
    const refused = make(() => {
      throw busy;
    });
    await refused.search.start();
    expect([refused.search.running, refused.search.error]).toEqual([false, busy]);
    const { search, say } = make();
    await search.start();
    say({ type: 'failed', error: { code: 'internal', message: 'A kernel failed.' } });
    expect([search.running, search.error?.code]).toEqual([false, 'internal']);
  });

  it('does nothing without a model', async () => {
    const { search, models, calls } = make();
    models.loaded = null;
    await search.start();
    expect([search.running, calls]).toEqual([false, []]);
  });
});
