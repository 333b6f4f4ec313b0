// A running measurement of the engine, a comparison or a cost curve: its events in order, and stopping it. The owner
// interprets the events. No DOM.

import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { MeasurementMessage } from '../ipc/schema.gen';
import { EventStream, type StreamedEvent, type StreamPort } from '../ipc/stream';

/** Functions that a measurement needs. */
interface MeasurementPort<E extends StreamedEvent> extends StreamPort<E> {
  /** Starts it. Returns its number. */
  begin(receive: (message: MeasurementMessage<E>) => void): Promise<number>;
}

/** A measurement from its request to its end. */
export class Measurement<E extends StreamedEvent> {
  /** `true` if a stop was requested and the engine is still in a pass. */
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

  /** Starts it. A refusal ends it as lost. */
  async begin(): Promise<void> {
    try {
      this.#id = await this.#port.begin((message) => this.#stream.receive(message.id, message));
      this.#stream.begin(this.#id);
      // A stop was requested before the engine had numbered it.
      if (this.stopping) await this.#stop(this.#id);
    } catch (thrown) {
      this.#lose(thrown);
    }
  }

  /** Requests a stop. */
  stop(): void {
    if (this.stopping) return;
    this.stopping = true;
    if (this.#id !== null) this.#stop(this.#id).catch((thrown: unknown) => this.#lose(thrown));
  }

  async #stop(id: number): Promise<void> {
    if (!this.#stream.over) await call(this.#host, 'stop_measurement', { id });
  }

  /** Stops following when the engine refuses to stop. One that has ended meanwhile is no failure. */
  #lose(thrown: unknown): void {
    if (this.#stream.over) return;
    this.#stream.close();
    this.#port.lost(toErrorInfo(thrown));
  }
}
