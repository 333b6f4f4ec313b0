// Recorded streams over channels that repeat, reorder and lose messages. The final answer equals that of a perfect
// channel.

import { describe, expect, it } from 'vitest';
import { uniform } from '../../../../tests/ui/fixtures/build';
import { parseRecording } from '../../../../tests/ui/replay/recording';
import type { GenerationEvent, StreamMessage } from '../ipc/schema.gen';
import { EventStream, silenceMs } from '../ipc/stream';
import { HandClock } from '../ipc/testing';
import { Answer } from './answer.svelte';
import { FrameBuffer } from './frame';

const files = import.meta.glob<string>(
  ['../../../../tests/streams/*.jsonl', '../../../../tests/ui/fixtures/fixture-{answer,story,markdown,thought,ngram,plain}.jsonl'],
  {
    query: '?raw',
    import: 'default',
    eager: true,
  },
);
const recordings = Object.entries(files).map(([path, text]) => ({
  name: path.split('/').at(-1) ?? path,
  messages: parseRecording(text).messages,
}));

/** Delivers messages as a faulty channel does: some twice, late or never. */
type Channel = (messages: readonly StreamMessage[], random: () => number) => StreamMessage[];

const twice: Channel = (messages, random) =>
  messages.flatMap((message, at) => [
    message,
    ...(random() < 0.6 ? [message] : []),
    ...(random() < 0.2 ? messages.slice(0, at).slice(-1) : []),
  ]);

/** No message moves more than a few places. */
const shuffled: Channel = (messages, random) =>
  messages
    .map((message, at) => ({ message, place: at + 4 * random() }))
    .sort((a, b) => a.place - b.place)
    .map(({ message }) => message);

const lossy: Channel = (messages, random) => messages.filter(() => random() < 0.65);

const channels: Record<string, Channel> = {
  'in order': (messages) => [...messages],
  'some twice': twice,
  shuffled,
  'some lost': lossy,
  'the last one lost': (messages) => messages.slice(0, -1),
  'all but one lost': (messages) => messages.slice(1, 2),
  'shuffled, some twice, some lost': (messages, random) => lossy(twice(shuffled(messages, random), random), random),
};

/** All properties of an answer and its tokens. */
const account = (answer: Answer) => ({
  phase: answer.phase,
  text: answer.text,
  answerText: answer.answerText,
  origins: answer.tokens.map(({ origin }) => origin),
  counts: answer.counts,
  figures: answer.figures,
  stats: answer.stats,
  marks: answer.tokens.map((_, index) => answer.mark(index)),
  details: answer.tokens.map((_, index) => answer.detail(index)),
  blocks: answer.answerBlocks,
});

/** The answer of a recording, applied at once. */
function undisturbed(messages: readonly StreamMessage[]): Answer {
  const answer = new Answer();
  answer.apply(messages.flatMap(({ events }) => events));
  return answer;
}

/** The answer as followed by the window, a few messages per frame, and the number of snapshots. */
async function followed(
  messages: readonly StreamMessage[],
  channel: Channel,
  random: () => number,
): Promise<{ answer: Answer; asked: number }> {
  const answer = new Answer();
  const clock = new HandClock();
  const all = messages.flatMap(({ events }) => events);
  let frame: () => void = () => {};
  let sent = 0;
  let asked = 0;
  const buffer = new FrameBuffer<GenerationEvent>(
    (then) => (frame = then),
    (events) => answer.apply(events),
  );
  const stream = new EventStream<GenerationEvent>({
    async snapshot(_id, seq) {
      asked += 1;
      return { seq, events: all.slice(seq, sent) };
    },
    deliver: (events) => buffer.add(events),
    lost: (error) => answer.fail(error),
    clock,
  });
  stream.begin(1);
  for (const message of channel(messages, random)) {
    sent = Math.max(sent, message.seq + message.events.length);
    stream.receive(1, message);
    await clock.advance(0);
    if (random() < 0.4) frame();
  }
  // The engine has sent everything, whatever arrived.
  sent = all.length;
  for (let silence = 0; silence < 5 && !stream.over; silence += 1) await clock.advance(silenceMs);
  frame();
  expect(stream.over).toBe(true);
  return { answer, asked };
}

describe.each(recordings)('$name', ({ messages }) => {
  const wanted = account(undisturbed(messages));

  it('has a text', () => {
    expect(wanted.phase).toBe('finished');
    expect(wanted.origins.length).toBeGreaterThan(5);
  });

  it.each(Object.keys(channels))('gives the same answer, %s', async (name) => {
    const channel = channels[name] ?? ((sent: readonly StreamMessage[]) => [...sent]);
    for (const seed of [1, 2, 3, 4, 5]) {
      const { answer, asked } = await followed(messages, channel, uniform(seed));
      expect(account(answer), `seed ${seed}`).toEqual(wanted);
      if (name === 'in order' || name === 'some twice') expect(asked).toBe(0);
      if (name.endsWith('lost')) expect(asked).toBeGreaterThan(0);
    }
  });
});
