// An answer, live or finished: its tokens, rejected drafts, and the engine's figures. Nothing here computes a rate;
// counts are those of the shown tokens. No DOM.

import type {
  AcceptanceRule,
  DepthState,
  ErrorInfo,
  GenerationEvent,
  GenerationStats,
  LiveFigures,
  MaxDraft,
  Method,
  RejectedEvent,
  RoundEvent,
  RoundTiming,
  ServerFigures,
  ServerKind,
  StopReason,
  TokenEvent,
} from '../ipc/schema.gen';
import { confidenceOf, noMarks, roundClassOf, entropyClassOf, type MarkCounts } from '../marks';
import type { AnswerOrigin, ConfidenceClass, RoundClass, EntropyClass } from '../strings/keys';
import { Layout, type Block } from '../text/blocks';
import { MarkdownDocument } from '../text/markdown/document';
import type { MarkdownBlock } from '../text/markdown/nodes';
import { closing, endsUnbegunThought, Thinking, type ThinkingSpan } from '../text/thinking';

/** Phase of an answer. */
type AnswerPhase = 'waiting' | 'prefill' | 'streaming' | 'finished' | 'failed' | 'interrupted';

/** Origin of the answer, as the engine reported when it started. */
interface AnswerSetup {
  method: Method;
  target: string;
  draft: string | null;
  device: string;
  maxDraft: MaxDraft;
  promptTokens: number;
  /** Messages at the start of the conversation that no longer fit. */
  dropped: number;
  /** Context length of the target in tokens; 0 if unknown. */
  contextLength: number;
  /** The acceptance rule. */
  rule: AcceptanceRule;
  /** Seed of its random numbers. The same request and seed give the same answer. */
  seed: number;
  /** A note on the model's chat template, in English; null for none. */
  templateNote: string | null;
}

/** The server that writes an answer, in place of the loaded models. */
interface AnswerServer {
  address: string;
  kind: ServerKind;
  model: string;
}

/** Prompt tokens read so far. */
export interface Progress {
  done: number;
  total: number;
}

/** A method that failed and is disabled for the rest of the answer. */
interface DroppedDraft {
  method: Method;
  error: ErrorInfo;
}

/** A token with the details of its position. */
export interface TokenDetail {
  index: number;
  token: TokenEvent;
  rejected: readonly RejectedEvent[];
  /** Number of its round in the whole answer, from 1, as in the lab. */
  round: number;
  /** Tokens drafted in its round, once the round's event has come. */
  drafted: number | null;
  /** Method that drafted in its round; null if none did or it was not saved. */
  draftedBy: Method | null;
  /** Times of its round. */
  timing: RoundTiming | null;
  rule: AcceptanceRule | null;
}

/** Classes of a token in all colour modes. */
export interface TokenMark {
  origin: AnswerOrigin;
  /** Null for a server, which reports no probabilities. */
  confidence: ConfidenceClass | null;
  /** Null if the entropy was not saved. */
  entropy: EntropyClass | null;
  /** Index of its round in the whole answer. */
  round: number;
  /** Outcome of its round's draft; null for a server, which reports no rounds. */
  kept: RoundClass | null;
  /** Times of its round, at the round's first shown token. */
  begins: RoundShares | null;
}

/** Times of a round as positions on a bar. */
interface RoundShares {
  /** End of drafting, in percent of the round. */
  proposed: string;
  /** End of the target pass. */
  passed: string;
  /** End of verification. The rest follows. */
  verified: string;
}

interface RoundFacts {
  /** Number of the round, from 1: the rounds of all generations in the order of their events. */
  number: number;
  drafted: number;
  draftedBy: Method | null;
  timing: RoundTiming;
  kept: RoundClass;
}

/** An answer. */
export class Answer {
  phase = $state<AnswerPhase>('waiting');
  setup = $state.raw<AnswerSetup | null>(null);
  /** The server that writes it; null for loaded models. */
  server = $state.raw<AnswerServer | null>(null);
  /** Figures of a server's answer. */
  serverFigures = $state.raw<ServerFigures | null>(null);
  prefill = $state.raw<Progress | null>(null);
  /** Number of tokens in each class. */
  counts = $state.raw<MarkCounts>(noMarks());
  blocks = $state.raw<readonly Block[]>([]);
  figures = $state.raw<LiveFigures | null>(null);
  /** Current depth, if the engine chooses it. */
  depth = $state.raw<DepthState | null>(null);
  stop = $state<StopReason | null>(null);
  stats = $state.raw<GenerationStats | null>(null);
  error = $state.raw<ErrorInfo | null>(null);
  /** Methods that failed in this generation. The answer continues without their drafts. */
  droppedDrafts = $state.raw<readonly DroppedDraft[]>([]);
  /** Why the answer is not being saved at the moment. */
  notKept = $state.raw<ErrorInfo | null>(null);
  /** `true` if Hunch stopped trying to save it. */
  givenUp = $state(false);
  /** `true` if most rounds were plain because drafting was parked. Known at the end. */
  parked = $state(false);
  /** Tokens drafted in this generation so far. */
  drafted = $state(0);

  readonly #tokens: TokenEvent[] = [];
  readonly #layout = new Layout();
  #rendered = new Rendered();
  /** End of the prompt that belongs to the answer's text. */
  #before: '' | '<think>' = '';
  /** End of the text so far, shorter than the tag that ends a thought. */
  #tail = '';
  /** Counts changes of the documents, which are parsed lazily. */
  #version = $state(0);
  // Looked up when a token is pointed at, never drawn from: reactive maps would cost a signal a round.
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  readonly #rejected = new Map<number, RejectedEvent[]>();
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  readonly #facts = new Map<number, RoundFacts>();
  /** Round of each token. A continued answer has rounds of two generations. */
  readonly #rounds: number[] = [];
  #firstRound = 0;
  #begun = 0;
  /** Rounds of this generation with parked drafting. */
  #parkedRounds = 0;

  /** `true` if its tokens have origins. Only a Hunch server reports them. */
  get hasOrigins(): boolean {
    return this.server === null || this.server.kind === 'hunch';
  }

  /** Tokens so far, empty ones included. */
  get tokens(): readonly TokenEvent[] {
    return this.#tokens;
  }

  /** The answer without its thought, as Markdown. */
  get answerBlocks(): readonly MarkdownBlock[] {
    void this.#version;
    return this.#rendered.answer.blocks;
  }

  /** The thought before it, as Markdown. */
  get thoughtBlocks(): readonly MarkdownBlock[] {
    void this.#version;
    return this.#rendered.thought.blocks;
  }

  /** `true` if the model is thinking now. */
  get thinking(): boolean {
    void this.#version;
    return !this.over && this.#rendered.splitter.thinking;
  }

  /** Text without the thought. */
  get answerText(): string {
    return this.#rendered.answerText;
  }

  /** Text of the answer. */
  get text(): string {
    return this.#tokens.map((token) => token.text).join('');
  }

  /** `true` if the answer is over. */
  get over(): boolean {
    return this.phase === 'finished' || this.phase === 'failed' || this.phase === 'interrupted';
  }

  /** Applies the next events of the generation, in order. */
  apply(events: readonly GenerationEvent[]): void {
    const counts = { ...this.counts };
    for (const event of events) this.#applyOne(event, counts);
    this.counts = counts;
    this.blocks = this.#layout.blocks;
    this.#settle();
  }

  /** Parses to the end once the answer is over. */
  #settle(): void {
    if (this.over) this.#rendered.finish();
    this.#version += 1;
  }

  /** Ends the answer with an error. Its text stays. */
  fail(error: ErrorInfo): void {
    this.phase = 'failed';
    this.error = error;
    this.#settle();
  }

  /** Ends an answer that was interrupted by the end of the program. */
  interrupt(): void {
    this.end('interrupted');
  }

  /** Ends the answer without an event. Does nothing if it is over. */
  end(phase: 'finished' | 'failed' | 'interrupted'): void {
    if (this.over) return;
    this.phase = phase;
    this.#settle();
  }

  /** Details of the token at `index`; null for none. A server reports none. */
  detail(index: number): TokenDetail | null {
    const token = this.#tokens[index];
    if (!token || this.server) return null;
    const round = this.#rounds[index] ?? token.round;
    const rejected = this.#rejected.get(round)?.filter((draft) => draft.position === token.position) ?? [];
    const facts = this.#facts.get(round);
    // Tokens at the end may have no round of their own.
    const { number = Math.max(1, this.#facts.size), drafted = null, draftedBy = null, timing = null } = facts ?? {};
    return { index, token, rejected, round: number, drafted, draftedBy, timing, rule: this.setup?.rule ?? null };
  }

  /** Style of the token at `index`, given `skipped` hidden tokens right before it. */
  mark(index: number, skipped = 0): TokenMark {
    const token = this.#tokens[index];
    const round = this.#rounds[index] ?? 0;
    return {
      origin: (token?.origin ?? 'plain') as AnswerOrigin,
      confidence: this.server ? null : confidenceOf(token?.confidence ?? 1),
      entropy: typeof token?.entropy === 'number' ? entropyClassOf(token.entropy) : null,
      round,
      kept: this.server ? null : this.#keptIn(round),
      begins: this.server || this.#rounds[index - 1 - skipped] === round ? null : shares(this.#facts.get(round)?.timing),
    };
  }

  /** Outcome of a round's draft. An unknown round had none. */
  #keptIn(round: number): RoundClass {
    return this.#facts.get(round)?.kept ?? 'undrafted';
  }

  /** Tokens of context used by the conversation, this answer included. */
  get contextUsed(): number {
    // The list of tokens is not reactive; the counts change with it.
    void this.counts;
    return (this.setup?.promptTokens ?? 0) + this.#tokens.length - this.#begun;
  }

  #applyOne(event: GenerationEvent, counts: MarkCounts): void {
    switch (event.type) {
      case 'started':
        this.#start(event);
        break;
      case 'server_started':
        this.phase = 'prefill';
        this.server = { address: event.address, kind: event.kind, model: event.model };
        break;
      case 'server_finished':
        this.phase = 'finished';
        this.stop = event.stop;
        this.serverFigures = event.figures;
        break;
      case 'prefill':
        this.prefill = { done: event.done, total: event.total };
        break;
      case 'draft_dropped':
        this.droppedDrafts = [...this.droppedDrafts, { method: event.method, error: event.error }];
        break;
      case 'round':
        this.#applyRound(event, counts);
        break;
      case 'finished':
        this.#append(event.tokens, counts);
        this.phase = 'finished';
        this.stop = event.stop;
        this.stats = event.stats;
        this.drafted = event.stats.drafted;
        // Rounds without a draft give one token each.
        this.parked = 2 * Math.min(this.#parkedRounds, event.stats.plain) > event.stats.rounds;
        break;
      case 'failed':
        this.fail(event.error);
        break;
      case 'not_kept':
        this.notKept = event.error;
        break;
      case 'kept':
        this.notKept = null;
        this.givenUp = false;
        break;
      case 'given_up':
        this.notKept = event.error;
        this.givenUp = true;
        break;
    }
  }

  #start(event: Extract<GenerationEvent, { type: 'started' }>): void {
    this.phase = 'prefill';
    this.#firstRound = Math.max(0, ...this.#facts.keys(), ...this.#rounds.slice(-1)) + (this.#rounds.length > 0 ? 1 : 0);
    // The prefix of the answer is part of the prompt.
    this.#begun = this.#tokens.length;
    this.#parkedRounds = 0;
    this.drafted = 0;
    this.droppedDrafts = [];
    this.setup = {
      method: event.method,
      target: event.target,
      draft: event.draft,
      device: event.device,
      maxDraft: event.max_draft,
      promptTokens: event.prompt_tokens,
      dropped: event.dropped_messages,
      contextLength: event.context_length,
      rule: event.rule,
      seed: event.seed,
      templateNote: event.template_note ?? null,
    };
  }

  #applyRound(round: RoundEvent, counts: MarkCounts): void {
    this.phase = 'streaming';
    if (this.server) return this.#append(round.tokens, counts);
    this.figures = round.figures;
    this.depth = round.depth;
    if (round.depth?.parked) this.#parkedRounds += 1;
    const { drafted, drafted_by: draftedBy, timing } = round;
    this.drafted += drafted;
    const facts = { number: this.#facts.size + 1, drafted, draftedBy, timing, kept: roundClassOf(round) };
    this.#facts.set(this.#firstRound + round.round, facts);
    if (round.rejected.length > 0) this.#rejected.set(this.#firstRound + round.round, round.rejected);
    this.#append(round.tokens, counts);
  }

  #append(tokens: readonly TokenEvent[], counts: MarkCounts): void {
    for (const token of tokens) {
      if (token.text !== '') {
        this.#layout.append(this.#tokens.length, token.text);
        this.#render(this.#tokens.length, token.text);
      }
      this.#tokens.push(token);
      this.#rounds.push(this.#firstRound + token.round);
      counts[token.origin as AnswerOrigin] += 1;
      if (this.server) continue;
      counts[confidenceOf(token.confidence)] += 1;
      if (token.entropy !== null) counts[entropyClassOf(token.entropy)] += 1;
      counts[this.#keptIn(this.#firstRound + token.round)] += 1;
    }
  }

  #render(token: number, text: string): void {
    // A continued answer is live again.
    if (this.#rendered.finished) this.#renderAgain();
    this.#rendered.append(token, text);
    const recent = this.#tail + text;
    this.#tail = recent.slice(1 - closing.length);
    // The prompt started a thought: all text so far belongs to it.
    if (this.#before === '' && recent.includes(closing) && endsUnbegunThought(this.text + text)) {
      this.#before = '<think>';
      this.#renderAgain();
      this.#rendered.append(token, text);
    }
  }

  #renderAgain(): void {
    this.#rendered = new Rendered();
    if (this.#before !== '') this.#rendered.append(-1, this.#before);
    this.#tokens.forEach(({ text }, index) => text !== '' && this.#rendered.append(index, text));
  }
}

/** Markdown documents of an answer, for its thought and the rest. */
class Rendered {
  readonly splitter = new Thinking();
  readonly thought = new MarkdownDocument();
  readonly answer = new MarkdownDocument();
  answerText = '';
  finished = false;

  append(token: number, text: string): void {
    this.#append(this.splitter.push(token, text));
  }

  finish(): void {
    if (this.finished) return;
    this.finished = true;
    this.#append(this.splitter.finish());
    this.thought.finish();
    this.answer.finish();
  }

  #append(spans: readonly ThinkingSpan[]): void {
    for (const { part, token, text } of spans) {
      // The text after a thought starts with line breaks that separate it.
      const shown = part === 'answer' && this.answerText === '' ? text.trimStart() : text;
      if (shown === '') continue;
      this[part].append(token, shown);
      if (part === 'answer') this.answerText += shown;
    }
  }
}

function shares(timing: RoundTiming | undefined): RoundShares | null {
  if (!timing) return null;
  const { propose_ms, target_ms, verify_ms, other_ms } = timing;
  const whole = propose_ms + target_ms + verify_ms + other_ms || 1;
  const percent = (ms: number) => `${((100 * ms) / whole).toFixed(1)}%`;
  const passed = propose_ms + target_ms;
  return { proposed: percent(propose_ms), passed: percent(passed), verified: percent(passed + verify_ms) };
}
