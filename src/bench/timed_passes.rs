//! Passes timed alone, round by round: what predictions are made from. Which passes those are, in which order
//! they run, and the tables that come of them. Knows no model and no clock: the caller passes a [`PassBench`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use crate::bench::MethodConfig;
use crate::bench::figures::{CostRound, CostTable, typical_mean};
use hunch_core::limits::MAX_ROWS;
use hunch_core::method::Method;
use hunch_core::propose::{MethodOptions, lookahead};
use hunch_error::Result;

/// The target's passes always reach to this many rows.
const COST_ROWS: usize = 9;

/// Rows of the passes of what drafts that are timed: chains, fronts of a tree, and the prompt it reads.
pub const DRAFT_ROWS: [usize; 5] = [1, 2, 4, 8, READING];
/// Rows of a pass that reads a prompt and gives no logits.
pub const READING: usize = 32;

/// How often a round times passes of one row. Those of the target are what every ratio is taken to, and those of a
/// draft model are most of what drafting takes: by one alone, luck would tell.
const ONES: usize = 3;

/// What times single passes.
pub trait PassBench {
    /// Seconds of one target pass of `rows` rows.
    ///
    /// # Errors
    /// When the pass fails.
    fn target_pass(&mut self, rows: usize) -> Result<f64>;

    /// Seconds of one pass of `rows` rows of what drafts ([`Method::drafter`]), behind as many tokens;
    /// `None` when it is not loaded.
    ///
    /// # Errors
    /// When the pass fails.
    fn draft_pass(&mut self, drafter: Method, options: &MethodOptions, rows: usize) -> Result<Option<f64>>;
}

/// Hears before each pass how many rounds of how many are done, and may break it off.
pub(super) type PassProgress<'a> = &'a mut dyn FnMut(usize, usize) -> ControlFlow<()>;

/// Times passes whenever it is asked to. Each round runs every pass once, those of one row a few times, and starts
/// one further than the round before.
pub(super) struct PassTimer<'a> {
    options: &'a MethodOptions,
    /// What drafts, or nothing for the target, and the rows.
    passes: Vec<(Option<Method>, usize)>,
    rounds: Vec<CostRound>,
}

impl<'a> PassTimer<'a> {
    /// For what these configs take: passes of the target, and of whatever drafts for them.
    pub(super) fn new(configs: &[MethodConfig], options: &'a MethodOptions) -> Self {
        let mut ones = vec![(None, 1)];
        let mut wider: Vec<_> = (2..=cost_rows(configs)).map(|rows| (None, rows)).collect();
        let drafters: BTreeSet<Method> = configs.iter().filter_map(|c| c.method.drafter()).collect();
        for drafter in drafters.into_iter().chain([Method::DraftModel]).collect::<BTreeSet<_>>() {
            // Layers of the target draft chains and have read what the target has.
            let own_layers = matches!(drafter, Method::EarlyExit | Method::LayerSkip);
            let rows = if own_layers { &DRAFT_ROWS[..1] } else { &DRAFT_ROWS[..] };
            let passes = rows.iter().map(|&rows| (Some(drafter), rows));
            let (one, more): (Vec<_>, Vec<_>) = passes.partition(|&(_, rows)| rows == 1);
            ones.extend(one);
            wider.extend(more);
        }
        let among = wider.chunks(wider.len().div_ceil(ONES));
        let passes = among.flat_map(|wider| ones.iter().chain(wider)).copied().collect();
        Self { options, passes, rounds: Vec::new() }
    }

    /// The first rounds, after one that warms up and is not counted. `None` when it was broken off.
    ///
    /// # Errors
    /// When a pass fails; so below.
    pub(super) fn begin(
        &mut self,
        bench: &mut dyn PassBench,
        rounds: usize,
        progress: PassProgress<'_>,
    ) -> Result<Option<()>> {
        let measured = self.run(bench, 0, 1 + rounds, progress)?;
        Ok(measured.map(|measured| self.rounds.extend(measured.into_iter().skip(1))))
    }

    /// So many rounds more, which nobody breaks off.
    pub(super) fn go_on_unheard(&mut self, bench: &mut dyn PassBench, rounds: usize) -> Result<()> {
        let whole = self.go_on(bench, rounds, &mut |_, _| ControlFlow::Continue(()))?;
        whole.expect("nobody broke it off");
        Ok(())
    }

    /// So many rounds more. `None` when it was broken off.
    pub(super) fn go_on(
        &mut self,
        bench: &mut dyn PassBench,
        rounds: usize,
        progress: PassProgress<'_>,
    ) -> Result<Option<()>> {
        let measured = self.run(bench, self.rounds.len(), rounds, progress)?;
        Ok(measured.map(|measured| self.rounds.extend(measured)))
    }

    /// Rounds so far.
    pub(super) fn rounds(&self) -> usize {
        self.rounds.len()
    }

    /// What passes cost by the rounds after the first `from`.
    ///
    /// # Errors
    /// When a time is missing or not a positive number.
    pub(super) fn since(&self, from: usize) -> Result<CostTable> {
        CostTable::new(&self.rounds[from..])
    }

    fn run(
        &self,
        bench: &mut dyn PassBench,
        first: usize,
        rounds: usize,
        progress: PassProgress<'_>,
    ) -> Result<Option<Vec<CostRound>>> {
        let mut measured = Vec::with_capacity(rounds);
        for round in 0..rounds {
            let mut times: BTreeMap<_, Vec<f64>> = BTreeMap::new();
            for turn in 0..self.passes.len() {
                if progress(round, rounds).is_break() {
                    return Ok(None);
                }
                let pass = self.passes[(first + round + turn) % self.passes.len()];
                let time = match pass {
                    (None, rows) => Some(bench.target_pass(rows)?),
                    (Some(drafter), rows) => bench.draft_pass(drafter, self.options, rows)?,
                };
                times.entry(pass).or_default().extend(time);
            }
            measured.push(cost_round(&times));
        }
        Ok(Some(measured))
    }
}

/// What passes took in a round, on average.
fn cost_round(times: &BTreeMap<(Option<Method>, usize), Vec<f64>>) -> CostRound {
    let mut round = CostRound::default();
    for (&(drafter, rows), times) in times {
        let Some(time) = typical_mean(times) else { continue };
        let table = match drafter {
            None => &mut round.target,
            Some(drafter) => round.drafts.entry(drafter).or_default(),
        };
        table.insert(rows, time);
    }
    round
}

/// How many rows the target's passes reach to.
fn cost_rows(configs: &[MethodConfig]) -> usize {
    let rows = |c: &MethodConfig| {
        let beside = if c.method == Method::Lookahead { lookahead::WINDOW_ROWS } else { 0 };
        (1 + c.drafts().limit() + beside).min(MAX_ROWS)
    };
    configs.iter().map(rows).fold(COST_ROWS, usize::max)
}
