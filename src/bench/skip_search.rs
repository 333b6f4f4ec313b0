//! Which layers a target can leave out when it drafts for itself (Draft & Verify, Zhang et al., arXiv
//! 2309.08168): a greedy search for the set that promises the highest speedup. What a set accepts is
//! measured on text of the model's own, what passes cost is measured too, and theory puts the two together,
//! so the result says `predicted`.

use serde::{Deserialize, Serialize};

use crate::bench::figures::median;
use crate::bench::model::{TimedPass, timed_pass};
use hunch_core::limits::MAX_DRAFT;
use hunch_core::model::{LanguageModel, LayerPlan, LogitRows, RowLayout, Step, VocabSubset};
use hunch_core::sample::argmax;
use hunch_core::theory::{self, PassCost};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};

/// A text of the model: a prompt and what it answered, greedily.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Prompt and answer.
    pub tokens: Vec<TokenId>,
    /// Tokens of the prompt, 1 or more.
    pub prompt: usize,
}

/// A set of layers to leave out, and what it promises.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SkipSet {
    /// The layers, ascending.
    pub skipped: Vec<usize>,
    /// Of the tokens that the other layers would have drafted, the share that is what all layers say.
    pub acceptance: f64,
    /// A drafted token's cost in target passes.
    pub cost: f64,
    /// Tokens to draft a round.
    pub depth: usize,
    /// The speedup over plain decoding that these promise. Predicted, not measured.
    pub predicted_speedup: f64,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SkipSearch {
    /// The model's name.
    pub model: String,
    /// Its layers.
    pub layers: usize,
    /// The set that promises most.
    pub best: SkipSet,
    /// The sets on the way, each with one layer more.
    pub path: Vec<SkipSet>,
}

/// What is about to be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trying {
    /// Layers skipped so far.
    pub skipped: usize,
    /// The sample in use, of how many.
    pub sample: (usize, usize),
}

/// Tokens that are drafted behind each other in the trial: accepted ones, so what is measured is what is
/// accepted when all before it was.
const STRETCH: usize = 8;
/// Longest answer of a sample that is used: all of it must fit behind the text in one layout.
const ANSWER: usize = 48;
/// Layers tried at each step after the first, which tries all.
const CANDIDATES: usize = 7;
/// Steps without a better promise before the search ends.
const PATIENCE: usize = 5;
/// Rounds in which passes are timed.
const TIMED_ROUNDS: usize = 7;

/// Searches. `vocab_subset` are the tokens that a draft scores, as the proposer would.
///
/// # Errors
/// [`Error::InvalidRequest`] when no sample has an answer, or the model has one layer only; else when the
/// model fails.
pub fn search(
    model: &mut dyn LanguageModel,
    samples: &[Sample],
    vocab_subset: Option<&VocabSubset>,
    progress: &mut dyn FnMut(Trying),
) -> Result<SkipSearch> {
    let n_layer = model.info().n_layer;
    let samples: Vec<&Sample> =
        samples.iter().filter(|sample| sample.prompt > 0 && sample.tokens.len() > sample.prompt).collect();
    if samples.is_empty() {
        return Err(Error::invalid("There is no text to try layers on. Choose other prompts."));
    }
    if n_layer < 2 {
        return Err(Error::invalid("This model has one layer, so none can be skipped."));
    }
    let costs = Costs::measure(model, vocab_subset)?;
    let mut path: Vec<SkipSet> = Vec::new();
    let mut skipped: Vec<usize> = Vec::new();
    // How each layer did when it was tried last: the order changes little from step to step, so those that
    // did worst need not be tried again soon.
    let mut scores: Vec<f64> = vec![1.0; n_layer];
    let mut candidates: Vec<usize> = (0..n_layer).collect();
    let mut best: Option<SkipSet> = None;
    let mut since_best = 0;
    while !candidates.is_empty() && skipped.len() + 1 < n_layer && since_best < PATIENCE {
        let sets: Vec<Vec<usize>> = candidates.iter().map(|&layer| with(&skipped, layer)).collect();
        let mut told = |sample| progress(Trying { skipped: skipped.len(), sample });
        let accepted = acceptance(model, &samples, &sets, vocab_subset, &mut told)?;
        for (&candidate, &score) in candidates.iter().zip(&accepted) {
            scores[candidate] = score;
        }
        candidates.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let (layer, accepted) = (candidates[0], scores[candidates[0]]);
        skipped = with(&skipped, layer);
        let set = costs.promise(skipped.clone(), accepted, n_layer);
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

/// For each set the share of the answers' tokens that the remaining layers say as well.
fn acceptance(
    model: &mut dyn LanguageModel,
    samples: &[&Sample],
    sets: &[Vec<usize>],
    vocab_subset: Option<&VocabSubset>,
    progress: &mut dyn FnMut((usize, usize)),
) -> Result<Vec<f64>> {
    let mut agreed = vec![0usize; sets.len()];
    let mut tested = 0;
    for (number, sample) in samples.iter().enumerate() {
        progress((number, samples.len()));
        let end = sample.tokens.len().min(sample.prompt + ANSWER);
        let tokens = &sample.tokens[..end];
        model.truncate(0)?;
        for chunk in tokens.chunks(model.prefill_rows().max(1)) {
            model.forward(Step::chain(chunk, LogitRows::None))?;
        }
        let begin = sample.prompt - 1;
        for from in (begin..end - 1).step_by(STRETCH) {
            let rows = STRETCH.min(end - 1 - from);
            tested += rows;
            for (agreed, set) in agreed.iter_mut().zip(sets) {
                *agreed += trial(model, tokens, from, rows, set, vocab_subset)?;
            }
        }
    }
    Ok(agreed.into_iter().map(|agreed| agreed as f64 / tested.max(1) as f64).collect())
}

/// How many of `rows` tokens from position `from` on are followed by what the text says, with these layers
/// skipped. The text lies in the cache as a whole; the rows see what was before them and each other.
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
    let step = Step {
        layout: RowLayout::Custom { since: from, depths: &depths, visible: &visible },
        layers: LayerPlan::Skip(skipped),
        vocab_subset,
        ..Step::chain(&tokens[from..from + rows], LogitRows::All)
    };
    let logits = model.forward(step)?.logits;
    model.truncate(tokens.len())?;
    Ok((0..rows).filter(|&row| argmax(logits.row(row)) == tokens[from + row + 1]).count())
}

/// What passes cost, in target passes of one row.
struct Costs {
    target: PassCost,
    /// A drafting pass without any layer: embedding and head.
    frame: f64,
    /// A layer.
    layer: f64,
}

impl Costs {
    fn measure(model: &mut dyn LanguageModel, vocab_subset: Option<&VocabSubset>) -> Result<Self> {
        let n_layer = model.info().n_layer;
        let all: Vec<usize> = (0..n_layer).collect();
        let rows = MAX_DRAFT.min(model.info().context_length / 2) + 1;
        model.truncate(0)?;
        let mut timed = |layers: LayerPlan<'_>, rows: usize, vocab_subset: Option<&VocabSubset>| {
            timed_pass(model, &TimedPass { layers, vocab_subset, ..TimedPass::of(rows) })
        };
        let (mut target, mut frames, mut drafts) = (vec![Vec::new(); rows + 1], Vec::new(), Vec::new());
        for round in 0..=TIMED_ROUNDS {
            let one = timed(LayerPlan::All, 1, None)?;
            let frame = timed(LayerPlan::Skip(&all), 1, vocab_subset)? / one;
            let draft = timed(LayerPlan::All, 1, vocab_subset)? / one;
            // The first round warms up.
            if round > 0 {
                frames.push(frame);
                drafts.push(draft);
            }
            for (m, times) in target.iter_mut().enumerate().skip(2) {
                let ratio = timed(LayerPlan::All, m, None)? / one;
                if round > 0 {
                    times.push(ratio);
                }
            }
        }
        let points = target.iter().enumerate().skip(2).filter_map(|(m, times)| Some((m, median(times)?)));
        let target = PassCost::new(std::iter::once((1, 1.0)).chain(points))?;
        let missing = || Error::Internal("no pass was timed".into());
        let frame = median(&frames).ok_or_else(missing)?;
        let layers = (median(&drafts).ok_or_else(missing)? - frame).max(0.0);
        Ok(Self { target, frame, layer: layers / n_layer as f64 })
    }

    /// What a set promises that accepts so much.
    fn promise(&self, skipped: Vec<usize>, acceptance: f64, n_layer: usize) -> SkipSet {
        let cost = self.frame + self.layer * (n_layer - skipped.len()) as f64;
        // Depth 0 is no drafting; the set is judged by what it does.
        let promise = |depth| (depth, theory::speedup(acceptance, depth, cost, &self.target));
        let best = (1..=MAX_DRAFT).map(promise).max_by(|a, b| a.1.total_cmp(&b.1));
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

    #[test]
    fn a_trial_counts_what_the_proposer_would_have_drafted_right() {
        let mut model = TableModel::new(TableConfig { n_layer: 6, ..TableConfig::default() });
        let sample = sample(&mut model, 30);
        for skipped in [vec![], vec![1], vec![0, 2, 4]] {
            let sets = [skipped.clone()];
            let share = acceptance(&mut model, &[&sample], &sets, None, &mut |_| {}).unwrap()[0];
            let right = (3..sample.tokens.len()).filter(|&at| {
                let mut alone = TableModel::new(TableConfig { n_layer: 6, ..TableConfig::default() });
                let step = Step {
                    layers: LayerPlan::Skip(&skipped),
                    ..Step::chain(&sample.tokens[..at], LogitRows::Last)
                };
                argmax(alone.forward(step).unwrap().logits.row(0)) == sample.tokens[at]
            });
            assert_eq!(share, right.count() as f64 / 30.0, "{skipped:?}");
        }
    }

    #[test]
    fn the_search_ends_with_a_set_that_some_layers_are_left_of() {
        let mut model = TableModel::new(TableConfig { n_layer: 6, ..TableConfig::default() });
        let samples = [sample(&mut model, 60), sample(&mut model, 5)];
        let mut heard = Vec::new();
        let found = search(&mut model, &samples, None, &mut |trying| heard.push(trying)).unwrap();
        assert!((1..6).contains(&found.best.skipped.len()) && found.layers == 6);
        assert!(found.path.iter().all(|set| set.predicted_speedup <= found.best.predicted_speedup));
        assert!(
            found.path.iter().zip(1..).all(|(set, len)| set.skipped.len() == len && set.skipped.is_sorted())
        );
        assert_eq!(heard[1], Trying { skipped: 0, sample: (1, 2) });
        assert!(search(&mut model, &[], None, &mut |_| {}).is_err());
        // What says nothing is left out.
        let silent = Sample { tokens: vec![3, 1, 4], prompt: 3 };
        let empty = Sample { tokens: Vec::new(), prompt: 0 };
        let more = [empty, samples[0].clone(), silent, samples[1].clone()];
        assert_eq!(search(&mut model, &more, None, &mut |_| {}).unwrap().path.len(), found.path.len());
    }
}
