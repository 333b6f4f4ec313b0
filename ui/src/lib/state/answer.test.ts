import { describe, expect, it } from 'vitest';
import type { GenerationEvent, RoundEvent, TokenEvent } from '../ipc/schema.gen';
import { classesOf } from '../marks';
import { Answer } from './answer.svelte';

const token = (text: string, origin: TokenEvent['origin'], round: number, position: number): TokenEvent => ({
  id: 1,
  text,
  origin,
  p: 0.5,
  q: null,
  u: null,
  threshold: null,
  confidence: 0.4,
  entropy: 1,
  top: [],
  guesses: [],
  round,
  position,
});

const round = (number: number, tokens: TokenEvent[], rejected: RoundEvent['rejected'] = []): GenerationEvent => ({
  type: 'round',
  round: number,
  drafted: 4,
  draft: [],
  tokens,
  rejected,
  timing: { propose_ms: 1, target_ms: 1, verify_ms: 1, other_ms: 1 },
  depth: null,
  drafted_by: 'suffix',
  figures: { generated_tokens: 0, rounds: number + 1, decode_tok_s: 10, acceptance_rate: 0.5, mean_acceptance_length: 2 },
});

const finished = (tokens: TokenEvent[]): GenerationEvent => ({
  type: 'finished',
  stop: 'end_of_turn',
  tokens,
  stats: {
    prompt_tokens: 3,
    generated_tokens: 5,
    rounds: 2,
    drafted: 8,
    accepted: 2,
    resampled: 1,
    bonus: 1,
    plain: 1,
    acceptance_rate: 0.25,
    mean_acceptance_length: 2,
    target_passes: [[5, 2]],
    draft_passes: [[1, 8]],
    accepted_at_position: [1],
    drafted_at_position: [1],
    ttft_ms: 10,
    prefill_tok_s: 100,
    decode_tok_s: 10,
    wall_ms: 100,
    propose_ms: 1,
    target_ms: 1,
    verify_ms: 1,
    other_ms: 1,
    peak_memory_bytes: 0,
    device: 'cpu',
  },
});

const started: GenerationEvent = {
  type: 'started',
  generation_id: 1,
  method: 'ngram',
  target: 't',
  draft: null,
  device: 'cpu',
  prompt_tokens: 9,
  dropped_messages: 2,
  context_length: 512,
  max_draft: 4,
  rule: { name: 'lossless' },
  seed: 7,
};

describe('Answer', () => {
  it('counts every token once, empty and buffered ones included', () => {
    const answer = new Answer();
    answer.apply([round(0, [token('a', 'accepted', 0, 0), token('', 'accepted', 0, 1), token('🌊', 'bonus', 0, 2)])]);
    answer.apply([round(1, [token('b', 'resampled', 1, 0)]), finished([token('c', 'plain', 1, 1)])]);
    expect(answer.counts).toMatchObject({ accepted: 2, resampled: 1, bonus: 1, plain: 1, chosen: 0 });
    for (const mode of ['origin', 'confidence', 'entropy', 'rounds'] as const) {
      const counts = classesOf(mode).map((key) => answer.counts[key]);
      expect(
        counts.reduce((sum, count) => sum + count),
        mode,
      ).toBe(answer.tokens.length);
    }
    expect(answer.text).toBe('a🌊bc');
    expect(answer.phase).toBe('finished');
  });

  it('counts drafted tokens by their rounds, then by the engine’s figures, and again when continued', () => {
    const answer = new Answer();
    answer.apply([started, { ...round(0, [token('a', 'plain', 0, 0)]), drafted: 0 } as GenerationEvent]);
    expect(answer.drafted).toBe(0);
    answer.apply([round(1, [token('b', 'accepted', 1, 0)])]);
    expect(answer.drafted).toBe(4);
    answer.apply([finished([])]);
    expect(answer.drafted).toBe(8);
    answer.apply([started]);
    expect(answer.drafted).toBe(0);
  });

  it('hides empty tokens, and keeps the indices of the others', () => {
    const answer = new Answer();
    answer.apply([round(0, [token('', 'plain', 0, 0), token('é', 'plain', 0, 1)])]);
    expect(answer.blocks.flatMap((block) => block.runs.flatMap((run) => run.pieces.map((piece) => piece.token)))).toEqual([1]);
  });

  it('shows rejected drafts at the token that replaced them, also a round later', () => {
    const answer = new Answer();
    const rejected = { id: 9, text: 'x', p: 0.1, q: 0.5, u: 0.9, position: 1 };
    answer.apply([round(0, [token('a', 'accepted', 0, 0)], [rejected])]);
    answer.apply([round(1, [token('b', 'resampled', 0, 1), token('c', 'bonus', 1, 1)])]);
    expect(answer.detail(0)?.rejected).toEqual([]);
    expect(answer.detail(1)?.rejected).toEqual([rejected]);
    expect(answer.detail(2)?.rejected).toEqual([]);
    expect([answer.detail(2)?.drafted, answer.detail(2)?.draftedBy]).toEqual([4, 'suffix']);
    expect(answer.detail(3)).toBeNull();
  });

  it('numbers rounds by their events, as the lab does, also after it was continued', () => {
    const answer = new Answer();
    const events = [
      started,
      round(0, [token('a', 'accepted', 0, 0)]),
      // The reader chose a token, whose round follows those of all generations.
      round(7, [token('b', 'plain', 7, 0)]),
      started,
      round(0, [token('c', 'accepted', 0, 0)]),
      round(1, [token('d', 'resampled', 0, 1), token('e', 'bonus', 1, 0)]),
      finished([token('f', 'plain', 1, 1)]),
    ];
    answer.apply(events);
    expect([0, 1, 2, 3, 4, 5].map((index) => answer.detail(index)?.round)).toEqual([1, 2, 3, 3, 4, 4]);
    const inLab = events.filter(({ type }) => type === 'round').findIndex((event) => (event as RoundEvent).tokens[0]?.text === 'd');
    expect(answer.detail(4)?.round).toBe(inLab + 1);
  });

  it('keeps its text on failure', () => {
    const answer = new Answer();
    answer.apply([round(0, [token('a', 'plain', 0, 0)]), { type: 'failed', error: { code: 'device', message: 'gone' } }]);
    expect(answer.phase).toBe('failed');
    expect(answer.over).toBe(true);
    expect(answer.text).toBe('a');
    expect(answer.error?.code).toBe('device');
  });

  it('marks the start of rounds, and counts the used context', () => {
    const answer = new Answer();
    answer.apply([started, round(0, [token('a', 'accepted', 0, 0), token('b', 'bonus', 0, 1)]), round(1, [token('c', 'plain', 1, 0)])]);
    expect([0, 1, 2].map((index) => answer.mark(index).begins !== null)).toEqual([true, false, true]);
    // If the first token of a round is hidden, the round starts at the next one.
    expect([answer.mark(1, 1).begins !== null, answer.mark(2, 1).begins !== null]).toEqual([true, true]);
    expect([0, 1, 2].map((index) => answer.mark(index).round)).toEqual([0, 0, 1]);
    expect(answer.mark(0)).toMatchObject({ origin: 'accepted', confidence: 'unsure', entropy: 'leaning' });
    expect(answer.contextUsed).toBe(12);
    // The continuation has read those three tokens as part of its prompt.
    answer.apply([{ ...started, prompt_tokens: 12 }, round(0, [token('d', 'plain', 0, 0)])]);
    expect(answer.contextUsed).toBe(13);
    expect(answer.setup?.dropped).toBe(2);
    expect(answer.mark(3).begins).not.toBeNull();
  });

  it('knows the draft outcome of each round, also of tokens a round later', () => {
    const answer = new Answer();
    const rejected = (position: number) => ({ id: 9, text: 'x', p: 0.1, q: 0.5, u: 0.9, position });
    const drafted = (fates: ('accepted' | 'rejected' | 'untested')[]) =>
      fates.map((fate, at) => ({ id: 1, text: 'a', parent: at === 0 ? null : at - 1, fate }));
    const roundEvent = (number: number, change: Partial<RoundEvent>): GenerationEvent => ({
      ...(round(number, []) as RoundEvent & { type: 'round' }),
      ...change,
    });
    answer.apply([
      roundEvent(0, { tokens: [token('a', 'accepted', 0, 0), token('b', 'bonus', 0, 1)], drafted: 1, draft: drafted(['accepted']) }),
      roundEvent(1, {
        tokens: [token('c', 'accepted', 1, 0)],
        draft: drafted(['accepted', 'rejected', 'untested']),
        rejected: [rejected(1)],
      }),
      roundEvent(2, {
        tokens: [token('d', 'resampled', 1, 1), token('e', 'resampled', 2, 0)],
        draft: drafted(['rejected']),
        rejected: [rejected(0)],
      }),
      roundEvent(3, { tokens: [token('f', 'plain', 3, 0)], drafted: 0 }),
      // In a tree: an earlier sibling was rejected, the path continued to its end.
      roundEvent(4, {
        tokens: [token('g', 'accepted', 4, 0), token('h', 'bonus', 4, 1)],
        drafted: 2,
        draft: drafted(['rejected', 'accepted']),
        rejected: [rejected(0)],
      }),
    ]);
    expect([...'abcdefgh'].map((_, index) => answer.mark(index).kept)).toEqual([
      'whole',
      'whole',
      'partly',
      'partly',
      'none',
      'undrafted',
      'whole',
      'whole',
    ]);
    expect(answer.counts).toMatchObject({ whole: 4, partly: 2, none: 1, undrafted: 1 });
  });

  it('reports parked drafting when most rounds were plain because of it', () => {
    const parkedAtEnd = (parked: number[]) => {
      const answer = new Answer();
      const rounds = [0, 1, 2].map(
        (number) =>
          ({
            ...round(number, [token('a', 'plain', number, 0)]),
            depth: { parked: parked.includes(number), gains: [0.9] },
          }) as GenerationEvent,
      );
      const over = finished([]) as GenerationEvent & { type: 'finished' };
      answer.apply([...rounds, { ...over, stats: { ...over.stats, rounds: 3, plain: 3 } }]);
      return answer.parked;
    };
    expect([parkedAtEnd([]), parkedAtEnd([1]), parkedAtEnd([1, 2])]).toEqual([false, false, true]);
  });

  it('names failed methods until another generation continues it', () => {
    const answer = new Answer();
    const error = { code: 'out_of_memory', message: 'Not enough memory: 7 MiB.' } as const;
    answer.apply([started, { type: 'draft_dropped', method: 'draft-model', error }, round(0, [token('a', 'plain', 0, 0)])]);
    expect(answer.droppedDrafts).toEqual([{ method: 'draft-model', error }]);
    expect([answer.phase, answer.text]).toEqual(['streaming', 'a']);
    answer.apply([finished([]), started]);
    expect(answer.droppedDrafts).toEqual([]);
  });

  it('finds a tag in pieces that ends a thought, and reads no token twice before', () => {
    const answer = new Answer();
    let reads = 0;
    const counted = (text: string, at: number) =>
      Object.defineProperty(token(text, 'plain', at, 0), 'text', { get: () => (reads++, text) });
    const texts = Array.from({ length: 100 }, () => 'a > b ');
    answer.apply(texts.map((text, at) => round(at, [counted(text, at)])));
    expect(reads).toBeLessThan(10 * texts.length);
    for (const [i, text] of ['</th', 'ink', '> so'].entries()) answer.apply([round(100 + i, [token(text, 'plain', 100 + i, 0)])]);
    expect(answer.answerText).toBe('so');
  });

  it('parses a thought that the prompt started, and keeps it when continued', () => {
    const answer = new Answer();
    const say = (...texts: string[]) => answer.apply(texts.map((text, at) => round(at, [token(text, 'plain', at, 0)])));
    say('so', '</think>', 'a -> b\n\n');
    const [first] = answer.answerBlocks;
    say('c -> d');
    // Settled blocks are not rebuilt while a tag may be ending.
    expect(answer.answerBlocks[0]).toBe(first);
    expect(answer.answerText).toBe('a -> b\n\nc -> d');
    answer.apply([finished([])]);
    say(' and on');
    expect(answer.thoughtBlocks).toHaveLength(1);
    expect(answer.answerText).toBe('a -> b\n\nc -> d and on');
  });

  it('shows if it is not saved yet, given up, or saved after all', () => {
    const answer = new Answer();
    const error = { code: 'store', message: 'The disk is full.' } as const;
    answer.apply([{ type: 'not_kept', error }, finished([])]);
    expect([answer.notKept, answer.givenUp, answer.phase]).toEqual([error, false, 'finished']);
    answer.apply([{ type: 'given_up', error }]);
    expect([answer.notKept, answer.givenUp, answer.phase]).toEqual([error, true, 'finished']);
    answer.apply([{ type: 'kept' }]);
    expect([answer.notKept, answer.givenUp]).toEqual([null, false]);
  });

  it('goes from waiting to prefill to streaming', () => {
    const answer = new Answer();
    const phases = [answer.phase];
    answer.apply([
      {
        type: 'started',
        generation_id: 1,
        method: 'ngram',
        target: 't',
        draft: null,
        device: 'cpu',
        prompt_tokens: 3,
        dropped_messages: 0,
        context_length: 512,
        max_draft: 4,
        rule: { name: 'lossless' },
        seed: 7,
      },
      { type: 'prefill', done: 1, total: 3 },
    ]);
    phases.push(answer.phase);
    answer.apply([round(0, [])]);
    phases.push(answer.phase);
    expect(phases).toEqual(['waiting', 'prefill', 'streaming']);
    expect(answer.prefill).toEqual({ done: 1, total: 3 });
  });
});
