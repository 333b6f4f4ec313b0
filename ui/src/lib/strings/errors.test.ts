// Error texts: every engine code in every language, with and without parameters.

import { afterEach, describe, expect, it } from 'vitest';
import catalogue from '../../../../crates/hunch-library/src/catalogue.json';
import { errorContent, errorLine, ownError } from '../errors';
import type { ErrorCode, ErrorInfo } from '../ipc/schema.gen';
import schema from '../ipc/schema.gen.ts?raw';
import { catalogueNotesDe } from './catalogueNotesDe';
import { languages, setLanguage } from './index.svelte';
import { errorParams } from './keys';

afterEach(() => setLanguage('en'));

/** Error codes of the engine, from the generated schema. */
const codes = [...(/export type ErrorCode = ([^;]+);/.exec(schema)?.[1] ?? '').matchAll(/"(\w+)"/g)].map(([, code]) => code as ErrorCode);

const named = (code: ErrorCode): ErrorInfo => ({
  code,
  message: 'The engine’s own words.',
  params: Object.fromEntries(errorParams[code].map((name) => [name, `<${name}>`])),
});

describe('error text', () => {
  it('exists for every engine code in every language and includes all parameters', () => {
    expect(codes.length).toBeGreaterThan(20);
    expect(Object.keys(errorParams).sort()).toEqual([...codes].sort());
    for (const { code: language } of languages) {
      setLanguage(language);
      for (const code of codes) {
        const { title, text, detail } = errorContent(named(code));
        expect(title.trim(), code).not.toBe('');
        expect(`${text ?? ''}${detail ?? ''}`.trim(), code).not.toBe('');
        for (const name of errorParams[code]) expect(`${text ?? ''} ${detail ?? ''}`, `${language} ${code}`).toContain(`<${name}>`);
      }
    }
  });

  it('differs between languages', () => {
    const texts = codes.map((code) =>
      languages.map(({ code: language }) => {
        setLanguage(language);
        const { title, text } = errorContent(named(code));
        return [title, text];
      }),
    );
    for (const [english, german] of texts) {
      expect(english?.[0]).not.toBe(german?.[0]);
      if (english?.[1] !== null) expect(english?.[1]).not.toBe(german?.[1]);
    }
  });

  it('formats numbers and sizes by the language', () => {
    const long: ErrorInfo = { code: 'context_overflow', message: '', params: { prompt: '5000', context: '4096' } };
    const full: ErrorInfo = { code: 'disk_full', message: '', params: { folder: '/models', missing: '1500000000' } };
    expect([errorContent(long).text, errorContent(full).text].join()).toMatch(/5,000.*4,096.*1\.5 GB/);
    setLanguage('de');
    expect([errorContent(long).text, errorContent(full).text].join()).toMatch(/5\.000.*4\.096.*1,5 GB/);
  });

  it('of a full disk rounds up the missing space and names other downloads only if they need any', () => {
    const full = (params: Record<string, string>) =>
      errorContent({ code: 'disk_full', message: '', params: { folder: '/models', missing: '12000001', ...params } });
    const expected = {
      en: ['needs 12.1 MB more free space.', 'needs 12.1 MB more free space (other downloads need 1.5 GB).'],
      de: ['fehlen 12,1 MB.', 'fehlen 12,1 MB (andere Downloads brauchen 1,5 GB).'],
    } as const;
    for (const { code } of languages) {
      setLanguage(code);
      const [alone, beside] = expected[code];
      expect(full({ reserved: '1500000000' }).text).toContain(beside);
      expect(full({ reserved: '0' }).text).toContain(alone);
      // Older engines do not report it.
      expect(full({})).toMatchObject({ text: expect.stringContaining(alone), detail: null });
    }
  });

  it('falls back to the engine’s message when it sends no parameters', () => {
    const old: ErrorInfo = { code: 'context_overflow', message: 'Too long.' };
    for (const { code } of languages) {
      setLanguage(code);
      expect(errorContent(old)).toMatchObject({ text: null, detail: 'Too long.' });
      expect(errorLine(old)).toContain('Too long.');
    }
    expect(errorContent({ code: 'from_tomorrow' as ErrorCode, message: 'New.' }).title).toBe(errorContent(named('internal')).title);
  });

  it('of an error raised by the window is its own message', () => {
    const own = ownError('no_model', 'Cancelled.');
    expect(errorContent(own)).toMatchObject({ title: 'No model is loaded', text: 'Cancelled.', detail: null, offersModel: true });
    expect(errorLine(own)).toBe('Cancelled.');
  });

  it('fits in one line', () => {
    expect(errorLine(named('hub_unreachable'))).toBe('The engine’s own words.');
    setLanguage('de');
    expect(errorLine(named('hub_unreachable'))).toMatch(/^Keine Verbindung zu <endpoint>.* <detail>$/);
    expect(errorLine(named('busy'))).toBe('Eine Antwort oder eine Messung läuft. Stoppe sie oder warte, bis sie fertig ist.');
  });
});

describe('catalogue notes', () => {
  it('are translated to German, keyed by the current English', () => {
    const notes = new Set(catalogue.models.map(({ note }) => note).filter((note) => note !== ''));
    expect(Object.keys(catalogueNotesDe).sort()).toEqual([...notes].sort());
  });
});
