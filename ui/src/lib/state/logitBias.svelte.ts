// Biases of tokens: texts that the user typed, and their tokens in the loaded model. No DOM.

import { errorLine, ownError } from '../errors';
import { visibleText } from '../format';
import type { Host } from '../host';
import { call, toErrorInfo } from '../ipc/rpc';
import type { TextToken } from '../ipc/schema.gen';
import { language } from '../strings/index.svelte';

/** A bias as it is kept, which is of any model. */
export interface KeptBias {
  readonly text: string;
  /** Added to the logit of the token. */
  readonly bias: number;
}

/** A bias of a token. */
interface TokenBias extends KeptBias {
  /** Tokens of the text; none before a model was asked. Only a text of one token has an effect. */
  readonly tokens: readonly TextToken[];
}

/** Tokens of a refused text that are shown. */
const mostPieces = 5;
/** Bias of a new entry: much rarer, but possible. */
const firstBias = -5;

/** The biases of the next answer. */
export class LogitBias {
  entries = $state.raw<readonly TokenBias[]>([]);
  /** Why the last text was not added; null if it was. */
  problem = $state<string | null>(null);

  readonly #host: Host;
  /** Path of the loaded target; null for none. */
  readonly #target: () => string | null;
  /** Target that the tokens belong to. */
  #checked = $state<string | null>(null);

  /** Biases by token of the loaded target. Empty while the tokens are those of another one. */
  byToken = $derived.by((): Record<number, number> => {
    if (this.#checked !== this.#target()) return {};
    return Object.fromEntries(this.entries.flatMap(({ tokens, bias }) => (isOne(tokens) ? [[tokens[0].id, bias]] : [])));
  });

  constructor(host: Host, target: () => string | null) {
    this.#host = host;
    this.#target = target;
  }

  /** Adds a text if it is one token of the loaded model that has no bias yet. Returns whether it was added. */
  async add(text: string): Promise<boolean> {
    try {
      await this.check();
      const target = this.#target();
      const tokens = await this.#tokens(text);
      this.problem = this.#objection(text, tokens);
      if (this.problem !== null) return false;
      this.entries = [...this.entries, { text, bias: firstBias, tokens }];
      this.#checked = target;
      return true;
    } catch (thrown) {
      this.problem = errorLine(toErrorInfo(thrown));
      return false;
    }
  }

  /** Changes the bias of an entry. */
  change(at: number, bias: number): void {
    this.entries = this.entries.map((entry, i) => (i === at ? { ...entry, bias } : entry));
  }

  remove(at: number): void {
    this.entries = this.entries.filter((_, i) => i !== at);
  }

  /** The biases without the tokens of the loaded model. */
  kept(): readonly KeptBias[] {
    return this.entries.map(({ text, bias }) => ({ text, bias }));
  }

  /** Replaces the biases by kept ones. Their tokens are found before they are used. */
  restore(kept: readonly KeptBias[]): void {
    this.entries = kept.map((bias) => ({ ...bias, tokens: [] }));
    this.#checked = null;
  }

  clear(): void {
    this.entries = [];
    this.problem = null;
  }

  /** Finds the tokens of all texts in the loaded model, if it is another one than before. */
  async check(): Promise<void> {
    const target = this.#target();
    if (target === null || target === this.#checked || this.entries.length === 0) return;
    const found = await Promise.all(this.entries.map(async ({ text }) => [text, await this.#tokens(text)] as const));
    if (target !== this.#target()) return this.check();
    const tokensOf = Object.fromEntries(found);
    this.entries = this.entries.map((entry) => ({ ...entry, tokens: tokensOf[entry.text] ?? entry.tokens }));
    this.#checked = target;
  }

  /** Checks the texts for an answer. Rejects if one is not one token of the loaded model: it would have no effect. */
  async prepare(): Promise<void> {
    await this.check();
    const useless = this.entries.find(({ tokens }) => !isOne(tokens));
    if (useless) throw ownError('invalid_request', language.strings.advanced.biasRefused(visibleText(useless.text), useless.tokens.length));
  }

  #tokens(text: string): Promise<TextToken[]> {
    return call(this.#host, 'text_tokens', { text });
  }

  #objection(text: string, tokens: readonly TextToken[]): string | null {
    const words = language.strings.advanced;
    const shown = visibleText(text);
    if (tokens.length === 0) return words.biasNone(shown);
    if (!isOne(tokens)) return words.biasNotOne(shown, tokens.length, piecesOf(tokens));
    const twice = this.entries.some((entry) => isOne(entry.tokens) && entry.tokens[0].id === tokens[0].id);
    return twice ? words.biasTwice(shown) : null;
  }
}

/** The first tokens of a text, as displayed. */
function piecesOf(tokens: readonly TextToken[]): string[] {
  const pieces = tokens.slice(0, mostPieces).map(({ text }) => visibleText(text));
  return tokens.length > mostPieces ? [...pieces, '…'] : pieces;
}

/** Returns `true` if a text is a single token. */
export const isOne = (tokens: readonly TextToken[]): tokens is readonly [TextToken] => tokens.length === 1;
