// Written from src/api by `hunch schema`; do not edit. A test keeps it current.

/**
 * Where a token in the committed sequence came from. The colours of the window are these.
 */
export type TokenOrigin = "prompt" | "accepted" | "resampled" | "bonus" | "plain" | "chosen";

/**
 * How tokens are guessed ahead of the target.
 */
export type Method = "plain" | "draft-model" | "draft-tree" | "ngram" | "suffix" | "cascade" | "lookahead" | "early-exit" | "layer-skip" | "low-bit" | "synthetic";

/**
 * Most tokens to draft a round, as it is asked for: a number, or `"auto"`.
 */
export type MaxDraft = number | "auto";

/**
 * Which drafted tokens stand. Whatever can change the law of the output says `lossy`.
 */
export type AcceptanceRule = { "name": "lossless" } | { "name": "match" } | { "name": "coupled" } | { "name": "lossy-typical", 
/**
 * Tokens above this probability are always accepted.
 */
epsilon: number, 
/**
 * The share of e^-entropy that suffices.
 */
delta: number, } | { "name": "lossy-lenience", 
/**
 * Above 0, at most 1, where it is lossless.
 */
lenience: number, };

/**
 * The kinds of failure a caller may branch on. Closed: the window has a card for each.
 */
export type ErrorCode = "invalid_request" | "model_not_found" | "invalid_model_file" | "unsupported_model" | "vocabulary_mismatch" | "context_overflow" | "out_of_memory" | "io" | "store" | "no_model" | "busy" | "device" | "internal";

/**
 * An error as the outside sees it.
 */
export type ErrorInfo = { 
/**
 * The kind, for branching.
 */
code: ErrorCode, 
/**
 * What happened, what is safe, what to do.
 */
message: string, };

/**
 * How tokens are drawn. Settings form, command line and bench plan share this one struct.
 *
 * The stages run in llama.cpp's order: penalties, logit bias, top-k, top-p, min-p, temperature;
 * so the filters judge the law at temperature 1.
 */
export type SamplingParams = { 
/**
 * Flattens (above 1) or sharpens (below 1) the law; 0 always takes the likeliest token.
 */
temperature: number, 
/**
 * Keeps this many likeliest tokens; 0 keeps all.
 */
top_k: number, 
/**
 * Keeps the fewest likeliest tokens whose probabilities add up to this; 1 keeps all.
 */
top_p: number, 
/**
 * Keeps tokens at least this share as likely as the likeliest; 0 keeps all.
 */
min_p: number, 
/**
 * Weakens tokens seen lately: positive logits are divided, negative ones multiplied by this
 * (CTRL, arXiv 1909.05858); 1 changes nothing.
 */
repeat_penalty: number, 
/**
 * Taken from the logit of every token seen lately; 0 changes nothing.
 */
presence_penalty: number, 
/**
 * Taken from the logit of a token once for each time it was seen lately; 0 changes nothing.
 */
frequency_penalty: number, 
/**
 * How many of the last tokens, prompt included, count as lately; 0 turns penalties off.
 */
penalty_last_n: number, 
/**
 * Added to the logit of a token, by token number.
 */
logit_bias: Record<number, number>, 
/**
 * Makes a generation repeatable; `None` draws a new seed each time. At most 2^53 - 1, so that
 * JavaScript can hold it.
 */
seed: number | null, };

/**
 * Who said a message.
 */
export type Role = "system" | "user" | "assistant";

/**
 * One message of a conversation.
 */
export type ChatMessage = { 
/**
 * Who said it.
 */
role: Role, 
/**
 * What was said.
 */
content: string, };

/**
 * A model file on this machine.
 */
export type ModelEntry = { 
/**
 * Short name, usable on the command line: the file's name without `.gguf`.
 */
name: string, 
/**
 * Where it lies.
 */
path: string, 
/**
 * Size of the file in bytes.
 */
size_bytes: number, 
/**
 * `general.architecture`.
 */
architecture: string, 
/**
 * Number of weights.
 */
parameters: number, 
/**
 * The quantisation most weights have, as "Q4_K".
 */
quantisation: string, 
/**
 * Context length in tokens.
 */
context_length: number, 
/**
 * Whether it is the model Hunch starts with.
 */
is_default: boolean, 
/**
 * Why it cannot be used, if so.
 */
problem: string | null, };

/**
 * The models in memory.
 */
export type LoadedModels = { 
/**
 * The target.
 */
target: ModelEntry, 
/**
 * The draft model, if one is loaded.
 */
draft: ModelEntry | null, 
/**
 * "cpu" or "metal".
 */
device: string, 
/**
 * Methods that can be used now.
 */
methods: Array<Method>, };

/**
 * Which models to load.
 */
export type LoadRequest = { 
/**
 * Path or short name of the target.
 */
target: string, 
/**
 * Path or short name of the draft model.
 */
draft: string | null, };

/**
 * Allowed values of a numeric setting, both ends included.
 */
export type ParameterRange = { 
/**
 * The setting's field name, as `temperature`.
 */
name: string, 
/**
 * Smallest value.
 */
min: number, 
/**
 * Largest value.
 */
max: number, };

/**
 * What the window asks once at the start.
 */
export type AppInfo = { 
/**
 * Hunch's version.
 */
version: string, 
/**
 * "cpu" or "metal".
 */
device: string, 
/**
 * CPU threads the engine uses.
 */
threads: number, 
/**
 * Folder where models are looked for.
 */
models_folder: string, 
/**
 * What is loaded now.
 */
loaded: LoadedModels | null, 
/**
 * Why conversations are not kept, if so: what is said is gone when the window closes.
 */
store_problem: string | null, 
/**
 * Sampling parameters a new conversation starts with.
 */
default_sampling: SamplingParams, 
/**
 * Allowed range of each numeric setting.
 */
ranges: Array<ParameterRange>, };

/**
 * Why a generation ended.
 */
export type StopReason = "end_of_turn" | "stop_string" | "max_tokens" | "context_full" | "cancelled";

/**
 * A token that might stand in a place: its number, its text on its own, its probability.
 */
export type Alternative = [number, string, number];

/**
 * A token as the outside sees it. The texts of all tokens, joined, are the answer.
 */
export type TokenEvent = { 
/**
 * Vocabulary number.
 */
id: number, 
/**
 * The text this token completes; empty while a character is still incomplete.
 */
text: string, 
/**
 * Where it came from.
 */
origin: TokenOrigin, 
/**
 * Target probability under the law it was tested with.
 */
p: number, 
/**
 * Draft probability; absent for certain proposals and tokens that were not drafted.
 */
q: number | null, 
/**
 * The uniform number it was tested with. Absent for tokens that were not drafted, and under rules that
 * draw none.
 */
u: number | null, 
/**
 * What `u` had to be below: min(1, p/q), both without what rejected siblings had ruled out.
 */
threshold: number | null, 
/**
 * The target's softmax probability at temperature 1 without filters; 0 for a chosen token that was not
 * among the likeliest, where it is not known.
 */
confidence: number, 
/**
 * The entropy of that softmax, in nats: how open the position was. Absent in answers kept before it was
 * told.
 */
entropy: number | null, 
/**
 * The likeliest tokens of that softmax, likeliest first.
 */
top: Array<Alternative>, 
/**
 * The draft model's likeliest tokens for this position; none where no model drafted.
 */
guesses: Array<Alternative>, 
/**
 * Round, from 0.
 */
round: number, 
/**
 * Position inside the round, from 0.
 */
position: number, };

/**
 * A drafted token that was rejected, as the outside sees it.
 */
export type RejectedEvent = { 
/**
 * Vocabulary number.
 */
id: number, 
/**
 * Its text on its own.
 */
text: string, 
/**
 * Target probability when it was tested.
 */
p: number, 
/**
 * Draft probability; absent for certain proposals.
 */
q: number | null, 
/**
 * The uniform number that rejected it.
 */
u: number, 
/**
 * Position inside the round of the token that replaced it.
 */
position: number, };

/**
 * Where the time of one round went, in milliseconds.
 */
export type RoundTiming = { 
/**
 * Drafting.
 */
propose_ms: number, 
/**
 * The target's pass.
 */
target_ms: number, 
/**
 * Distributions and acceptance.
 */
verify_ms: number, 
/**
 * Everything else: cache upkeep, text, events.
 */
other_ms: number, };

/**
 * The figures of a generation while it runs.
 */
export type LiveFigures = { 
/**
 * Tokens generated so far.
 */
generated_tokens: number, 
/**
 * Rounds so far: target passes after prefill.
 */
rounds: number, 
/**
 * Tokens a second since prefill ended.
 */
decode_tok_s: number, 
/**
 * accepted / drafted; 0 when nothing was drafted.
 */
acceptance_rate: number, 
/**
 * Tokens per target pass: 1 + accepted / rounds.
 */
mean_acceptance_length: number, };

/**
 * What the depth is at, as the outside sees it.
 */
export type DepthState = { 
/**
 * Whether plain decoding is expected to be faster here, so that nothing is drafted but probes.
 */
parked: boolean, 
/**
 * Expected speedup over plain decoding when 1, 2, 3, ... tokens are drafted a round. Predicted from
 * what was measured so far.
 */
gains: Array<number>, };

/**
 * One round: a target pass and what came of it.
 */
export type RoundEvent = { 
/**
 * Round, from 0.
 */
round: number, 
/**
 * Tokens drafted.
 */
drafted: number, 
/**
 * Tokens emitted, in order. May hold tokens of earlier rounds that waited for a stop string.
 */
tokens: Array<TokenEvent>, 
/**
 * Drafted tokens that were tested and rejected.
 */
rejected: Array<RejectedEvent>, 
/**
 * Where the time went.
 */
timing: RoundTiming, 
/**
 * What the depth is at, when it is chosen as it goes.
 */
depth: DepthState | null, 
/**
 * The figures of the generation so far.
 */
figures: LiveFigures, };

/**
 * All figures of a finished generation. `accepted + resampled + bonus + plain ==
 * generated_tokens`.
 */
export type GenerationStats = { 
/**
 * Tokens in the prompt.
 */
prompt_tokens: number, 
/**
 * Tokens emitted; the end-of-turn token is not among them.
 */
generated_tokens: number, 
/**
 * Target passes after prefill.
 */
rounds: number, 
/**
 * Tokens drafted.
 */
drafted: number, 
/**
 * Emitted tokens that were drafted and accepted.
 */
accepted: number, 
/**
 * Emitted tokens drawn after a rejection.
 */
resampled: number, 
/**
 * Emitted tokens drawn after a fully accepted path.
 */
bonus: number, 
/**
 * Emitted tokens of rounds without a draft.
 */
plain: number, 
/**
 * accepted / drafted; 0 when nothing was drafted.
 */
acceptance_rate: number, 
/**
 * 1 + accepted / rounds: tokens per target pass, the bonus included, as vLLM and Spec-Bench count.
 */
mean_acceptance_length: number, 
/**
 * Target passes after prefill by their rows: how many rows, how many passes.
 */
target_passes: Array<[number, number]>, 
/**
 * The same of what drafted: the draft model, or a part of the target.
 */
draft_passes: Array<[number, number]>, 
/**
 * Of the rounds that drafted at least i + 1 deep, the share whose position i was accepted.
 */
accepted_at_position: Array<number>, 
/**
 * From request to the first token, in milliseconds.
 */
ttft_ms: number, 
/**
 * Prompt tokens a second during prefill.
 */
prefill_tok_s: number, 
/**
 * Generated tokens a second after prefill.
 */
decode_tok_s: number, 
/**
 * Request to end, in milliseconds.
 */
wall_ms: number, 
/**
 * Total drafting, in milliseconds.
 */
propose_ms: number, 
/**
 * Total target passes after prefill, in milliseconds.
 */
target_ms: number, 
/**
 * Total distributions and acceptance, in milliseconds.
 */
verify_ms: number, 
/**
 * Total of the rest after prefill, in milliseconds.
 */
other_ms: number, 
/**
 * Peak resident memory of the process, in bytes; 0 when the system does not tell.
 */
peak_memory_bytes: number, 
/**
 * "cpu" or "metal".
 */
device: string, };

/**
 * What a generation tells.
 */
export type GenerationEvent = { "type": "started", 
/**
 * Identifies the generation.
 */
generation_id: number, 
/**
 * The method.
 */
method: Method, 
/**
 * Name of the target.
 */
target: string, 
/**
 * Name of the draft model, when the method uses one.
 */
draft: string | null, 
/**
 * "cpu" or "metal".
 */
device: string, 
/**
 * Tokens in the prompt.
 */
prompt_tokens: number, 
/**
 * Messages at the beginning of the conversation that no longer fit and were not read.
 */
dropped_messages: number, 
/**
 * Tokens of context that the target has.
 */
context_length: number, 
/**
 * Most tokens drafted a round; 0 for plain decoding.
 */
max_draft: MaxDraft, 
/**
 * Which drafted tokens stand.
 */
rule: AcceptanceRule, 
/**
 * Seed of its random numbers: with the same request it gives the same answer.
 */
seed: number, } | { "type": "prefill", 
/**
 * Prompt tokens processed.
 */
done: number, 
/**
 * Prompt tokens in all.
 */
total: number, } | { "type": "round" } & RoundEvent | { "type": "finished", 
/**
 * Why.
 */
stop: StopReason, 
/**
 * Tokens still held back when it ended (they waited for a stop string that never came).
 */
tokens: Array<TokenEvent>, 
/**
 * All figures.
 */
stats: GenerationStats, } | { "type": "failed", 
/**
 * The reason.
 */
error: ErrorInfo, };

/**
 * Events on the channel, several at a time. `seq` of a message is the number of the first event
 * in it, so a reader sees a gap and asks for a [`GenerationSnapshot`].
 */
export type StreamMessage = { 
/**
 * The generation.
 */
generation_id: number, 
/**
 * Number of the first event, from 0.
 */
seq: number, 
/**
 * The events, in order; never empty.
 */
events: Array<GenerationEvent>, };

/**
 * Everything a generation has said so far, for a reader that missed something.
 */
export type GenerationSnapshot = { 
/**
 * The generation.
 */
generation_id: number, 
/**
 * Number the next event will have.
 */
next_seq: number, 
/**
 * Every event from 0 to `next_seq - 1`.
 */
events: Array<GenerationEvent>, };

/**
 * A conversation in the list.
 */
export type ConversationEntry = { 
/**
 * Its number.
 */
id: number, 
/**
 * What it is called.
 */
title: string, 
/**
 * Whether it stays on top.
 */
pinned: boolean, 
/**
 * When it began, in milliseconds since 1970.
 */
created_ms: number, 
/**
 * When something was said last.
 */
updated_ms: number, };

/**
 * Where a message stands.
 */
export type MessageState = "complete" | "streaming" | "interrupted" | "failed";

/**
 * What an answer was asked with.
 */
export type AnswerSettings = { 
/**
 * How to guess ahead.
 */
method: Method, 
/**
 * Most tokens to draft a round: 1 to 15, or "auto", which measures what pays.
 */
max_draft: MaxDraft, 
/**
 * Most tokens to generate, 1 or more.
 */
max_tokens: number, 
/**
 * How tokens are drawn.
 */
sampling: SamplingParams, 
/**
 * Which drafted tokens stand.
 */
rule: AcceptanceRule, 
/**
 * Texts that end the answer.
 */
stop: Array<string>, 
/**
 * Name of the target; the engine fills it in.
 */
target: string, 
/**
 * Name of the draft model, if one was loaded; the engine fills it in.
 */
draft: string | null, };

/**
 * A message of a conversation: a tree by parent.
 */
export type StoredMessage = { 
/**
 * Its number.
 */
id: number, 
/**
 * The message it follows; `None` for the first ones.
 */
parent: number | null, 
/**
 * The person or the model.
 */
role: Role, 
/**
 * What was said.
 */
content: string, 
/**
 * When it was begun, in milliseconds since 1970.
 */
created_ms: number, 
/**
 * Where it stands.
 */
state: MessageState, 
/**
 * What an answer was asked with.
 */
settings: AnswerSettings | null, };

/**
 * A conversation with all of its branches.
 */
export type Conversation = { 
/**
 * As it is in the list.
 */
entry: ConversationEntry, 
/**
 * Instructions for the whole conversation; empty for none.
 */
system: string, 
/**
 * The message at whose branch the reader is; `None` for the newest.
 */
leaf: number | null, 
/**
 * Every message, oldest first.
 */
messages: Array<StoredMessage>, };

/**
 * Something that a search has found.
 */
export type SearchHit = { 
/**
 * The conversation.
 */
conversation: number, 
/**
 * What it is called.
 */
title: string, 
/**
 * The message; `None` when the title was found.
 */
message: number | null, 
/**
 * The words around, with what was found between U+E000 and U+E001.
 */
excerpt: string, };

/**
 * What is to be answered.
 */
export type Asking = { "kind": "question", 
/**
 * The message it follows; `None` at the beginning.
 */
parent: number | null, 
/**
 * What is said.
 */
text: string, } | { "kind": "again", 
/**
 * The question.
 */
question: number, } | { "kind": "continue", 
/**
 * The answer.
 */
answer: number, 
/**
 * How many of its tokens are kept; `None` = all.
 */
tokens: number | null, 
/**
 * The token to put behind them: one that was told as an alternative there.
 */
then: number | null, };

/**
 * Asks for an answer in a conversation.
 */
export type AnswerRequest = { 
/**
 * The conversation; `None` begins a new one.
 */
conversation: number | null, 
/**
 * What is to be answered.
 */
asking: Asking, 
/**
 * How.
 */
settings: AnswerSettings, };

/**
 * An answer that has begun.
 */
export type Answering = { 
/**
 * The conversation.
 */
conversation: number, 
/**
 * The question.
 */
question: number, 
/**
 * The answer.
 */
answer: number, 
/**
 * The generation whose events the channel brings.
 */
generation_id: number, 
/**
 * What the answer begins with, when it goes on with another one: events as of a generation.
 */
prefix: Array<GenerationEvent>, };

/**
 * How a conversation is written to a file.
 */
export type ExportFormat = "markdown" | "json";

/** Every command of the engine, by name. `answer` also takes a channel of StreamMessage. */
export interface Commands {
  app_info: { args: Record<string, never>; result: AppInfo };
  list_models: { args: Record<string, never>; result: ModelEntry[] };
  load_models: { args: { request: LoadRequest }; result: LoadedModels };
  answer: { args: { request: AnswerRequest }; result: Answering };
  list_conversations: { args: Record<string, never>; result: ConversationEntry[] };
  open_conversation: { args: { id: number }; result: Conversation };
  answer_events: { args: { message: number }; result: GenerationEvent[] };
  rename_conversation: { args: { id: number; title: string }; result: null };
  pin_conversation: { args: { id: number; pinned: boolean }; result: null };
  delete_conversation: { args: { id: number }; result: null };
  restore_conversation: { args: { id: number }; result: null };
  set_system_prompt: { args: { id: number | null; system: string }; result: number };
  choose_branch: { args: { leaf: number }; result: null };
  search_conversations: { args: { query: string }; result: SearchHit[] };
  export_conversation: { args: { id: number; format: ExportFormat; path: string }; result: null };
  import_conversation: { args: { path: string }; result: number };
  preferences: { args: Record<string, never>; result: Record<string, unknown> };
  set_preference: { args: { key: string; value: unknown }; result: null };
  stop_generation: { args: { generationId: number }; result: null };
  generation_snapshot: { args: { generationId: number }; result: GenerationSnapshot };
}
