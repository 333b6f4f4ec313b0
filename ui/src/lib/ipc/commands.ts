// Types derived from the generated list of commands, and the dispatch to an implementation of them. Nothing here
// names a command.

import type { Commands } from './schema.gen';

/** Name of a command. */
export type IpcCommandName = keyof Commands;

/** Arguments of a command. */
export type Arguments<N extends IpcCommandName> = Commands[N]['args'];

/** Result of a command. */
export type Result<N extends IpcCommandName> = Commands[N]['result'];

/** Messages that a command sends over a channel; `never` if it has none. */
export type Message<N extends IpcCommandName> = Commands[N] extends { message: infer M } ? M : never;

/** Name of a command that sends messages over a channel. */
export type StreamingName = { [N in IpcCommandName]: Commands[N] extends { message: unknown } ? N : never }[IpcCommandName];

/**
 * An implementation of every command, for a host without an engine. A missing or an unknown command is a type error.
 * `send` delivers a message to the page.
 */
export type Handlers = {
  [N in IpcCommandName]: (args: Arguments<N>, send: (message: Message<N>) => void) => Result<N> | Promise<Result<N>>;
};

/**
 * Calls the handler of a command that arrives by name. The only place where wire arguments get their types.
 * Rejects for an unknown command.
 */
export async function dispatch(
  handlers: Partial<Handlers>,
  command: string,
  args: Record<string, unknown>,
  send: (message: unknown) => void,
): Promise<unknown> {
  if (!Object.hasOwn(handlers, command)) throw new Error(`Unknown command "${command}".`);
  const handler = handlers[command as IpcCommandName] as (args: unknown, send: (message: unknown) => void) => unknown;
  return handler(args, send);
}
