//! What drafts are worth, by method and size, at the same places of the same texts, which plain decoding has answered.
//! No time is measured and no luck of verification counts, so that methods are told apart with few tokens.

use serde::Serialize;

use crate::bench::Contender;
use crate::bench::figures::{Estimate, mean_of_texts};
use crate::bench::runner::BenchPlan;
use crate::engine::WallClock;
use crate::event::GenerationEvent;
use crate::generate::{GenerationContext, Models, Prompt, generate, weigh_drafts};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::session::{DraftWorth, Overlap};
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
    /// The sum of min(p, q) over the next token; like the two below only where drafts are drawn from a law.
    pub acceptance: Option<Estimate>,
    /// p of the token that q holds likeliest.
    pub likeliest: Option<Estimate>,
    /// The sum of p q.
    pub matching: Option<Estimate>,
}

/// Weighs drafts along plain answers to every prompt of the plan, `runs` of each.
///
/// # Errors
/// As [`weigh_drafts`].
pub fn measure(
    models: &mut Models,
    plan: &BenchPlan,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<DraftsReport>> {
    let drafting = |contender: &&Contender| contender.method != Method::Plain;
    let contenders: Vec<Contender> = plan.contenders.iter().filter(drafting).copied().collect();
    let total: usize = plan.suites.iter().map(|suite| suite.prompts.len() * plan.runs).sum();
    let mut reports = Vec::new();
    let mut done = 0;
    for suite in &plan.suites {
        // By contender, then by text.
        let mut worths: Vec<Vec<Vec<DraftWorth>>> = vec![Vec::new(); contenders.len()];
        for prompt in &suite.prompts {
            let ids = models.prompt_ids(&Prompt::Chat(prompt.messages()))?;
            for run in 0..plan.runs {
                progress(done, total);
                let clock = WallClock::start();
                let text = plain_text(models, &ids, plan, run, &clock)?;
                for (&contender, worths) in contenders.iter().zip(&mut worths) {
                    let generation = plan.generation(contender, run);
                    worths.push(weigh_drafts(models, (&ids, &text), EVERY, &generation, &clock)?);
                }
                done += 1;
            }
        }
        for (at, &contender) in contenders.iter().enumerate() {
            let first = contenders.iter().position(|other| other.max_draft == contender.max_draft);
            let rival = first.filter(|first| *first != at).map(|first| &worths[first][..]);
            reports.push(report(&suite.name, contender, &worths[at], rival));
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
    let plain = plan.generation(Contender { method: Method::Plain, max_draft: MaxDraft::Auto }, run);
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
    contender: Contender,
    texts: &[Vec<DraftWorth>],
    rival: Option<&[Vec<DraftWorth>]>,
) -> DraftsReport {
    let figure = |of: fn(&DraftWorth) -> f64| figures(texts, |worth| Some(of(worth)));
    let overlap = |of: fn(Overlap) -> f64| mean_of_texts(&figures(texts, |worth| worth.overlap.map(of)));
    let mean = |of| mean_of_texts(&figure(of)).unwrap_or_default();
    let ahead = rival.and_then(|rival| {
        let pairs = |(own, other): (&Vec<DraftWorth>, &Vec<DraftWorth>)| {
            own.iter().zip(other).map(|(own, other)| own.tokens - other.tokens).collect()
        };
        mean_of_texts(&texts.iter().zip(rival).map(pairs).collect::<Vec<_>>())
    });
    DraftsReport {
        suite: suite.into(),
        method: contender.method,
        max_draft: contender.max_draft,
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
fn figures(texts: &[Vec<DraftWorth>], of: impl Fn(&DraftWorth) -> Option<f64>) -> Vec<Vec<f64>> {
    texts.iter().map(|text| text.iter().filter_map(&of).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_compared_place_by_place() {
        let worth = |tokens| DraftWorth { nodes: 2, depth: 1, tokens, overlap: None };
        let texts = |texts: &[&[f64]]| -> Vec<Vec<DraftWorth>> {
            texts.iter().map(|text| text.iter().copied().map(worth).collect()).collect()
        };
        let (own, rival) = (texts(&[&[1.0, 3.0], &[2.0]]), texts(&[&[1.0, 2.0], &[1.5]]));
        let contender = Contender { method: Method::DraftTree, max_draft: MaxDraft::Fixed(2) };
        let report = report("prose", contender, &own, Some(&rival));
        assert_eq!((report.places, report.drafted, report.depth), (3, 2.0, 1.0));
        assert_eq!((report.tokens.mean, report.ahead.unwrap().mean), (2.0, 0.5));
        assert_eq!(report.acceptance, None);
    }
}
