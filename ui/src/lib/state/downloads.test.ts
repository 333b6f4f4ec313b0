import { describe, expect, it } from 'vitest';
import type { Host } from '../host';
import { settled } from '../host/testing';
import type { Download, DownloadRequest } from '../ipc/schema.gen';
import { Downloads, silenceMs } from './downloads.svelte';

const download = (id: string, change: Partial<Download> = {}): Download => ({
  id,
  request: { repository: 'a/b', file: `${id}.gguf` },
  name: id,
  phase: 'running',
  done_bytes: 0,
  total_bytes: 100,
  bytes_per_second: null,
  seconds_left: null,
  error: null,
  path: null,
  ...change,
});

function make() {
  const calls: [string, unknown][] = [];
  let refusal: unknown = null;
  let known: Download[] = [];
  const timers: { milliseconds: number; then: () => void }[] = [];
  let arrivals = 0;
  let begun = 0;
  const invoke = async (command: string, args: Record<string, unknown>) => {
    calls.push([command, args['id'] ?? (args['request'] as DownloadRequest | undefined)?.file]);
    if (refusal) throw refusal;
    if (command === 'start_download') {
      const request = args['request'] as DownloadRequest;
      return download(request.file.replace('.gguf', ''), { request });
    }
    return command === 'downloads' ? known : null;
  };
  const clock = {
    after(milliseconds: number, then: () => void) {
      const timer = { milliseconds, then };
      timers.push(timer);
      return () => void timers.splice(timers.indexOf(timer), timers.includes(timer) ? 1 : 0);
    },
  };
  const callbacks = { arrived: () => (arrivals += 1), begun: () => (begun += 1) };
  const downloads = new Downloads({ invoke } as unknown as Host, callbacks, clock);
  return {
    calls,
    timers,
    downloads,
    arrivals: () => arrivals,
    begun: () => begun,
    refuse: (why: unknown) => (refusal = why),
    know: (all: Download[]) => (known = all),
  };
}

describe('downloads', () => {
  it('report only the latest end, and none from before the window was opened', () => {
    const { downloads } = make();
    downloads.take([download('old', { phase: 'done' }), download('broken', { phase: 'failed' }), download('a'), download('b')]);
    expect(downloads.lastEnded).toBeNull();
    downloads.onEvent({ kind: 'download', download: download('a', { phase: 'done' }) });
    expect(downloads.lastEnded?.id).toBe('a');
    downloads.onEvent({ kind: 'download', download: download('b', { done_bytes: 9 }) });
    expect(downloads.lastEnded?.id).toBe('a');
    downloads.onEvent({ kind: 'download', download: download('b', { phase: 'failed' }) });
    expect([downloads.lastEnded?.id, downloads.lastEnded?.phase]).toEqual(['b', 'failed']);
    downloads.onEvent({ kind: 'download', download: download('b') });
    downloads.onEvent({ kind: 'download', download: download('b', { phase: 'done' }) });
    expect([downloads.lastEnded?.id, downloads.lastEnded?.phase]).toEqual(['b', 'done']);
  });

  it('follow the last event, in a stable order', () => {
    const { downloads } = make();
    downloads.take([download('a'), download('b')]);
    downloads.onEvent({ kind: 'download', download: download('a', { done_bytes: 50 }) });
    downloads.onEvent({ kind: 'download', download: download('c', { total_bytes: null }) });
    expect(downloads.all.map(({ id, done_bytes }) => [id, done_bytes])).toEqual([
      ['a', 50],
      ['b', 0],
      ['c', 0],
    ]);
    expect(downloads.share).toBe(0.25);
    downloads.onEvent({ kind: 'download_gone', id: 'a' });
    expect(downloads.all.map(({ id }) => id)).toEqual(['b', 'c']);
  });

  it('have no share while nothing is under way', () => {
    const { downloads } = make();
    downloads.take([download('a', { phase: 'paused' }), download('b', { phase: 'done' })]);
    expect([downloads.busy, downloads.share]).toEqual([[], null]);
  });

  it('leave reporting a new model to the engine', () => {
    const { downloads, arrivals } = make();
    downloads.take([download('old', { phase: 'done' }), download('a')]);
    downloads.onEvent({ kind: 'download', download: download('a', { phase: 'done' }) });
    expect([downloads.all.every(({ phase }) => phase === 'done'), arrivals()]).toEqual([true, 0]);
  });

  it('are polled after a silence, so that a lost event does no harm', async () => {
    const { downloads, timers, know, arrivals } = make();
    downloads.take([download('a')]);
    expect(timers.map(({ milliseconds }) => milliseconds)).toEqual([silenceMs]);
    downloads.onEvent({ kind: 'download', download: download('a', { done_bytes: 99 }) });
    expect(timers).toHaveLength(1);
    know([download('a', { phase: 'done' })]);
    timers[0]?.then();
    await settled();
    expect([downloads.all[0]?.phase, arrivals()]).toEqual(['done', 1]);
    expect(timers.filter(({ milliseconds }) => milliseconds === silenceMs).length).toBeLessThanOrEqual(1);
  });

  it('start, resume, and report refusals', async () => {
    const { downloads, calls, refuse } = make();
    await downloads.start({ repository: 'x/y', file: 'z.gguf' });
    expect(downloads.all).toHaveLength(1);
    downloads.take([download('a', { phase: 'failed' }), download('b')]);
    await downloads.resume('a');
    await downloads.pause('b');
    await downloads.remove('b');
    expect(calls).toEqual([
      ['start_download', 'z.gguf'],
      ['resume_download', 'a'],
      ['pause_download', 'b'],
      ['remove_download', 'b'],
    ]);
    expect(downloads.all.map(({ id }) => id)).toEqual(['a']);
    refuse({ code: 'io', message: 'The disk is full.' });
    await downloads.remove('a');
    expect([downloads.error?.message, downloads.all.length]).toEqual(['The disk is full.', 1]);
  });

  it.each(['paused', 'failed'] as const)('that were %s continue with the checksum of the new request', async (phase) => {
    const { downloads, calls } = make();
    const request = { repository: 'a/b', file: 'a.gguf' };
    downloads.take([download('a', { phase, request: { ...request, expected_sha256: 'ab' } })]);
    await downloads.start(request);
    expect(calls).toEqual([['start_download', 'a.gguf']]);
    expect(downloads.all).toEqual([download('a', { request })]);
    downloads.take([download('a', { phase })]);
    await downloads.start({ ...request, expected_sha256: 'cd' });
    expect(downloads.all.map(({ request }) => request.expected_sha256)).toEqual(['cd']);
  });

  it('report requests to the hub when they start or resume, but not when refused', async () => {
    const { downloads, begun, refuse } = make();
    await downloads.start({ repository: 'x/y', file: 'z.gguf' });
    await downloads.pause('z');
    expect(begun()).toBe(1);
    await downloads.resume('z');
    expect(begun()).toBe(2);
    refuse({ code: 'invalid_request', message: 'No.' });
    await downloads.resume('z');
    await downloads.start({ repository: 'x/y', file: 'y.gguf' });
    expect(begun()).toBe(2);
  });

  it.each(['new', 'halted'])('trust an event more than the response to their start: %s', async (how) => {
    const { downloads } = make();
    const request = { repository: 'x/y', file: 'z.gguf' };
    if (how === 'halted') downloads.take([download('z', { request, phase: 'paused' })]);
    const starting = downloads.start(request);
    downloads.onEvent({ kind: 'download', download: download('z', { request, done_bytes: 7 }) });
    await starting;
    expect(downloads.all.map(({ done_bytes }) => done_bytes)).toEqual([7]);
  });
});
