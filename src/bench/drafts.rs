//! Quality of drafts by method and size, at the same positions of plain decoding's answers.
//!
//! No time is measured. Acceptance is computed exactly instead of sampled, so few tokens suffice to compare methods.

use serde::Serialize;

use crate::bench::MethodConfig;
use crate::bench::figures::{Estimate, mean_of_texts};
use crate::bench::runner::BenchPlan;
use crate::engine::WallClock;
use crate::generate::{Models, Prompt, answer_ids, evaluate_drafts};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::model::DraftWindow;
use hunch_core::session::{DraftQuality, Overlap};
use hunch_core::token::TokenId;
use hunch_error::Result;

/// Tokens between positions. Neighbouring positions are strongly correlated.
pub(super) const EVERY: usize = 4;

/// Drafts of one method along the answers to a suite.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DraftsReport {
    /// Name of the suite.
    pub suite: String,
    /// The method.
    pub method: Method,
    /// Most tokens of a draft.
    pub max_draft: MaxDraft,
    /// Last tokens of the cache that drafts read. `None` if they read all.
    pub draft_window: Option<usize>,
    /// Number of positions.
    pub places: usize,
    /// Mean tokens of a draft.
    pub drafted: f64,
    /// Mean length of the longest path of a draft.
    pub depth: f64,
    /// Expected tokens of a target pass: the accepted ones and one more.
    pub tokens: Estimate,
    /// Difference in `tokens` to the first row of the same size. `None` for that row itself.
    pub ahead: Option<Estimate>,
    /// Sum of min(p, q) over the next token. `None`, like the next two, where drafts have no distribution.
    pub acceptance: Option<Estimate>,
    /// p of the most likely token under q.
    pub likeliest: Option<Estimate>,
    /// Sum of p q.
    pub matching: Option<Estimate>,
}

/// Drafts of one row of the report.
#[derive(Clone, Copy, Debug)]
struct Row {
    config: MethodConfig,
    window: Option<DraftWindow>,
}

/// Evaluates drafts along `runs` plain answers to every prompt of the plan, with each of these draft windows.
///
/// # Errors
/// As [`evaluate_drafts`].
pub fn measure(
    models: &mut Models,
    plan: &BenchPlan,
    windows: &[Option<DraftWindow>],
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<DraftsReport>> {
    let drafting = plan.configs.iter().filter(|config| config.method != Method::Plain);
    let rows: Vec<Row> =
        drafting.flat_map(|&config| windows.iter().map(move |&window| Row { config, window })).collect();
    let total: usize = plan.suites.iter().map(|suite| suite.prompts.len() * plan.runs).sum();
    let mut reports = Vec::new();
    let mut done = 0;
    for suite in &plan.suites {
        // By method, then by text.
        let mut qualities: Vec<Vec<Vec<DraftQuality>>> = vec![Vec::new(); rows.len()];
        for prompt in &suite.prompts {
            let ids = models.prompt_ids(&Prompt::Chat(prompt.messages()))?;
            for run in 0..plan.runs {
                progress(done, total);
                let clock = WallClock::start();
                let text = plain_text(models, &ids, plan, run, &clock)?;
                for (row, texts) in rows.iter().zip(&mut qualities) {
                    let mut generation = plan.generation(row.config, run);
                    generation.options.draft_window = row.window;
                    texts.push(evaluate_drafts(models, (&ids, &text), EVERY, &generation, &clock)?);
                }
                done += 1;
            }
        }
        for (at, &row) in rows.iter().enumerate() {
            let first = rows.iter().position(|other| other.config.max_draft == row.config.max_draft);
            let rival = first.filter(|first| *first != at).map(|first| &qualities[first][..]);
            reports.push(report(&suite.name, row, &qualities[at], rival));
        }
    }
    Ok(reports)
}

/// Returns the tokens of plain decoding's answer.
pub(super) fn plain_text(
    models: &mut Models,
    prompt: &[TokenId],
    plan: &BenchPlan,
    run: usize,
    clock: &WallClock,
) -> Result<Vec<TokenId>> {
    let plain = plan.generation(MethodConfig { method: Method::Plain, max_draft: MaxDraft::Auto }, run);
    answer_ids(models, prompt, &plain, clock).map(|(text, _)| text)
}

fn report(
    suite: &str,
    Row { config, window }: Row,
    texts: &[Vec<DraftQuality>],
    rival: Option<&[Vec<DraftQuality>]>,
) -> DraftsReport {
    let overlap = |of: fn(Overlap) -> f64| mean_of_texts(&figures(texts, |draft| draft.overlap.map(of)));
    let mean = |of: fn(&DraftQuality) -> f64| mean(texts, of);
    DraftsReport {
        suite: suite.into(),
        method: config.method,
        max_draft: config.max_draft,
        draft_window: window.map(DraftWindow::tokens),
        places: texts.iter().map(Vec::len).sum(),
        drafted: mean(|draft| draft.nodes as f64).mean,
        depth: mean(|draft| draft.depth as f64).mean,
        tokens: mean(|draft| draft.tokens),
        ahead: rival.and_then(|rival| ahead(texts, rival)),
        acceptance: overlap(|overlap| overlap.acceptance),
        likeliest: overlap(|overlap| overlap.likeliest),
        matching: overlap(|overlap| overlap.matching),
    }
}

/// Returns the mean of a figure over all positions.
pub(super) fn mean(texts: &[Vec<DraftQuality>], of: impl Fn(&DraftQuality) -> f64) -> Estimate {
    mean_of_texts(&figures(texts, |draft| Some(of(draft)))).unwrap_or_default()
}

/// Returns the mean difference in expected tokens to other drafts at the same positions.
pub(super) fn ahead(own: &[Vec<DraftQuality>], rival: &[Vec<DraftQuality>]) -> Option<Estimate> {
    let pairs = |(own, other): (&Vec<DraftQuality>, &Vec<DraftQuality>)| {
        own.iter().zip(other).map(|(own, other)| own.tokens - other.tokens).collect()
    };
    mean_of_texts(&own.iter().zip(rival).map(pairs).collect::<Vec<_>>())
}

/// Returns a figure of every position that has it, by text.
fn figures(texts: &[Vec<DraftQuality>], of: impl Fn(&DraftQuality) -> Option<f64>) -> Vec<Vec<f64>> {
    texts.iter().map(|text| text.iter().filter_map(&of).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compares_methods_position_by_position() {
        let worth = |tokens| DraftQuality { nodes: 2, depth: 1, tokens, ..DraftQuality::default() };
        let texts = |texts: &[&[f64]]| -> Vec<Vec<DraftQuality>> {
            texts.iter().map(|text| text.iter().copied().map(worth).collect()).collect()
        };
        let (own, rival) = (texts(&[&[1.0, 3.0], &[2.0]]), texts(&[&[1.0, 2.0], &[1.5]]));
        let config = MethodConfig { method: Method::DraftTree, max_draft: MaxDraft::Fixed(2) };
        let report = report("prose", Row { config, window: None }, &own, Some(&rival));
        assert_eq!((report.places, report.drafted, report.depth), (3, 2.0, 1.0));
        assert_eq!((report.tokens.mean, report.ahead.unwrap().mean), (2.0, 0.5));
        assert_eq!(report.acceptance, None);
    }
}
