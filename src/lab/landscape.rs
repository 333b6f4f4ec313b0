//! Predicted speedup over alpha and K, the best K, and the alpha from which drafting pays.
//!
//! Drafts are chains, trees or looked up, for one conversation or a batch of them.
//! Costs are passed in, measured or assumed. Formulas come from [`hunch_core::theory`].

use crate::lab::report::{LabDraft, Landscape};
use hunch_core::limits::MAX_DRAFT;
use hunch_core::method::Method;
use hunch_core::pass_cost::{CostCurve, CostPoint, PassCost};
use hunch_core::theory::{self, ExpectedTree};
use hunch_error::{Error, Refusal, Result};

/// Steps from alpha 0 to alpha 1.
const STEPS: u32 = 50;
/// Bisection steps of the break-even search: the precision of an f64 near 1.
const HALVINGS: u32 = 52;
/// Largest assumed cost, in target passes of one row.
const MAX_COST: f64 = 2.0;
/// Most conversations that share a pass.
pub const MAX_BATCH: u32 = 64;

/// Cost of drafting, in target passes of one row.
#[derive(Clone, Debug, PartialEq)]
enum DraftCost {
    /// Drafts are looked up, which costs nothing.
    Free,
    /// A pass for each level of the drafts, by the rows of the level. Conversations share it.
    Levels(PassCost),
    /// A run of a head for each conversation.
    Head {
        /// Cost of a run by the tokens that it drafts.
        run: PassCost,
        /// Tokens that a run drafts.
        tokens: usize,
    },
    /// A run of a head for each level of a tree and each conversation, by the rows of the level.
    HeadLevels(PassCost),
}

impl DraftCost {
    /// Returns the cost of drafting for `batch` conversations, with the rows of each level of a draft.
    fn round(&self, levels: &[usize], batch: usize) -> f64 {
        match self {
            Self::Free => 0.0,
            Self::Levels(pass) => levels.iter().map(|rows| pass.at(batch * rows)).sum(),
            Self::Head { run, tokens } => {
                let runs = levels.chunks(*tokens).map(|drafted| run.at(drafted.len()));
                batch as f64 * runs.sum::<f64>()
            }
            Self::HeadLevels(run) => batch as f64 * levels.iter().map(|rows| run.at(*rows)).sum::<f64>(),
        }
    }
}

/// Costs of drafting and verifying on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineCosts {
    /// Rows of the widest measured pass. `None` for assumed costs.
    measured_rows: Option<usize>,
    draft: DraftCost,
    /// Drafter whose costs were measured.
    drafter: Option<Method>,
    /// Most tokens of a draft.
    max_depth: usize,
    target: PassCost,
    /// c hat: operations per row of a draft pass, relative to the target. `None` if unknown.
    operations: Option<f64>,
}

impl MachineCosts {
    /// Creates costs from a cost curve, for drafts of a kind by a drafter. `None` is the draft model, or without one the
    /// first of the others that was measured.
    ///
    /// Each weight that a pass reads is one multiplication per row, so operations are counted by weights.
    ///
    /// # Errors
    /// As [`PassCost::new`]. [`Refusal::CostsNotMeasured`] if no pass of such drafts was measured.
    pub fn measured(curve: &CostCurve, drafter: Option<Method>, draft: LabDraft) -> Result<Self> {
        let widest = |points: &[CostPoint]| points.iter().map(|point| point.rows as usize).max();
        let free = Self {
            measured_rows: widest(&curve.target.points),
            draft: DraftCost::Free,
            drafter: None,
            max_depth: MAX_DRAFT,
            target: curve.target_cost()?,
            operations: Some(0.0),
        };
        if draft == LabDraft::Lookup {
            return Ok(free);
        }
        let by_draft_model = drafter.is_none_or(|drafter| drafter == Method::DraftModel);
        if let Some(model) = curve.draft.as_ref().filter(|_| by_draft_model) {
            let operations = model.weights.zip(curve.target.weights).map(|(d, t)| d as f64 / t.max(1) as f64);
            let draft = DraftCost::Levels(curve.in_target_passes(&model.points)?);
            return Ok(Self { draft, drafter: Some(Method::DraftModel), operations, ..free });
        }
        let is_tree = matches!(draft, LabDraft::Tree { .. });
        let mut known = curve.drafters.iter().filter_map(|costs| Some((costs, costs.drafter.parse().ok()?)));
        let (costs, drafter) = known
            .find(|&(costs, one)| {
                let is_known = !is_tree || one != Method::Head || costs.tree.is_some();
                drafter.is_none_or(|drafter| drafter == one) && is_known
            })
            .ok_or(Refusal::CostsNotMeasured)?;
        let run = curve.in_target_passes(&costs.points)?;
        let tokens = costs.tokens_of_a_pass.max(1) as usize;
        Ok(Self {
            draft: match (drafter, costs.tree.as_deref()) {
                (Method::Head, Some(levels)) if is_tree && !levels.is_empty() => {
                    DraftCost::HeadLevels(curve.in_target_passes(levels)?)
                }
                (Method::Head, _) => DraftCost::Head { run, tokens },
                _ => DraftCost::Levels(run),
            },
            drafter: Some(drafter),
            max_depth: costs.max_depth.map_or(MAX_DRAFT, |depth| (depth as usize).clamp(1, MAX_DRAFT)),
            operations: None,
            ..free
        })
    }

    /// Creates assumed costs: c, and the cost each further row adds to a target pass, both in target passes of one
    /// row. Rows add the same share to a draft pass, and a draft pass takes c of the target's operations.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when one of them is not from 0 to 2.
    pub fn assumed(draft_cost: f64, row_cost: f64) -> Result<Self> {
        for (name, value) in [("draft_cost", draft_cost), ("row_cost", row_cost)] {
            // Not `value < 0.0 || value > MAX_COST`: a NaN must fail.
            if !(0.0..=MAX_COST).contains(&value) {
                return Err(Error::invalid(format!(
                    "{name} is {value}; choose a number from 0 to {MAX_COST}, in target passes of one row."
                )));
            }
        }
        // Two points define the line.
        let line = |one: f64| PassCost::in_units_of(1.0, [(1, one), (2, one * (1.0 + row_cost))]);
        let draft = if draft_cost > 0.0 { DraftCost::Levels(line(draft_cost)?) } else { DraftCost::Free };
        Ok(Self {
            measured_rows: None,
            draft,
            drafter: None,
            max_depth: MAX_DRAFT,
            target: line(1.0)?,
            operations: Some(draft_cost),
        })
    }

    /// Returns the costs for drafts of this kind. Drafts that are looked up cost nothing.
    pub fn drafting(self, draft: LabDraft) -> Self {
        if draft != LabDraft::Lookup {
            return self;
        }
        let operations = Some(0.0);
        Self { draft: DraftCost::Free, drafter: None, max_depth: MAX_DRAFT, operations, ..self }
    }

    /// Returns the rows of the widest measured pass. `None` for assumed costs.
    pub fn measured_rows(&self) -> Option<u32> {
        self.measured_rows.map(|rows| rows as u32)
    }

    /// Returns the most tokens of a draft.
    pub(super) fn max_depth(&self) -> usize {
        self.max_depth
    }

    /// Returns the cost of a round of `batch` conversations that draft a chain of `depth` tokens each.
    pub(super) fn chain_round(&self, depth: usize, batch: usize) -> f64 {
        self.draft.round(&vec![1; depth], batch) + self.target.at(batch * (depth + 1))
    }

    /// Returns the cost of target passes by their rows.
    pub(super) fn target(&self) -> &PassCost {
        &self.target
    }

    /// Returns c, the cost of a drafted token in target passes of one row. If a head drafts all tokens in one run,
    /// it is the share of a token in the longest draft.
    fn draft_cost(&self) -> f64 {
        let tokens = if let DraftCost::Head { tokens, .. } = self.draft { tokens } else { 1 };
        self.draft.round(&vec![1; tokens], 1) / tokens as f64
    }
}

/// Predictions for drafts of one kind in a batch of conversations.
struct Prediction<'a> {
    costs: &'a MachineCosts,
    batch: usize,
    /// Acceptance of each sibling of a tree, as a share of that of the one before it. 0 for a chain.
    siblings: f64,
    /// Shapes that K tokens may form, by K - 1.
    shapes: Vec<Vec<ExpectedTree>>,
}

/// A round of some acceptance and draft length.
#[derive(Clone, Copy, Debug)]
struct PredictedRound {
    tokens: f64,
    /// Cost of the round of all conversations, in target passes of one row.
    cost: f64,
    speedup: f64,
    operations: Option<f64>,
}

/// Returns the acceptance of a node, by depth and rank. Drafts have no nodes from `max_depth` on.
fn falling(alpha: f64, siblings: f64, max_depth: usize) -> impl Fn(usize, usize) -> f64 {
    move |depth, rank| if depth < max_depth { alpha * siblings.powi(rank as i32) } else { 0.0 }
}

impl<'a> Prediction<'a> {
    /// Collects the shapes that have the most expected tokens at some alpha. Without siblings it is the chain alone.
    ///
    /// The shapes are the same at every alpha. A shape gains tokens with alpha at the same cost, so its speedup rises,
    /// and so does the best speedup of all shapes.
    fn new(costs: &'a MachineCosts, batch: usize, siblings: f64, alphas: &[f64]) -> Self {
        let max_depth = costs.max_depth;
        // A drafter of few levels may still draft many siblings.
        let most_nodes = if siblings > 0.0 { MAX_DRAFT } else { max_depth };
        let shapes = |nodes| {
            let best = |alpha: &f64| ExpectedTree::best(nodes, falling(*alpha, siblings, max_depth));
            let mut shapes: Vec<ExpectedTree> = Vec::new();
            for tree in alphas.iter().map(best).filter(|tree| tree.height() <= max_depth) {
                if !shapes.iter().any(|shape| shape.has_shape_of(&tree)) {
                    shapes.push(tree);
                }
            }
            shapes
        };
        // Siblings that are accepted almost never leave no tree of so few levels.
        let shapes = (1..=most_nodes).map(shapes).take_while(|shapes| !shapes.is_empty()).collect();
        Self { costs, batch, siblings, shapes }
    }

    /// Predicts a round with the fastest shape of `nodes` tokens.
    fn at(&self, alpha: f64, nodes: usize) -> PredictedRound {
        let rounds = self.shapes[nodes - 1].iter().map(|shape| self.round(alpha, shape));
        rounds.reduce(|a, b| if b.speedup > a.speedup { b } else { a }).expect("every length has a shape")
    }

    fn round(&self, alpha: f64, shape: &ExpectedTree) -> PredictedRound {
        let MachineCosts { draft, target, operations, .. } = self.costs;
        let tree = shape.with_acceptance(falling(alpha, self.siblings, self.costs.max_depth));
        let tokens = tree.tokens();
        let levels = tree.draft_rows();
        let cost = draft.round(&levels, self.batch) + target.at(self.batch * (tree.len() + 1));
        let fed = levels.iter().sum();
        PredictedRound {
            tokens,
            cost,
            speedup: tokens * target.at(self.batch) / cost,
            operations: operations.map(|ratio| theory::operations_factor(tokens, tree.len(), fed, ratio)),
        }
    }

    /// Returns the alpha from which drafting `nodes` tokens pays.
    fn break_even(&self, nodes: usize) -> Option<f64> {
        let pays = |shape| self.shape_break_even(shape);
        self.shapes[nodes - 1].iter().filter_map(pays).min_by(f64::total_cmp)
    }

    fn shape_break_even(&self, shape: &ExpectedTree) -> Option<f64> {
        let speedup = |alpha| self.round(alpha, shape).speedup;
        if speedup(1.0) <= 1.0 {
            return None;
        }
        let (mut low, mut high) = (0.0, 1.0);
        if speedup(low) >= 1.0 {
            return Some(low);
        }
        for _ in 0..HALVINGS {
            let middle = 0.5 * (low + high);
            if speedup(middle) > 1.0 {
                high = middle;
            } else {
                low = middle;
            }
        }
        Some(high)
    }
}

/// Checks a number of conversations that share a pass.
///
/// # Errors
/// [`Error::InvalidRequest`] when it is not from 1 to [`MAX_BATCH`].
pub fn check_batch(batch: u32) -> Result<()> {
    if (1..=MAX_BATCH).contains(&batch) {
        return Ok(());
    }
    Err(Error::invalid(format!("batch is {batch}; choose a number from 1 to {MAX_BATCH}.")))
}

/// Checks the acceptance of siblings.
///
/// # Errors
/// [`Error::InvalidRequest`] when it is not from 0 to 1.
pub fn check_draft(draft: LabDraft) -> Result<()> {
    match draft {
        // Not `siblings < 0.0 || siblings > 1.0`: a NaN must fail.
        LabDraft::Tree { siblings } if !(0.0..=1.0).contains(&siblings) => {
            Err(Error::invalid(format!("siblings is {siblings}; choose a number from 0 to 1.")))
        }
        _ => Ok(()),
    }
}

/// Computes the landscape over alpha = 0, 0.02, ... 1 and K = 1, 2, ... up to the longest draft, for `batch`
/// conversations that share every pass. Costs of more rows than were measured are extrapolated.
///
/// Each alpha and K has its fastest tree, out of those that have the most expected tokens at some alpha. See
/// [`ExpectedTree::best`].
///
/// # Errors
/// As [`check_batch`] and [`check_draft`].
pub fn landscape(costs: &MachineCosts, batch: u32, draft: LabDraft) -> Result<Landscape> {
    check_batch(batch)?;
    check_draft(draft)?;
    let siblings = if let LabDraft::Tree { siblings } = draft { siblings } else { 0.0 };
    let costs = &costs.clone().drafting(draft);
    let alphas: Vec<f64> = (0..=STEPS).map(|step| f64::from(step) / f64::from(STEPS)).collect();
    let prediction = Prediction::new(costs, batch as usize, siblings, &alphas);
    let depths = prediction.shapes.len();
    let row = |alpha: &f64| (1..=depths).map(|nodes| prediction.at(*alpha, nodes)).collect();
    let rounds: Vec<Vec<PredictedRound>> = alphas.iter().map(row).collect();
    let grid =
        |of: fn(&PredictedRound) -> f64| rounds.iter().map(|row| row.iter().map(of).collect()).collect();
    let best = |row: &Vec<PredictedRound>| theory::best_of(depths, |nodes| row[nodes - 1].speedup).0 as u32;
    let operations =
        |row: &Vec<PredictedRound>| row.iter().map(|round| round.operations).collect::<Option<Vec<f64>>>();
    Ok(Landscape {
        measured_rows: costs.measured_rows(),
        batch,
        draft,
        drafter: costs.drafter,
        draft_cost: costs.draft_cost(),
        operations_ratio: costs.operations,
        target_cost: (1..=depths + 1).map(|rows| costs.target.at(rows)).collect(),
        speedup: grid(|round| round.speedup),
        tokens: grid(|round| round.tokens),
        round_cost: grid(|round| round.cost),
        operations: rounds.iter().map(operations).collect(),
        best: rounds.iter().map(best).collect(),
        depths: (1..=depths as u32).collect(),
        break_even: (1..=depths).map(|nodes| prediction.break_even(nodes)).collect(),
        alphas,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lab::fixture::{self, PLAIN_MS, point};
    use hunch_core::pass_cost::DrafterCosts;

    #[test]
    fn reproduces_the_setting_of_the_paper() {
        let shown = landscape(&MachineCosts::assumed(0.1, 0.0).unwrap(), 1, LabDraft::Chain).unwrap();
        assert_eq!((shown.alphas.len(), shown.depths.len(), shown.speedup.len()), (51, 15, 51));
        assert_eq!((shown.alphas[40], shown.target_cost.len()), (0.8, 16));
        assert!(shown.measured_rows.is_none() && shown.target_cost.iter().all(|t| *t == 1.0));
        // As in the test of theory: at alpha 0.8 and c = 0.1 six tokens are best.
        assert_eq!(shown.best[40], 6);
        assert!((shown.speedup[40][5] - 2.470).abs() < 0.001);
        // One drafted token gains (1 + alpha) / (1 + c): it pays above alpha = c.
        assert!((shown.break_even[0].unwrap() - 0.1).abs() < 1e-12);
        assert_eq!((shown.best[0], shown.speedup[0][0]), (0, 1.0 / 1.1));
    }

    #[test]
    fn expensive_drafting_never_breaks_even() {
        let expensive = landscape(&MachineCosts::assumed(1.0, 0.5).unwrap(), 1, LabDraft::Chain).unwrap();
        assert!(expensive.break_even.iter().all(Option::is_none) && expensive.best.iter().all(|k| *k == 0));
        let free = landscape(&MachineCosts::assumed(0.0, 0.0).unwrap(), 1, LabDraft::Chain).unwrap();
        assert!(free.break_even.iter().all(|alpha| *alpha == Some(0.0)));
        assert_eq!(free.best[50], 15);
    }

    #[test]
    fn measured_costs_are_interpolated() {
        let costs = MachineCosts {
            measured_rows: Some(4),
            draft: DraftCost::Levels(PassCost::in_units_of(20.0, [(1, 5.0)]).unwrap()),
            drafter: Some(Method::DraftModel),
            max_depth: MAX_DRAFT,
            target: PassCost::new([(1, 20.0), (2, 24.0), (4, 40.0)]).unwrap(),
            operations: Some(0.25),
        };
        let shown = landscape(&costs, 1, LabDraft::Chain).unwrap();
        assert_eq!((shown.measured_rows, shown.operations_ratio), (Some(4), Some(0.25)));
        for (rows, cost) in [(1, 1.0), (2, 1.2), (3, 1.6), (4, 2.0), (5, 2.4)] {
            assert!((shown.target_cost[rows - 1] - cost).abs() < 1e-12);
        }
        assert!((shown.speedup[50][0] - 2.0 / 1.45).abs() < 1e-12);
    }

    /// Creates a curve of a target with steep passes, and of drafters.
    fn curve(drafters: Vec<DrafterCosts>) -> CostCurve {
        fixture::curve(vec![point(1, PLAIN_MS), point(2, 24.0)], drafters)
    }

    fn head(points: Vec<CostPoint>, tokens_of_a_pass: u32, max_depth: u32) -> DrafterCosts {
        DrafterCosts {
            drafter: Method::Head.name().into(),
            head: None,
            points,
            tokens_of_a_pass,
            max_depth: Some(max_depth),
            tree: None,
        }
    }

    #[test]
    fn tree_of_a_head_costs_its_levels_by_their_rows() {
        let draft = LabDraft::Tree { siblings: 0.9 };
        let of = |points: Vec<CostPoint>, tokens: u32, tree: Vec<CostPoint>| {
            let curve = curve(vec![DrafterCosts { tree: Some(tree), ..head(points, tokens, 4) }]);
            MachineCosts::measured(&curve, None, draft).unwrap()
        };
        let by_level = of(vec![point(1, 5.0)], 1, vec![point(1, 4.0), point(2, 6.0), point(4, 8.0)]);
        // The root's level, then one of two rows: 0.2 and 0.3 target passes, in each conversation.
        assert!((by_level.draft.round(&[1, 2], 3) - 1.5).abs() < 1e-12);
        let by_token = of(vec![point(1, 5.0)], 1, Vec::new());
        assert!((by_token.draft.round(&[1, 7], 1) - 0.5).abs() < 1e-12, "rows cost nothing");
        let in_one_pass = of(vec![point(1, 5.0), point(4, 6.0)], 4, Vec::new());
        assert!((in_one_pass.draft.round(&[1, 3, 5, 5], 1) - 0.3).abs() < 1e-12);
        let shown = landscape(&by_level, 1, draft).unwrap();
        let chain = MachineCosts { draft: DraftCost::Levels(PassCost::flat()), ..by_level.clone() };
        // Four levels hold trees of 15 tokens, which yield more than the longest chain.
        assert_eq!(shown.depths.len(), MAX_DRAFT);
        assert!(shown.tokens[25][14] > shown.tokens[25][3]);
        assert!(shown.tokens[50].iter().all(|tokens| *tokens <= 5.0), "{:?}", shown.tokens[50]);
        let rare = landscape(&by_level, 1, LabDraft::Tree { siblings: 1e-200 }).unwrap();
        assert!((4..MAX_DRAFT).contains(&rare.depths.len()), "{:?}", rare.depths);
        assert!(shown.tokens[10][3] > landscape(&chain, 1, LabDraft::Chain).unwrap().tokens[10][3]);
        assert_eq!((shown.drafter, shown.draft_cost), (Some(Method::Head), 0.2));
    }

    #[test]
    fn head_that_drafts_token_by_token_costs_its_own_runs() {
        let curve = curve(vec![head(vec![point(1, 5.0)], 1, 3)]);
        let costs = MachineCosts::measured(&curve, None, LabDraft::Chain).unwrap();
        let shown = landscape(&costs, 1, LabDraft::Chain).unwrap();
        assert_eq!((shown.drafter, shown.draft_cost), (Some(Method::Head), 0.25));
        assert_eq!((shown.depths, shown.speedup[0].len()), (vec![1, 2, 3], 3));
        // Three tokens are three runs and a target pass of four rows.
        assert!((shown.round_cost[0][2] - (0.75 + 1.6)).abs() < 1e-12);
        // Each conversation runs the head itself.
        let shared = landscape(&costs, 2, LabDraft::Chain).unwrap();
        assert!((shared.round_cost[0][0] - (0.5 + 1.6)).abs() < 1e-12);
    }

    #[test]
    fn head_that_drafts_in_one_pass_costs_one_run() {
        let curve = curve(vec![head(vec![point(1, 5.0), point(5, 6.0)], 5, 5)]);
        let costs = MachineCosts::measured(&curve, Some(Method::Head), LabDraft::Chain).unwrap();
        let shown = landscape(&costs, 1, LabDraft::Chain).unwrap();
        assert!((shown.draft_cost - 0.06).abs() < 1e-12);
        let drafting: Vec<f64> =
            (0..5).map(|at| shown.round_cost[0][at] - shown.target_cost[at + 1]).collect();
        assert!((drafting[0] - 0.25).abs() < 1e-12 && (drafting[4] - 0.3).abs() < 1e-12, "{drafting:?}");
    }

    #[test]
    fn drafts_that_were_not_measured_have_no_costs() {
        let refused = |curve: &CostCurve, drafter, draft| {
            let error = MachineCosts::measured(curve, drafter, draft).unwrap_err();
            assert!(error.to_string().contains("not measured"), "{error}");
        };
        let alone = curve(Vec::new());
        refused(&alone, None, LabDraft::Chain);
        assert_eq!(MachineCosts::measured(&alone, None, LabDraft::Lookup).unwrap().draft_cost(), 0.0);
        let by_head = curve(vec![head(vec![point(1, 5.0)], 1, 3)]);
        refused(&by_head, Some(Method::DraftModel), LabDraft::Chain);
        refused(&by_head, None, LabDraft::Tree { siblings: 0.5 });
    }

    #[test]
    fn rejects_costs_out_of_range() {
        for (draft, row) in [(-0.1, 0.0), (2.1, 0.0), (f64::NAN, 0.0), (0.0, f64::INFINITY)] {
            let error = MachineCosts::assumed(draft, row).unwrap_err().to_string();
            assert!(error.contains("from 0 to 2"), "{error}");
        }
        let costs = MachineCosts::assumed(0.1, 0.1).unwrap();
        for batch in [0, MAX_BATCH + 1] {
            assert!(
                landscape(&costs, batch, LabDraft::Chain).unwrap_err().to_string().contains("from 1 to 64")
            );
        }
    }

    #[test]
    fn figures_of_a_round_match_the_formulas() {
        let costs = MachineCosts::assumed(0.25, 0.1).unwrap();
        let shown = landscape(&costs, 4, LabDraft::Chain).unwrap();
        for (alpha, depth) in [(0, 1), (35, 5), (50, 15), (41, 2)] {
            let (a, column) = (shown.alphas[alpha], depth - 1);
            let near = |grid: &[Vec<f64>], expected: f64| {
                assert!((grid[alpha][column] - expected).abs() < 1e-12, "{a} {depth}");
            };
            let tokens = theory::expected_tokens(a, depth);
            near(&shown.tokens, tokens);
            let DraftCost::Levels(draft) = &costs.draft else { panic!("drafting has a cost") };
            let round = depth as f64 * draft.at(4) + costs.target().at(4 * (depth + 1));
            near(&shown.round_cost, round);
            near(&shown.speedup, tokens * costs.target().at(4) / round);
            near(shown.operations.as_ref().unwrap(), theory::operations_factor(tokens, depth, depth, 0.25));
        }
    }

    #[test]
    fn trees_differ_from_chains_by_their_siblings() {
        let costs = MachineCosts::assumed(0.1, 0.02).unwrap();
        let chain = landscape(&costs, 1, LabDraft::Chain).unwrap();
        let same = landscape(&costs, 1, LabDraft::Tree { siblings: 0.0 }).unwrap();
        assert_eq!((&chain.speedup, &chain.operations), (&same.speedup, &same.operations));
        let tree = landscape(&costs, 1, LabDraft::Tree { siblings: 0.8 }).unwrap();
        let (low, long) = (20, 11);
        assert!(tree.tokens[low][long] > 1.15 * chain.tokens[low][long], "alpha 0.4, 12 tokens");
        // Fewer levels are fewer draft passes, and each row of the target costs the same.
        assert!(tree.round_cost[low][long] < chain.round_cost[low][long]);
        assert!((1..15).all(|k| tree.tokens[low][k] >= chain.tokens[low][k] - 1e-12));
        assert!(landscape(&costs, 1, LabDraft::Tree { siblings: f64::NAN }).is_err());
        let looked_up = landscape(&costs, 1, LabDraft::Lookup).unwrap();
        assert_eq!((looked_up.draft_cost, looked_up.operations_ratio), (0.0, Some(0.0)));
        assert_eq!(looked_up.tokens, chain.tokens);
    }

    #[test]
    fn best_draft_is_shorter_in_larger_batches() {
        let costs = MachineCosts::assumed(0.1, 0.1).unwrap();
        let best = |batch| landscape(&costs, batch, LabDraft::Chain).unwrap().best[40];
        let depths = [1, 2, 4, 8, 16, 32].map(best);
        assert!(depths.is_sorted_by(|a, b| a >= b) && depths[0] > 2 && depths[5] == 0, "{depths:?}");
        let from = |batch| landscape(&costs, batch, LabDraft::Chain).unwrap().break_even[0].unwrap();
        assert!(from(1) < from(4) && from(4) < from(16));
    }

    #[test]
    fn tree_pays_at_every_alpha_above_its_break_even() {
        // A pair of equal siblings pays from 1 - sqrt(1/2) on. The tree with the most tokens, a chain
        // above 1/2, pays from 0.62 on.
        let costs = MachineCosts::assumed(0.5, 0.0).unwrap();
        let shown = landscape(&costs, 1, LabDraft::Tree { siblings: 1.0 }).unwrap();
        assert!((shown.break_even[1].unwrap() - (1.0 - 0.5f64.sqrt())).abs() < 1e-12);
        // At alpha 0.4 the pair takes one row of the draft, and one row more than two of the target.
        let operations = shown.operations.unwrap();
        assert!((shown.tokens[20][1] - 1.64).abs() < 1e-12 && (operations[20][1] - 3.5 / 1.64).abs() < 1e-12);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn line_of_break_even_matches_the_speedups(
            (draft, row) in (0.0f64..=2.0, 0.0f64..=2.0),
            batch in 1u32..=64,
            siblings in prop::option::of(0.0f64..=1.0),
        ) {
            let costs = MachineCosts::assumed(draft, row).unwrap();
            let drafted = siblings.map_or(LabDraft::Chain, |siblings| LabDraft::Tree { siblings });
            let shown = landscape(&costs, batch, drafted).unwrap();
            for (column, alpha) in shown.break_even.iter().enumerate() {
                for (row, at) in shown.speedup.iter().zip(&shown.alphas) {
                    let speedup = row[column];
                    match alpha {
                        Some(alpha) if at >= alpha => prop_assert!(speedup > 1.0 - 1e-9, "{at} {speedup}"),
                        _ => prop_assert!(speedup < 1.0 + 1e-9, "{at} {speedup}"),
                    }
                }
            }
            let chain = landscape(&costs, batch, LabDraft::Chain).unwrap();
            for (at, row) in shown.speedup.iter().enumerate() {
                prop_assert!(row.iter().all(|s| s.is_finite() && *s > 0.0));
                prop_assert!(row.iter().zip(&chain.speedup[at]).all(|(tree, chain)| *tree >= chain - 1e-12));
                let best = row.iter().copied().fold(1.0, f64::max);
                let chosen = shown.best[at].checked_sub(1).map_or(1.0, |k| row[k as usize]);
                prop_assert_eq!(best, chosen);
            }
        }
    }
}
