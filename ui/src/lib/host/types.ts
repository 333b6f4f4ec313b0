// Interface between the window and the program it runs in: the app, or a test.

/** A command by name, with the arguments as they go over the wire. */
export type WireArguments = Record<string, unknown>;

/** Files that a person drags over the window, lets go of over it, or takes away again. */
export type FilesEvent =
  | {
      kind: 'over' | 'dropped';
      /** None when what is dragged is not a file. */
      paths: readonly string[];
      /** How far across the window the pointer is: 0 at its left edge, 1 at its right. */
      across: number;
    }
  | { kind: 'left' };

/** Carries calls and streams between the window and the engine. */
export interface Host {
  /** Whether the app's own window surrounds the page. On a Mac its buttons lie over the page. */
  readonly inWindow: boolean;
  /** Calls a command; rejects with what the other side rejected with. */
  invoke(command: string, args: WireArguments): Promise<unknown>;
  /** Makes a channel to pass as an argument; `receive` gets each message in the order it arrives. */
  openChannel<T>(receive: (message: T) => void): unknown;
  /** Opens a link in the system's browser or mail program: http, https or mailto. */
  openLink(href: string): Promise<void>;
  /** Calls `choose` with the id of each native menu item that is chosen. */
  onMenu(choose: (item: string) => void): void;
  /** Has the native menu speak these words, by the ids of its items. */
  labelMenu(words: Readonly<Record<string, string>>): void;
  /** Calls `hear` with what happens to files that are dragged onto the window. */
  onFiles(hear: (event: FilesEvent) => void): void;
}
