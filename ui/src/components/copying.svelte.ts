// Copying to the clipboard, with its result for a moment.

/** Milliseconds that a result is shown. */
const shownFor = { copied: 1500, notCopied: 4000 };

/** Copies texts for a component, which creates it while being set up. */
export class Copying {
  /** Result of the last copy, for a moment; null otherwise. */
  result = $state<keyof typeof shownFor | null>(null);
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor() {
    $effect(() => () => clearTimeout(this.#timer));
  }

  /** Copies a text. Never rejects. */
  async copy(text: string): Promise<void> {
    let result: keyof typeof shownFor = 'copied';
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      result = 'notCopied';
    }
    this.result = result;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => (this.result = null), shownFor[result]);
  }
}
