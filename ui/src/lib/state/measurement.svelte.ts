// A measurement that the engine has under way, a comparison or the costs of passes: its events in order, and
// stopping it. What they mean is known to whoever began it. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { MeasurementMessage } from '../ipc/schema.gen';
import { EventStream, type StreamedEvent, type StreamPort } from '../ipc/stream';

/** What a measurement needs. */
export interface MeasurementPort<E extends StreamedEvent> extends StreamPort<E> {
  /** Has the engine begin it; gives its number. */
  begin(receive: (message: MeasurementMessage<E>) => void): Promise<number>;
}

/** A measurement, from being asked for until it has ended. */
export class Measurement<E extends StreamedEvent> {
  /** Whether a stop was asked for and the engine has not ended yet: it is still in a pass. */
  stopping = $state(false);

  readonly #host: Host;
  readonly #port: MeasurementPort<E>;
  readonly #stream: EventStream<E>;
  #id: number | null = null;

  constructor(host: Host, port: MeasurementPort<E>) {
    this.#host = host;
    this.#port = port;
    this.#stream = new EventStream(port);
  }

  /** Has it begin. Where the engine refuses, it is lost. */
  async begin(): Promise<void> {
    try {
      this.#id = await this.#port.begin((message) => this.#stream.receive(message.id, message));
      this.#stream.begin(this.#id);
      // A stop was asked for before the engine had given it a number.
      if (this.stopping) await this.#stop(this.#id);
    } catch (thrown) {
      this.#lose(thrown);
    }
  }

  /** Asks for its end. */
  stop(): void {
    if (this.stopping) return;
    this.stopping = true;
    if (this.#id !== null) this.#stop(this.#id).catch((thrown: unknown) => this.#lose(thrown));
  }

  async #stop(id: number): Promise<void> {
    if (!this.#stream.over) await call(this.#host, 'stop_measurement', { id });
  }

  /** Follows it no longer: the engine refused. One that ended meanwhile is no failure. */
  #lose(thrown: unknown): void {
    if (this.#stream.over) return;
    this.#stream.close();
    this.#port.lost(toErrorInfo(thrown));
  }
}
