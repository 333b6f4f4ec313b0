//! Search for the layers a target can skip when it drafts for itself (Draft & Verify, Zhang et al., arXiv
//! 2309.08168).
//!
//! A greedy search for the set with the highest predicted speedup. Acceptance is measured on the model's own
//! answers, and so is the cost of passes. Theory combines the two, so the result is `predicted`.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use crate::bench::model_bench::{ModelPass, time_pass};
use hunch_core::limits::MAX_DRAFT;
use hunch_core::model::{LanguageModel, LayerPlan, LogitRows, PassInput, RowLayout, VocabSubset};
use hunch_core::pass_cost::PassCost;
use hunch_core::sample::argmax;
use hunch_core::theory;
use hunch_core::token::TokenId;
use hunch_error::{Error, ErrorInfo, Result};
use hunch_model::pass_timer::{PassTimer, TimingObserver};

/// A prompt with the model's greedy answer.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Tokens of prompt and answer.
    pub tokens: Vec<TokenId>,
    /// Length of the prompt in tokens, 1 or more.
    pub prompt: usize,
}

/// A set of layers to skip, with its predicted speedup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct SkipSet {
    /// Skipped layers, ascending.
    pub skipped: Vec<usize>,
    /// Share of the drafted tokens that equal the full model's greedy tokens.
    pub acceptance: f64,
    /// c: cost of a drafted token in target passes of one row.
    pub cost: f64,
    /// Best number of tokens to draft per round.
    pub depth: usize,
    /// Predicted speedup over plain decoding.
    pub predicted_speedup: f64,
}

/// Result of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
pub struct SkipSearch {
    /// Name of the model.
    pub model: String,
    /// Number of layers of the model.
    pub layers: usize,
    /// Set with the highest predicted speedup.
    pub best: SkipSet,
    /// Sets in search order, each with one more layer than the one before.
    pub path: Vec<SkipSet>,
}

/// A step of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchStep {
    /// The model answers a prompt.
    Answering {
        /// Prompts done.
        done: usize,
        /// All prompts.
        of: usize,
    },
    /// One more layer than `skipped` is tried.
    Trying {
        /// Layers skipped so far.
        skipped: usize,
        /// Answers done.
        done: usize,
        /// All answers.
        of: usize,
    },
}

/// Observer of a search.
pub trait SearchWatch {
    /// Receives each step when it begins.
    fn step(&mut self, step: SearchStep);

    /// Returns true to end the search, asked before every pass.
    fn stopped(&self) -> bool {
        false
    }
}

/// Events of a search that the window started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, TS)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SkipSearchEvent {
    /// The model answers prompts.
    Answering {
        /// Prompts done.
        done: u32,
        /// All prompts.
        of: u32,
    },
    /// One more layer than `skipped` is tried.
    Trying {
        /// Layers skipped so far.
        skipped: u32,
        /// Answers done.
        done: u32,
        /// All answers.
        of: u32,
    },
    /// The search ended.
    Finished {
        /// The result, which is saved. `None` when it was stopped.
        found: Option<Box<SkipSearch>>,
    },
    /// The search failed.
    Failed {
        /// The reason.
        error: ErrorInfo,
    },
}

impl From<SearchStep> for SkipSearchEvent {
    fn from(step: SearchStep) -> Self {
        match step {
            SearchStep::Answering { done, of } => Self::Answering { done: done as u32, of: of as u32 },
            SearchStep::Trying { skipped, done, of } => {
                Self::Trying { skipped: skipped as u32, done: done as u32, of: of as u32 }
            }
        }
    }
}

/// Consecutive draft tokens of a trial. Each follows accepted ones, so acceptance is conditional, as in a chain.
const STRETCH: usize = 8;
/// Most tokens of an answer that are used: they must fit into one row layout.
const ANSWER: usize = 48;
/// Layers tried per step. The first step tries all.
const CANDIDATES: usize = 7;
/// Steps without improvement before the search ends.
const PATIENCE: usize = 5;
/// Rounds of timed passes.
const TIMED_ROUNDS: usize = 7;

/// Searches for the set of layers to skip. `vocab_subset` is the vocabulary subset that drafts score.
///
/// # Errors
/// [`Error::InvalidRequest`] when no sample has an answer or the model has a single layer. [`Error::Stopped`] once
/// `watch` says so. Otherwise when the model fails.
pub fn search(
    model: &mut dyn LanguageModel,
    samples: &[Sample],
    vocab_subset: Option<&VocabSubset>,
    watch: &mut dyn SearchWatch,
) -> Result<SkipSearch> {
    let n_layer = model.info().n_layer;
    let samples: Vec<&Sample> =
        samples.iter().filter(|sample| sample.prompt > 0 && sample.tokens.len() > sample.prompt).collect();
    if samples.is_empty() {
        return Err(Error::invalid("There is no answer to try layers on. Choose other prompts."));
    }
    if n_layer < 2 {
        return Err(Error::invalid("This model has one layer, so none can be skipped."));
    }
    let costs = LayerCosts::measure(model, vocab_subset, &|| watch.stopped())?;
    let mut path: Vec<SkipSet> = Vec::new();
    let mut skipped: Vec<usize> = Vec::new();
    // Acceptance of each layer when it was last tried. The order changes little from step to step, so the worst
    // layers need not be tried again soon.
    let mut scores: Vec<f64> = vec![1.0; n_layer];
    let mut candidates: Vec<usize> = (0..n_layer).collect();
    let mut best: Option<SkipSet> = None;
    let mut since_best = 0;
    while !candidates.is_empty() && skipped.len() + 1 < n_layer && since_best < PATIENCE {
        let sets: Vec<Vec<usize>> = candidates.iter().map(|&layer| with(&skipped, layer)).collect();
        let mut trial_watch = TrialWatch { skipped: skipped.len(), watch };
        let accepted = acceptance(model, &samples, &sets, vocab_subset, &mut trial_watch)?;
        for (&candidate, &score) in candidates.iter().zip(&accepted) {
            scores[candidate] = score;
        }
        candidates.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let (layer, accepted) = (candidates[0], scores[candidates[0]]);
        skipped = with(&skipped, layer);
        let set = costs.predict(skipped.clone(), accepted, n_layer);
        if best.as_ref().is_none_or(|best| set.predicted_speedup > best.predicted_speedup) {
            best = Some(set.clone());
            since_best = 0;
        } else {
            since_best += 1;
        }
        path.push(set);
        candidates = (0..n_layer).filter(|layer| !skipped.contains(layer)).collect();
        candidates.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        candidates.truncate(CANDIDATES);
    }
    model.truncate(0)?;
    let best = best.ok_or_else(|| Error::Internal("no set of layers was tried".into()))?;
    Ok(SkipSearch { model: model.info().name.clone(), layers: n_layer, best, path })
}

fn with(skipped: &[usize], layer: usize) -> Vec<usize> {
    let mut set = [skipped, &[layer]].concat();
    set.sort_unstable();
    set
}

/// Observer of the trials with some layers skipped.
struct TrialWatch<'a> {
    skipped: usize,
    watch: &'a mut dyn SearchWatch,
}

/// Returns for each set the share of the answers' tokens that the remaining layers predict.
fn acceptance(
    model: &mut dyn LanguageModel,
    samples: &[&Sample],
    sets: &[Vec<usize>],
    vocab_subset: Option<&VocabSubset>,
    TrialWatch { skipped, watch }: &mut TrialWatch<'_>,
) -> Result<Vec<f64>> {
    let mut agreed = vec![0usize; sets.len()];
    let mut tested = 0;
    for (number, sample) in samples.iter().enumerate() {
        watch.step(SearchStep::Trying { skipped: *skipped, done: number, of: samples.len() });
        let end = sample.tokens.len().min(sample.prompt + ANSWER);
        let tokens = &sample.tokens[..end];
        model.truncate(0)?;
        for chunk in tokens.chunks(model.prefill_rows().max(1)) {
            model.forward(PassInput::chain(chunk, LogitRows::None))?;
        }
        let begin = sample.prompt - 1;
        for from in (begin..end - 1).step_by(STRETCH) {
            let rows = STRETCH.min(end - 1 - from);
            tested += rows;
            for (agreed, set) in agreed.iter_mut().zip(sets) {
                if watch.stopped() {
                    return Err(Error::Stopped);
                }
                *agreed += trial(model, tokens, from, rows, set, vocab_subset)?;
            }
        }
    }
    Ok(agreed.into_iter().map(|agreed| agreed as f64 / tested.max(1) as f64).collect())
}

/// Counts the correct next-token predictions of `rows` tokens from position `from`, with these layers skipped.
///
/// The cache holds the whole text. Each row sees the text before `from` and the rows up to itself.
fn trial(
    model: &mut dyn LanguageModel,
    tokens: &[TokenId],
    from: usize,
    rows: usize,
    skipped: &[usize],
    vocab_subset: Option<&VocabSubset>,
) -> Result<usize> {
    let unsettled = tokens.len() - from;
    let depths: Vec<usize> = (0..rows).collect();
    let visible: Vec<u64> = (0..rows).map(|row| ((2u64 << row) - 1) << unsettled).collect();
    let step = PassInput {
        layout: RowLayout::Custom { since: from, depths: &depths, visible: &visible },
        layers: LayerPlan::Skip(skipped),
        vocab_subset,
        ..PassInput::chain(&tokens[from..from + rows], LogitRows::All)
    };
    let logits = model.forward(step)?.logits;
    model.truncate(tokens.len())?;
    Ok((0..rows).filter(|&row| argmax(logits.row(row)) == tokens[from + row + 1]).count())
}

/// A pass that the search times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SearchTiming {
    /// The target's pass of some rows.
    Target(usize),
    /// A drafting pass of all layers.
    AllLayers,
    /// A drafting pass of no layers.
    NoLayers,
}

/// Costs in target passes of one row.
struct LayerCosts {
    target: PassCost,
    /// A drafting pass without layers: embedding and head.
    frame: f64,
    /// One layer.
    layer: f64,
}

impl LayerCosts {
    fn measure(
        model: &mut dyn LanguageModel,
        vocab_subset: Option<&VocabSubset>,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Self> {
        let n_layer = model.info().n_layer;
        let all: Vec<usize> = (0..n_layer).collect();
        let rows = MAX_DRAFT.min(model.info().context_length / 2) + 1;
        model.truncate(0)?;
        let mut time = |_: usize, timed: &SearchTiming| {
            let one = ModelPass { vocab_subset, ..ModelPass::of(1) };
            let pass = match *timed {
                SearchTiming::Target(rows) => ModelPass::of(rows),
                SearchTiming::AllLayers => one,
                SearchTiming::NoLayers => ModelPass { layers: LayerPlan::Skip(&all), ..one },
            };
            time_pass(model, &pass).map(Some)
        };
        let passes = [SearchTiming::AllLayers, SearchTiming::NoLayers]
            .into_iter()
            .chain((1..=rows).map(SearchTiming::Target));
        let mut timer = PassTimer::new(passes.collect());
        timer.run(TIMED_ROUNDS, &mut time, TimingObserver { on_round: &mut |_, _| (), stopped })?;
        if stopped() {
            return Err(Error::Stopped);
        }
        let times = timer.since(0);
        let relative = |timed: SearchTiming| {
            let missing = || Error::Internal("no pass was timed".into());
            times.ratio(&timed, &SearchTiming::Target(1)).ok_or_else(missing)
        };
        let points = (1..=rows).map(|rows| Ok((rows, relative(SearchTiming::Target(rows))?)));
        let target = PassCost::new(points.collect::<Result<Vec<_>>>()?)?;
        let frame = relative(SearchTiming::NoLayers)?;
        let layers = (relative(SearchTiming::AllLayers)? - frame).max(0.0);
        Ok(Self { target, frame, layer: layers / n_layer as f64 })
    }

    /// Predicts the speedup of a set of skipped layers with this acceptance.
    fn predict(&self, skipped: Vec<usize>, acceptance: f64, n_layer: usize) -> SkipSet {
        let cost = self.frame + self.layer * (n_layer - skipped.len()) as f64;
        // Depth 0 means no drafting. A set is judged by its drafts.
        let predict = |depth| (depth, theory::speedup(acceptance, depth, cost, &self.target));
        let best = (1..=MAX_DRAFT).map(predict).max_by(|a, b| a.1.total_cmp(&b.1));
        let (depth, predicted_speedup) = best.unwrap_or((0, 1.0));
        SkipSet { skipped, acceptance, cost, depth, predicted_speedup }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hunch_core::table::{TableConfig, TableModel};

    fn sample(model: &mut TableModel, answer: usize) -> Sample {
        let mut tokens = vec![3, 1, 4];
        for _ in 0..answer {
            tokens.push(argmax(&model.logits_after(&tokens)));
        }
        Sample { tokens, prompt: 3 }
    }

    /// Keeps the steps, and stops before step `end`.
    struct Steps {
        seen: Vec<SearchStep>,
        end: usize,
    }

    impl Steps {
        fn all() -> Self {
            Self { seen: Vec::new(), end: usize::MAX }
        }
    }

    impl SearchWatch for Steps {
        fn step(&mut self, step: SearchStep) {
            self.seen.push(step);
        }

        fn stopped(&self) -> bool {
            self.seen.len() >= self.end
        }
    }

    #[test]
    fn trial_matches_a_proposer_with_the_same_layers() {
        let mut model = TableModel::new(TableConfig { n_layer: 6, ..TableConfig::default() });
        let sample = sample(&mut model, 30);
        for skipped in [vec![], vec![1], vec![0, 2, 4]] {
            let sets = [skipped.clone()];
            let mut watch = TrialWatch { skipped: 0, watch: &mut Steps::all() };
            let share = acceptance(&mut model, &[&sample], &sets, None, &mut watch).unwrap()[0];
            let right = (3..sample.tokens.len()).filter(|&at| {
                let mut alone = TableModel::new(TableConfig { n_layer: 6, ..TableConfig::default() });
                let step = PassInput {
                    layers: LayerPlan::Skip(&skipped),
                    ..PassInput::chain(&sample.tokens[..at], LogitRows::Last)
                };
                argmax(alone.forward(step).unwrap().logits.row(0)) == sample.tokens[at]
            });
            assert_eq!(share, right.count() as f64 / 30.0, "{skipped:?}");
        }
    }

    #[test]
    fn search_leaves_at_least_one_layer() {
        let mut model = TableModel::new(TableConfig { n_layer: 6, ..TableConfig::default() });
        let samples = [sample(&mut model, 60), sample(&mut model, 5)];
        let mut steps = Steps::all();
        let found = search(&mut model, &samples, None, &mut steps).unwrap();
        assert!((1..6).contains(&found.best.skipped.len()) && found.layers == 6);
        assert!(found.path.iter().all(|set| set.predicted_speedup <= found.best.predicted_speedup));
        assert!(
            found.path.iter().zip(1..).all(|(set, len)| set.skipped.len() == len && set.skipped.is_sorted())
        );
        assert_eq!(steps.seen[1], SearchStep::Trying { skipped: 0, done: 1, of: 2 });
        assert!(search(&mut model, &[], None, &mut Steps::all()).is_err());
        // Samples without an answer are ignored.
        let silent = Sample { tokens: vec![3, 1, 4], prompt: 3 };
        let empty = Sample { tokens: Vec::new(), prompt: 0 };
        let more = [empty, samples[0].clone(), silent, samples[1].clone()];
        assert_eq!(search(&mut model, &more, None, &mut Steps::all()).unwrap().path.len(), found.path.len());
    }

    #[test]
    fn search_ends_where_it_is_stopped() {
        let mut model = TableModel::new(TableConfig { n_layer: 6, ..TableConfig::default() });
        let samples = [sample(&mut model, 20)];
        for end in 0..3 {
            let mut steps = Steps { end, ..Steps::all() };
            assert!(matches!(search(&mut model, &samples, None, &mut steps), Err(Error::Stopped)));
            assert_eq!(steps.seen.len(), end);
        }
    }
}
