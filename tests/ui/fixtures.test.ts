// The fixtures match their plans, and every recording keeps the invariants of the wire types.

import { readdirSync, readFileSync, existsSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import type { GenerationEvent, TokenEvent } from '../../ui/src/lib/ipc/schema.gen';
import { parseRecording } from './replay/recording';
import { parseComparison } from './replay/comparison';
import { record, toLines } from './fixtures/build';
import { recordComparison } from './fixtures/comparison';
import { lab } from './fixtures/lab';
import { library } from './fixtures/library';
import { comparisons, plans } from './fixtures/plans';

const folders = [new URL('./fixtures/', import.meta.url), new URL('../streams/', import.meta.url)];
const files = folders
  .filter((folder) => existsSync(folder))
  .flatMap((folder) =>
    readdirSync(folder)
      .filter((name) => name.endsWith('.jsonl'))
      .map((name) => new URL(name, folder)),
  );

describe('fixtures', () => {
  it.each(Object.entries(plans))('%s matches its plan', async (name, plan) => {
    await expect(toLines(record(plan))).toMatchFileSnapshot(`./fixtures/${name}.jsonl`);
  });

  it('have a lab whose distributions add up', async () => {
    await expect(`${JSON.stringify(lab, null, 1)}\n`).toMatchFileSnapshot('./fixtures/fixture-lab.json');
    for (const { tokens, rest, acceptance, rejection } of Object.values(lab.positions)) {
      const all = [...tokens, rest];
      const sum = (of: 'p' | 'q' | 'overlap' | 'residual') => all.reduce((total, token) => total + token[of], 0);
      for (const of of ['p', 'q', 'residual'] as const) expect(sum(of)).toBeCloseTo(1, 9);
      expect(sum('overlap')).toBeCloseTo(acceptance, 9);
      expect(acceptance + rejection).toBeCloseTo(1, 12);
      for (const token of all) expect(token.overlap + rejection * token.residual).toBeCloseTo(token.p, 9);
    }
  });

  it('have a library that matches its plan', async () => {
    await expect(`${JSON.stringify(library, null, 1)}\n`).toMatchFileSnapshot('./fixtures/fixture-library.json');
  });

  it.each(Object.entries(comparisons))('%s matches its plan', async (name, plan) => {
    await expect(toLines(recordComparison(plan))).toMatchFileSnapshot(`./fixtures/${name}.jsonl`);
  });
});

const ofComparison = (file: URL) => file.pathname.split('/').at(-1)?.includes('comparison') ?? false;

describe.each(files.filter(ofComparison).map((file) => [file.pathname.split('/').at(-1), file] as const))('%s', (_name, file) => {
  const messages = parseComparison(readFileSync(file, 'utf8'));
  const events = messages.flatMap((message) => message.events);
  const ending = events.at(-1);
  const report = ending?.type === 'finished' ? ending.report : null;

  it('numbers its events without a gap, starts and ends', () => {
    let next = 0;
    for (const message of messages) {
      expect(message.seq).toBe(next);
      next += message.events.length;
    }
    expect(events[0]?.type).toBe('started');
    expect(report).not.toBeNull();
  });

  it('reports the texts and tokens of its lanes, and its last turn as recorded', () => {
    const turns = events.flatMap((event, i) => (event.type === 'turn' ? [i] : []));
    const laneEvents = events.slice(turns.at(-1)).flatMap((event) => (event.type === 'lane' ? [event] : []));
    report?.setting.lanes.forEach((_, lane) => {
      const own = laneEvents.filter((event) => event.lane === lane).map((event) => event.event);
      expect(own).toEqual(report.recordings[lane]);
      const tokens = tokensOf(own.map((timed) => timed.event));
      const answer = report.answers.findLast((each) => each.lane === lane);
      expect(tokens.map((token) => token.text).join('')).toBe(answer?.text);
      expect(answer?.timeline.at(-1)?.[1]).toBe(tokens.length);
    });
    expect(report?.answers).toHaveLength((report?.setting.lanes.length ?? 0) * turns.length);
  });
});

describe.each(files.filter((file) => !ofComparison(file)).map((file) => [file.pathname.split('/').at(-1), file] as const))(
  '%s',
  (_name, file) => {
    const { messages, reject } = parseRecording(readFileSync(file, 'utf8'));
    const events = messages.flatMap((message) => message.events);

    it('numbers its events without a gap, all of one generation', () => {
      expect(messages.length > 0 || reject !== null).toBe(true);
      let next = 0;
      for (const message of messages) {
        expect(message.seq).toBe(next);
        expect(message.events.length).toBeGreaterThan(0);
        expect(message.generation_id).toBe(messages[0]?.generation_id);
        next += message.events.length;
      }
    });

    it('ends once, with the counts of its tokens', () => {
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
  },
);

function tokensOf(events: readonly GenerationEvent[]): TokenEvent[] {
  return events.flatMap((event) => (event.type === 'round' || event.type === 'finished' ? event.tokens : []));
}
