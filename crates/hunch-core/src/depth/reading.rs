//! Readings of the conversation by a draft model: whether its drafts repay one, and what earlier ones still owe. Costs
//! and acceptance are estimated elsewhere.

use super::{DepthConfig, Throughput};

/// Unread tokens that count as free, because the draft model reads them in its first pass.
///
/// Not tuned: a model that drafted in the last round has to read at most its own last token and the target's.
pub const FREE_READ: usize = 2;

/// Loss allowances that readings may owe. Not tuned: one for the reading, one for its drafts.
const OWED_ALLOWANCES: f64 = 2.0;

/// Readings of one proposer, and what its drafts have saved since.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadingAccount {
    /// Recent rounds that neither this proposer nor a lookup drafted.
    others: Throughput,
    /// Tokens of this answer that no lookup drafted.
    waited: f64,
    /// Time that drafting saved, less the time of reading, in plain passes.
    balance: f64,
}

/// A reading that may be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct PossibleReading {
    /// Its time, in plain passes.
    pub(super) cost: f64,
    /// Expected speedup of the drafts after it.
    pub(super) gain: f64,
    /// The upper end of what is likely, from the target's certainty.
    pub(super) optimistic_gain: f64,
    /// Tokens that the answer has room for.
    pub(super) remaining: f64,
    /// Share of the tokens that lookups draft, 0 to 1.
    pub(super) by_lookups: f64,
    /// `true` if there are other proposers.
    pub(super) has_rivals: bool,
}

impl ReadingAccount {
    /// Starts an answer.
    pub(super) fn begin_answer(&mut self) {
        self.waited = 0.0;
    }

    /// Adds a round that no lookup drafted: its tokens, and its time in plain passes.
    pub(super) fn add_round(&mut self, tokens: f64, time: f64, has_drafted: bool, memory: f64) {
        self.waited += tokens;
        if !has_drafted {
            self.others.add(tokens, time, memory);
        }
    }

    /// Adds time that was saved, in plain passes. Less than 0 if it was lost.
    pub(super) fn add(&mut self, saved: f64, most: f64) {
        self.balance = (self.balance + saved).min(most);
    }

    /// Returns whether the drafts after a reading are expected to repay it, within the remaining tokens or the horizon.
    ///
    /// Without a debt, the upper end of what is likely counts. Earlier readings may owe more than they should. Then
    /// the expected speedup has to repay that too: a whole horizon all of it, a shorter answer its share.
    ///
    /// Tokens that lookups draft stay theirs. The others are compared with the rounds that this proposer did not draft.
    /// Next to other proposers it waits for them to draft ([`DepthConfig::read_delay`]).
    pub(super) fn pays(&self, reading: PossibleReading, config: &DepthConfig) -> bool {
        let owed = (-self.balance - OWED_ALLOWANCES * config.loss_allowance).max(0.0);
        let gain = if owed > 0.0 { reading.gain } else { reading.optimistic_gain };
        let saved_by_token = 1.0 / self.others.rate() - 1.0 / gain;
        let remaining = config.horizon.min(reading.remaining);
        let tokens = remaining * (1.0 - reading.by_lookups);
        let waits = reading.has_rivals && saved_by_token * self.waited < config.read_delay * reading.cost;
        !waits && saved_by_token * tokens >= reading.cost + owed * remaining / config.horizon
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READING: PossibleReading = PossibleReading {
        cost: 10.0,
        gain: 1.2,
        optimistic_gain: 1.5,
        remaining: 1_000.0,
        by_lookups: 0.0,
        has_rivals: false,
    };

    fn pays(account: &ReadingAccount, reading: PossibleReading) -> bool {
        account.pays(reading, &DepthConfig::default())
    }

    #[test]
    fn reading_pays_where_the_rest_of_the_answer_repays_it() {
        let account = ReadingAccount::default();
        assert!(pays(&account, READING));
        // A token saves a third of a pass.
        assert!(!pays(&account, PossibleReading { remaining: 29.0, ..READING }));
        assert!(pays(&account, PossibleReading { remaining: 31.0, ..READING }));
        assert!(!pays(&account, PossibleReading { cost: 43.0, ..READING }), "the horizon is 128 tokens");
        assert!(!pays(&account, PossibleReading { optimistic_gain: 1.0, ..READING }));
        assert!(!pays(&account, PossibleReading { by_lookups: 0.8, ..READING }), "lookups draft the rest");
    }

    #[test]
    fn debt_is_repaid_by_what_is_expected_not_by_what_is_likely() {
        let mut account = ReadingAccount::default();
        account.add(-4.0, 8.0);
        assert!(pays(&account, READING), "it may owe two allowances");
        account.add(-4.0, 8.0);
        // A sixth of 128 passes repays the reading and four passes, but not twelve.
        assert!(pays(&account, READING));
        account.add(-8.0, 8.0);
        assert!(!pays(&account, READING));
        account.add(100.0, 8.0);
        assert!(pays(&account, READING));
    }

    #[test]
    fn next_to_others_it_waits_until_drafts_would_have_saved_a_share() {
        let mut account = ReadingAccount::default();
        let reading = PossibleReading { has_rivals: true, ..READING };
        assert!(!pays(&account, reading));
        account.add_round(2.0, 2.0, false, 32.0);
        assert!(pays(&account, reading), "two tokens would have saved more than a sixteenth");
        account.begin_answer();
        assert!(!pays(&account, reading));
    }

    #[test]
    fn faster_rivals_leave_less_to_save() {
        let mut account = ReadingAccount::default();
        for _ in 0..50 {
            account.add_round(3.0, 2.0, false, 32.0);
        }
        assert!(!pays(&account, READING), "others already save as much");
    }
}
