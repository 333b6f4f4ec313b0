import { afterEach, describe, expect, it } from 'vitest';
import { errorContent } from '../errors';
import {
  formatBytes,
  formatCount,
  formatField,
  formatMean,
  formatParameters,
  formatProbability,
  formatShare,
  nounAfter,
  plural,
} from '../format';
import { offered } from '../host/testing';
import { origins } from '../origin';
import { grouped } from '../state/conversations.svelte';
import { whyNot } from '../state/settings.svelte';
import { de } from './de';
import { en } from './en';
import { language, languages, preferredLanguage, setLanguage } from './index.svelte';

afterEach(() => setLanguage('en'));

/** All text entries with their paths. */
function texts(part: object, path = ''): [string, string][] {
  return Object.entries(part).flatMap(([key, value]: [string, unknown]): [string, string][] => {
    if (typeof value === 'string') return [[path + key, value]];
    return typeof value === 'object' && value !== null ? texts(value, `${path}${key}.`) : [];
  });
}

describe('string tables', () => {
  it('have no empty text', () => {
    for (const [path, text] of [...texts(en), ...texts(de)]) expect(text.trim(), path).not.toBe('');
    expect(de.empty.examples).toHaveLength(en.empty.examples.length);
  });

  it('use the ellipsis character and no exclamation marks', () => {
    for (const [path, text] of [...texts(en), ...texts(de)]) expect(text, path).not.toMatch(/\.\.\.|!/);
  });

  it('separate arguments in German formulas by semicolons, because decimals have a comma', () => {
    const { threshold, proof } = de.lab.resampling;
    const filled = [
      threshold('0,021', '0,572', '0,037'),
      proof.keep('0,021', '0,572', '0,037', '0,021'),
      proof.sum('0,1', '0,2', '0,3', '0,4'),
    ];
    expect(filled[0]).toBe('Schwelle min(1; 0,021/0,572) = 0,037');
    const formulas = [...filled, ...texts(de).map(([, text]) => text)].filter((text) => /\b(min|max)\(/.test(text));
    expect(formulas.length).toBeGreaterThan(8);
    for (const text of formulas) expect(text).not.toMatch(/\b(min|max)\([^()]*, /);
  });
});

describe('language', () => {
  it('is the first preferred language that is supported, otherwise English', () => {
    expect(preferredLanguage(['de-AT', 'en'])).toBe('de');
    expect(preferredLanguage(['fr', 'de'])).toBe('de');
    expect(preferredLanguage(['EN-gb', 'de'])).toBe('en');
    expect(preferredLanguage(['fr'])).toBe('en');
    expect(preferredLanguage([])).toBe('en');
  });

  it('changes all text at once', () => {
    const entry = { id: 1, title: '', pinned: true, created_ms: 0, updated_ms: 0 };
    const texts = () => [
      language.strings.composer.send,
      origins[0]?.label,
      errorContent({ code: 'no_model', message: '' }).title,
      whyNot(offered('plain', ''), null),
      grouped([entry], new Date())[0]?.name,
    ];
    expect(texts()).toEqual(['Send', 'accepted', 'No model is loaded', 'Open a model first', 'Pinned']);
    setLanguage('de');
    expect(texts()).toEqual(['Senden', 'angenommen', 'Es ist kein Modell geladen', 'Öffne zuerst ein Modell', 'Angeheftet']);
  });

  it('inflects what a number counts', () => {
    const written = () => [
      plural(1, 'like'),
      plural(2, 'like'),
      language.strings.library.search.downloads(plural(1, 'download')),
      language.strings.compare.form.fileNamed('mine', plural(10_000, 'prompt')),
    ];
    expect(written()).toEqual(['1 like', '2 likes', '1 download in 30 days', 'mine, 10,000 prompts']);
    setLanguage('de');
    expect(written()).toEqual(['1 Like', '2 Likes', '1 Download in 30 Tagen', 'mine, 10.000 Prompts']);
  });

  it('has German sentences of its own', () => {
    expect([de.methods.cascade.meaning, de.methods['suffix-head'].meaning].map((text) => text.slice(0, 15))).toEqual([
      'Suffix, wenn es',
      'Suffix, wenn es',
    ]);
    expect(de.library.catalogue.about('November 2026')).toContain('Geprüft im November 2026.');
  });

  it('is listed under its own name', () => {
    expect(languages.map(({ name }) => name)).toEqual(['English', 'Deutsch']);
  });

  it('formats numbers by its own conventions', () => {
    const written = () => [
      formatCount(1234567),
      formatMean(2.614),
      formatShare(0.714).replace('\u00a0', ' '),
      formatProbability(0.8124),
      formatProbability(0.0002),
      formatBytes(1_117_000_000),
      formatParameters(1_543_714_304),
      formatField(2048, 0),
      formatField(0.7, 2),
      plural(1, 'round'),
      nounAfter(2, 'round'),
    ];
    expect(written()).toEqual(['1,234,567', '2.61', '71%', '0.812', '<0.001', '1.1 GB', '1.5B', '2048', '0.70', '1 round', 'rounds']);
    setLanguage('de');
    expect(written()).toEqual(['1.234.567', '2,61', '71 %', '0,812', '<0,001', '1,1 GB', '1,5B', '2048', '0,70', '1 Runde', 'Runden']);
  });
});
