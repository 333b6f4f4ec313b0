//! What a comparison found out: plain types, the same over the wire, in the store and in the exported file.
//! Nothing is measured or computed here.

use std::collections::BTreeMap;

use hunch_library::measured::{LEAST_TOKENS, Rates};
use serde::{Deserialize, Serialize};
use ts_rs::TS;

use crate::bench::IdentityReport;
use crate::bench::MethodConfig;
use crate::event::{GenerationEvent, StopReason};
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;
use hunch_core::stats::GenerationStats;

/// Which prompts to compare on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ComparedPrompts {
    /// A text of the person's.
    Text {
        /// Instructions, or nothing.
        system: String,
        /// What is asked.
        text: String,
    },
    /// Prompts of a built-in suite.
    Suite {
        /// Its name: `code`, `prose` or `edit`.
        name: String,
        /// How many of them, from the first on; `None` = all.
        prompts: Option<u32>,
    },
}

/// What to compare: plain decoding, and these methods beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct CompareRequest {
    /// The prompts.
    pub prompts: ComparedPrompts,
    /// What runs beside plain decoding: one to five.
    pub lanes: Vec<MethodConfig>,
    /// How tokens are drawn. All lanes of a run use one seed; the next run uses the next.
    pub sampling: SamplingParams,
    /// Which drafted tokens stand.
    pub rule: AcceptanceRule,
    /// Most tokens of an answer, 1 or more.
    pub max_tokens: u32,
    /// How often every lane answers every prompt: 1 to 20.
    pub runs: u32,
}

/// A prompt that is compared on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ComparedPrompt {
    /// Its name in its suite; empty for a text of the person's.
    pub id: String,
    /// Instructions, or nothing.
    pub system: String,
    /// What is asked.
    pub text: String,
}

/// On what and with what is compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct ComparisonSetting {
    /// Name of the target.
    pub target: String,
    /// Name of the draft model, if one is loaded.
    pub draft: Option<String>,
    /// "cpu" or "metal".
    pub device: String,
    /// CPU threads.
    pub threads: u32,
    /// The lanes; the first is plain.
    pub lanes: Vec<MethodConfig>,
    /// The prompts.
    pub prompts: Vec<ComparedPrompt>,
    /// How tokens are drawn; the seed is that of the first run.
    pub sampling: SamplingParams,
    /// Which drafted tokens stand.
    pub rule: AcceptanceRule,
    /// Most tokens of an answer.
    pub max_tokens: u32,
    /// How often every lane answers every prompt.
    pub runs: u32,
    /// Tokens of a slice, after which the next lane takes its turn.
    pub slice_tokens: u32,
}

impl ComparisonSetting {
    /// Turns in all: each prompt once a run.
    pub fn turns(&self) -> usize {
        self.prompts.len() * self.runs as usize
    }
}

/// An event of a lane, and when it happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct TimedEvent {
    /// Milliseconds of the lane's own time since its answer began: it stands while others run.
    pub at_ms: f64,
    /// The event.
    pub event: GenerationEvent,
}

/// What a comparison tells while it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CompareEvent {
    /// It begins.
    Started {
        /// With what.
        setting: ComparisonSetting,
    },
    /// The costs of passes are measured, alone.
    Costs {
        /// Rounds done.
        done: u32,
        /// Rounds in all.
        total: u32,
    },
    /// All lanes begin to answer a prompt.
    Turn {
        /// Number of the prompt, from 0.
        prompt: u32,
        /// Number of the run, from 0.
        run: u32,
        /// Turns done.
        done: u32,
        /// Turns in all.
        total: u32,
        /// Milliseconds that the rest will take if it goes on as it did: predicted. `None` before the first
        /// turn is over.
        left_ms: Option<f64>,
    },
    /// A lane has its turn from now on.
    Slice {
        /// Number of the lane, from 0.
        lane: u32,
    },
    /// Something happened in a lane.
    Lane {
        /// Number of the lane, from 0.
        lane: u32,
        /// What.
        told: TimedEvent,
    },
    /// It is over, by itself or because it was stopped: then with what was complete.
    Finished {
        /// What came out; `None` when it was stopped before every lane had answered once.
        report: Option<ComparisonReport>,
        /// Its number in the history; `None` when it could not be kept there.
        #[ts(type = "number | null")]
        kept: Option<i64>,
        /// Why it ended before all turns were over, though nobody stopped it; what was whole is reported.
        trouble: Option<Box<hunch_error::ErrorInfo>>,
        /// Whether it was stopped.
        stopped: bool,
    },
    /// It failed. What was told before stays true.
    Failed {
        /// The reason.
        error: hunch_error::ErrorInfo,
    },
}

/// Everything a comparison found out. All of it is measured but what says `predicted`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct ComparisonReport {
    /// On what and with what.
    pub setting: ComparisonSetting,
    /// When it ended, in milliseconds since 1970.
    #[ts(type = "number")]
    pub ended_ms: i64,
    /// t(M) / t(1) of the target by rows M, measured alone.
    #[ts(type = "Record<string, number>")]
    pub target_cost: BTreeMap<usize, f64>,
    /// c: a pass of the draft model over one of the target, one row each, measured alone.
    pub draft_cost: Option<f64>,
    /// What the models and the caches take.
    pub memory: ComparisonMemory,
    /// The lanes, plain first.
    pub lanes: Vec<LaneReport>,
    /// Whether all lanes wrote the same tokens; `None` where they only follow the same distribution (above
    /// temperature 0 without the coupled rule).
    pub identity: Option<IdentityReport>,
    /// Every answer.
    pub answers: Vec<ComparedAnswer>,
    /// The events of the last turn by lane, for a race.
    pub recordings: Vec<Vec<TimedEvent>>,
}

impl ComparisonReport {
    /// The fastest lane but plain.
    pub fn best(&self) -> Option<&LaneReport> {
        let others = self.lanes.iter().filter(|lane| lane.verdict.is_some());
        others.max_by(|a, b| a.speedup.total_cmp(&b.speedup))
    }
}

/// One lane's answer to one prompt in one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct ComparedAnswer {
    /// Number of the prompt, from 0.
    pub prompt: u32,
    /// Number of the run, from 0.
    pub run: u32,
    /// Number of the lane, from 0.
    pub lane: u32,
    /// Plain wall time of this turn / this answer's; 1 for plain. `None` when nothing was generated.
    pub speedup: Option<f64>,
    /// Its figures.
    pub stats: GenerationStats,
    /// Why it ended.
    pub stop: StopReason,
    /// Its text.
    pub text: String,
    /// Milliseconds of its own time and the tokens there were by then, round by round.
    pub timeline: Vec<(f64, u32)>,
    /// Milliseconds of its own time and tokens a second over the rounds just before.
    #[serde(default)]
    pub rates: Vec<(f64, f64)>,
}

/// What memory is taken, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ComparisonMemory {
    /// Weights of the target.
    #[ts(type = "number")]
    pub target_weights: u64,
    /// Its cache of keys and values, in the lane where it was largest.
    #[ts(type = "number")]
    pub target_cache: u64,
    /// Weights of the draft model.
    #[ts(type = "number | null")]
    pub draft_weights: Option<u64>,
    /// Its cache, in the lane where it was largest.
    #[ts(type = "number | null")]
    pub draft_cache: Option<u64>,
    /// The most the process took; 0 when the system does not tell.
    #[ts(type = "number")]
    pub peak: u64,
}

/// Where the time of a lane's answers went: milliseconds an answer, the mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
pub struct TimeSplit {
    /// Reading the prompt.
    pub prefill_ms: f64,
    /// Drafting.
    pub propose_ms: f64,
    /// Target passes.
    pub target_ms: f64,
    /// Distributions and acceptance.
    pub verify_ms: f64,
    /// The rest.
    pub other_ms: f64,
}

/// A position of a draft, over all of a lane's answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
pub struct PositionReport {
    /// Rounds that drafted this deep.
    #[ts(type = "number")]
    pub drafted: u64,
    /// Of these, those whose token at this position was accepted.
    #[ts(type = "number")]
    pub accepted: u64,
    /// accepted / drafted.
    pub share: f64,
}

/// One lane over all prompts and runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LaneReport {
    /// Method and depth.
    #[serde(rename = "contender")]
    pub config: MethodConfig,
    /// Tokens a second after prefill: the median over all answers.
    pub tok_s: f64,
    /// To the first token, in milliseconds: the median.
    pub ttft_ms: f64,
    /// Plain wall time / this lane's within one turn: the median over the prompts (each the median of its
    /// runs), or over the runs where there is one prompt.
    pub speedup: f64,
    /// 10th percentile of the same.
    pub speedup_low: f64,
    /// 90th percentile.
    pub speedup_high: f64,
    /// How many turns, or prompts, the median is over.
    pub samples: u32,
    /// The same for decoding alone.
    pub decode_speedup: f64,
    /// What the passes it took and their costs, measured alone, predict for that.
    pub predicted_speedup: Option<f64>,
    /// accepted / drafted over all answers.
    pub acceptance_rate: f64,
    /// 1 + accepted / rounds over all answers.
    pub mean_acceptance_length: f64,
    /// Acceptance by position in the draft.
    pub positions: Vec<PositionReport>,
    /// Where its time went.
    pub split: TimeSplit,
    /// What is to be said of it; `None` for plain.
    pub verdict: Option<Verdict>,
}

/// What takes most of what the accepted tokens could have gained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Drafting.
    Drafting,
    /// Passes of several rows, which cost more than passes of one.
    WiderPasses,
    /// Acceptance, text and the rest.
    Loop,
    /// Nothing worth a word.
    Nothing,
}

/// A comparison in one sentence, in parts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct Verdict {
    /// The median speedup.
    pub speedup: f64,
    /// Whether every sample lies on one side of 1, and there is more than one.
    pub unanimous: bool,
    /// The same with at least six samples, which equal lanes give once in 32 times (a sign test).
    pub certain: bool,
    /// Tokens a target pass.
    pub tokens_per_pass: f64,
    /// A target pass of this lane over one of plain's, both measured in these turns.
    pub pass_cost: f64,
    /// Where most is lost.
    pub loss: Loss,
    /// Shares of the lane's decoding time: drafting.
    pub drafting_share: f64,
    /// What its passes took longer than as many of plain's.
    pub wider_share: f64,
    /// Acceptance, text and the rest.
    pub loop_share: f64,
}

/// A comparison in the history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct ComparisonEntry {
    /// Its number.
    #[ts(type = "number")]
    pub id: i64,
    /// When it ended, in milliseconds since 1970.
    #[ts(type = "number")]
    pub ended_ms: i64,
    /// The beginning of its prompt, or its suite and how many prompts.
    pub title: String,
    /// Name of the target.
    pub target: String,
    /// Name of the draft model, if one was loaded.
    pub draft: Option<String>,
    /// The fastest lane but plain.
    pub best: MethodConfig,
    /// Its speedup.
    pub speedup: f64,
}

/// The form of an exported comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum ComparisonFormat {
    /// Everything: the report as it is.
    Json,
    /// A line for each answer.
    Csv,
    /// A picture of the result, as SVG.
    Picture,
}

impl ComparisonReport {
    /// Speeds of the models in this comparison, without lanes whose answers were too short to tell.
    pub fn rates(&self) -> Rates {
        let answers_of = |lane: usize| self.answers.iter().filter(move |answer| answer.lane as usize == lane);
        let long_enough = |lane: usize| {
            let tokens: u64 = answers_of(lane).map(|answer| u64::from(answer.stats.generated_tokens)).sum();
            tokens >= u64::from(LEAST_TOKENS) * answers_of(lane).count() as u64
        };
        let lanes: Vec<_> = self.lanes.iter().enumerate().filter(|(lane, _)| long_enough(*lane)).collect();
        let answers = lanes
            .iter()
            .flat_map(|(number, lane)| answers_of(*number).map(|answer| (lane.config.method, &answer.stats)));
        let rates = lanes.iter().map(|(_, lane)| (lane.config.method, lane.tok_s));
        Rates::of_methods(rates, self.setting.rule).with_drafting(answers, self.setting.rule)
    }
}
