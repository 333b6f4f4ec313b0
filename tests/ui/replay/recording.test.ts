import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import type { StreamMessage } from '../../../ui/src/lib/ipc/schema.gen';
import { parseRecording, recordedDuration, ReplayedGeneration } from './recording';

const recording = parseRecording(readFileSync(new URL('../fixtures/fixture-story.jsonl', import.meta.url), 'utf8'));

function play(lost: number[] = []) {
  const waiting: { wait: number; then: () => void }[] = [];
  const received: StreamMessage[] = [];
  const playback = { speed: 2, lost: new Set(lost), later: (wait: number, then: () => void) => void waiting.push({ wait, then }) };
  const generation = new ReplayedGeneration(5, recording, playback, (message) => received.push(message));
  generation.start();
  const step = () => {
    const next = waiting.shift();
    next?.then();
    return next?.wait;
  };
  return { generation, received, step };
}

describe('ReplayedGeneration', () => {
  it('plays the recording under its own number, in recorded time divided by speed', () => {
    const { received, step } = play();
    const waits: number[] = [];
    for (let wait = step(); wait !== undefined; wait = step()) waits.push(wait);
    expect(received.map((message) => message.seq)).toEqual(recording.messages.map((message) => message.seq));
    expect(received.every((message) => message.generation_id === 5)).toBe(true);
    const events = recording.messages.flatMap((message) => message.events);
    expect(waits.reduce((sum, wait) => sum + wait)).toBeCloseTo(recordedDuration(events) / 2, 6);
  });

  it('includes a lost message in the snapshot', () => {
    const { generation, received, step } = play([1]);
    while (step() !== undefined);
    expect(received).toHaveLength(recording.messages.length - 1);
    expect(generation.snapshot(0).events).toHaveLength(recording.messages.flatMap((message) => message.events).length);
  });

  it('ends as cancelled when stopped, with the counts of the tokens so far', () => {
    const { generation, received, step } = play();
    for (let count = 0; count < 6; count += 1) step();
    generation.stop();
    while (step() !== undefined);
    const events = received.flatMap((message) => message.events);
    const tokens = events.flatMap((event) => (event.type === 'round' ? event.tokens : []));
    const ending = events.at(-1);
    expect(ending?.type === 'finished' && ending.stop).toBe('cancelled');
    expect(ending?.type === 'finished' && ending.stats.generated_tokens).toBe(tokens.length);
    expect(tokens.length).toBeGreaterThan(0);
  });
});
