import { describe, expect, it } from 'vitest';
import { SilentHost } from '../host/testing';
import { reportProblem, watchProblems, type FailingPage } from './problems';

class LoggingHost extends SilentHost {
  reported: Record<string, unknown>[] = [];
  broken = false;

  override async invoke(command: string, args: Record<string, unknown>): Promise<unknown> {
    if (this.broken) throw new Error('gone');
    if (command === 'report_problem') this.reported.push(args);
    return null;
  }
}

describe('an uncaught failure', () => {
  it('is logged with its kind and stack', () => {
    const host = new LoggingHost();
    const listeners: Record<string, (event: unknown) => void> = {};
    watchProblems(host, {
      addEventListener: (type: string, listener: (event: never) => void) => void (listeners[type] = listener as (event: unknown) => void),
    } as FailingPage);
    const failure = new TypeError('broken');
    listeners['error']?.({ error: failure, message: 'Uncaught TypeError: broken' });
    listeners['unhandledrejection']?.({ reason: failure });
    const details = { message: 'TypeError: broken', stack: failure.stack };
    expect(host.reported).toEqual([
      { kind: 'error', ...details },
      { kind: 'rejection', ...details },
    ]);
  });

  it('is logged without messages of the engine or text of the user', () => {
    const host = new LoggingHost();
    reportProblem(host, 'rejection', { code: 'io', message: '/home/person/diary.gguf cannot be read.' });
    reportProblem(host, 'rejection', 'a question');
    expect(host.reported).toEqual([
      { kind: 'rejection', message: 'io', stack: '' },
      { kind: 'rejection', message: 'string', stack: '' },
    ]);
  });

  it('causes no second failure when the host is gone', async () => {
    const host = new LoggingHost();
    host.broken = true;
    reportProblem(host, 'error', new Error('x'));
    await Promise.resolve();
  });
});
