// Short notices over the window. No DOM.

/** Reading time of a character, in milliseconds: 200 words a minute. */
const perCharacter = 60;

/** Most failures on screen. */
const mostFailures = 3;

/** Milliseconds that a notice stays on screen: longer for a long text. */
export const shownFor = (text: string): number => Math.max(1500, perCharacter * text.length);

/** The notice and the failures on screen. */
export class Notices {
  /** Notice of a recent action; null for none. The next one replaces it. */
  notice = $state<string | null>(null);
  /** Failures with their remedies, the latest last. Each stays until it is dismissed. */
  failures = $state.raw<readonly string[]>([]);

  /** The latest failure; null for none. */
  get failure(): string | null {
    return this.failures.at(-1) ?? null;
  }

  /** Shows a notice. */
  readonly notify = (text: string): void => {
    this.notice = text;
  };

  /** Shows a failure. Above the limit, the oldest one is removed. */
  readonly reportFailure = (text: string): void => {
    this.failures = [...this.failures.filter((other) => other !== text), text].slice(-mostFailures);
  };

  /** Removes a failure. */
  dismiss(text: string): void {
    this.failures = this.failures.filter((other) => other !== text);
  }
}
