// Downloads of models, as the engine reports them, and their actions. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { Download, DownloadPhase, DownloadRequest, ErrorInfo, LibraryEvent } from '../ipc/schema.gen';
import { pageClock, type Clock } from '../ipc/stream';

/** Phases that proceed by themselves. */
const busyPhases: ReadonlySet<DownloadPhase> = new Set(['waiting', 'running', 'retrying', 'checking']);

/** Silence before the downloads are polled, in milliseconds, in case an event was lost. */
export const silenceMs = 3000;

export const isBusy = ({ phase }: Download): boolean => busyPhases.has(phase);

/** Returns `true` if it was finished or failed. */
const hasEnded = ({ phase }: Download): boolean => phase === 'done' || phase === 'failed';

/** Returns `true` if it waits for the user. */
export const isHalted = ({ phase }: Download): boolean => phase === 'paused' || phase === 'failed';

/** Callbacks of the downloads. */
interface DownloadsCallbacks {
  /** Called when polling found a new model. Otherwise the engine reports the changed library. */
  arrived: () => void;
  /** Called when one starts or resumes, since the engine has read the hub's token then. */
  begun: () => void;
}

/** Downloads of models. */
export class Downloads {
  all = $state.raw<readonly Download[]>([]);
  error = $state.raw<ErrorInfo | null>(null);
  /** The download that ended last while the window was open; null for none. */
  lastEnded = $state.raw<Download | null>(null);
  /** Downloads that proceed by themselves. */
  busy = $derived(this.all.filter(isBusy));
  /** Finished share of the busy ones, from 0 to 1; null without a busy one or a known size. */
  share = $derived.by((): number | null => {
    const sized = this.busy.filter(({ total_bytes }) => total_bytes !== null);
    const total = sized.reduce((sum, download) => sum + (download.total_bytes ?? 0), 0);
    return total > 0 ? sized.reduce((sum, download) => sum + download.done_bytes, 0) / total : null;
  });

  readonly #host: Host;
  readonly #clock: Clock;
  readonly #callbacks: DownloadsCallbacks;
  #cancelTimer: () => void = () => {};

  constructor(host: Host, callbacks: DownloadsCallbacks, clock: Clock = pageClock) {
    this.#host = host;
    this.#callbacks = callbacks;
    this.#clock = clock;
  }

  /** The download of a file; null for none. */
  of({ repository, file }: DownloadRequest): Download | null {
    return this.all.find(({ request }) => request.repository === repository && request.file === file) ?? null;
  }

  /** Sets the current downloads. */
  take(all: readonly Download[]): void {
    const ended = all.findLast(
      (download) => hasEnded(download) && this.all.some(({ id, phase }) => id === download.id && phase !== download.phase),
    );
    this.lastEnded = ended ?? this.lastEnded;
    this.all = all;
    this.#listen();
  }

  /** Applies an event. */
  onEvent(event: Extract<LibraryEvent, { kind: 'download' | 'download_gone' }>): void {
    if (event.kind === 'download_gone') this.take(this.all.filter(({ id }) => id !== event.id));
    else this.take(withOne(this.all, event.download));
  }

  /** Starts a download, or resumes it with the new request's checksum. */
  async start(request: DownloadRequest): Promise<void> {
    await this.#try(async () => {
      const before = this.of(request);
      const download = await call(this.#host, 'start_download', { request });
      const now = this.all.find(({ id }) => id === download.id);
      // An event may be newer than the response.
      if (!now || now === before) this.take(withOne(this.all, download));
      this.#callbacks.begun();
    });
  }

  /** Pauses a download. */
  pause(id: string): Promise<void> {
    return this.#try(() => call(this.#host, 'pause_download', { id }));
  }

  /** Resumes a paused or failed one. */
  resume(id: string): Promise<void> {
    return this.#try(async () => {
      await call(this.#host, 'resume_download', { id });
      this.#callbacks.begun();
    });
  }

  /** Deletes a download, with its bytes unless it is done. */
  async remove(id: string): Promise<void> {
    await this.#try(() => call(this.#host, 'remove_download', { id }));
    if (this.error === null) this.take(this.all.filter((download) => download.id !== id));
  }

  #listen(): void {
    this.#cancelTimer();
    if (this.busy.length === 0) return;
    this.#cancelTimer = this.#clock.after(silenceMs, () => {
      call(this.#host, 'downloads', {}).then(
        (all) => {
          const done = ({ phase }: Download) => phase === 'done';
          const arrived = all.some((download) => done(download) && this.all.some((before) => before.id === download.id && !done(before)));
          this.take(all);
          if (arrived) this.#callbacks.arrived();
        },
        () => this.#listen(),
      );
    });
  }

  async #try(act: () => Promise<unknown>): Promise<void> {
    try {
      await act();
      this.error = null;
    } catch (thrown) {
      this.error = toErrorInfo(thrown);
    }
  }
}

function withOne(all: readonly Download[], download: Download): readonly Download[] {
  const at = all.findIndex(({ id }) => id === download.id);
  return at < 0 ? [...all, download] : all.with(at, download);
}
