import { describe, expect, it } from 'vitest';
import { appInfo, sampling } from '../../host/testing';
import { lossless } from '../../rules';
import type { AnswerSettings, OfferedMethod, RejectedEvent, TokenEvent } from '../../ipc/schema.gen';
import type { TokenDetail } from '../answer.svelte';
import { shownQ, type ShownToken } from './shownQ';

const settings: AnswerSettings = {
  method: 'auto',
  max_draft: 4,
  max_tokens: 64,
  sampling: { ...sampling, temperature: 0.7 },
  rule: lossless,
  target: 'big',
  stop: [],
  draft: 'small',
};

const event: TokenEvent = {
  id: 1,
  text: 'a',
  origin: 'accepted',
  p: 0.5,
  q: 0.5,
  u: 0.1,
  threshold: 1,
  confidence: 0.4,
  entropy: 1,
  top: [],
  guesses: [],
  round: 0,
  position: 0,
};

const detail = (token: Partial<TokenEvent> = {}, more: Partial<TokenDetail> = {}): TokenDetail => ({
  index: 0,
  token: { ...event, ...token },
  rejected: [],
  round: 1,
  drafted: 4,
  draftedBy: 'draft-model',
  timing: null,
  rule: lossless,
  ...more,
});

const shown: ShownToken = { settings, token: detail(), context: 600, draft: 'small', temperature: 0.7, methods: appInfo.methods };
const rejected = { id: 2, text: 'b', p: 0.1, q: 0.4, u: 0.9, position: 0 } as RejectedEvent;

describe('the shown q', () => {
  it('is that of the answer where the draft model drafted the token alone', () => {
    expect(shownQ(shown)).toEqual({ kind: 'as_drawn' });
    expect(shownQ({ ...shown, token: detail({ origin: 'resampled', q: null }, { rejected: [rejected] }) })).toEqual({ kind: 'as_drawn' });
  });

  it.each(['suffix', 'ngram', 'head', 'retrieval'])('is another where %s drafted the token', (draftedBy) => {
    expect(shownQ({ ...shown, token: detail({}, { draftedBy }) })).toEqual({ kind: 'drafted_by', method: draftedBy });
  });

  it('takes the method for the drafter in answers of older versions, unless it mixes drafters', () => {
    const token = detail({}, { draftedBy: null });
    expect(shownQ({ ...shown, token, settings: { ...settings, method: 'draft-model' } })).toEqual({ kind: 'as_drawn' });
    expect(shownQ({ ...shown, token })).toEqual({ kind: 'drafted_by', method: 'auto' });
  });

  it.each(['bonus', 'plain', 'chosen'] as const)('belongs to no draft at a %s token', (origin) => {
    expect(shownQ({ ...shown, token: detail({ origin, q: null }) })).toEqual({ kind: 'undrafted' });
  });

  it('covers more text than a draft window shorter than the context', () => {
    const windowed = { ...shown, settings: { ...settings, options: { draft_window: 512 } } };
    expect(shownQ(windowed)).toEqual({ kind: 'window', tokens: 512 });
    expect(shownQ({ ...windowed, context: 516 })).toEqual({ kind: 'as_drawn' });
    expect(shownQ({ ...windowed, context: 517 })).toEqual({ kind: 'window', tokens: 512 });
  });

  it('drew no ranked token, except at temperature 0', () => {
    const token = detail({ q: null });
    expect(shownQ({ ...shown, token })).toEqual({ kind: 'ranked' });
    const greedy = { ...settings, sampling: { ...sampling, temperature: 0 } };
    expect(shownQ({ ...shown, token, settings: greedy, temperature: 0 })).toEqual({ kind: 'as_drawn' });
  });

  it('has another temperature, draft or method', () => {
    expect(shownQ({ ...shown, temperature: 1 })).toEqual({ kind: 'other_temperature', own: 0.7 });
    expect(shownQ({ ...shown, draft: 'other' })).toEqual({ kind: 'other_draft', draft: 'small' });
    expect(shownQ({ ...shown, settings: { ...settings, method: 'suffix' } })).toEqual({ kind: 'other_method' });
    expect(shownQ({ ...shown, settings: null })).toEqual({ kind: 'other_method' });
  });

  it('is of the head for the first token of its drafts only', () => {
    const own = { ...settings, method: 'head', draft: null };
    const heads: Record<string, Partial<OfferedMethod>> = {
      head: { uses_head: true, needs_head: true },
      auto: { uses_head: true, needs_head: false },
    };
    const names = ['head', 'auto', 'suffix', 'ngram'];
    const methods = names.map(
      (name) => ({ ...appInfo.methods[0], name, uses_head: false, needs_head: false, ...heads[name] }) as OfferedMethod,
    );
    const shown = (token: Partial<TokenEvent>, draftedBy = 'head', method = 'head') =>
      shownQ({
        settings: { ...own, method },
        token: detail(token, { draftedBy }),
        context: 40,
        draft: null,
        byHead: true,
        temperature: 0.7,
        methods,
      });
    expect(shown({})).toEqual({ kind: 'as_drawn' });
    expect(shown({ position: 1 })).toEqual({ kind: 'later' });
    expect(shown({}, 'suffix', 'auto')).toEqual({ kind: 'drafted_by', method: 'suffix' });
    expect(shown({}, 'ngram', 'ngram')).toEqual({ kind: 'other_method' });
  });
});
