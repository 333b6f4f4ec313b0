// Written from src/api by `hunch schema`; do not edit. A test keeps it current.

/**
 * Origin of a committed token. The window colours tokens by it.
 */
export type TokenOrigin = "prompt" | "accepted" | "resampled" | "bonus" | "plain" | "chosen";

/**
 * A drafting method: how tokens are proposed ahead of the target.
 */
export type Method = "plain" | "draft-model" | "draft-tree" | "ngram" | "suffix" | "cascade" | "lookahead" | "early-exit" | "layer-skip" | "low-bit" | "synthetic";

/**
 * Most tokens to draft a round, as it is asked for: a number, or `"auto"`.
 */
export type MaxDraft = number | "auto";

/**
 * Rule by which drafted tokens are accepted. Rules that can change the output distribution are named
 * `lossy`.
 */
export type AcceptanceRule = { "name": "lossless" } | { "name": "match" } | { "name": "coupled" } | { "name": "lossy-typical", 
/**
 * Tokens above this probability are always accepted. Above 0, at most 1.
 */
epsilon: number, 
/**
 * Factor of e^-H(p), where H is the entropy of p. Above 0, at most 1.
 */
delta: number, } | { "name": "lossy-lenience", 
/**
 * Above 0, at most 1. At 1 the rule is lossless.
 */
lenience: number, };

/**
 * The kinds of failure a caller may branch on. Closed: the window has a card for each.
 */
export type ErrorCode = "invalid_request" | "model_not_found" | "invalid_model_file" | "unsupported_model" | "vocabulary_mismatch" | "context_overflow" | "out_of_memory" | "io" | "store" | "no_model" | "busy" | "stopped" | "device" | "hub_unreachable" | "hub_not_found" | "hub_gated" | "hub_token" | "wrong_checksum" | "not_of_catalogue" | "disk_full" | "download_unreadable" | "download_elsewhere" | "internal";

/**
 * An error as the outside sees it.
 */
export type ErrorInfo = { 
/**
 * The kind, for branching.
 */
code: ErrorCode, 
/**
 * What happened, what is safe, what to do, in English.
 */
message: string, 
/**
 * What a window tells it with in its own language; see [`Error::params`]. Absent in answers kept before it
 * was told.
 */
params?: { [key in string]: string }, };

/**
 * Sampling settings, shared by the settings form, the command line and bench plans.
 *
 * Stages run in llama.cpp's order: penalties, logit bias, top-k, top-p, min-p, temperature. The
 * filters therefore see the distribution at temperature 1.
 */
export type SamplingParams = { 
/**
 * Flattens (above 1) or sharpens (below 1) the distribution. 0 always takes the most likely token.
 */
temperature: number, 
/**
 * Keeps this many of the most likely tokens; 0 keeps all.
 */
top_k: number, 
/**
 * Keeps the fewest most likely tokens whose probabilities sum to this; 1 keeps all.
 */
top_p: number, 
/**
 * Keeps tokens at least this fraction as likely as the most likely one; 0 keeps all.
 */
min_p: number, 
/**
 * Penalty of recent tokens: divides positive logits and multiplies negative ones by it
 * (CTRL, arXiv 1909.05858); 1 changes nothing.
 */
repeat_penalty: number, 
/**
 * Subtracted from the logit of every recent token; 0 changes nothing.
 */
presence_penalty: number, 
/**
 * Subtracted from a token's logit once per recent occurrence; 0 changes nothing.
 */
frequency_penalty: number, 
/**
 * Number of last tokens, prompt included, that count as recent; 0 disables penalties.
 */
penalty_last_n: number, 
/**
 * Added to the logit of a token, by token ID.
 */
logit_bias: Record<number, number>, 
/**
 * Makes a generation repeatable; `None` picks a new seed each time. At most 2^53 - 1, the largest
 * integer that JavaScript represents exactly.
 */
seed: number | null, };

/**
 * Author of a message.
 */
export type Role = "system" | "user" | "assistant";

/**
 * One message of a conversation.
 */
export type ChatMessage = { 
/**
 * Author.
 */
role: Role, 
/**
 * Text.
 */
content: string, };

/**
 * Whose folder a model lies in.
 */
export type ModelSource = "hunch" | "added" | "hugging_face" | "lm_studio" | "ollama" | "llama_cpp" | "jan";

/**
 * How a model ran when its speed was measured here.
 */
export type RanAs = { "kind": "target", 
/**
 * With this method; plain = by itself.
 */
method: Method, } | { "kind": "draft" };

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
 * Whose folder it lies in.
 */
source: ModelSource, 
/**
 * Files it consists of: more than one for a split model, whose first part is at `path`.
 */
parts: number, 
/**
 * Size of the file, or of all parts, in bytes.
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
 * Its quantisation by the name that people use, as "Q4_K_M"; where the file tells none, the type most
 * weights have.
 */
quantisation: string, 
/**
 * Context length in tokens.
 */
context_length: number, 
/**
 * Family of its tokeniser, as "gpt2 (qwen2)".
 */
tokenizer: string, 
/**
 * Whether it brings a chat template.
 */
has_template: boolean, 
/**
 * `general.license`, where it is stated.
 */
licence: string | null, 
/**
 * Tokens a second, when it last ran here: of plain decoding where that was measured, else as `ran_as` says.
 */
tokens_per_second: number | null, 
/**
 * How it ran then.
 */
ran_as?: RanAs, 
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
 * Most tokens of a conversation.
 */
context: number, 
/**
 * "cpu" or "metal".
 */
device: string, 
/**
 * Methods that can be used now.
 */
methods: Array<Method>, 
/**
 * What a person should know of the target's chat template, as that a built-in one takes its place.
 */
template_note?: string, };

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
draft: string | null, 
/**
 * Most tokens of a conversation, for both caches; the target's usual context when absent.
 */
context: number | null, };

/**
 * A folder that is looked through for models. Only Hunch's own is ever written to.
 */
export type ModelFolder = { 
/**
 * Where it is.
 */
path: string, 
/**
 * Whose it is.
 */
source: ModelSource, 
/**
 * Whether it is there.
 */
exists: boolean, 
/**
 * Models found in it.
 */
models: number, 
/**
 * Why it could not be looked through, or not to its end.
 */
problem: string | null, };

/**
 * The memory of this machine, in bytes.
 */
export type MachineMemory = { 
/**
 * All of it.
 */
total: number, 
/**
 * What models may take: on a Mac the working set that Metal recommends, elsewhere what is available now
 * and what the models in memory hold already.
 */
usable: number, };

/**
 * The models on this machine, and the machine.
 */
export type Library = { 
/**
 * Models that can be loaded, then those that cannot, each by name.
 */
models: Array<ModelEntry>, 
/**
 * Where was looked.
 */
folders: Array<ModelFolder>, 
/**
 * What the machine has.
 */
machine: MachineMemory, };

/**
 * What to predict the memory of.
 */
export type FitRequest = { 
/**
 * Path or short name of the target.
 */
target: string, 
/**
 * Path or short name of the draft model.
 */
draft: string | null, 
/**
 * Tokens that both caches hold; the target's usual context when absent.
 */
context: number | null, };

/**
 * Predicted memory of a model that is not loaded, in bytes.
 */
export type PredictedMemory = { 
/**
 * Weights.
 */
weights: number, 
/**
 * The cache, full.
 */
cache: number, };

/**
 * How well something fits.
 */
export type FitVerdict = "fits" | "tight" | "too_large";

/**
 * A choice that fits.
 */
export type SmallerChoice = { "kind": "context", 
/**
 * Tokens.
 */
context: number, } | { "kind": "without_draft" } | { "kind": "model", 
/**
 * Its short name.
 */
name: string, 
/**
 * Where it lies.
 */
path: string, } | { "kind": "catalogue", 
/**
 * Its number there.
 */
id: string, 
/**
 * Its name.
 */
name: string, };

/**
 * Predicted memory, before anything is loaded.
 */
export type Fit = { 
/**
 * Tokens that both caches hold.
 */
context: number, 
/**
 * Of the target.
 */
target: PredictedMemory, 
/**
 * Of the draft model.
 */
draft: PredictedMemory | null, 
/**
 * Besides: the work space of passes, the tokeniser, the program.
 */
other: number, 
/**
 * All of it.
 */
total: number, 
/**
 * What there is.
 */
machine: MachineMemory, 
/**
 * How well that goes.
 */
verdict: FitVerdict, 
/**
 * What would fit, closest first, if this does not.
 */
smaller: Array<SmallerChoice>, };

/**
 * Whether a model can draft for a target.
 */
export type PairVerdict = { "kind": "suits", 
/**
 * Entries that only one of the two has, at the end: padding or added tokens.
 */
padding: number, } | { "kind": "expected", 
/**
 * Whether every token of that very file was compared when the catalogue was made; else the target's header
 * has the tokens that are known of its family.
 */
compared: boolean, } | { "kind": "other_vocabulary", 
/**
 * The first token that differs; of a model that is not here, the first that is known to.
 */
first: number, 
/**
 * What the target calls it; empty where it has none.
 */
of_target: string, 
/**
 * What the draft calls it.
 */
of_draft: string, } | { "kind": "not_smaller" } | { "kind": "unusable", 
/**
 * Why.
 */
reason: string, };

/**
 * A speedup that nobody measured.
 */
export type PredictedSpeedup = { 
/**
 * Against plain decoding.
 */
speedup: number, 
/**
 * Acceptance rate that was assumed.
 */
acceptance: number, 
/**
 * Depth at which it is best; 0 = plain decoding is.
 */
depth: number, 
/**
 * Whether the cost of passes was measured here; else it follows from the sizes alone.
 */
costs_measured: boolean, };

/**
 * A speedup that was measured on this machine.
 */
export type MeasuredSpeedup = { 
/**
 * Against plain decoding.
 */
speedup: number, 
/**
 * The method that reached it.
 */
method: Method, 
/**
 * When, in milliseconds since 1970.
 */
ended_ms: number, 
/**
 * The comparison.
 */
comparison: number, };

/**
 * A model as a draft for a target.
 */
export type DraftOffer = { 
/**
 * Its name.
 */
name: string, 
/**
 * Where it lies, if it is here.
 */
path: string | null, 
/**
 * Its number in the catalogue, if it is there.
 */
catalogue: string | null, 
/**
 * Bytes of its file.
 */
size_bytes: number, 
/**
 * Whether it can draft for this target.
 */
verdict: PairVerdict, 
/**
 * Whether the catalogue recommends it for this target.
 */
recommended: boolean, 
/**
 * Bytes of weights that a pass reads, of the target's.
 */
size_ratio: number, 
/**
 * Bytes that both take at the context that was asked for.
 */
memory: number, 
/**
 * Whether both fit into the machine.
 */
fit: FitVerdict, 
/**
 * Speedup by the cost model at an acceptance that is typical of its size; `None` where it does not suit.
 */
predicted: PredictedSpeedup | null, 
/**
 * Speedup that was measured here, of the last comparison of the pair.
 */
measured: MeasuredSpeedup | null, };

/**
 * What can draft for a target. Never empty without a word: methods that need no model are always there.
 */
export type DraftOffers = { 
/**
 * The target.
 */
target: ModelEntry, 
/**
 * Tokens that memory is predicted for.
 */
context: number, 
/**
 * Measured ones first, by speedup; then by predicted speedup; those that do not suit last, each with why.
 */
offers: Array<DraftOffer>, 
/**
 * Methods that need no draft model.
 */
without_draft: Array<Method>, };

/**
 * Memory that a machine of a class has.
 */
export type MemoryClass = "gb8" | "gb16" | "gb24_to36" | "gb48" | "gb96";

/**
 * What a model of the catalogue is for.
 */
export type CatalogueRole = "target" | "draft";

/**
 * A model that can be fetched.
 */
export type CatalogueModel = { 
/**
 * Its number: stable, as "qwen3-8b-q4_k_m".
 */
id: string, 
/**
 * As people call it, as "Qwen3 8B".
 */
name: string, 
/**
 * Family, as "Qwen3".
 */
family: string, 
/**
 * What it is for.
 */
role: CatalogueRole, 
/**
 * The class whose machines it is good on, the smallest too, with its draft at a context of 8,192 tokens.
 */
memory_class: MemoryClass, 
/**
 * Number of weights.
 */
parameters: number, 
/**
 * As "Q4_K_M".
 */
quantisation: string, 
/**
 * Repository on the hub, as "Qwen/Qwen3-8B-GGUF".
 */
repository: string, 
/**
 * The file there.
 */
file: string, 
/**
 * Its size in bytes, as published; absent where that is not known for sure.
 */
size_bytes: number | null, 
/**
 * Its SHA-256, where published.
 */
sha256: string | null, 
/**
 * Licence, as the hub names it.
 */
licence: string, 
/**
 * Number of the draft that is recommended for it.
 */
draft: string | null, 
/**
 * Vocabularies of one name are the same, token by token.
 */
vocabulary: string, 
/**
 * One line about it, or why it is here.
 */
note: string, };

/**
 * The catalogue, and what of it is here.
 */
export type Catalogue = { 
/**
 * Version of the file.
 */
version: number, 
/**
 * When it was last gone through, as "2026-11".
 */
reviewed: string, 
/**
 * The models.
 */
models: Array<CatalogueModel>, 
/**
 * The class of this machine.
 */
machine: MemoryClass, };

/**
 * A file of a repository on the hub.
 */
export type HubFile = { 
/**
 * Its path in the repository; of a split model, that of its first part.
 */
path: string, 
/**
 * Files it consists of.
 */
parts: number, 
/**
 * Bytes of all of them.
 */
size_bytes: number, 
/**
 * SHA-256 of the file, where the hub tells it; absent for split models, whose parts have one each.
 */
sha256: string | null, 
/**
 * Quantisation by its name, as "Q4_K_M"; empty where the name tells none.
 */
quantisation: string, };

/**
 * The models of a repository on the hub.
 */
export type HubRepository = { 
/**
 * As "Qwen/Qwen3-8B-GGUF".
 */
repository: string, 
/**
 * The commit these files are of.
 */
revision: string, 
/**
 * Whether its terms have to be agreed to on the hub's page.
 */
gated: boolean, 
/**
 * Licence, where the hub tells it.
 */
licence: string | null, 
/**
 * Its GGUF models, smallest first.
 */
files: Array<HubFile>, };

/**
 * What to fetch.
 */
export type DownloadRequest = { 
/**
 * As "Qwen/Qwen3-8B-GGUF"; empty in a download of which nothing can be read any more.
 */
repository: string, 
/**
 * Path of the file in it; of a split model, that of its first part.
 */
file: string, 
/**
 * SHA-256 that it has to have, of a model of the catalogue: if the hub has another file by now, nothing is
 * fetched. Absent: whatever the hub has.
 */
expected_sha256?: string, };

/**
 * How far a download is.
 */
export type DownloadPhase = "waiting" | "running" | "retrying" | "checking" | "paused" | "failed" | "done";

/**
 * A download.
 */
export type Download = { 
/**
 * Its number, the same after a restart.
 */
id: string, 
/**
 * What is fetched.
 */
request: DownloadRequest, 
/**
 * Short name that the model will have.
 */
name: string, 
/**
 * How far it is.
 */
phase: DownloadPhase, 
/**
 * Bytes that are here.
 */
done_bytes: number, 
/**
 * Bytes of all its files; absent before the hub has told.
 */
total_bytes: number | null, 
/**
 * Over the last seconds; absent while nothing comes.
 */
bytes_per_second: number | null, 
/**
 * Time left at that speed.
 */
seconds_left: number | null, 
/**
 * What went wrong, while it is tried again or after it failed.
 */
error: ErrorInfo | null, 
/**
 * Where the model lies, once it is done.
 */
path: string | null, };

/**
 * Where the hub's token comes from.
 */
export type HubTokenSource = "absent" | "environment" | "keychain" | "file";

/**
 * Why a token that somebody has set is not used.
 */
export type HubTokenProblem = { "kind": "environment" } | { "kind": "keychain", 
/**
 * Why, in the system's words.
 */
reason: string, } | { "kind": "unencrypted" };

/**
 * The hub, as this machine sees it. The token itself never leaves the engine.
 */
export type HubState = { 
/**
 * Its address; `HF_ENDPOINT` changes it.
 */
endpoint: string, 
/**
 * Where the token comes from.
 */
token: HubTokenSource, 
/**
 * Whether this system has a keychain to keep one in.
 */
can_keep_token: boolean, 
/**
 * Why a token is not used although one was set.
 */
problems: Array<HubTokenProblem>, };

/**
 * How far loading is.
 */
export type LoadProgress = { 
/**
 * Short name of the model that is being read.
 */
name: string, 
/**
 * Bytes of weights that are in memory.
 */
done_bytes: number, 
/**
 * Bytes of all weights that have to come.
 */
total_bytes: number, };

/**
 * What happens to the library, as it happens. Each tells the whole of its thing, so a lost one does no harm.
 */
export type LibraryEvent = { "kind": "changed" } | { "kind": "download", 
/**
 * As it is now.
 */
download: Download, } | { "kind": "download_gone", 
/**
 * Its number.
 */
id: string, } | { "kind": "loading", 
/**
 * As it is now.
 */
progress: LoadProgress, } | { "kind": "unloaded" };

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
 * What is wrong with the file of conversations, and what can be done.
 */
export type StoreProblem = { 
/**
 * What happened.
 */
error: ErrorInfo, 
/**
 * Whether conversations are in memory only, and gone when the window closes.
 */
in_memory: boolean, 
/**
 * Whether the person chose to go on like that. Until then no question is taken.
 */
accepted: boolean, 
/**
 * Whether the file can be set aside: no other program uses it.
 */
replaceable: boolean, 
/**
 * Copies that can be restored, newest first.
 */
copies: Array<StoreCopy>, };

/**
 * A copy of the file of conversations.
 */
export type StoreCopy = { 
/**
 * Name of its file.
 */
name: string, 
/**
 * When it was made, in milliseconds since 1970.
 */
made_ms: number, 
/**
 * Its size in bytes.
 */
bytes: number, };

/**
 * What a person chooses to do about a [`StoreProblem`].
 */
export type StoreRemedy = { "type": "retry" } | { "type": "restore", 
/**
 * Name of the copy.
 */
copy: string, } | { "type": "start_anew" } | { "type": "go_without" };

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
 * Models that ended the program while they were loaded. They are not loaded unasked.
 */
unfinished_load: LoadRequest | null, 
/**
 * What is wrong with the file of conversations, if anything is.
 */
store_problem: StoreProblem | null, 
/**
 * Bytes of the file of conversations; none where there is none.
 */
store_bytes: number | null, 
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
 * Target probability under the distribution it was tested with.
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
 * Fate of a drafted token.
 */
export type DraftFate = "accepted" | "rejected" | "untested";

/**
 * A drafted token, as a node of what was drafted.
 */
export type DraftedEvent = { 
/**
 * Vocabulary number.
 */
id: number, 
/**
 * Its text on its own.
 */
text: string, 
/**
 * Number of the node it was drafted behind; `None` is the last token before the round.
 */
parent: number | null, 
/**
 * What became of it.
 */
fate: DraftFate, };

/**
 * Time of one round by phase, in milliseconds.
 */
export type RoundTiming = { 
/**
 * Drafting.
 */
propose_ms: number, 
/**
 * Target pass.
 */
target_ms: number, 
/**
 * Computing distributions and verifying the draft.
 */
verify_ms: number, 
/**
 * Everything else: cache maintenance, text, events.
 */
other_ms: number, };

/**
 * Figures of a running generation.
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
 * Generated tokens per second since prefill ended.
 */
decode_tok_s: number, 
/**
 * accepted / drafted; 0 if nothing was drafted.
 */
acceptance_rate: number, 
/**
 * 1 + accepted / rounds: tokens per target pass.
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
 * What was drafted, parents before children; of a chain each is the parent of the next. Absent in
 * answers kept before it was told.
 */
draft: Array<DraftedEvent>, 
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
 * All figures of a generation. `accepted + resampled + bonus + plain == generated_tokens`.
 */
export type GenerationStats = { 
/**
 * Tokens in the prompt.
 */
prompt_tokens: number, 
/**
 * Tokens emitted, without the end token.
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
 * Emitted tokens resampled after a rejection.
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
 * accepted / drafted; 0 if nothing was drafted.
 */
acceptance_rate: number, 
/**
 * 1 + accepted / rounds: tokens per target pass, bonus included, as in vLLM and Spec-Bench.
 */
mean_acceptance_length: number, 
/**
 * Target passes after prefill as `(rows, passes)`.
 */
target_passes: Array<[number, number]>, 
/**
 * Passes of the drafting model (or part of the target) as `(rows, passes)`.
 */
draft_passes: Array<[number, number]>, 
/**
 * Acceptance by draft position i: the accepted share of the rounds that drafted i + 1 deep or more.
 */
accepted_at_position: Array<number>, 
/**
 * Number of rounds that drafted i + 1 deep or more, by position i.
 */
drafted_at_position: Array<number>, 
/**
 * Time to first token: from the request to the first emitted token, in milliseconds.
 */
ttft_ms: number, 
/**
 * Prompt tokens per second during prefill.
 */
prefill_tok_s: number, 
/**
 * Generated tokens per second after prefill.
 */
decode_tok_s: number, 
/**
 * From the request to the end, in milliseconds.
 */
wall_ms: number, 
/**
 * Total drafting time, in milliseconds.
 */
propose_ms: number, 
/**
 * Total time of target passes after prefill, in milliseconds.
 */
target_ms: number, 
/**
 * Total time of verification, in milliseconds.
 */
verify_ms: number, 
/**
 * Remaining time after prefill, in milliseconds.
 */
other_ms: number, 
/**
 * Peak resident memory of the process, in bytes; 0 if the system does not report it.
 */
peak_memory_bytes: number, 
/**
 * Device: "cpu" or "metal".
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
 * What a person should know of the model's chat template, as that a built-in one took its place.
 */
template_note?: string, 
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
total: number, } | { "type": "draft_dropped", 
/**
 * The method; of a cascade the one that failed.
 */
method: Method, 
/**
 * Why.
 */
error: ErrorInfo, } | { "type": "round" } & RoundEvent | { "type": "finished", 
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
error: ErrorInfo, } | { "type": "not_kept", 
/**
 * The store's reason.
 */
error: ErrorInfo, } | { "type": "kept" };

/**
 * Events on the channel, several at a time. `seq` of a message is the number of the first event
 * in it, so a reader sees a gap and asks for what it missed: a snapshot is a message too.
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
 * The events, in order; empty only in a snapshot when there is nothing new.
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
 * What it is called; empty while nothing was said in it, and where what was said gives no title. Whoever
 * shows it then names it.
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
 * What it is called; empty as in [`ConversationEntry`].
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

/**
 * What stands over the parts of a conversation that is written for people, in the language of who saves it.
 */
export type ExportWords = { 
/**
 * Over a conversation without a title.
 */
untitled: string, 
/**
 * Over what the person said.
 */
question: string, 
/**
 * Over an answer of which it is not known what wrote it.
 */
answer: string, };

/**
 * A kind of file to open.
 */
export type OpenKind = "model" | "conversation";

/**
 * A kind of file to write.
 */
export type SaveKind = "markdown" | "json" | "csv" | "picture";

/**
 * A place the person chose to save a file. It can be written to once.
 */
export type SavePlace = { 
/**
 * Stands for the path, which the window never sees.
 */
token: number, 
/**
 * Name of the file, to be shown.
 */
name: string, };

/**
 * A method that takes part.
 */
export type Contender = { 
/**
 * The method.
 */
method: Method, 
/**
 * Most tokens drafted a round; plain drafts none whatever it says.
 */
max_draft: MaxDraft, };

/**
 * Which prompts to compare on.
 */
export type ComparedPrompts = { "kind": "text", 
/**
 * Instructions, or nothing.
 */
system: string, 
/**
 * What is asked.
 */
text: string, } | { "kind": "suite", 
/**
 * Its name: `code`, `prose` or `edit`.
 */
name: string, 
/**
 * How many of them, from the first on; `None` = all.
 */
prompts: number | null, };

/**
 * What to compare: plain decoding, and these methods beside it.
 */
export type CompareRequest = { 
/**
 * The prompts.
 */
prompts: ComparedPrompts, 
/**
 * What runs beside plain decoding: one to five.
 */
lanes: Array<Contender>, 
/**
 * How tokens are drawn. All lanes of a run use one seed; the next run uses the next.
 */
sampling: SamplingParams, 
/**
 * Which drafted tokens stand.
 */
rule: AcceptanceRule, 
/**
 * Most tokens of an answer, 1 or more.
 */
max_tokens: number, 
/**
 * How often every lane answers every prompt: 1 to 20.
 */
runs: number, };

/**
 * A prompt that is compared on.
 */
export type ComparedPrompt = { 
/**
 * Its name in its suite; empty for a text of the person's.
 */
id: string, 
/**
 * Instructions, or nothing.
 */
system: string, 
/**
 * What is asked.
 */
text: string, };

/**
 * On what and with what is compared.
 */
export type ComparisonSetting = { 
/**
 * Name of the target.
 */
target: string, 
/**
 * Name of the draft model, if one is loaded.
 */
draft: string | null, 
/**
 * "cpu" or "metal".
 */
device: string, 
/**
 * CPU threads.
 */
threads: number, 
/**
 * The lanes; the first is plain.
 */
lanes: Array<Contender>, 
/**
 * The prompts.
 */
prompts: Array<ComparedPrompt>, 
/**
 * How tokens are drawn; the seed is that of the first run.
 */
sampling: SamplingParams, 
/**
 * Which drafted tokens stand.
 */
rule: AcceptanceRule, 
/**
 * Most tokens of an answer.
 */
max_tokens: number, 
/**
 * How often every lane answers every prompt.
 */
runs: number, 
/**
 * Tokens of a slice, after which the next lane takes its turn.
 */
slice_tokens: number, };

/**
 * An event of a lane, and when it happened.
 */
export type TimedEvent = { 
/**
 * Milliseconds of the lane's own time since its answer began: it stands while others run.
 */
at_ms: number, 
/**
 * The event.
 */
event: GenerationEvent, };

/**
 * What a comparison tells while it runs.
 */
export type CompareEvent = { "type": "started", 
/**
 * With what.
 */
setting: ComparisonSetting, } | { "type": "costs", 
/**
 * Rounds done.
 */
done: number, 
/**
 * Rounds in all.
 */
total: number, } | { "type": "turn", 
/**
 * Number of the prompt, from 0.
 */
prompt: number, 
/**
 * Number of the run, from 0.
 */
run: number, 
/**
 * Turns done.
 */
done: number, 
/**
 * Turns in all.
 */
total: number, 
/**
 * Milliseconds that the rest will take if it goes on as it did: predicted. `None` before the first
 * turn is over.
 */
left_ms: number | null, } | { "type": "slice", 
/**
 * Number of the lane, from 0.
 */
lane: number, } | { "type": "lane", 
/**
 * Number of the lane, from 0.
 */
lane: number, 
/**
 * What.
 */
told: TimedEvent, } | { "type": "finished", 
/**
 * What came out; `None` when it was stopped before every lane had answered once.
 */
report: ComparisonReport | null, 
/**
 * Its number in the history; `None` when it could not be kept there.
 */
kept: number | null, 
/**
 * Why it ended before all turns were over, though nobody stopped it; what was whole is reported.
 */
trouble: ErrorInfo | null, 
/**
 * Whether it was stopped.
 */
stopped: boolean, } | { "type": "failed", 
/**
 * The reason.
 */
error: ErrorInfo, };

/**
 * Everything a comparison found out. All of it is measured but what says `predicted`.
 */
export type ComparisonReport = { 
/**
 * On what and with what.
 */
setting: ComparisonSetting, 
/**
 * When it ended, in milliseconds since 1970.
 */
ended_ms: number, 
/**
 * t(M) / t(1) of the target by rows M, measured alone.
 */
target_cost: Record<string, number>, 
/**
 * c: a pass of the draft model over one of the target, one row each, measured alone.
 */
draft_cost: number | null, 
/**
 * What the models and the caches take.
 */
memory: ComparisonMemory, 
/**
 * The lanes, plain first.
 */
lanes: Array<LaneReport>, 
/**
 * Whether all lanes wrote the same tokens; `None` where they only follow the same distribution (above
 * temperature 0 without the coupled rule).
 */
identity: IdentityReport | null, 
/**
 * Every answer.
 */
answers: Array<ComparedAnswer>, 
/**
 * The events of the last turn by lane, for a race.
 */
recordings: Array<Array<TimedEvent>>, };

/**
 * One lane's answer to one prompt in one run.
 */
export type ComparedAnswer = { 
/**
 * Number of the prompt, from 0.
 */
prompt: number, 
/**
 * Number of the run, from 0.
 */
run: number, 
/**
 * Number of the lane, from 0.
 */
lane: number, 
/**
 * Plain wall time of this turn / this answer's; 1 for plain. `None` when nothing was generated.
 */
speedup: number | null, 
/**
 * Its figures.
 */
stats: GenerationStats, 
/**
 * Why it ended.
 */
stop: StopReason, 
/**
 * Its text.
 */
text: string, 
/**
 * Milliseconds of its own time and the tokens there were by then, round by round.
 */
timeline: Array<[number, number]>, 
/**
 * Milliseconds of its own time and tokens a second over the rounds just before.
 */
rates: Array<[number, number]>, };

/**
 * What memory is taken, in bytes.
 */
export type ComparisonMemory = { 
/**
 * Weights of the target.
 */
target_weights: number, 
/**
 * Its cache of keys and values, in the lane where it was largest.
 */
target_cache: number, 
/**
 * Weights of the draft model.
 */
draft_weights: number | null, 
/**
 * Its cache, in the lane where it was largest.
 */
draft_cache: number | null, 
/**
 * The most the process took; 0 when the system does not tell.
 */
peak: number, };

/**
 * Where the time of a lane's answers went: milliseconds an answer, the mean.
 */
export type TimeSplit = { 
/**
 * Reading the prompt.
 */
prefill_ms: number, 
/**
 * Drafting.
 */
propose_ms: number, 
/**
 * Target passes.
 */
target_ms: number, 
/**
 * Distributions and acceptance.
 */
verify_ms: number, 
/**
 * The rest.
 */
other_ms: number, };

/**
 * A position of a draft, over all of a lane's answers.
 */
export type PositionReport = { 
/**
 * Rounds that drafted this deep.
 */
drafted: number, 
/**
 * Of these, those whose token at this position was accepted.
 */
accepted: number, 
/**
 * accepted / drafted.
 */
share: number, };

/**
 * One lane over all prompts and runs.
 */
export type LaneReport = { 
/**
 * Method and depth.
 */
contender: Contender, 
/**
 * Tokens a second after prefill: the median over all answers.
 */
tok_s: number, 
/**
 * To the first token, in milliseconds: the median.
 */
ttft_ms: number, 
/**
 * Plain wall time / this lane's within one turn: the median over the prompts (each the median of its
 * runs), or over the runs where there is one prompt.
 */
speedup: number, 
/**
 * 10th percentile of the same.
 */
speedup_low: number, 
/**
 * 90th percentile.
 */
speedup_high: number, 
/**
 * How many turns, or prompts, the median is over.
 */
samples: number, 
/**
 * The same for decoding alone.
 */
decode_speedup: number, 
/**
 * What the passes it took and their costs, measured alone, predict for that.
 */
predicted_speedup: number | null, 
/**
 * accepted / drafted over all answers.
 */
acceptance_rate: number, 
/**
 * 1 + accepted / rounds over all answers.
 */
mean_acceptance_length: number, 
/**
 * Acceptance by position in the draft.
 */
positions: Array<PositionReport>, 
/**
 * Where its time went.
 */
split: TimeSplit, 
/**
 * What is to be said of it; `None` for plain.
 */
verdict: Verdict | null, };

/**
 * What takes most of what the accepted tokens could have gained.
 */
export type Loss = "drafting" | "wider_passes" | "loop" | "nothing";

/**
 * A comparison in one sentence, in parts.
 */
export type Verdict = { 
/**
 * The median speedup.
 */
speedup: number, 
/**
 * Whether every sample lies on one side of 1, and there is more than one.
 */
unanimous: boolean, 
/**
 * The same with at least six samples, which equal lanes give once in 32 times (a sign test).
 */
certain: boolean, 
/**
 * Tokens a target pass.
 */
tokens_per_pass: number, 
/**
 * A target pass of this lane over one of plain's, both measured in these turns.
 */
pass_cost: number, 
/**
 * Where most is lost.
 */
loss: Loss, 
/**
 * Shares of the lane's decoding time: drafting.
 */
drafting_share: number, 
/**
 * What its passes took longer than as many of plain's.
 */
wider_share: number, 
/**
 * Acceptance, text and the rest.
 */
loop_share: number, };

/**
 * Whether greedy answers are the same, token for token.
 */
export type IdentityReport = { 
/**
 * Answers compared with the prompt's first plain answer.
 */
compared: number, 
/**
 * Those that differ.
 */
differences: Array<Difference>, };

/**
 * An answer that differs from plain's.
 */
export type Difference = { 
/**
 * The suite.
 */
suite: string, 
/**
 * The prompt's id.
 */
prompt: string, 
/**
 * The method.
 */
method: Method, 
/**
 * Most tokens drafted a round; 0 for plain.
 */
max_draft: MaxDraft, 
/**
 * Number of the run, from 0.
 */
run: number, 
/**
 * The first token that differs, from 0; the shorter length when one answer begins the other.
 */
position: number, };

/**
 * A comparison in the history.
 */
export type ComparisonEntry = { 
/**
 * Its number.
 */
id: number, 
/**
 * When it ended, in milliseconds since 1970.
 */
ended_ms: number, 
/**
 * The beginning of its prompt, or its suite and how many prompts.
 */
title: string, 
/**
 * Name of the target.
 */
target: string, 
/**
 * Name of the draft model, if one was loaded.
 */
draft: string | null, 
/**
 * The fastest lane but plain.
 */
best: Contender, 
/**
 * Its speedup.
 */
speedup: number, };

/**
 * The form of an exported comparison.
 */
export type ComparisonFormat = "json" | "csv" | "picture";

/**
 * Events of a measurement, several at a time.
 */
export type MeasurementMessage<E> = { 
/**
 * The measurement.
 */
id: number, 
/**
 * Number of the first event, from 0.
 */
seq: number, 
/**
 * The events, in order.
 */
events: Array<E>, };

/**
 * Where a position is looked at.
 */
export type LabSource = { "kind": "answer", 
/**
 * The answer's message.
 */
message: number, 
/**
 * The token's number, from 0.
 */
token: number, } | { "kind": "text", 
/**
 * The text, read as it is.
 */
text: string, } | { "kind": "toy" };

/**
 * A position to look at.
 */
export type LabRequest = { 
/**
 * Where.
 */
source: LabSource, 
/**
 * How both distributions are made from the logits.
 */
sampling: SamplingParams, };

/**
 * A token at a position.
 */
export type LabToken = { 
/**
 * Vocabulary number.
 */
id: number, 
/**
 * Its text on its own.
 */
text: string, 
/**
 * p: the target's probability.
 */
p: number, 
/**
 * q: the draft model's.
 */
q: number, 
/**
 * min(p, q): drafted and accepted.
 */
overlap: number, 
/**
 * max(0, p - q) / Z: its share of the residual distribution.
 */
residual: number, 
/**
 * overlap + Z * residual, which is p.
 */
total: number, };

/**
 * All tokens that are not listed, together.
 */
export type LabRest = { 
/**
 * How many can be drawn from either distribution.
 */
tokens: number, 
/**
 * The sum of p.
 */
p: number, 
/**
 * The sum of q.
 */
q: number, 
/**
 * The sum of min(p, q).
 */
overlap: number, 
/**
 * Their share of the residual distribution.
 */
residual: number, };

/**
 * Both distributions at a position.
 */
export type LabPosition = { 
/**
 * Names the distributions for what is asked next; the last few are kept.
 */
id: number, 
/**
 * Where it is.
 */
source: LabSource, 
/**
 * Name of the target; `None` for made-up distributions.
 */
target: string | null, 
/**
 * Name of the draft model.
 */
draft: string | null, 
/**
 * How the distributions were made.
 */
sampling: SamplingParams, 
/**
 * The last of the text before the position.
 */
before: string, 
/**
 * The token that stands there, if the answer goes on.
 */
drawn: number | null, 
/**
 * The likeliest tokens by the larger of p and q, at most 24.
 */
tokens: Array<LabToken>, 
/**
 * All others.
 */
rest: LabRest, 
/**
 * The sum of min(p, q): the probability that a drafted token is accepted.
 */
acceptance: number, 
/**
 * Z = 1 - acceptance: the mass that is rejected.
 */
rejection: number, };

/**
 * More rounds at a position.
 */
export type LabRoundsRequest = { 
/**
 * The position.
 */
position: number, 
/**
 * Which drafted tokens stand.
 */
rule: AcceptanceRule, 
/**
 * How many rounds more: up to 10,000.
 */
rounds: number, 
/**
 * Forgets the rounds before.
 */
afresh: boolean, };

/**
 * One round at a position.
 */
export type LabRound = { 
/**
 * The token drawn from q.
 */
drafted: number, 
/**
 * p of it.
 */
p: number, 
/**
 * q of it.
 */
q: number, 
/**
 * The number it was tested with, where the rule draws one.
 */
u: number | null, 
/**
 * What that had to be below.
 */
threshold: number | null, 
/**
 * Whether it was accepted.
 */
accepted: boolean, 
/**
 * The token that came out.
 */
emitted: number, };

/**
 * All rounds under one rule at one position.
 */
export type LabRounds = { 
/**
 * The position.
 */
position: number, 
/**
 * The rule.
 */
rule: AcceptanceRule, 
/**
 * Rounds.
 */
rounds: number, 
/**
 * Drafted tokens that were accepted.
 */
accepted: number, 
/**
 * How often each listed token came out.
 */
counts: Array<number>, 
/**
 * How often any other did.
 */
rest: number, 
/**
 * Pearson's statistic against p.
 */
chi_square: number, 
/**
 * Its degrees of freedom.
 */
degrees: number, 
/**
 * The probability of as much or more if the distribution is p.
 */
p_value: number, 
/**
 * Whether that is less than one in a million: what comes out does not follow p.
 */
refuted: boolean, 
/**
 * Half the sum of |share - p|.
 */
total_variation: number, 
/**
 * What chance alone makes of that at this many rounds, on average: predicted.
 */
expected_variation: number, 
/**
 * The last round, when only one was asked for.
 */
last: LabRound | null, };

/**
 * What the acceptance rules make of the same logits at one temperature: probabilities of acceptance.
 */
export type LabRuleRow = { 
/**
 * The temperature of both distributions.
 */
temperature: number, 
/**
 * Rejection sampling: the sum of min(p, q).
 */
lossless: number, 
/**
 * A draft that takes its likeliest token, by rejection sampling: p(argmax q).
 */
argmax: number, 
/**
 * A sampled draft that is kept where the target draws the same: the sum of p q.
 */
matching: number, 
/**
 * Typical acceptance of a sampled draft, which changes the distribution.
 */
typical: number, 
/**
 * Lenience, which changes the distribution.
 */
lenience: number, };

/**
 * Whose costs a landscape is of.
 */
export type LabMachine = { "kind": "measured" } | { "kind": "made_up", 
/**
 * c: a drafted token, in target passes of one row.
 */
draft_cost: number, 
/**
 * What each row beyond the first adds to a target pass, in passes of one row.
 */
row_cost: number, };

/**
 * Predicted speedup over alpha and K.
 */
export type Landscape = { 
/**
 * Whether the costs were measured here.
 */
measured: boolean, 
/**
 * c: a drafted token, in target passes of one row.
 */
draft_cost: number, 
/**
 * t(M) / t(1) by rows M = 1, 2, ...
 */
target_cost: Array<number>, 
/**
 * The probabilities of acceptance, rising.
 */
alphas: Array<number>, 
/**
 * Most tokens drafted a round, K: 1, 2, ...
 */
depths: Array<number>, 
/**
 * Predicted speedup: a row for each alpha, a column for each depth.
 */
speedup: Array<Array<number>>, 
/**
 * The depth with the highest speedup for each alpha; 0 where drafting never pays.
 */
best: Array<number>, 
/**
 * For each depth the alpha from which drafting pays; `None` where it never does.
 */
break_even: Array<number | null>, };

/**
 * An answer of the person's, as a place in the landscape.
 */
export type LabSession = { 
/**
 * The answer's message.
 */
message: number, 
/**
 * Its conversation.
 */
conversation: number, 
/**
 * What the conversation is called.
 */
title: string, 
/**
 * How it was drafted.
 */
method: Method, 
/**
 * Accepted of the drafted tokens that were tested.
 */
alpha: number, 
/**
 * Tokens drafted in a round that drafted, the mean.
 */
depth: number, 
/**
 * Tokens generated.
 */
tokens: number, 
/**
 * Tokens a target pass.
 */
mean_acceptance_length: number, };

/**
 * Acceptance of the drafted tokens that have something in common.
 */
export type AcceptanceBin = { 
/**
 * What they have in common: a position from 0, a kind, or a range.
 */
key: string, 
/**
 * How many were tested.
 */
tested: number, 
/**
 * How many of these were accepted.
 */
accepted: number, 
/**
 * accepted / tested.
 */
share: number, 
/**
 * Where the true share lies, with 95% confidence (Wilson): from.
 */
low: number, 
/**
 * To.
 */
high: number, 
/**
 * The mean of min(1, p / q), or of p for certain drafts: what the share should be.
 */
expected: number, 
/**
 * The mean of the draft's own probability q, where it has one: how sure it was of itself.
 */
confidence: number | null, };

/**
 * Acceptance over answers in the store.
 */
export type AcceptanceMap = { 
/**
 * Answers that drafted.
 */
answers: number, 
/**
 * Drafted tokens that were tested.
 */
tested: number, 
/**
 * By position in the draft; the key is the position, from 0.
 */
by_position: Array<AcceptanceBin>, 
/**
 * By kind of token: `word`, `part` (of a word), `space`, `number`, `punctuation`, `code`.
 */
by_kind: Array<AcceptanceBin>, 
/**
 * By entropy of the target at the position, in bits; the key is the range, as `0.5-1`.
 */
by_entropy: Array<AcceptanceBin>, 
/**
 * By the draft's own probability q; the key is the range, as `0.8-0.9`.
 */
by_confidence: Array<AcceptanceBin>, };

/**
 * What an answer would have been with other settings, from what was stored of it.
 */
export type WhatIfRequest = { 
/**
 * The answer's message.
 */
message: number, 
/**
 * Most tokens drafted a round.
 */
max_draft: number, 
/**
 * The temperature; `None` = as it was.
 */
temperature: number | null, };

/**
 * The figures of an answer, as it was or as it would have been.
 */
export type WhatIfFigures = { 
/**
 * The probability that a drafted token is accepted once it is tested.
 */
alpha: number, 
/**
 * Tokens a target pass.
 */
mean_acceptance_length: number, 
/**
 * Target passes for the answer's tokens.
 */
rounds: number, 
/**
 * Tokens a second; `None` where the time of such rounds is not known.
 */
tok_s: number | null, };

/**
 * An answer beside what it would have been.
 */
export type WhatIf = { 
/**
 * As it was: measured.
 */
was: WhatIfFigures, 
/**
 * As it would have been: predicted.
 */
would: WhatIfFigures, 
/**
 * Drafted tokens whose p and q were stored.
 */
known: number, 
/**
 * Share of the target's distribution that the stored alternatives cover, the mean: how far to trust another
 * temperature.
 */
covered: number, };

/**
 * Cost of passes with one number of rows.
 */
export type CostPoint = { 
/**
 * Number of rows M.
 */
rows: number, 
/**
 * t(M) in milliseconds, the median over rounds.
 */
ms: number, 
/**
 * t(M) / t(1), the median of the ratios within each round.
 */
relative: number, };

/**
 * Pass cost of one model.
 */
export type ModelCosts = { 
/**
 * Name of the model.
 */
name: string, 
/**
 * Cost by number of rows.
 */
points: Array<CostPoint>, 
/**
 * Weights that one pass reads, in bytes.
 */
weight_bytes: number, 
/**
 * Lower bound of a pass in milliseconds: the time to read the weights at full memory bandwidth.
 */
floor_ms: number, };

/**
 * Pass cost measured on this machine.
 */
export type CostCurve = { 
/**
 * Time of the measurement, in milliseconds since 1970.
 */
measured_ms: number, 
/**
 * Device: "cpu" or "metal".
 */
device: string, 
/**
 * Number of CPU threads.
 */
threads: number, 
/**
 * Peak memory bandwidth measured, in 10^9 bytes per second.
 */
memory_gb_s: number, 
/**
 * Cost of the target.
 */
target: ModelCosts, 
/**
 * Cost of the draft model, if one was loaded.
 */
draft: ModelCosts | null, };

/**
 * What measuring the cost curve tells.
 */
export type CostEvent = { "type": "progress", 
/**
 * Rounds done.
 */
done: number, 
/**
 * Rounds in all.
 */
total: number, } | { "type": "finished", 
/**
 * What came out; `None` when it was stopped.
 */
curve: CostCurve | null, } | { "type": "failed", 
/**
 * The reason.
 */
error: ErrorInfo, };

/** Every command of the engine, by name. `answer` also takes a channel of
 * StreamMessage, `compare` one of MeasurementMessage<CompareEvent>, `measure_costs` one of
 * MeasurementMessage<CostEvent>. */
export interface Commands {
  app_info: { args: Record<string, never>; result: AppInfo };
  report_problem: { args: { kind: string; message: string; stack: string }; result: null };
  show_log: { args: Record<string, never>; result: null };
  set_window_hidden: { args: { hidden: boolean }; result: null };
  choose_file: { args: { kind: OpenKind; title: string; filter: string }; result: string | null };
  choose_folder: { args: { title: string }; result: string | null };
  choose_save_place: { args: { kind: SaveKind; name: string }; result: SavePlace | null };
  library: { args: Record<string, never>; result: Library };
  add_model_folder: { args: { path: string }; result: Library };
  remove_model_folder: { args: { path: string }; result: Library };
  remove_model: { args: { path: string }; result: Library };
  reveal_model: { args: { path: string }; result: null };
  watch_library: { args: Record<string, never>; result: Download[] };
  load_models: { args: { request: LoadRequest }; result: LoadedModels };
  cancel_loading: { args: Record<string, never>; result: null };
  unload_models: { args: Record<string, never>; result: null };
  fit: { args: { request: FitRequest }; result: Fit };
  fit_verdicts: { args: { targets: string[] }; result: (FitVerdict | null)[] };
  draft_offers: { args: { target: string; context: number | null }; result: DraftOffers };
  measure_pair: { args: { request: LoadRequest }; result: number };
  catalogue: { args: Record<string, never>; result: Catalogue };
  hub_repository: { args: { repository: string }; result: HubRepository };
  hub_state: { args: Record<string, never>; result: HubState };
  set_hub_token: { args: { token: string | null }; result: HubState };
  downloads: { args: Record<string, never>; result: Download[] };
  start_download: { args: { request: DownloadRequest }; result: Download };
  pause_download: { args: { id: string }; result: null };
  resume_download: { args: { id: string }; result: null };
  remove_download: { args: { id: string }; result: null };
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
  export_conversation: { args: { id: number; format: ExportFormat; words: ExportWords; token: number }; result: null };
  save_answer: { args: { text: string; token: number }; result: null };
  import_conversation: { args: { path: string }; result: number };
  preferences: { args: Record<string, never>; result: Record<string, unknown> };
  set_preference: { args: { key: string; value: unknown }; result: null };
  mend_store: { args: { remedy: StoreRemedy }; result: AppInfo };
  stop_generation: { args: { generationId: number }; result: null };
  generation_snapshot: { args: { generationId: number; from: number }; result: StreamMessage };
  compare: { args: { request: CompareRequest }; result: number };
  compare_snapshot: { args: { id: number; from: number }; result: MeasurementMessage<CompareEvent> };
  measure_costs: { args: Record<string, never>; result: number };
  costs_snapshot: { args: { id: number; from: number }; result: MeasurementMessage<CostEvent> };
  stop_measurement: { args: { id: number }; result: null };
  list_comparisons: { args: Record<string, never>; result: ComparisonEntry[] };
  open_comparison: { args: { id: number }; result: ComparisonReport };
  delete_comparison: { args: { id: number }; result: null };
  export_comparison: { args: { id: number; format: ComparisonFormat; token: number }; result: null };
  cost_curve: { args: Record<string, never>; result: CostCurve | null };
  lab_position: { args: { request: LabRequest }; result: LabPosition };
  lab_rounds: { args: { request: LabRoundsRequest }; result: LabRounds };
  lab_rules: { args: { position: number; temperatures: number[] }; result: LabRuleRow[] };
  landscape: { args: { machine: LabMachine }; result: Landscape };
  acceptance_map: { args: { conversation: number | null }; result: AcceptanceMap };
  what_if: { args: { request: WhatIfRequest }; result: WhatIf };
  lab_sessions: { args: Record<string, never>; result: LabSession[] };
}
