// Interface between the window and the program it runs in: the app, or a test.

/** Arguments of a command, as sent. */
export type WireArguments = Record<string, unknown>;

/** A drag of files: over the window, dropped, or gone. */
export type FilesEvent =
  | {
      kind: 'over' | 'dropped';
      /** Empty if anything but files is dragged. */
      paths: readonly string[];
      /** Horizontal position of the pointer, from 0 at the left edge to 1 at the right. */
      across: number;
    }
  | { kind: 'left' };

/** Carries calls and streams between the window and the engine. */
export interface Host {
  /** `true` if the app's own window surrounds the page. On a Mac its buttons lie over the page. */
  readonly inWindow: boolean;
  /** Calls a command. Rejects with the error of the other side. */
  invoke(command: string, args: WireArguments): Promise<unknown>;
  /** Creates a channel to pass as an argument. `receive` gets its messages in the order of arrival. */
  openChannel<T>(receive: (message: T) => void): unknown;
  /** Opens a link in the system's browser or mail program: http, https or mailto. */
  openLink(href: string): Promise<void>;
  /** Calls `choose` with the id of each chosen item of the native menu. */
  onMenu(choose: (item: string) => void): void;
  /** Sets the labels of the native menu, by item id. */
  labelMenu(words: Readonly<Record<string, string>>): void;
  /** Calls `onEvent` for files dragged over the window. */
  onFiles(onEvent: (event: FilesEvent) => void): void;
}
