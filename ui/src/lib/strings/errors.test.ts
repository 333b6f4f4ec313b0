// Error texts: every engine code in every language, with and without parameters.

import { afterEach, describe, expect, it } from 'vitest';
import catalogue from '../../../../crates/hunch-library/src/catalogue.json';
import { errorContent, errorLine, ownError } from '../errors';
import type { ErrorCode, ErrorInfo, RefusalReason } from '../ipc/schema.gen';
import schema from '../ipc/schema.gen.ts?raw';
import { catalogueNotesDe } from './catalogueNotesDe';
import { languages, setLanguage } from './index.svelte';
import { errorParams, refusalParams, runningWork, serverRemedies } from './keys';

afterEach(() => setLanguage('en'));

/** Members of a union of the generated schema. */
const membersOf = (union: string) =>
  [...(new RegExp(`export type ${union} = ([^;]+);`).exec(schema)?.[1] ?? '').matchAll(/"(\w+)"/g)].map(([, name]) => name);

/** Error codes of the engine. */
const codes = membersOf('ErrorCode') as ErrorCode[];

/** Reasons for which the engine refuses a request. */
const reasons = membersOf('RefusalReason') as RefusalReason[];

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
        // A remedy and running work are codes, not texts.
        for (const name of errorParams[code].filter((name) => name !== 'remedy' && name !== 'work'))
          expect(`${text ?? ''} ${detail ?? ''}`, `${language} ${code}`).toContain(`<${name}>`);
      }
    }
  });

  it('has its own remedy for each failure of a server', () => {
    for (const { code: language } of languages) {
      setLanguage(language);
      const params = { address: 'http://host/v1', detail: 'no' };
      const texts = serverRemedies.map((remedy) => errorContent({ code: 'server', message: '', params: { ...params, remedy } }).text);
      expect(new Set(texts).size, language).toBe(serverRemedies.length);
      // Stored errors of older versions have none.
      expect(texts).toContain(errorContent({ code: 'server', message: '', params }).text);
    }
  });

  it('names the work that runs', () => {
    for (const { code: language } of languages) {
      setLanguage(language);
      const texts = runningWork.map((work) => errorContent({ code: 'busy', message: '', params: { work } }).text);
      // Stored errors of older versions do not name it.
      texts.push(errorContent({ code: 'busy', message: '', params: {} }).text);
      expect(new Set(texts).size, language).toBe(runningWork.length + 1);
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
    expect(errorLine(named('hub_unreachable'))).toMatch(/^No connection to <endpoint>\..* Details: <detail>$/);
    setLanguage('de');
    expect(errorLine(named('hub_unreachable'))).toMatch(/^Keine Verbindung zu <endpoint>.* <detail>$/);
    expect(errorLine(named('busy'))).toBe('Eine Antwort oder eine Messung läuft. Stoppe sie oder warte, bis sie fertig ist.');
  });
});

describe('the text of a refusal', () => {
  const message = 'The engine’s own words.';
  const refused = (reason: RefusalReason): ErrorInfo => ({
    code: 'invalid_request',
    message,
    params: { reason, ...Object.fromEntries(refusalParams[reason].map((name) => [name, `<${name}>`])) },
  });

  it('exists for every reason in every language and uses its parameters', () => {
    expect(reasons.length).toBeGreaterThan(10);
    expect(Object.keys(refusalParams).sort()).toEqual([...reasons].sort());
    for (const reason of reasons) {
      const written = languages.map(({ code: language }) => {
        setLanguage(language);
        const { title, text, detail } = errorContent(refused(reason));
        for (const name of refusalParams[reason]) expect(`${text} ${detail ?? ''}`, `${language} ${reason}`).toContain(`<${name}>`);
        expect(`${title} ${text} ${detail ?? ''}`, `${language} ${reason}`).not.toMatch(/undefined|engine/);
        return [title, text];
      });
      const [[englishTitle, english] = [], [germanTitle, german] = []] = written;
      expect(germanTitle, reason).not.toBe(englishTitle);
      expect(german, reason).not.toBe(english);
    }
  });

  it('has no advice for the command line, in any language', () => {
    for (const { code: language } of languages) {
      setLanguage(language);
      for (const reason of reasons) expect(errorLine({ ...refused(reason), message: 'Use --device cpu.' }), reason).not.toContain('--');
    }
  });

  it('has the title of its reason, and is one German line without the engine’s English', () => {
    setLanguage('de');
    expect(errorContent(refused('draft_too_large')).title).toBe('Der Draft ist größer als das Target');
    expect(errorLine(refused('folder_known'))).toBe('Hunch sucht bereits in <folder> nach Modellen. Wähle einen anderen Ordner.');
    const space: ErrorInfo = {
      code: 'invalid_request',
      message,
      params: { reason: 'no_disk_for_training', needed: '1510000001', free: '12000000' },
    };
    expect(errorLine(space)).toContain('brauchen noch 1,6 GB, auf der Festplatte sind 12,0 MB frei');
  });

  it('formats counts, sizes and names of methods', () => {
    setLanguage('de');
    const line = (reason: RefusalReason, params: Record<string, string>) =>
      errorLine({ code: 'invalid_request', message, params: { reason, ...params } });
    expect(line('needs_draft', { method: 'draft-model' })).toMatch(/^„Draft-Modell“ braucht ein Draft-Modell/);
    expect(line('context_too_long', { name: 'Qwen3 8B', limit: '40960', context: '131072' })).toContain(
      'bis zu 40.960 Tokens, keinen Kontext von 131.072',
    );
    expect(line('import_too_large', { path: '/a.json', most: '2147483648' })).toContain('größer als 2,1 GB');
    expect(line('bad_proxy', { detail: 'no host' })).toMatch(/Einzelheiten auf Englisch: no host$/);
  });

  it('is the engine’s message for an unknown reason, missing parameters, and errors of earlier versions', () => {
    const unknown: ErrorInfo = { code: 'invalid_request', message, params: { reason: 'from_tomorrow', name: 'x' } };
    const incomplete: ErrorInfo = { code: 'invalid_request', message, params: { reason: 'other_writer', writer: 'a' } };
    const inherited: ErrorInfo = { code: 'invalid_request', message, params: { reason: 'toString' } };
    const earlier: ErrorInfo = { code: 'invalid_request', message, params: { detail: message } };
    for (const { code } of languages) {
      setLanguage(code);
      for (const error of [unknown, incomplete, inherited, earlier])
        expect(errorContent(error)).toMatchObject({ text: null, detail: message });
      expect(errorContent(unknown).title).toBe(errorContent(earlier).title);
      expect(errorLine(unknown)).toContain(message);
    }
  });
});

describe('catalogue notes', () => {
  it('are translated to German, keyed by the current English', () => {
    const notes = new Set(catalogue.models.map(({ note }) => note).filter((note) => note !== ''));
    expect(Object.keys(catalogueNotesDe).sort()).toEqual([...notes].sort());
  });
});
