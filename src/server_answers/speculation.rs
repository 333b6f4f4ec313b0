//! Speculation as a server reports it. The figures are the server's own: Hunch neither measures nor checks them.

use hunch_core::stats::GenerationStats;
use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::chunk::{Chunk, LmStudioDrafts, SglangAcceptance, Timings, VllmAcceptance};
use super::request::ServerKind;

/// Drafted and accepted tokens of an answer, as its server counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct Speculation {
    /// Tokens that were drafted.
    pub drafted: u64,
    /// Drafted tokens that were accepted.
    pub accepted: u64,
    /// Passes of the target that checked a draft. Absent where the server does not count them.
    pub passes: Option<u64>,
    /// Field of the response that says so.
    pub source: SpeculationSource,
}

/// Place in a response that holds the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum SpeculationSource {
    /// The field `hunch` of a Hunch server.
    Hunch,
    /// The field `timings` of llama.cpp.
    LlamaCppTimings,
    /// The field `timings` of another server, such as mlx-vlm.
    Timings,
    /// The field `metrics.speculative_decoding` of vLLM.
    VllmResponse,
    /// Counters of vLLM's `/metrics`, after the answer minus before it. They include other requests of that time.
    VllmCounters,
    /// The field `sglext.spec_tokens_details` of SGLang.
    SglangResponse,
    /// The fields `stats` or `usage` of LM Studio.
    LmStudioResponse,
}

impl SpeculationSource {
    /// Returns the name for people, such as "llama.cpp".
    pub fn describe(self) -> &'static str {
        match self {
            Self::Hunch => "Hunch",
            Self::LlamaCppTimings => "llama.cpp",
            Self::Timings => "server",
            Self::VllmResponse => "vLLM",
            Self::VllmCounters => "vLLM (all requests in that period)",
            Self::SglangResponse => "SGLang",
            Self::LmStudioResponse => "LM Studio",
        }
    }
}

impl Speculation {
    /// Returns the figures in a chunk, if it has any.
    pub(crate) fn of_chunk(chunk: &Chunk) -> Option<Self> {
        let of_hunch = chunk.hunch.as_ref().and_then(|field| field.stats.as_ref()).map(Self::of_stats);
        let of_llama = || chunk.timings.as_ref().and_then(Self::of_timings);
        let of_vllm = || chunk.metrics.as_ref()?.speculative_decoding.as_ref().and_then(Self::of_vllm);
        let of_sglang = || chunk.sglext.as_ref()?.spec_tokens_details.as_ref().and_then(Self::of_sglang);
        let of_lm_studio = || {
            let of_stats = chunk.stats.as_ref().and_then(|stats| Self::of_lm_studio(&stats.drafts));
            of_stats.or_else(|| Self::of_lm_studio(&chunk.usage.as_ref()?.drafts))
        };
        of_hunch.or_else(of_llama).or_else(of_vllm).or_else(of_sglang).or_else(of_lm_studio)
    }

    fn of_stats(stats: &GenerationStats) -> Self {
        Self {
            drafted: u64::from(stats.drafted),
            accepted: u64::from(stats.accepted),
            passes: Some(u64::from(stats.rounds)),
            source: SpeculationSource::Hunch,
        }
    }

    fn of_timings(timings: &Timings) -> Option<Self> {
        Some(Self {
            drafted: timings.draft_n?,
            accepted: timings.draft_n_accepted?,
            passes: timings.draft_rounds,
            source: SpeculationSource::LlamaCppTimings,
        })
    }

    fn of_vllm(figures: &VllmAcceptance) -> Option<Self> {
        Some(Self {
            drafted: figures.num_draft_tokens?,
            accepted: figures.num_accepted_draft_tokens?,
            passes: figures.num_spec_steps,
            source: SpeculationSource::VllmResponse,
        })
    }

    fn of_sglang(figures: &SglangAcceptance) -> Option<Self> {
        Some(Self {
            drafted: figures.spec_num_proposed_drafts?,
            accepted: figures.spec_num_correct_drafts?,
            passes: figures.spec_verify_ct,
            source: SpeculationSource::SglangResponse,
        })
    }

    fn of_lm_studio(drafts: &LmStudioDrafts) -> Option<Self> {
        let LmStudioDrafts { total_draft_tokens_count, accepted_draft_tokens_count } = drafts;
        Some(Self {
            drafted: (*total_draft_tokens_count)?,
            accepted: (*accepted_draft_tokens_count)?,
            passes: None,
            source: SpeculationSource::LmStudioResponse,
        })
    }

    /// Returns the figures as those of a server of this kind. Others copy the form of llama.cpp.
    pub(crate) fn of_kind(self, kind: ServerKind) -> Self {
        let source = match self.source {
            SpeculationSource::LlamaCppTimings if kind != ServerKind::LlamaCpp => SpeculationSource::Timings,
            source => source,
        };
        Self { source, ..self }
    }

    /// Returns the sum of the figures of two answers by one server.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            drafted: self.drafted.saturating_add(other.drafted),
            accepted: self.accepted.saturating_add(other.accepted),
            passes: self.passes.zip(other.passes).map(|(one, other)| one.saturating_add(other)),
            source: self.source,
        }
    }

    /// Returns the mean number of tokens that a pass emitted, for an answer of `generated` tokens.
    ///
    /// Each pass is taken to emit one token in addition to the accepted ones. Servers count at most the passes that
    /// checked a draft: vLLM's `ngram` drafts in some passes only. The server's count matters if it is higher, because
    /// the last pass may have accepted more tokens than the answer could hold.
    pub fn tokens_per_pass(&self, generated: u64) -> Option<f64> {
        let passes = generated.saturating_sub(self.accepted).max(self.passes.unwrap_or(0));
        (passes > 0).then(|| generated as f64 / passes as f64)
    }
}

/// Counters of speculation in vLLM's Prometheus metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct VllmCounters {
    drafts: f64,
    drafted: f64,
    accepted: f64,
}

impl VllmCounters {
    /// Reads the counters, summed over all engines of the server. `None` if it does not speculate.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Some(Self {
            drafts: counter(text, "vllm:spec_decode_num_drafts_total")?,
            drafted: counter(text, "vllm:spec_decode_num_draft_tokens_total")?,
            accepted: counter(text, "vllm:spec_decode_num_accepted_tokens_total")?,
        })
    }

    /// Returns what was counted since `earlier`. `None` if the server was restarted or nothing was drafted.
    pub(crate) fn since(self, earlier: Self) -> Option<Speculation> {
        let difference = |now: f64, then: f64| (now >= then).then(|| (now - then).round() as u64);
        let drafted = difference(self.drafted, earlier.drafted)?;
        Some(Speculation {
            drafted,
            accepted: difference(self.accepted, earlier.accepted)?,
            passes: Some(difference(self.drafts, earlier.drafts)?),
            source: SpeculationSource::VllmCounters,
        })
        .filter(|_| drafted > 0)
    }
}

/// Returns the sum of a counter over its labels.
fn counter(text: &str, name: &str) -> Option<f64> {
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let value = match rest.strip_prefix('{') {
            Some(labelled) => labelled.rsplit_once('}')?.1,
            None => rest.strip_prefix(' ')?,
        };
        value.split_whitespace().next()?.parse::<f64>().ok().filter(|value| value.is_finite())
    });
    values.reduce(|a, b| a + b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Speculation> {
        Speculation::of_chunk(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn sums_of_absurd_figures_do_not_overflow() {
        let absurd = Speculation {
            drafted: u64::MAX,
            accepted: u64::MAX,
            passes: Some(u64::MAX),
            source: SpeculationSource::SglangResponse,
        };
        assert_eq!(absurd.plus(absurd), absurd);
    }

    #[test]
    fn figures_of_every_server_are_read() {
        let expect =
            |drafted, accepted, passes, source| Some(Speculation { drafted, accepted, passes, source });
        assert_eq!(
            read(r#"{"timings":{"predicted_n":16,"draft_n":12,"draft_n_accepted":9}}"#),
            expect(12, 9, None, SpeculationSource::LlamaCppTimings)
        );
        assert_eq!(
            read(
                r#"{"metrics":{"time_to_first_token_ms":5,"speculative_decoding":{"num_draft_tokens":30,
                "num_accepted_draft_tokens":12,"num_spec_steps":10}}}"#
            ),
            expect(30, 12, Some(10), SpeculationSource::VllmResponse)
        );
        assert_eq!(
            read(
                r#"{"sglext":{"spec_tokens_details":{"spec_num_proposed_drafts":215,"spec_num_correct_drafts":63,
                "spec_verify_ct":43}}}"#
            ),
            expect(215, 63, Some(43), SpeculationSource::SglangResponse)
        );
        assert_eq!(read(r#"{"timings":{"predicted_n":16},"metrics":null}"#), None);
    }

    #[test]
    fn tokens_per_pass_counts_passes_without_draft() {
        let reported = Speculation {
            drafted: 215,
            accepted: 63,
            passes: Some(43),
            source: SpeculationSource::SglangResponse,
        };
        assert_eq!(reported.tokens_per_pass(106), Some(106.0 / 43.0));
        let uncounted = Speculation { passes: None, ..reported };
        assert_eq!(uncounted.tokens_per_pass(106), Some(106.0 / 43.0));
        assert_eq!(uncounted.tokens_per_pass(63), None);
        // A long answer with two drafts.
        let rare = Speculation { drafted: 8, accepted: 6, passes: Some(2), ..reported };
        assert_eq!(rare.tokens_per_pass(106), Some(1.06));
        // The last pass was cut off by the length limit.
        let cut = Speculation { drafted: 32, accepted: 30, passes: Some(8), ..reported };
        assert_eq!(cut.tokens_per_pass(36), Some(4.5));
    }

    #[test]
    fn counters_are_summed_and_subtracted() {
        let page = |drafts: u32| {
            format!(
                "# HELP vllm:spec_decode_num_drafts_total Drafts.\n\
                 vllm:spec_decode_num_drafts_total{{engine=\"0\",model_name=\"a}}b\"}} {drafts}.0\n\
                 vllm:spec_decode_num_drafts_total{{engine=\"1\"}} 2.0\n\
                 vllm:spec_decode_num_draft_tokens_total{{engine=\"0\"}} {}\n\
                 vllm:spec_decode_num_accepted_tokens_total {}\n\
                 vllm:spec_decode_num_accepted_tokens_per_pos_total{{position=\"0\"}} 99\n",
                drafts * 3,
                drafts
            )
        };
        let (before, after) =
            (VllmCounters::parse(&page(5)).unwrap(), VllmCounters::parse(&page(9)).unwrap());
        let expected = Speculation {
            drafted: 12,
            accepted: 4,
            passes: Some(4),
            source: SpeculationSource::VllmCounters,
        };
        assert_eq!(after.since(before), Some(expected));
        assert_eq!(before.since(after), None);
        assert_eq!(after.since(after), None);
        assert_eq!(VllmCounters::parse("vllm:num_requests_running 1\n"), None);
    }
}
