//! What passes and drafts cost on this machine, learned from their times as they come: milliseconds of a target
//! pass by its rows, of a drafted token, of a token that a draft model reads.
//!
//! A machine's speed changes by itself: heat, other programs, the modes of its memory. What is seen of one kind of
//! pass alone is taken to be such a change and moves all times; what differs between kinds shows where they
//! alternate. Without that, while drafting rests, plain passes that become slow would be set beside drafts
//! that were timed when the machine was fast, and drafting would seem to pay.

use crate::limits::MAX_ROWS;

/// What a row more costs before it is measured, in passes of one row.
const PRIOR_SLOPE: f64 = 0.08;
/// A drafted token's cost before it is measured, in passes of one row.
const PRIOR_DRAFT_COST: f64 = 0.3;
/// What reading a token costs a draft model before it is measured, in drafted tokens.
const PRIOR_READ_COST: f64 = 0.15;
/// The weight of a new measurement.
const NEWEST: f64 = 0.2;
/// The share of a surprise that belongs to the kind of pass it was seen in, after a pass of another kind and
/// after one of the same.
const ITS_OWN: (f64, f64) = (0.1, 0.01);
/// Measurements of a kind of which a plain mean is taken, because nothing is known of it yet.
const NEW: u32 = 4;
/// The share of what seemed dear at its only measurement that is forgotten, each time it is doubted; after more
/// measurements as much less.
const DOUBT: f64 = 0.1;
/// A measurement counts as at most this many times what is known, and at least its inverse.
const OUTLIER: f64 = 2.0;

/// A running mean that does not believe outliers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Smoothed(pub(super) Option<f64>);

impl Smoothed {
    pub(super) fn add(&mut self, value: f64) {
        if !(value >= 0.0 && value.is_finite()) {
            return;
        }
        self.0 = Some(match self.0 {
            None => value,
            Some(mean) => mean + NEWEST * (believed(value, mean) - mean),
        });
    }
}

/// What is believed of a measurement where `known` was expected.
fn believed(measured: f64, known: f64) -> f64 {
    measured.clamp(known / OUTLIER, (known * OUTLIER).max(1e-6))
}

/// The time of one kind of pass, in milliseconds at level 1.
#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    ms: Option<f64>,
    seen: u32,
}

/// Learns costs. Times in milliseconds.
#[derive(Clone, Debug)]
pub(super) struct Costs {
    /// How slow the machine is now, against when it was first looked at.
    level: f64,
    /// Of the target, by rows.
    passes: [Kind; MAX_ROWS + 1],
    /// Rows of the last target pass.
    last: usize,
    /// A drafted token, at level 1.
    draft: Option<f64>,
    /// How often one was timed.
    drafts: u32,
    /// A token read by a draft model, at level 1.
    read: Option<f64>,
    /// How often that was timed.
    reads: u32,
    /// A drafted token's cost, in passes of one row, as it is expected before it is measured.
    expected_draft: Option<f64>,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            level: 1.0,
            passes: Default::default(),
            last: 0,
            draft: None,
            drafts: 0,
            read: None,
            reads: 0,
            expected_draft: None,
        }
    }
}

impl Costs {
    /// What a drafted token is likely to cost, in passes of one row.
    pub(super) fn expect_draft(&mut self, passes: Option<f64>) {
        self.expected_draft = passes;
    }

    /// Learns from a target pass.
    pub(super) fn add_pass(&mut self, rows: usize, ms: f64) {
        let alternates = self.last != rows;
        let expected = self.knows_plain().then(|| self.pass(rows));
        let Some(kind) = self.passes.get_mut(rows).filter(|_| ms > 0.0 && ms.is_finite()) else { return };
        kind.seen += 1;
        match &mut kind.ms {
            // One that took long may have had bad luck, and what is taken to be dear may not be seen again.
            None => {
                let believed = expected.map_or(ms, |expected| ms.min((ms + expected) / 2.0));
                kind.ms = Some(believed / self.level);
            }
            Some(known) => {
                let surprise = (ms / (*known * self.level)).clamp(1.0 / OUTLIER, OUTLIER);
                let own = match kind.seen {
                    ..=NEW => 1.0 / f64::from(kind.seen),
                    _ if alternates => ITS_OWN.0,
                    _ => ITS_OWN.1,
                };
                *known *= surprise.powf(own);
                self.level *= surprise.powf(NEWEST * (1.0 - own));
            }
        }
        self.last = rows;
    }

    /// Learns what a drafted token took.
    pub(super) fn add_draft(&mut self, ms: f64) {
        let known = self.draft() / self.level;
        learn(&mut self.draft, &mut self.drafts, ms / self.level, known);
    }

    /// Learns what it took a draft model to read a token.
    pub(super) fn add_read(&mut self, ms: f64) {
        let known = self.read() / self.level;
        learn(&mut self.read, &mut self.reads, ms / self.level, known);
    }

    /// A round passes without a draft. Where drafting rests nothing that it takes is measured again, so what seemed
    /// dear because the machine was slow just then would seem so for ever: the less it was measured, the sooner
    /// that is forgotten.
    pub(super) fn doubt(&mut self) {
        let Some(one) = self.passes[1].ms else { return };
        for (rows, kind) in self.passes.iter_mut().enumerate().skip(2) {
            forget(&mut kind.ms, kind.seen, one * prior_pass(rows));
        }
        let draft = one * self.prior_draft();
        forget(&mut self.draft, self.drafts, draft);
        forget(&mut self.read, self.reads, PRIOR_READ_COST * draft);
    }

    /// Whether a pass of one row was measured.
    pub(super) fn knows_plain(&self) -> bool {
        self.passes[1].ms.is_some()
    }

    /// A target pass of `rows` rows: measured, or between and beyond what was measured; in passes of one row
    /// while nothing was.
    pub(super) fn pass(&self, rows: usize) -> f64 {
        let known = |rows: usize| self.passes.get(rows)?.ms.map(|ms| (rows, ms * self.level));
        if let Some((_, ms)) = known(rows) {
            return ms;
        }
        let below = (1..rows.min(MAX_ROWS + 1)).rev().find_map(known);
        let above = (rows + 1..=MAX_ROWS).find_map(known);
        let slope = |(m, t): (usize, f64)| PRIOR_SLOPE * t / prior_pass(m);
        match (below, above) {
            (Some((m0, t0)), Some((m1, t1))) => t0 + (t1 - t0) * (rows - m0) as f64 / (m1 - m0) as f64,
            (Some(known), None) => known.1 + slope(known) * (rows - known.0) as f64,
            (None, Some(known)) => (known.1 - slope(known) * (known.0 - rows) as f64).max(0.0),
            (None, None) => prior_pass(rows),
        }
    }

    /// A drafted token.
    pub(super) fn draft(&self) -> f64 {
        self.draft.map_or_else(|| self.prior_draft() * self.pass(1), |ms| ms * self.level)
    }

    /// A drafted token before it is measured, in passes of one row.
    fn prior_draft(&self) -> f64 {
        self.expected_draft.unwrap_or(PRIOR_DRAFT_COST)
    }

    /// A token that a draft model reads.
    pub(super) fn read(&self) -> f64 {
        self.read.map_or_else(|| PRIOR_READ_COST * self.draft(), |ms| ms * self.level)
    }
}

/// A pass of `rows` rows before it is measured, in passes of one.
fn prior_pass(rows: usize) -> f64 {
    1.0 + PRIOR_SLOPE * (rows as f64 - 1.0)
}

/// Learns a time where `known` was expected. That counts as the first measurement where it was less: the first draft of
/// all is often slow, and what is taken to be too dear is not tried again.
fn learn(time: &mut Option<f64>, seen: &mut u32, took: f64, known: f64) {
    if !(took >= 0.0 && took.is_finite()) {
        return;
    }
    *seen += 1;
    let weight = NEWEST.max(1.0 / f64::from(*seen + 1));
    let cheap_at_once = time.is_none() && took < known;
    *time = Some(if cheap_at_once { took } else { known + weight * (believed(took, known) - known) });
}

/// Lets a time that was taken so often fall towards what was expected of it.
fn forget(time: &mut Option<f64>, seen: u32, expected: f64) {
    if let Some(time) = time {
        *time -= (*time - expected).max(0.0) * DOUBT / f64::from(seen.max(1));
    }
}
