//! What drafts are worth, by method and size, at the same places of the same texts, which plain decoding has answered.
//! No time is measured and no luck of verification counts, so that methods are told apart with few tokens.

use serde::Serialize;

use crate::bench::MethodConfig;
use crate::bench::figures::{Estimate, mean_of_texts};
use crate::bench::runner::BenchPlan;
use crate::engine::WallClock;
use crate::event::GenerationEvent;
use crate::generate::{GenerationContext, Models, Prompt, evaluate_drafts, generate};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::session::{DraftQuality, Overlap};
use hunch_core::token::TokenId;
use hunch_error::Result;

/// Tokens from one place to the next: neighbours say much the same.
const EVERY: usize = 4;

/// The drafts of a method along the texts of a suite.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DraftsReport {
    /// The suite.
    pub suite: String,
    /// The method.
    pub method: Method,
    /// Most tokens of a draft.
    pub max_draft: MaxDraft,
    /// Places where it drafted or might have.
    pub places: usize,
    /// Tokens of a draft, mean.
    pub drafted: f64,
    /// The longest path of a draft, mean.
    pub depth: f64,
    /// Tokens that a target pass gives on average, one more than it accepts.
    pub tokens: Estimate,
    /// How many more these are than those of the first method with as large drafts; `None` for that one itself.
    pub ahead: Option<Estimate>,
    /// The sum of min(p, q) over the next token; like the two below only where drafts are drawn from a distribution.
    pub acceptance: Option<Estimate>,
    /// p of the token that q holds likeliest.
    pub likeliest: Option<Estimate>,
    /// The sum of p q.
    pub matching: Option<Estimate>,
}

/// Weighs drafts along plain answers to every prompt of the plan, `runs` of each.
///
/// # Errors
/// As [`evaluate_drafts`].
pub fn measure(
    models: &mut Models,
    plan: &BenchPlan,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<DraftsReport>> {
    let drafting = |config: &&MethodConfig| config.method != Method::Plain;
    let configs: Vec<MethodConfig> = plan.configs.iter().filter(drafting).copied().collect();
    let total: usize = plan.suites.iter().map(|suite| suite.prompts.len() * plan.runs).sum();
    let mut reports = Vec::new();
    let mut done = 0;
    for suite in &plan.suites {
        // By config, then by text.
        let mut worths: Vec<Vec<Vec<DraftQuality>>> = vec![Vec::new(); configs.len()];
        for prompt in &suite.prompts {
            let ids = models.prompt_ids(&Prompt::Chat(prompt.messages()))?;
            for run in 0..plan.runs {
                progress(done, total);
                let clock = WallClock::start();
                let text = plain_text(models, &ids, plan, run, &clock)?;
                for (&config, worths) in configs.iter().zip(&mut worths) {
                    let generation = plan.generation(config, run);
                    worths.push(evaluate_drafts(models, (&ids, &text), EVERY, &generation, &clock)?);
                }
                done += 1;
            }
        }
        for (at, &config) in configs.iter().enumerate() {
            let first = configs.iter().position(|other| other.max_draft == config.max_draft);
            let rival = first.filter(|first| *first != at).map(|first| &worths[first][..]);
            reports.push(report(&suite.name, config, &worths[at], rival));
        }
    }
    Ok(reports)
}

/// What plain decoding answers.
fn plain_text(
    models: &mut Models,
    prompt: &[TokenId],
    plan: &BenchPlan,
    run: usize,
    clock: &WallClock,
) -> Result<Vec<TokenId>> {
    let plain = plan.generation(MethodConfig { method: Method::Plain, max_draft: MaxDraft::Auto }, run);
    let mut text = Vec::new();
    let mut sink = |event: GenerationEvent| text.extend(event.tokens().iter().map(|token| token.id));
    let context = GenerationContext {
        id: 0,
        clock,
        begun: 0,
        dropped: 0,
        cancelled: &|| false,
        strict_drafts: true,
        template_note: None,
    };
    let finished = generate(models, prompt, &plain, &context, &mut sink)?;
    sink(finished.into_event());
    Ok(text)
}

fn report(
    suite: &str,
    config: MethodConfig,
    texts: &[Vec<DraftQuality>],
    rival: Option<&[Vec<DraftQuality>]>,
) -> DraftsReport {
    let figure = |of: fn(&DraftQuality) -> f64| figures(texts, |worth| Some(of(worth)));
    let overlap = |of: fn(Overlap) -> f64| mean_of_texts(&figures(texts, |worth| worth.overlap.map(of)));
    let mean = |of| mean_of_texts(&figure(of)).unwrap_or_default();
    let ahead = rival.and_then(|rival| {
        let pairs = |(own, other): (&Vec<DraftQuality>, &Vec<DraftQuality>)| {
            own.iter().zip(other).map(|(own, other)| own.tokens - other.tokens).collect()
        };
        mean_of_texts(&texts.iter().zip(rival).map(pairs).collect::<Vec<_>>())
    });
    DraftsReport {
        suite: suite.into(),
        method: config.method,
        max_draft: config.max_draft,
        places: texts.iter().map(Vec::len).sum(),
        drafted: mean(|worth| worth.nodes as f64).mean,
        depth: mean(|worth| worth.depth as f64).mean,
        tokens: mean(|worth| worth.tokens),
        ahead,
        acceptance: overlap(|overlap| overlap.acceptance),
        likeliest: overlap(|overlap| overlap.likeliest),
        matching: overlap(|overlap| overlap.matching),
    }
}

/// A figure of every place that has it, by text.
fn figures(texts: &[Vec<DraftQuality>], of: impl Fn(&DraftQuality) -> Option<f64>) -> Vec<Vec<f64>> {
    texts.iter().map(|text| text.iter().filter_map(&of).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_compared_place_by_place() {
        let worth = |tokens| DraftQuality { nodes: 2, depth: 1, tokens, ..DraftQuality::default() };
        let texts = |texts: &[&[f64]]| -> Vec<Vec<DraftQuality>> {
            texts.iter().map(|text| text.iter().copied().map(worth).collect()).collect()
        };
        let (own, rival) = (texts(&[&[1.0, 3.0], &[2.0]]), texts(&[&[1.0, 2.0], &[1.5]]));
        let config = MethodConfig { method: Method::DraftTree, max_draft: MaxDraft::Fixed(2) };
        let report = report("prose", config, &own, Some(&rival));
        assert_eq!((report.places, report.drafted, report.depth), (3, 2.0, 1.0));
        assert_eq!((report.tokens.mean, report.ahead.unwrap().mean), (2.0, 0.5));
        assert_eq!(report.acceptance, None);
    }
}
