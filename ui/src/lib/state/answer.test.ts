import { describe, expect, it } from 'vitest';
import type { GenerationEvent, RoundEvent, TokenEvent } from '../ipc/schema.gen';
import { Answer } from './answer.svelte';

const token = (text: string, origin: TokenEvent['origin'], round: number, position: number): TokenEvent => ({
  id: 1,
  text,
  origin,
  p: 0.5,
  q: null,
  confidence: 0.4,
  round,
  position,
});

const round = (number: number, tokens: TokenEvent[], rejected: RoundEvent['rejected'] = []): GenerationEvent => ({
  type: 'round',
  round: number,
  drafted: 4,
  tokens,
  rejected,
  timing: { propose_ms: 1, target_ms: 1, verify_ms: 1, other_ms: 1 },
  depth: null,
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
    accepted_at_position: [1],
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

describe('Answer', () => {
  it('counts every token once, those without text and those held back included', () => {
    const answer = new Answer();
    answer.apply([round(0, [token('a', 'accepted', 0, 0), token('', 'accepted', 0, 1), token('🌊', 'bonus', 0, 2)])]);
    answer.apply([round(1, [token('b', 'resampled', 1, 0)]), finished([token('c', 'plain', 1, 1)])]);
    expect(answer.counts).toEqual({ accepted: 2, resampled: 1, bonus: 1, plain: 1 });
    expect(Object.values(answer.counts).reduce((sum, count) => sum + count)).toBe(answer.tokens.length);
    expect(answer.text).toBe('a🌊bc');
    expect(answer.phase).toBe('finished');
  });

  it('does not draw tokens without text, and keeps the numbers of the others', () => {
    const answer = new Answer();
    answer.apply([round(0, [token('', 'plain', 0, 0), token('é', 'plain', 0, 1)])]);
    expect(answer.blocks.flatMap((block) => block.runs.flatMap((run) => run.pieces.map((piece) => piece.token)))).toEqual([1]);
  });

  it('places rejected drafts at the token that replaced them, also when it came a round later', () => {
    const answer = new Answer();
    const rejected = { id: 9, text: 'x', p: 0.1, q: 0.5, u: 0.9, position: 1 };
    answer.apply([round(0, [token('a', 'accepted', 0, 0)], [rejected])]);
    answer.apply([round(1, [token('b', 'resampled', 0, 1), token('c', 'bonus', 1, 1)])]);
    expect(answer.detail(0)?.rejected).toEqual([]);
    expect(answer.detail(1)?.rejected).toEqual([rejected]);
    expect(answer.detail(2)?.rejected).toEqual([]);
    expect(answer.detail(2)?.drafted).toBe(4);
    expect(answer.detail(3)).toBeNull();
  });

  it('keeps what was written when it fails', () => {
    const answer = new Answer();
    answer.apply([round(0, [token('a', 'plain', 0, 0)]), { type: 'failed', error: { code: 'device', message: 'gone' } }]);
    expect(answer.phase).toBe('failed');
    expect(answer.over).toBe(true);
    expect(answer.text).toBe('a');
    expect(answer.error?.code).toBe('device');
  });

  it('goes from waiting to prefill to streaming', () => {
    const answer = new Answer();
    const phases = [answer.phase];
    answer.apply([
      { type: 'started', generation_id: 1, method: 'ngram', target: 't', draft: null, device: 'cpu', prompt_tokens: 3, max_draft: 4, rule: { name: 'lossless' }, seed: 7 },
      { type: 'prefill', done: 1, total: 3 },
    ]);
    phases.push(answer.phase);
    answer.apply([round(0, [])]);
    phases.push(answer.phase);
    expect(phases).toEqual(['waiting', 'prefill', 'streaming']);
    expect(answer.prefill).toEqual({ done: 1, total: 3 });
  });
});
