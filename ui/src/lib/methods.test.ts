import { describe, expect, it } from 'vitest';
import { appInfo, offered } from './host/testing';
import { methodMeaning, methodName, offeredMethods } from './methods';

const bigram = offered('bigram', 'Proposes the usual successor');

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
    expect(methodMeaning(offered('ngram', 'Copies'))).toBe('Copies the text that followed the same tokens earlier');
  });
});
