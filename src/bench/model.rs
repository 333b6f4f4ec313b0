//! The bench on loaded models: what [`Bench`] asks for, measured by the wall clock.

use std::collections::HashMap;
use std::time::Instant;

use crate::bench::runner::{Answer, Bench};
use crate::bench::suite::SuitePrompt;
use crate::bench::timed_passes::READING;
use crate::engine::WallClock;
use crate::error::Result;
use crate::event::GenerationEvent;
use crate::generate::{GenerationContext, GenerationPlan, Models, Prompt, generate};
use crate::model::{LanguageModel, LayerPlan, LogitRows, Step, TokenBlocks};
use crate::propose::{Method, MethodOptions};
use crate::sample::SamplingParams;
use crate::token::TokenId;

/// Tokens in the cache behind a timed pass.
const CONTEXT: usize = 128;

/// Measures loaded models.
pub struct ModelBench<'a> {
    models: &'a mut Models,
    /// What the synthetic method knows beforehand: plain's greedy answers, by prompt.
    scripts: HashMap<String, Vec<TokenId>>,
}

impl<'a> ModelBench<'a> {
    /// A bench over these models.
    pub fn new(models: &'a mut Models) -> Self {
        Self { models, scripts: HashMap::new() }
    }

    /// Answers from empty caches.
    fn answer(&mut self, prompt: &[TokenId], plan: &GenerationPlan) -> Result<Answer> {
        self.models.forget()?;
        let mut ids: Vec<TokenId> = Vec::new();
        let mut sink = |event: GenerationEvent| {
            if let GenerationEvent::Round(round) = event {
                ids.extend(round.tokens.iter().map(|t| t.id));
            }
        };
        let clock = WallClock::start();
        let context = GenerationContext { id: 0, clock: &clock, begun: 0, dropped: 0, cancelled: &|| false };
        let finished = generate(self.models, prompt, plan, &context, &mut sink)?;
        ids.extend(finished.held.iter().map(|t| t.id));
        Ok(Answer { stats: finished.stats, ids })
    }

    /// Has the synthetic method know what is to come, as far as it does.
    fn rehearse(&mut self, prompt: &SuitePrompt, ids: &[TokenId], plan: &GenerationPlan) -> Result<()> {
        let script = match self.scripts.get(&prompt.prompt) {
            Some(script) => script.clone(),
            None => {
                let plain = GenerationPlan {
                    method: Method::Plain,
                    sampling: SamplingParams::greedy(),
                    ..plan.clone()
                };
                let script = self.answer(ids, &plain)?.ids;
                self.scripts.insert(prompt.prompt.clone(), script.clone());
                script
            }
        };
        self.models.rehearse(script, plan.options.synthetic_acceptance)
    }
}

impl Bench for ModelBench<'_> {
    fn generate(&mut self, prompt: &SuitePrompt, plan: &GenerationPlan) -> Result<Answer> {
        let ids = self.models.prompt_ids(&Prompt::Chat(prompt.messages()))?;
        if plan.method == Method::Synthetic {
            self.rehearse(prompt, &ids, plan)?;
        }
        self.answer(&ids, plan)
    }

    fn target_pass(&mut self, rows: usize) -> Result<f64> {
        timed_pass(self.models.target(), &TimedPass::of(rows))
    }

    fn draft_pass(&mut self, drafter: Method, options: &MethodOptions, rows: usize) -> Result<Option<f64>> {
        let logits = if rows == READING { LogitRows::None } else { LogitRows::All };
        self.models.with_drafter(drafter, options, |model, layers, among| {
            timed_pass(model, &TimedPass { rows, logits, layers, among })
        })
    }
}

/// A pass to be timed.
#[derive(Clone, Copy, Debug)]
pub struct TimedPass<'a> {
    /// Its rows.
    pub rows: usize,
    /// The rows it gives logits for.
    pub logits: LogitRows,
    /// The layers it runs.
    pub layers: LayerPlan<'a>,
    /// The tokens it scores; `None` = all.
    pub among: Option<&'a TokenBlocks>,
}

impl TimedPass<'_> {
    /// As the target verifies: logits of all rows, all layers, all tokens.
    pub fn of(rows: usize) -> Self {
        Self { rows, logits: LogitRows::All, layers: LayerPlan::All, among: None }
    }
}

/// Seconds of one pass behind [`CONTEXT`] tokens.
///
/// # Errors
/// When the model fails.
pub fn timed_pass(model: &mut dyn LanguageModel, pass: &TimedPass<'_>) -> Result<f64> {
    let &TimedPass { rows, logits, layers, among } = pass;
    let context = CONTEXT.min(model.spec().context_length.saturating_sub(rows));
    let tokens = made_up_tokens(context + rows, model.spec().n_vocab);
    if model.cache_len() != context {
        model.truncate(0)?;
        model.forward(Step::chain(&tokens[..context], LogitRows::None))?;
    }
    let begun = Instant::now();
    model.forward(Step { among, layers, ..Step::chain(&tokens[context..], logits) })?;
    let seconds = begun.elapsed().as_secs_f64();
    model.truncate(context)?;
    Ok(seconds)
}

/// Tokens to time a pass with: what they are changes no pass's time.
pub(super) fn made_up_tokens(count: usize, n_vocab: usize) -> Vec<TokenId> {
    (0..count).map(|i| ((i * 7 + 100) % n_vocab) as TokenId).collect()
}
