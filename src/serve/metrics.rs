//! Counters of the server in the text format of Prometheus. Only counts; rates are the reader's to compute.
//!
//! Names follow vLLM's, with the prefix `hunch_` in place of `vllm:`.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::event::{GenerationEvent, StopReason};
use crate::generate::{CacheUse, Finished};
use hunch_core::limits::MAX_DRAFT;
use hunch_error::{Error, ErrorCode, Result};

/// Counters since the server started.
#[derive(Default)]
pub(super) struct Metrics {
    finished: AtomicU64,
    cancelled: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
    prompt_tokens: AtomicU64,
    prefilled_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    rounds: AtomicU64,
    drafts: AtomicU64,
    drafted: AtomicU64,
    accepted: AtomicU64,
    /// Accepted drafted tokens by their position in the draft.
    accepted_at: [AtomicU64; MAX_DRAFT],
    loads: AtomicU64,
    first_tokens: AtomicU64,
    first_token_us: AtomicU64,
}

fn add(counter: &AtomicU64, count: impl Into<u64>) {
    counter.fetch_add(count.into(), Ordering::Relaxed);
}

impl Metrics {
    /// Counts an event of a generation.
    pub(super) fn observe(&self, event: &GenerationEvent) {
        match event {
            GenerationEvent::Prefill { done, total } if done == total => {
                add(&self.prefilled_tokens, *total);
            }
            GenerationEvent::Round(round) if round.drafted > 0 => add(&self.drafts, 1_u64),
            _ => {}
        }
    }

    /// Counts a generation that ended.
    pub(super) fn record(&self, ended: &Result<Finished>) {
        let finished = match ended {
            Ok(finished) => finished,
            // The client left while its model was loaded.
            Err(Error::Stopped) => return add(&self.cancelled, 1_u64),
            // Counted as refused.
            Err(error) if error.code() == ErrorCode::InvalidRequest => return,
            Err(_) => return add(&self.failed, 1_u64),
        };
        let stats = &finished.stats;
        let cancelled = finished.stop == StopReason::Cancelled;
        add(if cancelled { &self.cancelled } else { &self.finished }, 1_u64);
        add(&self.prompt_tokens, stats.prompt_tokens);
        add(&self.generated_tokens, stats.generated_tokens);
        add(&self.rounds, stats.rounds);
        add(&self.drafted, stats.drafted);
        add(&self.accepted, stats.accepted);
        for ((counter, share), rounds) in
            self.accepted_at.iter().zip(&stats.accepted_at_position).zip(&stats.drafted_at_position)
        {
            add(counter, (share * f64::from(*rounds)).round() as u64);
        }
        if stats.generated_tokens > 0 {
            add(&self.first_tokens, 1_u64);
            add(&self.first_token_us, (stats.ttft_ms * 1000.0) as u64);
        }
    }

    /// Counts a request whose client left before the engine began.
    pub(super) fn record_cancel(&self) {
        add(&self.cancelled, 1_u64);
    }

    /// Counts a load of a model that a request asked for.
    pub(super) fn record_load(&self) {
        add(&self.loads, 1_u64);
    }

    /// Counts a request that was refused before it reached the engine.
    pub(super) fn record_refusal(&self) {
        add(&self.refused, 1_u64);
    }

    /// Returns the text format, with the numbers of waiting and running requests, and the caches in memory.
    pub(super) fn text(&self, waiting: usize, running: usize, caches: CacheUse) -> String {
        let mut out = String::new();
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for (name, help, count) in [
            ("num_requests_running", "Requests that the engine is answering.", running as u64),
            ("num_requests_waiting", "Requests that wait for their turn.", waiting as u64),
            ("cached_conversations", "Conversations with a cache in memory.", caches.conversations as u64),
            ("cache_bytes", "Bytes of these caches.", caches.bytes),
        ] {
            let _ = writeln!(out, "# HELP hunch_{name} {help}\n# TYPE hunch_{name} gauge");
            let _ = writeln!(out, "hunch_{name} {count}");
        }
        let _ = writeln!(
            out,
            "# HELP hunch_requests_total Requests by outcome.\n# TYPE hunch_requests_total counter"
        );
        for (outcome, counter) in [
            ("finished", &self.finished),
            ("cancelled", &self.cancelled),
            ("failed", &self.failed),
            ("refused", &self.refused),
        ] {
            let _ = writeln!(out, "hunch_requests_total{{outcome=\"{outcome}\"}} {}", read(counter));
        }
        for (name, help, counter) in [
            ("prompt_tokens", "Tokens of all prompts.", &self.prompt_tokens),
            ("prefilled_tokens", "Prompt tokens that were not in the cache.", &self.prefilled_tokens),
            ("generation_tokens", "Tokens generated.", &self.generated_tokens),
            ("model_loads", "Loads of models that requests asked for.", &self.loads),
            ("rounds", "Target passes after prefill.", &self.rounds),
            ("spec_decode_num_drafts", "Rounds with a draft.", &self.drafts),
            ("spec_decode_num_draft_tokens", "Tokens drafted.", &self.drafted),
            ("spec_decode_num_accepted_tokens", "Drafted tokens that were accepted.", &self.accepted),
        ] {
            let _ = writeln!(out, "# HELP hunch_{name}_total {help}\n# TYPE hunch_{name}_total counter");
            let _ = writeln!(out, "hunch_{name}_total {}", read(counter));
        }
        let name = "hunch_spec_decode_num_accepted_tokens_per_pos_total";
        let _ = writeln!(out, "# HELP {name} Drafted tokens that were accepted, by position in the draft.");
        let _ = writeln!(out, "# TYPE {name} counter");
        for (position, counter) in self.accepted_at.iter().enumerate() {
            let _ = writeln!(out, "{name}{{position=\"{position}\"}} {}", read(counter));
        }
        let name = "hunch_time_to_first_token_seconds";
        let _ = writeln!(out, "# HELP {name} From the request to its first token, waiting included.");
        let _ = writeln!(out, "# TYPE {name} summary");
        let _ = writeln!(out, "{name}_sum {}", read(&self.first_token_us) as f64 / 1e6);
        let _ = writeln!(out, "{name}_count {}", read(&self.first_tokens));
        out
    }
}
