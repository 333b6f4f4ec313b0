// One answer while it is being written and after: its tokens, what was rejected, its figures as the
// engine gave them. Nothing here computes a rate; counts are the counts of the tokens shown. No DOM.

import type {
  DepthState,
  ErrorInfo,
  GenerationEvent,
  GenerationStats,
  LiveFigures,
  MaxDraft,
  Method,
  RejectedEvent,
  RoundEvent,
  StopReason,
  TokenEvent,
} from '../ipc/schema.gen';
import { noTokens, type AnswerOrigin, type OriginCounts } from '../origin';
import { Layout, type Block } from '../text/blocks';

/** Where an answer stands. */
export type AnswerPhase = 'waiting' | 'prefill' | 'streaming' | 'finished' | 'failed' | 'interrupted';

/** What produced the answer, as the engine said when it began. */
export interface AnswerSetup {
  method: Method;
  target: string;
  draft: string | null;
  device: string;
  maxDraft: MaxDraft;
  promptTokens: number;
  /** Of its random numbers: with the same request it gives the same answer. */
  seed: number;
}

/** How far the prompt has been read, in tokens. */
export interface Progress {
  done: number;
  total: number;
}

/** A token with what the round said about its place. */
export interface TokenDetail {
  index: number;
  token: TokenEvent;
  rejected: readonly RejectedEvent[];
  /** Tokens drafted in its round, when that round's event has come. */
  drafted: number | null;
}

/** An answer. */
export class Answer {
  phase = $state<AnswerPhase>('waiting');
  setup = $state.raw<AnswerSetup | null>(null);
  prefill = $state.raw<Progress | null>(null);
  counts = $state.raw<OriginCounts>(noTokens());
  blocks = $state.raw<readonly Block[]>([]);
  figures = $state.raw<LiveFigures | null>(null);
  /** What the depth is at, when the engine chooses it. */
  depth = $state.raw<DepthState | null>(null);
  stop = $state<StopReason | null>(null);
  stats = $state.raw<GenerationStats | null>(null);
  error = $state.raw<ErrorInfo | null>(null);

  readonly #tokens: TokenEvent[] = [];
  readonly #layout = new Layout();
  // Looked up when a token is pointed at, never drawn from: reactive maps would cost a signal a round.
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  readonly #rejected = new Map<number, RejectedEvent[]>();
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  readonly #drafted = new Map<number, number>();
  /** The round of each token. An answer that goes on with another one has rounds of two generations. */
  readonly #rounds: number[] = [];
  #firstRound = 0;

  /** Tokens so far, those without text included. */
  get tokens(): readonly TokenEvent[] {
    return this.#tokens;
  }

  /** The answer's text. */
  get text(): string {
    return this.#tokens.map((token) => token.text).join('');
  }

  /** Whether nothing more will come. */
  get over(): boolean {
    return this.phase === 'finished' || this.phase === 'failed' || this.phase === 'interrupted';
  }

  /** Takes the next events of the generation, in order. */
  apply(events: readonly GenerationEvent[]): void {
    const counts = { ...this.counts };
    for (const event of events) this.#applyOne(event, counts);
    this.counts = counts;
    this.blocks = this.#layout.blocks;
  }

  /** Ends the answer with an error; what was written stays. */
  fail(error: ErrorInfo): void {
    this.phase = 'failed';
    this.error = error;
  }

  /** What is here is all there is: the program ended while it was being written. */
  interrupt(): void {
    if (!this.over) this.phase = 'interrupted';
  }

  /** Everything known about token number `index`, or null when there is none. */
  detail(index: number): TokenDetail | null {
    const token = this.#tokens[index];
    if (!token) return null;
    const round = this.#rounds[index] ?? token.round;
    const rejected = this.#rejected.get(round)?.filter((draft) => draft.position === token.position) ?? [];
    return { index, token, rejected, drafted: this.#drafted.get(round) ?? null };
  }

  #applyOne(event: GenerationEvent, counts: OriginCounts): void {
    switch (event.type) {
      case 'started':
        this.phase = 'prefill';
        this.#firstRound = Math.max(0, ...this.#drafted.keys(), ...this.#rounds.slice(-1)) + (this.#rounds.length > 0 ? 1 : 0);
        this.setup = {
          method: event.method,
          target: event.target,
          draft: event.draft,
          device: event.device,
          maxDraft: event.max_draft,
          promptTokens: event.prompt_tokens,
          seed: event.seed,
        };
        break;
      case 'prefill':
        this.prefill = { done: event.done, total: event.total };
        break;
      case 'round':
        this.#applyRound(event, counts);
        break;
      case 'finished':
        this.#append(event.tokens, counts);
        this.phase = 'finished';
        this.stop = event.stop;
        this.stats = event.stats;
        break;
      case 'failed':
        this.fail(event.error);
        break;
    }
  }

  #applyRound(round: RoundEvent, counts: OriginCounts): void {
    this.phase = 'streaming';
    this.figures = round.figures;
    this.depth = round.depth;
    this.#drafted.set(this.#firstRound + round.round, round.drafted);
    if (round.rejected.length > 0) this.#rejected.set(this.#firstRound + round.round, round.rejected);
    this.#append(round.tokens, counts);
  }

  #append(tokens: readonly TokenEvent[], counts: OriginCounts): void {
    for (const token of tokens) {
      if (token.text !== '') this.#layout.append(this.#tokens.length, token.text);
      this.#tokens.push(token);
      this.#rounds.push(this.#firstRound + token.round);
      counts[token.origin as AnswerOrigin] += 1;
    }
  }
}
