//! Search for the fixed draft tree with the most expected tokens (Sequoia, Chen et al., arXiv 2402.12374).
//!
//! At positions of plain answers, a probe drafts many siblings and a long chain. The target's probabilities show how often
//! a token is accepted, by its rank among siblings and by its depth. [`ExpectedTree::best`] finds the best tree for them.
//! It is then evaluated on other answers, next to a chain and to the tree that grows by confidence.
//!
//! No time is measured, and acceptance is computed exactly, as in [`drafts`](super::drafts).

use serde::Serialize;

use crate::bench::drafts::{EVERY, ahead, mean, plain_text};
use crate::bench::figures::Estimate;
use crate::bench::runner::BenchPlan;
use crate::bench::{MethodConfig, Suite};
use crate::engine::WallClock;
use crate::generate::{Models, Prompt, evaluate_drafts};
use hunch_core::depth::MaxDraft;
use hunch_core::limits::MAX_DRAFT;
use hunch_core::method::Method;
use hunch_core::propose::OptionName;
use hunch_core::propose::draft_tree::TreeShape;
use hunch_core::session::DraftQuality;
use hunch_core::theory::ExpectedTree;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};

/// Siblings of the probe after the text. The first begins a chain with the tokens that are left.
const SIBLINGS: usize = 8;

/// Acceptance of drafted tokens that are tested.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TreeAcceptance {
    /// By rank among siblings after the text: all before it were rejected.
    pub by_rank: Vec<f64>,
    /// Acceptance of first children, by depth: all tokens before it were accepted.
    pub by_depth: Vec<f64>,
}

impl TreeAcceptance {
    /// Computes the acceptance from drafts of the probe. A token that was never tested counts as rejected.
    fn of(drafts: &[DraftQuality]) -> Self {
        let rate = |depth: usize, rank: usize| {
            let tests = drafts.iter().flat_map(|draft| &draft.tests);
            let (tested, accepted) = tests
                .filter(|test| (test.depth, test.rank) == (depth, rank))
                .fold((0.0, 0.0), |sums, test| (sums.0 + test.odds.tested, sums.1 + test.odds.accepted));
            if tested > 0.0 { accepted / tested } else { 0.0 }
        };
        Self {
            by_rank: (0..SIBLINGS).map(|rank| rate(0, rank)).collect(),
            by_depth: (0..=MAX_DRAFT - SIBLINGS).map(|depth| rate(depth, 0)).collect(),
        }
    }

    /// Returns the acceptance of a token, whose later siblings are accepted as often at every depth. It never increases
    /// with the rank.
    fn at(&self, depth: usize, rank: usize) -> f64 {
        let first = self.by_depth.get(depth).copied().unwrap_or(0.0);
        match self.by_rank.get(..=rank) {
            Some(ranks) => ranks[1..].iter().copied().fold(first, f64::min),
            None => 0.0,
        }
    }

    /// Returns the shape of `nodes` tokens with the most expected tokens.
    fn best(&self, nodes: usize) -> TreeShape {
        let tree = ExpectedTree::best(nodes, |depth, rank| self.at(depth, rank));
        TreeShape::by_node(&tree.children())
    }
}

/// Shape of a tree, with what it yields.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShapeReport {
    /// The shape.
    pub shape: TreeShape,
    /// Mean tokens of a draft.
    pub drafted: f64,
    /// Expected tokens of a target pass: the accepted ones and one more.
    pub tokens: Estimate,
    /// Difference in `tokens` to the tree that grows by confidence. `None` for that tree.
    pub ahead: Option<Estimate>,
}

/// Result of a search for one method, suite and number of tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TreeSearch {
    /// Name of the suite.
    pub suite: String,
    /// The method.
    pub method: Method,
    /// Most tokens of a draft.
    pub nodes: usize,
    /// Acceptance at the positions that were searched.
    pub acceptance: TreeAcceptance,
    /// Positions that were searched.
    pub searched: usize,
    /// Positions of other answers, on which the shapes were evaluated.
    pub evaluated: usize,
    /// The tree that grows by confidence, the chain, and the best fixed tree.
    pub shapes: Vec<ShapeReport>,
}

impl TreeSearch {
    /// Returns the best fixed tree.
    pub fn found(&self) -> &ShapeReport {
        self.shapes.last().expect("every search has shapes")
    }
}

/// An answer of plain decoding.
struct Text {
    prompt: Vec<TokenId>,
    answer: Vec<TokenId>,
    run: usize,
}

/// Searches for the best tree of every method, suite and number of tokens of the plan.
///
/// Every second prompt of a suite is searched, and the others are for the evaluation.
///
/// # Errors
/// [`Error::InvalidRequest`] if a method drafts no trees, a number of tokens is not fixed, or a suite has one prompt. The
/// errors of [`evaluate_drafts`].
pub fn search(
    models: &mut Models,
    plan: &BenchPlan,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<TreeSearch>> {
    let configs = check(plan)?;
    let texts: usize = plan.suites.iter().map(|suite| suite.prompts.len() * plan.runs).sum();
    let clock = WallClock::start();
    let mut done = 0;
    let mut found = Vec::new();
    for suite in &plan.suites {
        let (mut searched, mut others) = (Vec::new(), Vec::new());
        for (i, prompt) in suite.prompts.iter().enumerate() {
            let ids = models.prompt_ids(&Prompt::Chat(prompt.messages()))?;
            for run in 0..plan.runs {
                progress(done, texts);
                let answer = plain_text(models, &ids, plan, run, &clock)?;
                let half = if i % 2 == 0 { &mut searched } else { &mut others };
                half.push(Text { prompt: ids.clone(), answer, run });
                done += 1;
            }
        }
        let mut drafts = |shape: &TreeShape, config: MethodConfig, texts: &[Text]| {
            let evaluate = |text: &Text| {
                let mut generation = plan.generation(config, text.run);
                generation.options.tree = shape.clone();
                evaluate_drafts(models, (&text.prompt, &text.answer), EVERY, &generation, &clock)
            };
            texts.iter().map(evaluate).collect::<Result<Vec<_>>>()
        };
        for of_method in configs.chunk_by(|(a, _), (b, _)| a.method == b.method) {
            let longest = MethodConfig { max_draft: MaxDraft::Fixed(MAX_DRAFT as u32), ..of_method[0].0 };
            let probed = drafts(&probe(), longest, &searched)?.concat();
            let acceptance = TreeAcceptance::of(&probed);
            for &(config, nodes) in of_method {
                let shapes =
                    [TreeShape::Dynamic, TreeShape::by_level(vec![1; nodes]), acceptance.best(nodes)];
                let qualities =
                    shapes.iter().map(|shape| drafts(shape, config, &others)).collect::<Result<Vec<_>>>()?;
                let reports = shapes.into_iter().zip(&qualities);
                found.push(TreeSearch {
                    suite: suite.name.clone(),
                    method: config.method,
                    nodes,
                    searched: probed.len(),
                    evaluated: qualities[0].iter().map(Vec::len).sum(),
                    shapes: reports.map(|(shape, own)| report(shape, own, &qualities[0])).collect(),
                    acceptance: acceptance.clone(),
                });
            }
        }
    }
    Ok(found)
}

/// Returns the methods of a plan with their numbers of tokens.
fn check(plan: &BenchPlan) -> Result<Vec<(MethodConfig, usize)>> {
    if let Some(Suite { name, .. }) = plan.suites.iter().find(|suite| suite.prompts.len() < 2) {
        return Err(Error::invalid(format!(
            "{name} has one prompt. The search needs two or more: one to search, one to evaluate."
        )));
    }
    if plan.options.tree != TreeShape::Dynamic {
        return Err(Error::invalid("The search tries its own trees. Leave out --tree."));
    }
    let drafting: Vec<MethodConfig> =
        plan.configs.iter().copied().filter(|config| config.method != Method::Plain).collect();
    if drafting.is_empty() {
        return Err(Error::invalid(
            "No loaded model drafts trees. Name a draft model with --draft, or a head with --head.",
        ));
    }
    drafting
        .into_iter()
        .map(|config| {
            if !drafts_trees(config.method) {
                return Err(Error::invalid(format!(
                    "{} drafts no trees. Choose draft-tree or head-tree.",
                    config.method
                )));
            }
            match config.max_draft {
                MaxDraft::Fixed(nodes) => Ok((config, nodes as usize)),
                MaxDraft::Auto => Err(Error::invalid(
                    "The search needs a number of tokens: --max-draft 8, for example, and not auto.",
                )),
            }
        })
        .collect()
}

/// Returns whether a method drafts trees whose shape can be fixed.
pub fn drafts_trees(method: Method) -> bool {
    method.options().any(|option| option == OptionName::Tree)
}

/// Returns the tree that is drafted to measure acceptance.
fn probe() -> TreeShape {
    let mut levels = vec![vec![SIBLINGS], vec![0; SIBLINGS]];
    levels[1][0] = 1;
    levels.extend((SIBLINGS + 1..MAX_DRAFT).map(|_| vec![1]));
    TreeShape::by_node(&levels)
}

fn report(shape: TreeShape, own: &[Vec<DraftQuality>], dynamic: &[Vec<DraftQuality>]) -> ShapeReport {
    let ahead = if shape == TreeShape::Dynamic { None } else { ahead(own, dynamic) };
    ShapeReport {
        shape,
        drafted: mean(own, |draft| draft.nodes as f64).mean,
        tokens: mean(own, |draft| draft.tokens),
        ahead,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hunch_core::session::NodeTest;
    use hunch_core::verify::NodeOdds;

    fn tested(depth: usize, rank: usize, tested: f64, accepted: f64) -> NodeTest {
        NodeTest { depth, rank, odds: NodeOdds { tested, accepted } }
    }

    #[test]
    fn acceptance_is_the_share_of_tests() {
        let draft = |tests| DraftQuality { tests, ..DraftQuality::default() };
        let drafts = [
            draft(vec![tested(0, 0, 1.0, 0.5), tested(0, 1, 0.5, 0.1), tested(1, 0, 0.5, 0.4)]),
            draft(vec![tested(0, 0, 1.0, 0.7), tested(0, 1, 0.3, 0.3), tested(1, 0, 0.7, 0.2)]),
        ];
        let acceptance = TreeAcceptance::of(&drafts);
        assert_eq!(acceptance.by_rank[..3], [0.6, 0.5, 0.0]);
        assert_eq!(acceptance.by_depth[..3], [0.6, 0.5000000000000001, 0.0]);
        assert_eq!((acceptance.at(0, 1), acceptance.at(5, 1), acceptance.at(0, 40)), (0.5, 0.0, 0.0));
    }

    #[test]
    fn finds_wide_trees_for_uncertain_drafts_and_long_ones_for_certain_drafts() {
        let acceptance = |first: f64, ratio: f64| TreeAcceptance {
            by_rank: (0..8).map(|rank| first * ratio.powi(rank)).collect(),
            by_depth: vec![first; 8],
        };
        assert_eq!(acceptance(0.2, 0.9).best(4).to_string(), "4");
        assert_eq!(acceptance(0.9, 0.2).best(4).to_string(), "1x1x1x1");
        assert_eq!(acceptance(0.5, 0.8).best(6).to_string(), "2x2,1x1,0");
    }

    #[test]
    fn probe_has_siblings_and_a_chain() {
        assert_eq!(probe().to_string(), "8x1,0x1x1x1x1x1x1");
    }
}
