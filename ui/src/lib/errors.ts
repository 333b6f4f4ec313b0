// How the window tells an error: by its code and what the engine names with it, in the window's language. What
// only the engine can say stays in its own words, English, as the detail. No DOM.

import { formatBytes, formatBytesUp, formatCount } from './format';
import type { ErrorCode, ErrorInfo } from './ipc/schema.gen';
import { language } from './strings/index.svelte';
import { errorParams, type ErrorWords, type ParamOf } from './strings/keys';

/** What an error card shows. */
export interface ErrorFace {
  title: string;
  /** What happened, what is safe and what to do; null where the engine has not named what that needs. */
  said: string | null;
  /** What only the engine says, in English; null where all is said. */
  detail: string | null;
  /** Whether another model may be the way out. */
  offersModel: boolean;
}

/** Codes for which another model may be the way out. */
const offersModel: ReadonlySet<ErrorCode> = new Set(['model_not_found', 'invalid_model_file', 'unsupported_model', 'out_of_memory', 'no_model']);

/** How what is named is written where it is a number. */
const written: Readonly<Record<string, (value: number) => string>> = {
  prompt: formatCount,
  context: formatCount,
  bytes: formatBytes,
  // Making room for what is said has to be enough.
  missing: formatBytesUp,
  promised: (bytes) => (bytes > 0 ? formatBytes(bytes) : ''),
};

/** What an engine that does not name it means. */
const unnamed: Readonly<Record<string, string>> = { promised: '0' };

/** An error that the window itself has found and says in its own words, in its language. */
export const ownError = (code: ErrorCode, said: string): ErrorInfo => ({ code, message: said, params: { said } });

/** The face of an error; a code that is not known is an internal error. */
export function errorFace({ code, message, params: told = {} }: ErrorInfo): ErrorFace {
  const known = Object.hasOwn(errorParams, code) ? code : 'internal';
  const words = language.strings.errors[known] as ErrorWords;
  const face = { title: words.title, offersModel: offersModel.has(known) };
  const params: typeof told = { ...unnamed, ...told };
  const own = params['said'];
  if (own !== undefined) return { ...face, said: own, detail: null };
  const names: readonly string[] = errorParams[known];
  if (!names.every((name) => params[name] !== undefined)) return { ...face, said: null, detail: message };
  const named = Object.fromEntries(names.map((name) => [name, write(name, params[name] ?? '')]));
  const said = [words.body?.(named as Record<ParamOf<ErrorCode>, string>), words.advice].filter((part) => part !== undefined);
  return { ...face, said: said.length > 0 ? said.join(' ') : null, detail: params['detail'] ?? null };
}

/** An error in a line, where there is no room for a card. */
export function errorLine(error: ErrorInfo): string {
  const { title, said, detail } = errorFace(error);
  // In English the engine's own words say it best.
  if (language.current === 'en') return error.message;
  return [said ?? `${title}.`, detail === null ? '' : `${language.strings.errorCard.details} ${detail}`].filter((part) => part !== '').join(' ');
}

/** What is named as the window's language writes it. */
function write(name: string, value: string): string {
  const number = Number(value);
  return Number.isFinite(number) && value !== '' ? (written[name]?.(number) ?? value) : value;
}
