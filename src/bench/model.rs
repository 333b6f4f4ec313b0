//! The bench on loaded models: what [`Bench`] asks for, measured by the wall clock.

use std::collections::HashMap;
use std::time::Instant;

use crate::bench::runner::{Answer, Bench};
use crate::bench::suite::SuitePrompt;
use crate::engine::WallClock;
use crate::error::Result;
use crate::event::GenerationEvent;
use crate::generate::{GenerationContext, GenerationPlan, Models, Prompt, generate};
use crate::model::{LanguageModel, LogitRows, Step, TokenBlocks};
use crate::propose::Method;
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
        let context = GenerationContext { id: 0, clock: &clock, cancelled: &|| false };
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
        timed_pass(self.models.target(), rows, None)
    }

    fn draft_pass(&mut self) -> Result<Option<f64>> {
        let among = self.models.draft_tokens();
        self.models.draft()?.map(|draft| timed_pass(draft, 1, among.as_ref())).transpose()
    }
}

/// Seconds of one pass of `rows` rows behind [`CONTEXT`] tokens, with logits for all rows and the given
/// tokens.
///
/// # Errors
/// When the model fails.
pub fn timed_pass(model: &mut dyn LanguageModel, rows: usize, among: Option<&TokenBlocks>) -> Result<f64> {
    let context = CONTEXT.min(model.spec().context_length.saturating_sub(rows));
    let tokens = made_up_tokens(context + rows, model.spec().n_vocab);
    if model.cache_len() != context {
        model.truncate(0)?;
        model.forward(Step::chain(&tokens[..context], LogitRows::None))?;
    }
    let begun = Instant::now();
    model.forward(Step { among, ..Step::chain(&tokens[context..], LogitRows::All) })?;
    let seconds = begun.elapsed().as_secs_f64();
    model.truncate(context)?;
    Ok(seconds)
}

/// Tokens to time a pass with: what they are changes no pass's time.
pub(super) fn made_up_tokens(count: usize, n_vocab: usize) -> Vec<TokenId> {
    (0..count).map(|i| ((i * 7 + 100) % n_vocab) as TokenId).collect()
}
