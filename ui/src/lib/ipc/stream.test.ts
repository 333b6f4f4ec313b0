import { describe, expect, it } from 'vitest';
import type { ErrorInfo, GenerationEvent } from './schema.gen';
import { EventStream, lossySilenceMs, silenceMs, type Numbered } from './stream';
import { HandClock } from './testing';

const prefill = (done: number): GenerationEvent => ({ type: 'prefill', done, total: 100 });
const failed: GenerationEvent = { type: 'failed', error: { code: 'device', message: 'gone' } };
const kept: GenerationEvent = { type: 'kept' };
const message = (seq: number, ...events: GenerationEvent[]): Numbered<GenerationEvent> => ({ seq, events });

function follow(sent: GenerationEvent[] = []) {
  const clock = new HandClock();
  const seen: GenerationEvent[] = [];
  const asked: number[] = [];
  const from: number[] = [];
  const lost: ErrorInfo[] = [];
  let refusal: ErrorInfo | null = null;
  const stream = new EventStream<GenerationEvent>({
    async snapshot(id, seq) {
      asked.push(id);
      from.push(seq);
      if (refusal) throw refusal;
      return { seq, events: sent.slice(seq) };
    },
    deliver: (events) => seen.push(...events),
    lost: (error) => lost.push(error),
    clock,
  });
  return { stream, clock, seen, asked, from, lost, sent, refuse: (error: ErrorInfo) => (refusal = error) };
}

describe('EventStream', () => {
  it('delivers messages in order and requests nothing', async () => {
    const { stream, seen, asked, clock } = follow();
    stream.begin(7);
    stream.receive(7, message(0, prefill(0), prefill(1)));
    stream.receive(7, message(2, prefill(2)));
    await clock.advance(silenceMs - 1);
    expect(seen).toEqual([prefill(0), prefill(1), prefill(2)]);
    expect(asked).toEqual([]);
  });

  it('ignores duplicates and takes only the new part of an overlap', () => {
    const { stream, seen } = follow();
    stream.receive(7, message(0, prefill(0), prefill(1)));
    stream.receive(7, message(0, prefill(0), prefill(1)));
    stream.receive(7, message(1, prefill(1), prefill(2)));
    expect(seen).toEqual([prefill(0), prefill(1), prefill(2)]);
  });

  it('ignores messages of another generation', () => {
    const { stream, seen } = follow();
    stream.begin(7);
    stream.receive(6, message(0, prefill(0)));
    expect(seen).toEqual([]);
  });

  it('fills a gap from one snapshot, and keeps early messages', async () => {
    const sent = [0, 1, 2, 3].map(prefill);
    const { stream, seen, asked, clock } = follow(sent);
    stream.begin(7);
    stream.receive(7, message(0, prefill(0)));
    stream.receive(7, message(2, prefill(2)));
    stream.receive(7, message(3, prefill(3)));
    expect(seen).toEqual([prefill(0)]);
    await clock.advance(0);
    expect(asked).toEqual([7]);
    expect(seen).toEqual(sent);
    stream.receive(7, message(4, prefill(4)));
    expect(seen).toEqual([...sent, prefill(4)]);
  });

  it('takes early messages that reach past the snapshot', async () => {
    const { stream, seen, clock } = follow([0, 1].map(prefill));
    stream.begin(7);
    stream.receive(7, message(2, prefill(2)));
    await clock.advance(0);
    expect(seen).toEqual([0, 1, 2].map(prefill));
  });

  it('retries after a while when the snapshot did not fill the gap', async () => {
    const { stream, seen, asked, sent, clock } = follow([prefill(0)]);
    stream.begin(7);
    stream.receive(7, message(2, prefill(2)));
    await clock.advance(0);
    expect(seen).toEqual([prefill(0)]);
    sent.push(prefill(1), prefill(2));
    await clock.advance(lossySilenceMs);
    expect(asked).toEqual([7, 7]);
    expect(seen).toEqual([0, 1, 2].map(prefill));
  });

  it('requests a snapshot after two seconds of silence, and more often once a message was lost', async () => {
    const { stream, seen, asked, sent, clock } = follow();
    stream.begin(7);
    await clock.advance(silenceMs);
    expect(asked).toHaveLength(1);
    sent.push(prefill(0));
    await clock.advance(silenceMs);
    expect(seen).toEqual([prefill(0)]);
    sent.push(prefill(1));
    await clock.advance(lossySilenceMs);
    expect(asked).toHaveLength(3);
    expect(seen).toEqual([prefill(0), prefill(1)]);
    stream.receive(7, message(2, prefill(2)));
    await clock.advance(lossySilenceMs);
    expect(asked).toHaveLength(3);
  });

  it('requests only new events, however slow the response', async () => {
    const { stream, from, sent, clock } = follow();
    stream.begin(7);
    for (let token = 0; token < 3; token += 1) {
      await clock.advance(silenceMs);
      sent.push(prefill(token));
      stream.receive(7, message(token, prefill(token)));
    }
    await clock.advance(silenceMs);
    expect(from).toEqual([0, 1, 2, 3]);
  });

  it('takes a snapshot that arrives after some of its events', async () => {
    const sent = [0, 1, 2].map(prefill);
    const { stream, seen, clock } = follow(sent);
    stream.begin(7);
    stream.receive(7, message(1, prefill(1)));
    stream.receive(7, message(0, prefill(0)));
    await clock.advance(0);
    expect(seen).toEqual(sent);
  });

  it('ends with the last event and stops waiting', async () => {
    const { stream, seen, clock, asked } = follow();
    stream.begin(7);
    stream.receive(7, message(0, failed));
    expect(stream.over).toBe(true);
    expect(clock.waiting).toBe(0);
    await clock.advance(silenceMs * 3);
    expect(seen).toEqual([failed]);
    expect(asked).toEqual([]);
  });

  it('delivers events after the last one once, and fills gaps', async () => {
    const { stream, seen, clock, asked, sent } = follow();
    stream.begin(7);
    stream.receive(7, message(0, failed));
    stream.receive(7, message(0, failed));
    sent.push(failed, prefill(1), kept);
    stream.receive(7, message(2, kept));
    await clock.advance(0);
    expect([seen, asked]).toEqual([[failed, prefill(1), kept], [7]]);
    expect(clock.waiting).toBe(0);
  });

  it('reports no loss after its end', async () => {
    const { stream, lost, clock, refuse } = follow();
    stream.begin(7);
    stream.receive(7, message(0, failed));
    refuse({ code: 'invalid_request', message: 'no such generation' });
    stream.receive(7, message(2, kept));
    await clock.advance(silenceMs);
    expect(lost).toEqual([]);
  });

  it('delivers nothing after close', () => {
    const { stream, seen } = follow();
    stream.begin(7);
    stream.close();
    stream.receive(7, message(0, failed));
    expect(seen).toEqual([]);
  });

  it('ends when a snapshot brings a lost last event', async () => {
    const { stream, seen, sent, clock } = follow();
    stream.begin(7);
    stream.receive(7, message(0, prefill(0)));
    sent.push(prefill(0), failed);
    await clock.advance(silenceMs);
    expect(seen).toEqual([prefill(0), failed]);
    expect(stream.over).toBe(true);
    expect(clock.waiting).toBe(0);
  });

  it('reports when the generation can no longer be followed', async () => {
    const { stream, lost, clock, refuse } = follow();
    stream.begin(7);
    refuse({ code: 'invalid_request', message: 'no such generation' });
    await clock.advance(silenceMs);
    expect(lost).toEqual([{ code: 'invalid_request', message: 'no such generation' }]);
    expect(stream.over).toBe(true);
  });
});
