//! The layers that a target skips when it drafts for itself: its answers, the search over them, and the saved result.
//! The search itself belongs to [`crate::bench::skip_search`].

use std::path::{Path, PathBuf};

use hunch_core::propose::layer_skip::LayerSkip;
use hunch_core::sample::SamplingParams;
use hunch_error::{Error, Result};

use crate::bench::Suite;
use crate::bench::skip_search::{Sample, SearchStep, SearchWatch, SkipSearch, search};
use crate::bench::skip_sets::{self, SearchedModel};
use crate::engine::WallClock;
use crate::event::GenerationEvent;
use crate::generate::{GenerationContext, GenerationPlan, Models, Prompt, generate};

/// Suites whose prompts the target answers by default.
pub const SUITES: [&str; 2] = ["code", "prose"];
/// Prompts of each suite by default.
pub const PROMPTS: usize = 2;
/// Tokens of each answer.
const ANSWER: usize = 48;

/// Lets a target answer the first `prompts` prompts of each suite, and searches for the layers to skip.
///
/// # Errors
/// [`Error::Stopped`] once `watch` says so, [`Error::InvalidRequest`] for a model of one layer, and when the model
/// fails.
pub fn run(
    models: &Models,
    suites: &[Suite],
    prompts: usize,
    watch: &mut dyn SearchWatch,
) -> Result<SkipSearch> {
    // The caches of conversations stay as they are.
    let mut models = models.fork()?;
    let samples = samples(&mut models, suites, prompts, watch)?;
    let target = models.target();
    let vocab_subset = LayerSkip::tokens_after(&[], target.info().n_vocab);
    search(target, &samples, vocab_subset.as_ref(), watch)
}

/// Saves the result for a target in Hunch's data folder. Returns the path of the file.
///
/// # Errors
/// When the file cannot be written.
pub fn save(data: &Path, models: &mut Models, found: &SkipSearch) -> Result<PathBuf> {
    let folder = hunch_library::skip_sets_folder_in(data);
    skip_sets::remember(&folder, SearchedModel::of(models.target()), found)
}

/// Returns the target's greedy answers.
fn samples(
    models: &mut Models,
    suites: &[Suite],
    prompts: usize,
    watch: &mut dyn SearchWatch,
) -> Result<Vec<Sample>> {
    let plan = GenerationPlan {
        max_tokens: ANSWER,
        sampling: SamplingParams::greedy(),
        ..GenerationPlan::default()
    };
    let all: Vec<_> = suites.iter().flat_map(|suite| suite.prompts.iter().take(prompts.max(1))).collect();
    let mut samples = Vec::new();
    for (done, prompt) in all.iter().enumerate() {
        watch.step(SearchStep::Answering { done, of: all.len() });
        let ids = models.prompt_ids(&Prompt::Chat(prompt.messages()))?;
        let mut tokens = ids.clone();
        let clock = WallClock::start();
        let stopped = || watch.stopped();
        let context = GenerationContext { cancelled: &stopped, ..GenerationContext::measured(&clock) };
        let mut sink = |event: GenerationEvent| {
            if let GenerationEvent::Round(round) = event {
                tokens.extend(round.tokens.iter().map(|token| token.id));
            }
        };
        let finished = generate(models, &ids, &plan, &context, &mut sink)?;
        if watch.stopped() {
            return Err(Error::Stopped);
        }
        tokens.extend(finished.held.iter().map(|token| token.id));
        samples.push(Sample { tokens, prompt: ids.len() });
    }
    Ok(samples)
}
