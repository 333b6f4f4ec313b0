// Logs failures of the page: kind and place. The host removes everything a person may have written.

import type { Host } from '../host';
import { call } from './rpc';

/** The way a failure was noticed. */
export type ProblemKind = 'error' | 'rejection' | 'drawing' | 'start';

/** The part of `window` that reports failures. */
export interface FailingPage {
  addEventListener(type: 'error', listener: (event: { error: unknown; message: string }) => void): void;
  addEventListener(type: 'unhandledrejection', listener: (event: { reason: unknown }) => void): void;
}

/** Logs a failure. Never rejects. */
export function reportProblem(host: Host, kind: ProblemKind, thrown: unknown): void {
  void call(host, 'report_problem', { kind, ...described(thrown) }).catch(() => {});
}

/** Logs every uncaught failure from now on. */
export function watchProblems(host: Host, page: FailingPage): void {
  page.addEventListener('error', ({ error, message }) => reportProblem(host, 'error', error ?? message));
  page.addEventListener('unhandledrejection', ({ reason }) => reportProblem(host, 'rejection', reason));
}

/** Text for the log. Engine errors appear as their code, since the message may contain file names. */
function described(thrown: unknown): { message: string; stack: string } {
  if (thrown instanceof Error) return { message: `${thrown.name}: ${thrown.message}`, stack: thrown.stack ?? '' };
  if (typeof thrown === 'object' && thrown !== null && 'code' in thrown) return { message: String(thrown.code), stack: '' };
  return { message: typeof thrown, stack: '' };
}
