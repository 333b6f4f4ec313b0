import { describe, expect, it } from 'vitest';
import app from '../../../../tests/ui/fixtures/fixture-app.json';
import { SilentHost } from '../host/testing';
import type { ModelEntry } from '../ipc/schema.gen';
import type { Models } from './models.svelte';
import { Training } from './training.svelte';

/** A host that trains, and refuses to end a run early. */
class TrainingHost extends SilentHost {
  override async invoke(command: string): Promise<unknown> {
    if (command === 'finish_training') throw { code: 'internal', message: 'Not now.' };
    if (command === 'train_drafter') return 1;
    return new Promise(() => {});
  }
}

describe('training', () => {
  it('can be ended early again after that has failed', async () => {
    const models = { loading: null, loaded: null, titleOf: ({ title }: ModelEntry) => title } as Models;
    const training = new Training(new TrainingHost(), { models });
    training.show(app.models[0] as ModelEntry);
    await training.start();
    const finish = training.finish();
    expect(training.finishing).toBe(true);
    await finish;
    expect([training.finishing, training.error?.message]).toEqual([false, 'Not now.']);
  });
});
