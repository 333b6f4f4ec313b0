// Generated from src/api by the Rust tests. Do not edit.

export type AppInfo = { version: string, device: string, threads: number, models_folder: string, loaded: LoadedModels | null, default_sampling: SamplingParams, ranges: Array<ParameterRange>, };

export type ChatMessage = { role: Role, content: string, };

export type ErrorCode = "invalid_request" | "model_not_found" | "invalid_model_file" | "unsupported_model" | "vocabulary_mismatch" | "context_overflow" | "out_of_memory" | "io" | "no_model" | "busy" | "device" | "internal";

export type ErrorInfo = { code: ErrorCode, message: string, };

export type GenerateRequest = { messages: Array<ChatMessage>, method: Method, max_draft: number, max_tokens: number, sampling: SamplingParams, stop: Array<string>, };

export type GenerationEvent = { "type": "started", generation_id: number, method: Method, target: string, draft: string | null, device: string, prompt_tokens: number, max_draft: number, } | { "type": "prefill", done: number, total: number, } | { "type": "round" } & RoundEvent | { "type": "finished", stop: StopReason, tokens: Array<TokenEvent>, stats: GenerationStats, } | { "type": "failed", error: ErrorInfo, };

export type GenerationSnapshot = { generation_id: number, next_seq: number, events: Array<GenerationEvent>, };

export type GenerationStats = { prompt_tokens: number, generated_tokens: number, rounds: number, drafted: number, accepted: number, resampled: number, bonus: number, plain: number, acceptance_rate: number, mean_acceptance_length: number, accepted_at_position: Array<number>, ttft_ms: number, prefill_tok_s: number, decode_tok_s: number, wall_ms: number, propose_ms: number, target_ms: number, verify_ms: number, other_ms: number, peak_memory_bytes: number, device: string, };

export type LiveFigures = { generated_tokens: number, rounds: number, decode_tok_s: number, acceptance_rate: number, mean_acceptance_length: number, };

export type LoadRequest = { target: string, draft: string | null, };

export type LoadedModels = { target: ModelEntry, draft: ModelEntry | null, device: string, methods: Array<Method>, };

export type Method = "plain" | "draft-model" | "ngram" | "synthetic";

export type ModelEntry = { name: string, path: string, size_bytes: number, architecture: string, parameters: number, quantisation: string, context_length: number, is_default: boolean, problem: string | null, };

export type ParameterRange = { name: string, min: number, max: number, };

export type RejectedEvent = { id: number, text: string, p: number, q: number | null, u: number, position: number, };

export type Role = "system" | "user" | "assistant";

export type RoundEvent = { round: number, drafted: number, tokens: Array<TokenEvent>, rejected: Array<RejectedEvent>, timing: RoundTiming, figures: LiveFigures, };

export type RoundTiming = { propose_ms: number, target_ms: number, verify_ms: number, other_ms: number, };

export type SamplingParams = { temperature: number, top_k: number, top_p: number, min_p: number, repeat_penalty: number, presence_penalty: number, frequency_penalty: number, penalty_last_n: number, logit_bias: Record<number, number>, seed: number | null, };

export type StopReason = "end_of_turn" | "stop_string" | "max_tokens" | "context_full" | "cancelled";

export type StreamMessage = { generation_id: number, seq: number, events: Array<GenerationEvent>, };

export type TokenEvent = { id: number, text: string, origin: TokenOrigin, p: number, q: number | null, confidence: number, round: number, position: number, };

export type TokenOrigin = "prompt" | "accepted" | "resampled" | "bonus" | "plain";

export interface Commands {
  app_info: { args: {}; result: AppInfo };
  list_models: { args: {}; result: Array<ModelEntry> };
  load_models: { args: { request: LoadRequest }; result: LoadedModels };
  generate: { args: { request: GenerateRequest }; result: number };
  stop_generation: { args: { generationId: number }; result: null };
  generation_snapshot: { args: { generationId: number }; result: GenerationSnapshot };
}
