// Typed calls of the commands in the schema. Every failure is an ErrorInfo.

import type { Host } from '../host';
import type { Arguments, IpcCommandName, Message, Result, StreamingName } from './commands';
import type {
  Answering,
  AnswerRequest,
  CompareEvent,
  CompareRequest,
  CostEvent,
  Download,
  ErrorInfo,
  LibraryEvent,
  LoadRequest,
  MeasurementMessage,
  SkipSearchEvent,
  StreamMessage,
  TrainEvent,
  TrainRequest,
  UpdateProgress,
  UpdateState,
} from './schema.gen';

/** Calls a command without a channel. Rejects with an ErrorInfo. */
export async function call<N extends Exclude<IpcCommandName, StreamingName>>(host: Host, name: N, args: Arguments<N>): Promise<Result<N>> {
  return invoke(host, name, { ...args });
}

/** Calls a command that sends messages, which go to `receive`. Rejects with an ErrorInfo. */
async function callStreaming<N extends StreamingName>(
  host: Host,
  name: N,
  args: Arguments<N>,
  receive: (message: Message<N>) => void,
): Promise<Result<N>> {
  return invoke(host, name, { ...args, channel: host.openChannel(receive) });
}

/** Starts an answer in a conversation. */
export async function answer(host: Host, request: AnswerRequest, receive: (message: StreamMessage) => void): Promise<Answering> {
  return callStreaming(host, 'answer', { request }, receive);
}

/** Starts a comparison. Returns its number. */
export async function compare(
  host: Host,
  request: CompareRequest,
  receive: (message: MeasurementMessage<CompareEvent>) => void,
): Promise<number> {
  return callStreaming(host, 'compare', { request }, receive);
}

/** Loads a pair and compares it with plain decoding. Returns the number of the comparison. */
export async function measurePair(
  host: Host,
  request: LoadRequest,
  receive: (message: MeasurementMessage<CompareEvent>) => void,
): Promise<number> {
  return callStreaming(host, 'measure_pair', { request }, receive);
}

/** Subscribes to events of the library. Returns the current downloads. */
export async function watchLibrary(host: Host, receive: (event: LibraryEvent) => void): Promise<Download[]> {
  return callStreaming(host, 'watch_library', {}, receive);
}

/** Trains a drafter for a model, or continues. Returns the number of the run. */
export async function trainDrafter(
  host: Host,
  request: TrainRequest,
  receive: (message: MeasurementMessage<TrainEvent>) => void,
): Promise<number> {
  return callStreaming(host, 'train_drafter', { request }, receive);
}

/** Downloads the newer version of the app, and checks its signature. */
export async function downloadUpdate(host: Host, receive: (progress: UpdateProgress) => void): Promise<UpdateState> {
  return callStreaming(host, 'download_update', {}, receive);
}

/** Starts measuring the cost curve. Returns the number of the measurement. */
export async function measureCosts(host: Host, receive: (message: MeasurementMessage<CostEvent>) => void): Promise<number> {
  return callStreaming(host, 'measure_costs', {}, receive);
}

/** Starts a search for the layers that the target skips. Returns the number of the search. */
export async function searchSkippedLayers(host: Host, receive: (message: MeasurementMessage<SkipSearchEvent>) => void): Promise<number> {
  return callStreaming(host, 'search_skipped_layers', {}, receive);
}

async function invoke<N extends IpcCommandName>(host: Host, name: N, args: Record<string, unknown>): Promise<Result<N>> {
  try {
    return (await host.invoke(name, args)) as Result<N>;
  } catch (thrown) {
    throw toErrorInfo(thrown);
  }
}

/** Converts a thrown value to an ErrorInfo. An error of the engine stays as it is; any other is a defect. */
export function toErrorInfo(thrown: unknown): ErrorInfo {
  if (typeof thrown === 'object' && thrown !== null && 'code' in thrown && 'message' in thrown) {
    const { code, message } = thrown as { code: unknown; message: unknown };
    if (typeof code === 'string' && typeof message === 'string') return thrown as ErrorInfo;
  }
  const message = thrown instanceof Error ? thrown.message : String(thrown);
  return { code: 'internal', message };
}
