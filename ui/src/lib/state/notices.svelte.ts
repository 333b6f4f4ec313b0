// Short notices over the window. No DOM.

/** The notice and the failure on screen. Each replaces the one before. */
export class Notices {
  /** Notice of a recent action; null for none. */
  notice = $state<string | null>(null);
  /** Recent failure with its remedy; null for none. */
  failure = $state<string | null>(null);

  /** Shows a notice. */
  readonly notify = (text: string): void => {
    this.notice = text;
  };

  /** Shows a failure. */
  readonly reportFailure = (text: string): void => {
    this.failure = text;
  };
}
