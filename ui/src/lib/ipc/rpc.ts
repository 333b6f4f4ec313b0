// Typed calls of the API's commands. Every failure is an ErrorInfo.

import type { Host } from '../host';
import type {
  Answering,
  AnswerRequest,
  Commands,
  CompareEvent,
  CompareRequest,
  CostEvent,
  Download,
  ErrorInfo,
  LibraryEvent,
  LoadRequest,
  MeasurementMessage,
  StreamMessage,
} from './schema.gen';

type Name = keyof Commands;

/** Calls a command of the API. Rejects with an ErrorInfo. */
export async function call<N extends Name>(
  host: Host,
  name: N,
  args: Commands[N]['args'],
): Promise<Commands[N]['result']> {
  return invoke(host, name, { ...args });
}

/** Starts an answer in a conversation. Its events go to `receive`. */
export async function answer(
  host: Host,
  request: AnswerRequest,
  receive: (message: StreamMessage) => void,
): Promise<Answering> {
  return invoke(host, 'answer', { request, channel: host.openChannel(receive) });
}

/** Starts a comparison, whose events go to `receive`. Returns its number. */
export async function compare(
  host: Host,
  request: CompareRequest,
  receive: (message: MeasurementMessage<CompareEvent>) => void,
): Promise<number> {
  return invoke(host, 'compare', { request, channel: host.openChannel(receive) });
}

/** Loads a pair and compares it with plain decoding. Events go to `receive`. Returns the number. */
export async function measurePair(
  host: Host,
  request: LoadRequest,
  receive: (message: MeasurementMessage<CompareEvent>) => void,
): Promise<number> {
  return invoke(host, 'measure_pair', { request, channel: host.openChannel(receive) });
}

/** Subscribes `receive` to events of the library. Returns the current downloads. */
export async function watchLibrary(host: Host, receive: (event: LibraryEvent) => void): Promise<Download[]> {
  return invoke(host, 'watch_library', { channel: host.openChannel(receive) });
}

/** Starts measuring the cost curve, whose events go to `receive`. Returns its number. */
export async function measureCosts(host: Host, receive: (message: MeasurementMessage<CostEvent>) => void): Promise<number> {
  return invoke(host, 'measure_costs', { channel: host.openChannel(receive) });
}

async function invoke<N extends Name>(
  host: Host,
  name: N,
  args: Record<string, unknown>,
): Promise<Commands[N]['result']> {
  try {
    return (await host.invoke(name, args)) as Commands[N]['result'];
  } catch (thrown) {
    throw toErrorInfo(thrown);
  }
}

/** Converts any thrown value to an ErrorInfo. Errors of the engine stay as they are; others are defects. */
export function toErrorInfo(thrown: unknown): ErrorInfo {
  if (typeof thrown === 'object' && thrown !== null && 'code' in thrown && 'message' in thrown) {
    const { code, message } = thrown as { code: unknown; message: unknown };
    if (typeof code === 'string' && typeof message === 'string') return thrown as ErrorInfo;
  }
  const message = thrown instanceof Error ? thrown.message : String(thrown);
  return { code: 'internal', message };
}
