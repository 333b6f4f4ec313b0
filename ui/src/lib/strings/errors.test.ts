// What the window says of errors: every code of the engine, in every language, with and without what is named.

import { afterEach, describe, expect, it } from 'vitest';
import catalogue from '../../../../crates/hunch-library/src/catalogue.json';
import { errorFace, errorLine, ownError } from '../errors';
import type { ErrorCode, ErrorInfo } from '../ipc/schema.gen';
import schema from '../ipc/schema.gen.ts?raw';
import { catalogueNotesDe } from './catalogueNotesDe';
import { languages, setLanguage } from './index.svelte';
import { errorParams } from './keys';

afterEach(() => setLanguage('en'));

/** The codes as the engine lists them. */
const codes = [...(/export type ErrorCode = ([^;]+);/.exec(schema)?.[1] ?? '').matchAll(/"(\w+)"/g)].map(([, code]) => code as ErrorCode);

const named = (code: ErrorCode): ErrorInfo => ({
  code,
  message: 'The engine’s own words.',
  params: Object.fromEntries(errorParams[code].map((name) => [name, `<${name}>`])),
});

describe('an error', () => {
  it('of every code of the engine says what happened in every language, with all that was named', () => {
    expect(codes.length).toBeGreaterThan(20);
    expect(Object.keys(errorParams).sort()).toEqual([...codes].sort());
    for (const { code: language } of languages) {
      setLanguage(language);
      for (const code of codes) {
        const { title, said, detail } = errorFace(named(code));
        expect(title.trim(), code).not.toBe('');
        expect(`${said ?? ''}${detail ?? ''}`.trim(), code).not.toBe('');
        for (const name of errorParams[code]) expect(`${said ?? ''} ${detail ?? ''}`, `${language} ${code}`).toContain(`<${name}>`);
      }
    }
  });

  it('has words of its own in each language', () => {
    const told = codes.map((code) =>
      languages.map(({ code: language }) => {
        setLanguage(language);
        const { title, said } = errorFace(named(code));
        return [title, said];
      }),
    );
    for (const [english, german] of told) {
      expect(english?.[0]).not.toBe(german?.[0]);
      if (english?.[1] !== null) expect(english?.[1]).not.toBe(german?.[1]);
    }
  });

  it('writes numbers and sizes as the language does', () => {
    const long: ErrorInfo = { code: 'context_overflow', message: '', params: { prompt: '5000', context: '4096' } };
    const full: ErrorInfo = { code: 'disk_full', message: '', params: { folder: '/models', missing: '1500000000' } };
    expect([errorFace(long).said, errorFace(full).said].join()).toMatch(/5,000.*4,096.*1\.5 GB/);
    setLanguage('de');
    expect([errorFace(long).said, errorFace(full).said].join()).toMatch(/5\.000.*4\.096.*1,5 GB/);
  });

  it('of a full disk says what other downloads still need where they need any, and never less than is missing', () => {
    const full = (params: Record<string, string>) => errorFace({ code: 'disk_full', message: '', params: { folder: '/models', missing: '12000001', ...params } });
    const said = {
      en: ['needs 12.1 MB more free space.', 'needs 12.1 MB more free space (other downloads need 1.5 GB).'],
      de: ['fehlen 12,1 MB.', 'fehlen 12,1 MB (andere Downloads brauchen 1,5 GB).'],
    } as const;
    for (const { code } of languages) {
      setLanguage(code);
      const [alone, beside] = said[code];
      expect(full({ promised: '1500000000' }).said).toContain(beside);
      expect(full({ promised: '0' }).said).toContain(alone);
      // An engine from before names none.
      expect(full({})).toMatchObject({ said: expect.stringContaining(alone), detail: null });
    }
  });

  it('of an engine that names nothing keeps that engine’s words', () => {
    const old: ErrorInfo = { code: 'context_overflow', message: 'Too long.' };
    for (const { code } of languages) {
      setLanguage(code);
      expect(errorFace(old)).toMatchObject({ said: null, detail: 'Too long.' });
      expect(errorLine(old)).toContain('Too long.');
    }
    expect(errorFace({ code: 'from_tomorrow' as ErrorCode, message: 'New.' }).title).toBe(errorFace(named('internal')).title);
  });

  it('that the window has found is told in the window’s words', () => {
    const own = ownError('no_model', 'Called off.');
    expect(errorFace(own)).toMatchObject({ title: 'No model is loaded', said: 'Called off.', detail: null, offersModel: true });
    expect(errorLine(own)).toBe('Called off.');
  });

  it('in a line says the same', () => {
    expect(errorLine(named('hub_unreachable'))).toBe('The engine’s own words.');
    setLanguage('de');
    expect(errorLine(named('hub_unreachable'))).toMatch(/^Keine Verbindung zu <endpoint>.* <detail>$/);
    expect(errorLine(named('busy'))).toBe('Eine Antwort oder eine Messung läuft. Stoppe sie oder warte, bis sie fertig ist.');
  });
});

describe('the notes of the catalogue', () => {
  it('are there in German, made of the English that the catalogue has now', () => {
    const notes = new Set(catalogue.models.map(({ note }) => note).filter((note) => note !== ''));
    expect(Object.keys(catalogueNotesDe).sort()).toEqual([...notes].sort());
  });
});
