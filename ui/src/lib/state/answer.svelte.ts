// One answer while it is being written and after: its tokens, what was rejected, its figures as the
// engine gave them. Nothing here computes a rate; counts are the counts of the tokens shown. No DOM.

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
  StopReason,
  TokenEvent,
} from '../ipc/schema.gen';
import { confidenceOf, noMarks, roundClassOf, surpriseOf, type MarkCounts } from '../marks';
import type { AnswerOrigin, ConfidenceClass, RoundClass, SurpriseClass } from '../strings/keys';
import { Layout, type Block } from '../text/blocks';
import { MarkdownDocument } from '../text/markdown/document';
import type { MarkdownBlock } from '../text/markdown/nodes';
import { endsUnbegunThought, Thinking, type Stretch } from '../text/thinking';

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
  /** Messages at the beginning of the conversation that no longer fit. */
  dropped: number;
  /** Tokens of context that the target has; 0 when it was not told. */
  contextLength: number;
  /** Which drafted tokens stand. */
  rule: AcceptanceRule;
  /** Of its random numbers: with the same request it gives the same answer. */
  seed: number;
  /** What a person should know of the model's chat template, in English; null when nothing. */
  templateNote: string | null;
}

/** How far the prompt has been read, in tokens. */
export interface Progress {
  done: number;
  total: number;
}

/** A method that failed and was left out for the rest of the answer. */
export interface DroppedDraft {
  method: Method;
  error: ErrorInfo;
}

/** A token with what the round said about its place. */
export interface TokenDetail {
  index: number;
  token: TokenEvent;
  rejected: readonly RejectedEvent[];
  /** Tokens drafted in its round, when that round's event has come. */
  drafted: number | null;
  /** Where the time of its round went. */
  timing: RoundTiming | null;
  rule: AcceptanceRule | null;
}

/** How a token is drawn, whatever the colours say. */
export interface TokenMark {
  origin: AnswerOrigin;
  confidence: ConfidenceClass;
  /** Null where the entropy was not kept. */
  surprise: SurpriseClass | null;
  /** Its round, counted through the whole answer. */
  round: number;
  /** What became of the draft of its round. */
  kept: RoundClass;
  /** Where the time of its round went, at the first token of it that is shown. */
  begins: RoundShares | null;
}

/** Where the time of a round went, as places on a bar. */
export interface RoundShares {
  /** Where drafting ends, in percent of the whole. */
  proposed: string;
  /** Where the target's pass ends. */
  passed: string;
  /** Where verifying ends; what follows is the rest. */
  verified: string;
}

interface RoundFacts {
  drafted: number;
  timing: RoundTiming;
  kept: RoundClass;
}

/** An answer. */
export class Answer {
  phase = $state<AnswerPhase>('waiting');
  setup = $state.raw<AnswerSetup | null>(null);
  prefill = $state.raw<Progress | null>(null);
  /** How many tokens are of each class. */
  counts = $state.raw<MarkCounts>(noMarks());
  blocks = $state.raw<readonly Block[]>([]);
  figures = $state.raw<LiveFigures | null>(null);
  /** What the depth is at, when the engine chooses it. */
  depth = $state.raw<DepthState | null>(null);
  stop = $state<StopReason | null>(null);
  stats = $state.raw<GenerationStats | null>(null);
  error = $state.raw<ErrorInfo | null>(null);
  /** Methods that failed in this generation; the answer goes on without their drafts. */
  droppedDrafts = $state.raw<readonly DroppedDraft[]>([]);
  /** Why the answer is not being written to the store at present. */
  notKept = $state.raw<ErrorInfo | null>(null);
  /** Whether it will not be written any more. */
  givenUp = $state(false);
  /** Whether most rounds were plain because plain decoding was faster; known when the answer is over. */
  rested = $state(false);

  readonly #tokens: TokenEvent[] = [];
  readonly #layout = new Layout();
  #rendered = new Rendered();
  /** What the prompt ended in that belongs to the answer's text. */
  #before: '' | '<think>' = '';
  /** Counts changes of what is rendered, which is only made when it is looked at. */
  #version = $state(0);
  // Looked up when a token is pointed at, never drawn from: reactive maps would cost a signal a round.
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  readonly #rejected = new Map<number, RejectedEvent[]>();
  // eslint-disable-next-line svelte/prefer-svelte-reactivity
  readonly #facts = new Map<number, RoundFacts>();
  /** The round of each token. An answer that goes on with another one has rounds of two generations. */
  readonly #rounds: number[] = [];
  #firstRound = 0;
  #begun = 0;
  /** Rounds of this generation in which drafting rested. */
  #resting = 0;

  /** Tokens so far, those without text included. */
  get tokens(): readonly TokenEvent[] {
    return this.#tokens;
  }

  /** What it says, as Markdown. */
  get said(): readonly MarkdownBlock[] {
    void this.#version;
    return this.#rendered.said.blocks;
  }

  /** What it thought before that, as Markdown. */
  get thought(): readonly MarkdownBlock[] {
    void this.#version;
    return this.#rendered.thought.blocks;
  }

  /** Whether it is thinking now. */
  get thinking(): boolean {
    void this.#version;
    return !this.over && this.#rendered.sorting.thinking;
  }

  /** The text of what it says, without what it thought. */
  get saidText(): string {
    return this.#rendered.saidText;
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
    this.#settle();
  }

  /** Renders to the end once nothing more will come. */
  #settle(): void {
    if (this.over) this.#rendered.finish();
    this.#version += 1;
  }

  /** Ends the answer with an error; what was written stays. */
  fail(error: ErrorInfo): void {
    this.phase = 'failed';
    this.error = error;
    this.#settle();
  }

  /** What is here is all there is: the program ended while it was being written. */
  interrupt(): void {
    this.end('interrupted');
  }

  /** Nothing more will come, though no event says so; an answer that is over stays as it is. */
  end(phase: 'finished' | 'failed' | 'interrupted'): void {
    if (this.over) return;
    this.phase = phase;
    this.#settle();
  }

  /** Everything known about token number `index`, or null when there is none. */
  detail(index: number): TokenDetail | null {
    const token = this.#tokens[index];
    if (!token) return null;
    const round = this.#rounds[index] ?? token.round;
    const rejected = this.#rejected.get(round)?.filter((draft) => draft.position === token.position) ?? [];
    const facts = this.#facts.get(round);
    const { drafted = null, timing = null } = facts ?? {};
    return { index, token, rejected, drafted, timing, rule: this.setup?.rule ?? null };
  }

  /** How token number `index` is drawn, where the `skipped` tokens right before it are not shown. */
  mark(index: number, skipped = 0): TokenMark {
    const token = this.#tokens[index];
    const round = this.#rounds[index] ?? 0;
    return {
      origin: (token?.origin ?? 'plain') as AnswerOrigin,
      confidence: confidenceOf(token?.confidence ?? 1),
      surprise: typeof token?.entropy === 'number' ? surpriseOf(token.entropy) : null,
      round,
      kept: this.#keptIn(round),
      begins: this.#rounds[index - 1 - skipped] === round ? null : shares(this.#facts.get(round)?.timing),
    };
  }

  /** What became of the draft of a round; one that was never told went without. */
  #keptIn(round: number): RoundClass {
    return this.#facts.get(round)?.kept ?? 'undrafted';
  }

  /** Tokens of the context that the conversation takes, this answer included. */
  get contextUsed(): number {
    // The list of tokens is not state; their counts change with it.
    void this.counts;
    return (this.setup?.promptTokens ?? 0) + this.#tokens.length - this.#begun;
  }

  #applyOne(event: GenerationEvent, counts: MarkCounts): void {
    switch (event.type) {
      case 'started':
        this.phase = 'prefill';
        this.#firstRound = Math.max(0, ...this.#facts.keys(), ...this.#rounds.slice(-1)) + (this.#rounds.length > 0 ? 1 : 0);
        // What the answer begins with is part of the prompt.
        this.#begun = this.#tokens.length;
        this.#resting = 0;
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
        // Rounds without a draft give one token each.
        this.rested = 2 * Math.min(this.#resting, event.stats.plain) > event.stats.rounds;
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

  #applyRound(round: RoundEvent, counts: MarkCounts): void {
    this.phase = 'streaming';
    this.figures = round.figures;
    this.depth = round.depth;
    if (round.depth?.parked) this.#resting += 1;
    this.#facts.set(this.#firstRound + round.round, { drafted: round.drafted, timing: round.timing, kept: roundClassOf(round) });
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
      counts[confidenceOf(token.confidence)] += 1;
      if (token.entropy !== null) counts[surpriseOf(token.entropy)] += 1;
      counts[this.#keptIn(this.#firstRound + token.round)] += 1;
    }
  }

  #render(token: number, text: string): void {
    // What was over goes on after all.
    if (this.#rendered.finished) this.#renderAgain();
    this.#rendered.append(token, text);
    // The prompt had begun a thought: all that was said so far belongs to it.
    if (this.#before === '' && text.includes('>') && endsUnbegunThought(this.text + text)) {
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

/** An answer's text as Markdown, what was thought and what is said apart. */
class Rendered {
  readonly sorting = new Thinking();
  readonly thought = new MarkdownDocument();
  readonly said = new MarkdownDocument();
  saidText = '';
  finished = false;

  append(token: number, text: string): void {
    this.#sort(this.sorting.push(token, text));
  }

  finish(): void {
    if (this.finished) return;
    this.finished = true;
    this.#sort(this.sorting.finish());
    this.thought.finish();
    this.said.finish();
  }

  #sort(stretches: readonly Stretch[]): void {
    for (const { part, token, text } of stretches) {
      // What follows a thought begins with the line ends that set it off.
      const shown = part === 'said' && this.saidText === '' ? text.trimStart() : text;
      if (shown === '') continue;
      this[part].append(token, shown);
      if (part === 'said') this.saidText += shown;
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
