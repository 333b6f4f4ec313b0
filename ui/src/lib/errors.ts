// Texts of errors: by code, reason and details, in the window's language. The engine's own message, in English, is
// shown as a detail. No DOM.

import { formatBytes, formatBytesUp, formatCount, formatMemory, formatMemoryUp } from './format';
import type { ErrorCode, ErrorInfo, RefusalReason } from './ipc/schema.gen';
import { methodName } from './methods';
import { language } from './strings/index.svelte';
import { errorParams, refusalParams, type ErrorWords, type ParamOf } from './strings/keys';

/** Content of an error card. */
interface ErrorContent {
  title: string;
  /** The failure, what is safe and what to do; null if the engine gave too few details. */
  text: string | null;
  /** The engine's message, in English; null if it adds nothing. */
  detail: string | null;
  /** `true` if another model may help. */
  offersModel: boolean;
}

/** Codes for which another model may help. */
const offersModel: ReadonlySet<ErrorCode> = new Set([
  'model_not_found',
  'invalid_model_file',
  'unsupported_model',
  'out_of_memory',
  'no_model',
]);

/** Formats of numeric details. */
const formats: Readonly<Record<string, (value: number) => string>> = {
  prompt: formatCount,
  context: formatCount,
  tokens: formatCount,
  limit: formatCount,
  seconds: formatCount,
  bytes: formatBytes,
  most: formatBytes,
  // Rounded up, because freeing that many bytes must be enough.
  missing: formatBytesUp,
  reserved: (bytes) => (bytes > 0 ? formatBytes(bytes) : ''),
  needed: formatBytesUp,
  free: formatBytes,
};

/** Formats of amounts of memory, which replace those of files and disks. */
const memoryFormats: typeof formats = { missing: formatMemoryUp, needed: formatMemoryUp, usable: formatMemory };

/** Refusals for lack of memory. */
const memoryRefusals: ReadonlySet<string | undefined> = new Set<RefusalReason>([
  'model_too_large',
  'training_too_large',
  'lane_drafts_too_large',
]);

/** Defaults for details that the engine left out. */
const defaults: Readonly<Record<string, string>> = { reserved: '0', remedy: 'retry' };

/** An error found by the window, with a message in its language. */
export const ownError = (code: ErrorCode, text: string): ErrorInfo => ({ code, message: text, params: { text } });

/** The words for a reason, or else for a code, and the parameters they use. */
function wordsFor(code: ErrorCode, reason: string | undefined): { words: ErrorWords; names: readonly string[] } {
  if (reason === undefined || !Object.hasOwn(refusalParams, reason))
    return { words: language.strings.errors[code] as ErrorWords, names: errorParams[code] };
  const refusal = reason as RefusalReason;
  return { words: language.strings.refusals[refusal] as ErrorWords, names: refusalParams[refusal] };
}

/** Content of an error card. An unknown code counts as an internal error, and an unknown reason as none. */
export function errorContent({ code, message, params: given = {} }: ErrorInfo): ErrorContent {
  const known = Object.hasOwn(errorParams, code) ? code : 'internal';
  const { words, names } = wordsFor(known, given['reason']);
  const content = { title: words.title, offersModel: offersModel.has(known) };
  const params: typeof given = { ...defaults, ...given };
  const own = params['text'];
  if (own !== undefined) return { ...content, text: own, detail: null };
  if (!names.every((name) => params[name] !== undefined)) return { ...content, text: null, detail: message };
  const written = memoryRefusals.has(given['reason']) ? { ...formats, ...memoryFormats } : formats;
  const named = Object.fromEntries(names.map((name) => [name, write(written, name, params[name] ?? '')]));
  const text = [words.body?.(named as Record<ParamOf<ErrorCode>, string>), words.advice].filter((part) => part !== undefined);
  return { ...content, text: text.length > 0 ? text.join(' ') : null, detail: params['detail'] ?? null };
}

/** An error in one line, where there is no room for a card. */
export function errorLine(error: ErrorInfo): string {
  const { title, text, detail } = errorContent(error);
  const { current, strings } = language;
  // The engine's own message may give advice for the command line.
  if (text === null && current === 'en') return error.message;
  return [text ?? `${title}.`, detail === null ? '' : `${strings.errorCard.details} ${detail}`].filter((part) => part !== '').join(' ');
}

/** A cause that the engine states in English only: as it is in an English window, else marked. */
export const causeText = (cause: string): string => (language.current === 'en' ? cause : `${language.strings.errorCard.details} ${cause}`);

/** Details formatted for the window's language. */
function write(formats: Readonly<Record<string, (value: number) => string>>, name: string, value: string): string {
  if (name === 'method') return methodName(value);
  const number = Number(value);
  return Number.isFinite(number) && value !== '' ? (formats[name]?.(number) ?? value) : value;
}
