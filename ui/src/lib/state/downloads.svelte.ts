// The downloads of models: all of them, as the engine tells about them, and what can be done with each. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { Download, DownloadPhase, DownloadRequest, ErrorInfo, LibraryEvent } from '../ipc/schema.gen';
import { pageClock, type Clock } from '../ipc/stream';

/** Phases in which something happens by itself. */
const busyPhases: ReadonlySet<DownloadPhase> = new Set(['waiting', 'running', 'retrying', 'checking']);

/** Silence after which it is asked how the downloads are, in milliseconds: an event may get lost. */
export const silenceMs = 3000;

export const isBusy = ({ phase }: Download): boolean => busyPhases.has(phase);

/** Whether it goes no further by itself. */
export const isHalted = ({ phase }: Download): boolean => phase === 'paused' || phase === 'failed';

/** What the downloads tell the window. */
export interface DownloadsTold {
  /** A model has come without an event: else the engine tells itself that the library changed. */
  arrived?: () => void;
  /** One was begun, or goes on: the engine has asked for the hub's token. */
  begun?: () => void;
}

/** Models on their way. */
export class Downloads {
  all = $state.raw<readonly Download[]>([]);
  error = $state.raw<ErrorInfo | null>(null);
  /** Those with which something happens by itself. */
  busy = $derived(this.all.filter(isBusy));
  /** How much of the busy ones is here, from 0 to 1; null when nothing is under way or no size is known. */
  share = $derived.by((): number | null => {
    const sized = this.busy.filter(({ total_bytes }) => total_bytes !== null);
    const total = sized.reduce((sum, download) => sum + (download.total_bytes ?? 0), 0);
    return total > 0 ? sized.reduce((sum, download) => sum + download.done_bytes, 0) / total : null;
  });

  readonly #host: Host;
  readonly #clock: Clock;
  readonly #told: DownloadsTold;
  #cancelTimer: () => void = () => {};

  constructor(host: Host, told: DownloadsTold = {}, clock: Clock = pageClock) {
    this.#host = host;
    this.#told = told;
    this.#clock = clock;
  }

  /** The download of a file, if there is one. */
  of({ repository, file }: DownloadRequest): Download | null {
    return this.all.find(({ request }) => request.repository === repository && request.file === file) ?? null;
  }

  /** Takes the downloads of now. */
  take(all: readonly Download[]): void {
    this.all = all;
    this.#listen();
  }

  /** Takes what is told about one. */
  hear(event: Extract<LibraryEvent, { kind: 'download' | 'download_gone' }>): void {
    if (event.kind === 'download_gone') this.take(this.all.filter(({ id }) => id !== event.id));
    else this.take(withOne(this.all, event.download));
  }

  /** Fetches a file; one that was begun goes on, now with the checksum that is asked for, or with none. */
  async start(request: DownloadRequest): Promise<void> {
    await this.#try(async () => {
      const before = this.of(request);
      const download = await call(this.#host, 'start_download', { request });
      const now = this.all.find(({ id }) => id === download.id);
      // An event may have told more by now.
      if (!now || now === before) this.take(withOne(this.all, download));
      this.#told.begun?.();
    });
  }

  /** Stops one where it is. */
  pause(id: string): Promise<void> {
    return this.#try(() => call(this.#host, 'pause_download', { id }));
  }

  /** Goes on with one that was stopped or failed. */
  resume(id: string): Promise<void> {
    return this.#try(async () => {
      await call(this.#host, 'resume_download', { id });
      this.#told.begun?.();
    });
  }

  /** Takes one away; what has come of it goes too, unless it is done. */
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
          if (arrived) this.#told.arrived?.();
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
