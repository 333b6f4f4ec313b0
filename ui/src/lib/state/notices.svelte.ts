// Short notices over the window. No DOM.

/** Reading time of a character, in milliseconds: 200 words a minute. */
const perCharacter = 60;

/** Milliseconds that a text stays on screen: longer for a failure, which comes unexpectedly, and for a long text. */
export const shownFor = (text: string, failure: boolean): number => Math.max(failure ? 8000 : 1500, perCharacter * text.length);

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
