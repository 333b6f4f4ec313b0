// The fixtures are what their plans say, and every recording keeps the promises of the wire types.

import { readdirSync, readFileSync, existsSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import type { GenerationEvent, TokenEvent } from '../../ui/src/lib/ipc/schema.gen';
import { parseRecording } from '../../ui/src/lib/host/recording';
import { record, toLines } from './fixtures/build';
import { plans } from './fixtures/plans';

const folders = [new URL('./fixtures/', import.meta.url), new URL('../streams/', import.meta.url)];
const files = folders
  .filter((folder) => existsSync(folder))
  .flatMap((folder) => readdirSync(folder).filter((name) => name.endsWith('.jsonl')).map((name) => new URL(name, folder)));

describe('fixtures', () => {
  it.each(Object.entries(plans))('%s is what its plan says', async (name, plan) => {
    await expect(toLines(record(plan))).toMatchFileSnapshot(`./fixtures/${name}.jsonl`);
  });
});

describe.each(files.map((file) => [file.pathname.split('/').at(-1), file] as const))('%s', (_name, file) => {
  const { messages, reject } = parseRecording(readFileSync(file, 'utf8'));
  const events = messages.flatMap((message) => message.events);

  it('numbers its events without a gap and says the same generation throughout', () => {
    expect(messages.length > 0 || reject !== null).toBe(true);
    let next = 0;
    for (const message of messages) {
      expect(message.seq).toBe(next);
      expect(message.events.length).toBeGreaterThan(0);
      expect(message.generation_id).toBe(messages[0]?.generation_id);
      next += message.events.length;
    }
  });

  it('ends once, and its counts are those of its tokens', () => {
    if (reject) return expect(events).toEqual([]);
    const endings = events.filter((event) => event.type === 'finished' || event.type === 'failed');
    expect(endings).toHaveLength(1);
    expect(events.at(-1)).toBe(endings[0]);
    const ending = endings[0] as GenerationEvent;
    if (ending.type !== 'finished') return;
    const tokens = tokensOf(events);
    const count = (origin: TokenEvent['origin']) => tokens.filter((token) => token.origin === origin).length;
    const { stats } = ending;
    expect(tokens).toHaveLength(stats.generated_tokens);
    expect([count('accepted'), count('resampled'), count('bonus'), count('plain')]).toEqual([
      stats.accepted,
      stats.resampled,
      stats.bonus,
      stats.plain,
    ]);
  });

  it('says why each rejected draft was rejected', () => {
    for (const event of events) {
      if (event.type !== 'round') continue;
      for (const draft of event.rejected) {
        expect(draft.u).toBeGreaterThanOrEqual(Math.min(1, draft.p / (draft.q ?? 1)) - 1e-5);
      }
    }
  });
});

function tokensOf(events: readonly GenerationEvent[]): TokenEvent[] {
  return events.flatMap((event) => (event.type === 'round' || event.type === 'finished' ? event.tokens : []));
}
