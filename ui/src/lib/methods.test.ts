import { describe, expect, it } from 'vitest';
import { appInfo } from './host/testing';
import { methodMeaning, methodName, offeredMethods } from './methods';

const bigram = {
  name: 'bigram',
  summary: 'Proposes the usual successor',
  needs_draft: false,
  uses_draft: false,
  needs_head: false,
  uses_head: false,
  needs_texts: false,
  uses_texts: false,
  options: [],
};

describe('methods', () => {
  it('are offered as the engine lists them, with plain decoding last', () => {
    const names = offeredMethods({ ...appInfo, methods: [...appInfo.methods, bigram] }).map(({ name }) => name);
    expect(names.slice(0, 2)).toEqual(['auto', 'draft-model']);
    expect(names.slice(-2)).toEqual(['bigram', 'plain']);
    expect(offeredMethods(null)).toEqual([]);
  });

  it('have words of the window, else those of the engine', () => {
    expect([methodName('ngram'), methodName('bigram'), methodName('constructor')]).toEqual(['N-gram', 'bigram', 'constructor']);
    expect(methodMeaning(bigram)).toBe('Proposes the usual successor');
    expect(
      methodMeaning({
        name: 'ngram',
        summary: 'Copies',
        needs_draft: false,
        uses_draft: false,
        needs_head: false,
        uses_head: false,
        needs_texts: false,
        uses_texts: false,
        options: [],
      }),
    ).toBe('Copies the text that followed the same tokens earlier');
  });
});
