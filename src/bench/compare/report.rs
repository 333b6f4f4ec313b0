//! Types of a comparison, the same over the wire, in the store and in exported files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hunch_core::chat::Thinking;
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::propose::MethodOptions;
use hunch_library::speed_log::{MIN_TOKENS, Rates};
use hunch_library::types::LoadProgress;
use serde::{Deserialize, Serialize};
use ts_rs::TS;

use crate::bench::IdentityReport;
use crate::bench::MethodConfig;
use crate::event::{GenerationEvent, ServerFigures, StopReason};
use crate::server_answers::{ServerKind, Speculation};
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::SamplingParams;
use hunch_core::stats::GenerationStats;

/// Prompts of a comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ComparedPrompts {
    /// A prompt typed by the user.
    Text {
        /// System message. May be empty.
        system: String,
        /// User message.
        text: String,
    },
    /// Prompts of a suite.
    Suite {
        /// Name of a built-in suite: `code`, `prose` or `edit`.
        name: String,
        /// Number of prompts, from the first. `None` for all.
        prompts: Option<u32>,
    },
    /// Prompts of a file that [`Suite::load`](crate::bench::Suite::load) reads.
    File {
        /// Path of the file.
        path: PathBuf,
        /// Number of prompts, from the first. `None` for all.
        prompts: Option<u32>,
    },
}

/// A lane: a method, and the settings that differ from those of the comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LaneConfig {
    /// The method.
    pub method: Method,
    /// Most tokens drafted per round. Ignored by plain.
    pub max_draft: MaxDraft,
    /// Acceptance rule. Absent: that of the comparison.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub rule: Option<AcceptanceRule>,
    /// Temperature. Absent: that of the comparison.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub temperature: Option<f32>,
    /// Models. Absent: the loaded ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub models: Option<LaneModels>,
}

impl LaneConfig {
    /// Plain decoding with the settings of the comparison.
    pub const PLAIN: Self = Self::of(MethodConfig { method: Method::Plain, max_draft: MaxDraft::Auto });

    /// Makes a lane with the settings of the comparison.
    pub const fn of(MethodConfig { method, max_draft }: MethodConfig) -> Self {
        Self { method, max_draft, rule: None, temperature: None, models: None }
    }

    /// Returns the method with its draft length.
    pub fn method_config(&self) -> MethodConfig {
        MethodConfig { method: self.method, max_draft: self.max_draft }
    }

    /// Returns whether its speed counts for the loaded models: they ran with the settings of the comparison.
    pub fn is_usual(&self) -> bool {
        self.models.is_none() && self.rule.is_none() && self.temperature.is_none()
    }
}

/// Models of a lane. A request has paths or short names, a report has titles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct LaneModels {
    /// The target.
    pub target: String,
    /// The draft model. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub draft: Option<String>,
    /// The head that drafts for the target. Absent: the loaded one on the loaded target. On another target, the newest
    /// one that was trained here, else the layer of its own file that drafts, else the shipped one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub head: Option<String>,
}

/// Request to compare methods with plain decoding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct CompareRequest {
    /// The prompts.
    pub prompts: ComparedPrompts,
    /// One to seven lanes, in addition to plain decoding. Plain decoding of each further target or temperature counts
    /// as a lane.
    pub lanes: Vec<LaneConfig>,
    /// Sampling. All lanes of a run use one seed, the next run uses the next seed.
    pub sampling: SamplingParams,
    /// Acceptance rule.
    pub rule: AcceptanceRule,
    /// Most tokens of an answer, 1 or more.
    pub max_tokens: u32,
    /// Answers of every lane to every prompt, 1 to 20.
    pub runs: u32,
    /// Strings that end an answer.
    #[serde(default)]
    #[ts(as = "Option<Vec<String>>", optional)]
    pub stop: Vec<String>,
    /// Options of single methods. Layers are those of the loaded target.
    #[serde(default)]
    #[ts(as = "Option<MethodOptions>", optional)]
    pub options: MethodOptions,
    /// Reasoning before the answers, for targets whose chat template has a switch. Absent: the template's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub thinking: Option<Thinking>,
    /// Server that answers the same prompts after the lanes.
    #[serde(default)]
    #[ts(as = "Option<ComparedServer>", optional)]
    pub server: Option<ComparedServer>,
}

/// A server next to the lanes of a comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ComparedServer {
    /// Address of its API.
    pub address: String,
    /// Model of the server.
    pub model: String,
}

/// Figures of a server next to the lanes.
///
/// It runs other weights, mostly on another machine, and the network is part of its times. So it has no speedup against
/// the lanes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct ServerReport {
    /// The server.
    pub server: ComparedServer,
    /// Program that it runs. `None` if it was not reached.
    pub kind: Option<ServerKind>,
    /// Finished answers, in order.
    pub answers: Vec<ServerAnswer>,
    /// Tokens per second after the first text, measured here: the median over the answers. `None` if it counts no
    /// tokens.
    pub tok_s: Option<f64>,
    /// Milliseconds to the first text, measured here: the median over the answers.
    pub first_ms: Option<f64>,
    /// Drafted and accepted tokens of all answers, as the server reports them.
    pub speculation: Option<Speculation>,
    /// Mean tokens per pass over all answers, from the server's figures.
    pub tokens_per_pass: Option<f64>,
    /// Error that ended its answers early.
    pub error: Option<Box<hunch_error::ErrorInfo>>,
    /// Start of the answer that the error ended. `None` without text.
    #[serde(default)]
    pub cut_off: Option<CutOffAnswer>,
}

/// Start of a server's answer that did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct CutOffAnswer {
    /// Number of the prompt, from 0.
    pub prompt: u32,
    /// Number of the run, from 0.
    pub run: u32,
    /// Text so far, without thinking.
    pub text: String,
}

/// An answer of a server to one prompt in one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct ServerAnswer {
    /// Number of the prompt, from 0.
    pub prompt: u32,
    /// Number of the run, from 0.
    pub run: u32,
    /// Figures of the answer.
    pub figures: ServerFigures,
    /// Text of the answer, without thinking.
    pub text: String,
}

/// A prompt of a comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ComparedPrompt {
    /// Id in its suite. Empty for a prompt typed by the user.
    pub id: String,
    /// System message. May be empty.
    pub system: String,
    /// User message.
    pub text: String,
}

/// Models, machine and parameters of a comparison.
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
    /// Lanes. The first is plain. Plain lanes of other targets and temperatures are the last ones.
    pub lanes: Vec<LaneConfig>,
    /// The prompts.
    pub prompts: Vec<ComparedPrompt>,
    /// Sampling, with the seed of the first run.
    pub sampling: SamplingParams,
    /// Acceptance rule.
    pub rule: AcceptanceRule,
    /// Most tokens of an answer.
    pub max_tokens: u32,
    /// Answers of every lane to every prompt.
    pub runs: u32,
    /// Strings that end an answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[ts(as = "Option<Vec<String>>", optional)]
    pub stop: Vec<String>,
    /// Options of single methods.
    #[serde(default, skip_serializing_if = "MethodOptions::is_default")]
    #[ts(as = "Option<MethodOptions>", optional)]
    pub options: MethodOptions,
    /// Reasoning before the answers, if it was chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub thinking: Option<Thinking>,
    /// Tokens of a slice, after which the next lane runs.
    pub slice_tokens: u32,
    /// True if the targets did not fit into memory together. Lanes of one target ran after those of another.
    #[serde(default)]
    pub separate: bool,
}

impl ComparisonSetting {
    /// Number of turns: each prompt once per run.
    pub fn turns(&self) -> usize {
        self.prompts.len() * self.runs as usize
    }

    /// Returns the acceptance rule of a lane.
    pub fn rule_of(&self, lane: usize) -> AcceptanceRule {
        self.lanes[lane].rule.unwrap_or(self.rule)
    }

    /// Returns the sampling of a lane, with the seed of the first run.
    pub fn sampling_of(&self, lane: usize) -> SamplingParams {
        let temperature = self.lanes[lane].temperature.unwrap_or(self.sampling.temperature);
        SamplingParams { temperature, ..self.sampling.clone() }
    }

    /// Returns the target of a lane, `None` for the loaded one.
    fn target_of(&self, lane: usize) -> Option<&str> {
        let target = &self.lanes[lane].models.as_ref()?.target;
        (*target != self.target).then_some(target)
    }

    /// Returns the lane over which the speedup of a lane is taken: plain decoding of its target at its temperature.
    pub fn baseline_of(&self, lane: usize) -> usize {
        let temperature = |lane: usize| self.sampling_of(lane).temperature;
        let own = |other: &usize| {
            self.lanes[*other].method == Method::Plain
                && self.target_of(*other) == self.target_of(lane)
                && temperature(*other) == temperature(lane)
        };
        (0..self.lanes.len()).find(own).unwrap_or(0)
    }

    /// Returns whether a lane must write its baseline's text, token for token: at temperature 0 except with
    /// lenience, or where both are coupled.
    pub fn has_baseline_text(&self, lane: usize) -> bool {
        let baseline = self.baseline_of(lane);
        let coupled = [lane, baseline].map(|lane| self.rule_of(lane) == AcceptanceRule::Coupled);
        let greedy = self.rule_of(lane).keeps_greedy_text(self.sampling_of(lane).temperature);
        lane != baseline && (greedy || coupled == [true, true])
    }
}

/// An event of a lane with its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct TimedEvent {
    /// Milliseconds on the lane's clock since its answer began. The clock is paused while other lanes run.
    pub at_ms: f64,
    /// The event.
    pub event: GenerationEvent,
}

/// Events of a running comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CompareEvent {
    /// The comparison begins.
    Started {
        /// Models, machine and parameters.
        setting: ComparisonSetting,
    },
    /// Models of lanes are being loaded.
    Loading {
        /// Progress of the files.
        progress: LoadProgress,
    },
    /// The models that were unloaded for those of lanes are being loaded again.
    Restoring {
        /// Progress of the files.
        progress: LoadProgress,
    },
    /// The models that were unloaded for those of lanes could not be loaded again. The last event follows.
    NotRestored {
        /// The reason.
        error: hunch_error::ErrorInfo,
    },
    /// Passes are being timed.
    Costs {
        /// Rounds done.
        done: u32,
        /// Rounds in all.
        total: u32,
    },
    /// A turn begins: lanes answer a prompt.
    Turn {
        /// Number of the prompt, from 0.
        prompt: u32,
        /// Number of the run, from 0.
        run: u32,
        /// Turns done.
        done: u32,
        /// Turns in all.
        total: u32,
        /// Numbers of the lanes that answer: those whose models are in memory.
        lanes: Vec<u32>,
        /// Predicted milliseconds until the end. `None` before the first turn is over.
        left_ms: Option<f64>,
    },
    /// A lane begins a slice.
    Slice {
        /// Number of the lane, from 0.
        lane: u32,
    },
    /// A lane had an event.
    Lane {
        /// Number of the lane, from 0.
        lane: u32,
        /// The event.
        #[serde(alias = "told")]
        event: TimedEvent,
    },
    /// The server answers, after the lanes.
    Server {
        /// Answers done.
        done: u32,
        /// Answers in all.
        total: u32,
    },
    /// The comparison ended or was stopped.
    Finished {
        /// Report on the finished turns. `None` if there is none.
        report: Option<Box<ComparisonReport>>,
        /// Id in the history. `None` when it could not be saved.
        #[ts(type = "number | null")]
        kept: Option<i64>,
        /// Error that ended the comparison early. Finished turns are reported.
        trouble: Option<Box<hunch_error::ErrorInfo>>,
        /// True if the user stopped it.
        stopped: bool,
    },
    /// The comparison failed. Earlier events stay valid.
    Failed {
        /// The reason.
        error: hunch_error::ErrorInfo,
    },
}

/// Result of a comparison. Everything is measured except figures called `predicted`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct ComparisonReport {
    /// Models, machine and parameters.
    pub setting: ComparisonSetting,
    /// End of the comparison, in milliseconds since 1970.
    #[ts(type = "number")]
    pub ended_ms: i64,
    /// t(M) / t(1) of the loaded target by rows M, timed between turns.
    #[ts(type = "Record<string, number>")]
    pub target_cost: BTreeMap<usize, f64>,
    /// c: a pass of the loaded draft over a target pass, one row each, timed between turns.
    pub draft_cost: Option<f64>,
    /// Memory of models and caches.
    pub memory: ComparisonMemory,
    /// Figures of the lanes, plain first.
    pub lanes: Vec<LaneReport>,
    /// Comparison of each lane's tokens with its baseline's. `None` where no lane must write the same text: above
    /// temperature 0 without the coupled rule.
    pub identity: Option<IdentityReport>,
    /// All answers.
    pub answers: Vec<ComparedAnswer>,
    /// Events of each lane's last finished turn, for replay. Lanes of different batches may have ended at different turns.
    pub recordings: Vec<Vec<TimedEvent>>,
    /// Lanes without a finished turn, which are not among the others. `None` if all lanes ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub left_out: Option<Box<LanesLeftOut>>,
    /// Figures of the server next to the lanes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub server: Option<Box<ServerReport>>,
}

impl ComparisonReport {
    /// Returns the lane with the largest speedup over its baseline, except plain.
    pub fn best(&self) -> Option<&LaneReport> {
        let others = self.lanes.iter().filter(|lane| lane.verdict.is_some());
        others.max_by(|a, b| a.speedup.total_cmp(&b.speedup))
    }
}

/// Lanes of a comparison that ended before they had finished a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LanesLeftOut {
    /// The lanes.
    pub lanes: Vec<LaneConfig>,
    /// Why they did not run. `None` if the comparison was stopped.
    pub error: Option<Box<hunch_error::ErrorInfo>>,
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
    /// The baseline's wall time in this turn / this answer's; 1 for the baseline. `None` when nothing was generated.
    pub speedup: Option<f64>,
    /// Figures of the answer.
    pub stats: GenerationStats,
    /// Reason the answer ended.
    pub stop: StopReason,
    /// Text of the answer.
    pub text: String,
    /// Milliseconds on the lane's clock and tokens so far, round by round.
    pub timeline: Vec<(f64, u32)>,
    /// Milliseconds on the lane's clock and tokens per second over the last rounds.
    #[serde(default)]
    pub rates: Vec<(f64, f64)>,
}

/// Memory of a comparison, in bytes. If its targets ran one after the other, of those that needed most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ComparisonMemory {
    /// Weights of the target, or of all targets that were in memory together.
    #[ts(type = "number")]
    pub target_weights: u64,
    /// KV cache of the target, in the lane where it was largest. Summed over targets that were in memory together.
    #[ts(type = "number")]
    pub target_cache: u64,
    /// Weights of the draft model, or of all draft models that were in memory together.
    #[ts(type = "number | null")]
    pub draft_weights: Option<u64>,
    /// KV cache of the draft model, in the lane where it was largest. Summed over draft models that were in memory
    /// together.
    #[ts(type = "number | null")]
    pub draft_cache: Option<u64>,
    /// Peak memory of the process. 0 when unknown.
    #[ts(type = "number")]
    pub peak: u64,
}

/// Mean time of a lane's answers by part, in milliseconds per answer.
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

/// Acceptance at one position of the draft, over all of a lane's answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, TS)]
pub struct PositionReport {
    /// Rounds that drafted to this position.
    #[ts(type = "number")]
    pub drafted: u64,
    /// Rounds whose token at this position was accepted.
    #[ts(type = "number")]
    pub accepted: u64,
    /// accepted / drafted.
    pub share: f64,
}

/// Figures of one lane over all prompts and runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LaneReport {
    /// Method and own settings.
    #[serde(alias = "contender")]
    pub config: LaneConfig,
    /// Number of the lane over which the speedup is taken: plain decoding of the same target at the same temperature.
    #[serde(default)]
    pub baseline: u32,
    /// True if its text was compared with the baseline's. Absent in old comparisons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub text_compared: Option<bool>,
    /// Tokens per second after prefill: the median over all answers.
    pub tok_s: f64,
    /// Milliseconds to the first token: the median over all answers.
    pub ttft_ms: f64,
    /// The baseline's wall time / this lane's within one turn. The median over the prompts, each the median of its runs, or
    /// over the runs of a single prompt.
    pub speedup: f64,
    /// 10th percentile of the speedup.
    pub speedup_low: f64,
    /// 90th percentile of the speedup.
    pub speedup_high: f64,
    /// Number of samples, which are prompts or runs.
    pub samples: u32,
    /// Median speedup without prefill.
    pub decode_speedup: f64,
    /// Speedup without prefill, predicted from the costs of the lane's passes.
    pub predicted_speedup: Option<f64>,
    /// accepted / drafted over all answers.
    pub acceptance_rate: f64,
    /// 1 + accepted / rounds over all answers.
    pub mean_acceptance_length: f64,
    /// Acceptance by position in the draft.
    pub positions: Vec<PositionReport>,
    /// Time by part.
    pub split: TimeSplit,
    /// Verdict against the baseline. `None` for plain.
    pub verdict: Option<LaneVerdict>,
}

/// The largest loss of a lane against the gain of its accepted tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Drafting.
    Drafting,
    /// Passes of several rows, which cost more than single-row passes.
    WiderPasses,
    /// Acceptance, text and the rest.
    Loop,
    /// No noticeable loss.
    Nothing,
}

/// Verdict on a lane: the parts of one sentence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct LaneVerdict {
    /// Median speedup.
    pub speedup: f64,
    /// True if there are several samples, all on one side of 1.
    pub unanimous: bool,
    /// Unanimous with at least six samples. Equal lanes give this once in 32 times (a sign test).
    pub certain: bool,
    /// Tokens per target pass.
    pub tokens_per_pass: f64,
    /// Mean target pass of this lane over plain's, both measured in these turns.
    pub pass_cost: f64,
    /// Largest loss.
    pub loss: Loss,
    /// Share of decoding time spent drafting.
    pub drafting_share: f64,
    /// Share of decoding time by which target passes exceed as many of plain's.
    pub wider_share: f64,
    /// Share of decoding time in acceptance, text and the rest.
    pub loop_share: f64,
}

/// A comparison in the history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct ComparisonEntry {
    /// Id in the history.
    #[ts(type = "number")]
    pub id: i64,
    /// End of the comparison, in milliseconds since 1970.
    #[ts(type = "number")]
    pub ended_ms: i64,
    /// Beginning of the prompt, or suite and number of prompts.
    pub title: String,
    /// Name of the target.
    pub target: String,
    /// Name of the draft model, if one was loaded.
    pub draft: Option<String>,
    /// Lane with the largest speedup, except plain.
    pub best: LaneConfig,
    /// Its speedup over plain decoding of its target at its temperature.
    pub speedup: f64,
}

/// Format of an exported comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum ComparisonFormat {
    /// The whole report.
    Json,
    /// One line per answer.
    Csv,
    /// A picture of the result, as SVG.
    Picture,
}

impl ComparisonReport {
    /// Returns the speeds of the loaded models in this comparison. Lanes with settings of their own do not count, nor
    /// lanes whose answers were too short.
    pub fn rates(&self) -> Rates {
        let answers_of = |lane: usize| self.answers.iter().filter(move |answer| answer.lane as usize == lane);
        let long_enough = |lane: usize| {
            let tokens: u64 = answers_of(lane).map(|answer| u64::from(answer.stats.generated_tokens)).sum();
            tokens >= u64::from(MIN_TOKENS) * answers_of(lane).count() as u64
        };
        let counts = |(number, lane): &(usize, &LaneReport)| lane.config.is_usual() && long_enough(*number);
        let lanes: Vec<_> = self.lanes.iter().enumerate().filter(counts).collect();
        let answers = lanes
            .iter()
            .flat_map(|(number, lane)| answers_of(*number).map(|answer| (lane.config.method, &answer.stats)));
        let rates = lanes.iter().map(|(_, lane)| (lane.config.method, lane.tok_s));
        Rates::of_methods(rates, self.setting.rule).with_drafting(answers, self.setting.rule)
    }
}
