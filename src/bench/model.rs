//! The bench on loaded models: what [`Bench`] and [`PassBench`] ask for, measured by the wall clock.

use std::collections::HashMap;
use std::time::Instant;

use crate::bench::lanes::{self, Lane, LaneRun};
use crate::bench::runner::{Answer, Bench, Beside};
use crate::bench::suite::SuitePrompt;
use crate::bench::timed_passes::{PassBench, READING};
use crate::engine::PausableStopwatch;
use crate::event::GenerationEvent;
use crate::generate::{GenerationPlan, Models, Prompt};
use hunch_core::method::Method;
use hunch_core::model::{LanguageModel, LayerPlan, LogitRows, Step, VocabSubset};
use hunch_core::propose::MethodOptions;
use hunch_core::sample::SamplingParams;
use hunch_core::token::TokenId;
use hunch_error::Result;

/// Tokens in the cache behind a timed pass, where there is no answer that it is to be like.
const CONTEXT: usize = 128;
/// Most of them: what more would change is less than what reading them takes.
const MOST_CONTEXT: usize = 2048;

/// Times passes of loaded models.
pub struct ModelPasses<'a> {
    models: &'a mut Models,
    /// Tokens behind which they are timed.
    context: usize,
    /// The same where a prompt is read: its own tokens, half of them on average.
    reading: usize,
    /// By its tokens what drafts chooses those that it scores.
    text: Vec<TokenId>,
}

impl<'a> ModelPasses<'a> {
    /// Passes of these models.
    pub fn new(models: &'a mut Models) -> Self {
        Self { models, context: CONTEXT, reading: CONTEXT / 2, text: Vec::new() }
    }

    /// Passes are timed, from now on, as they run in the middle of an answer of `max_tokens` to these prompts' middle
    /// one: behind as many tokens.
    pub fn time_behind(&mut self, prompts: &[SuitePrompt], max_tokens: usize) {
        let ids = |prompt: &SuitePrompt| self.models.prompt_ids(&Prompt::Chat(prompt.messages())).ok();
        let mut prompts: Vec<Vec<TokenId>> = prompts.iter().filter_map(ids).collect();
        if prompts.is_empty() {
            return;
        }
        prompts.sort_by_key(Vec::len);
        self.text = prompts.swap_remove(prompts.len() / 2);
        self.context = (self.text.len() + max_tokens / 2).min(MOST_CONTEXT);
        self.reading = (self.text.len() / 2).min(MOST_CONTEXT);
    }
}

impl PassBench for ModelPasses<'_> {
    fn target_pass(&mut self, rows: usize) -> Result<f64> {
        timed_pass(self.models.target(), &TimedPass { context: self.context, ..TimedPass::of(rows) })
    }

    fn draft_pass(&mut self, drafter: Method, options: &MethodOptions, rows: usize) -> Result<Option<f64>> {
        let (logits, context) =
            if rows == READING { (LogitRows::None, self.reading) } else { (LogitRows::All, self.context) };
        self.models.with_drafter(drafter, options, &self.text, |model, layers, vocab_subset| {
            timed_pass(model, &TimedPass { rows, context, logits, layers, vocab_subset })
        })
    }
}

/// Measures loaded models.
pub struct ModelBench<'a> {
    /// Has the models.
    passes: ModelPasses<'a>,
    /// Their twins, which answer.
    lanes: Vec<Models>,
    /// What the synthetic method knows beforehand: plain's greedy answers, by prompt.
    scripts: HashMap<String, Vec<TokenId>>,
}

impl<'a> ModelBench<'a> {
    /// A bench over these models.
    pub fn new(models: &'a mut Models) -> Self {
        Self { passes: ModelPasses::new(models), lanes: Vec::new(), scripts: HashMap::new() }
    }

    /// What plain decoding answers, greedily: what the synthetic method knows beforehand.
    fn script(
        &mut self,
        prompt: &SuitePrompt,
        ids: &[TokenId],
        plan: &GenerationPlan,
    ) -> Result<Vec<TokenId>> {
        if let Some(script) = self.scripts.get(&prompt.prompt) {
            return Ok(script.clone());
        }
        let plain =
            GenerationPlan { method: Method::Plain, sampling: SamplingParams::greedy(), ..plan.clone() };
        let models = std::slice::from_mut(&mut *self.passes.models);
        let answers = answer(models, ids, &[plain], 0, &mut |_| Ok(()))?;
        let script = answers.into_iter().flat_map(|answer| answer.ids).collect::<Vec<_>>();
        self.scripts.insert(prompt.prompt.clone(), script.clone());
        Ok(script)
    }
}

/// What all lanes answer, from empty caches.
fn answer(
    lanes: &mut [Models],
    prompt: &[TokenId],
    plans: &[GenerationPlan],
    number: usize,
    between: &mut dyn FnMut(&[TokenId]) -> Result<()>,
) -> Result<Vec<Answer>> {
    let clocks: Vec<PausableStopwatch> = lanes.iter().map(|_| PausableStopwatch::default()).collect();
    let mut ids: Vec<Vec<TokenId>> = vec![Vec::new(); lanes.len()];
    let taking_part = lanes.iter_mut().zip(plans).zip(&clocks).zip(&mut ids);
    let lanes = taking_part.map(|(((models, plan), clock), ids)| {
        let sink = |event: GenerationEvent| ids.extend(event.tokens().iter().map(|token| token.id));
        Lane { models, plan, clock, sink }
    });
    let course = LaneRun { prompt, number, stopped: &|| false };
    let answered = lanes::answer(lanes.collect(), &course, &mut |_| (), between)?.unwrap_or_default();
    let stats: Vec<_> = answered.into_iter().map(|lane| lane.stats).collect();
    Ok(stats.into_iter().zip(ids).map(|(stats, ids)| Answer { stats, ids }).collect())
}

impl Bench for ModelBench<'_> {
    fn time_behind(&mut self, prompt: &SuitePrompt, max_tokens: usize) {
        self.passes.time_behind(std::slice::from_ref(prompt), max_tokens);
    }

    fn begin(&mut self, lanes: usize) -> Result<()> {
        self.lanes = (0..lanes).map(|_| self.passes.models.fork()).collect::<Result<_>>()?;
        Ok(())
    }

    fn answer(
        &mut self,
        prompt: &SuitePrompt,
        plans: &[GenerationPlan],
        number: usize,
        beside: Beside<'_>,
    ) -> Result<Vec<Answer>> {
        let ids = self.passes.models.prompt_ids(&Prompt::Chat(prompt.messages()))?;
        for (lane, plan) in plans.iter().enumerate().filter(|(_, plan)| plan.method == Method::Synthetic) {
            let script = self.script(prompt, &ids, plan)?;
            self.lanes[lane].set_synthetic_script(script, plan.options.synthetic_acceptance)?;
        }
        let Self { passes, lanes, .. } = self;
        answer(lanes, &ids, plans, number, &mut |text| {
            text.clone_into(&mut passes.text);
            beside(passes)
        })
    }

    fn passes(&mut self) -> &mut dyn PassBench {
        &mut self.passes
    }
}

/// A pass to be timed.
#[derive(Clone, Copy, Debug)]
pub struct TimedPass<'a> {
    /// Its rows.
    pub rows: usize,
    /// Tokens in the cache behind it; fewer where the model's context is shorter.
    pub context: usize,
    /// The rows it gives logits for.
    pub logits: LogitRows,
    /// The layers it runs.
    pub layers: LayerPlan<'a>,
    /// The tokens it scores; `None` = all.
    pub vocab_subset: Option<&'a VocabSubset>,
}

impl TimedPass<'_> {
    /// As the target verifies, early in an answer: logits of all rows, all layers, all tokens.
    pub fn of(rows: usize) -> Self {
        Self { rows, context: CONTEXT, logits: LogitRows::All, layers: LayerPlan::All, vocab_subset: None }
    }
}

/// Seconds of one pass. What is in the cache is read before, unless as much is there already.
///
/// # Errors
/// When the model fails.
pub fn timed_pass(model: &mut dyn LanguageModel, pass: &TimedPass<'_>) -> Result<f64> {
    let &TimedPass { rows, context, logits, layers, vocab_subset } = pass;
    let context = context.min(model.info().context_length.saturating_sub(rows.max(READING)));
    let tokens = made_up_tokens(context + rows, model.info().n_vocab);
    // Which tokens those in the cache are changes no pass's time either.
    model.truncate(model.cache_len().min(context))?;
    for chunk in tokens[model.cache_len()..context].chunks(model.prefill_rows().max(1)) {
        model.forward(Step::chain(chunk, LogitRows::None))?;
    }
    let begun = Instant::now();
    model.forward(Step { vocab_subset, layers, ..Step::chain(&tokens[context..], logits) })?;
    let seconds = begun.elapsed().as_secs_f64();
    model.truncate(context)?;
    Ok(seconds)
}

/// Tokens to time a pass with: what they are changes no pass's time.
pub(super) fn made_up_tokens(count: usize, n_vocab: usize) -> Vec<TokenId> {
    (0..count).map(|i| ((i * 7 + 100) % n_vocab) as TokenId).collect()
}
