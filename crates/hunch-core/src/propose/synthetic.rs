//! Synthetic drafts with a given acceptance rate. Measures the cost of the loop itself, apart from any
//! drafting. For tests and the bench.
//!
//! The proposer knows the greedy continuation (the script) and proposes its next tokens, each replaced
//! by a wrong one with the given probability. The verifier still decides: under greedy sampling it
//! accepts the scripted token and rejects any other, so the rates are exact. Under other sampling the
//! output stays lossless, but the rates follow the target's distribution.

use super::{Method, ProposeContext, Proposer};
use crate::draft::DraftTree;
use crate::error::{Error, Result};
use crate::sample::unit;
use crate::token::TokenId;

/// Proposes a known continuation with errors at given rates.
#[derive(Clone, Debug)]
pub struct Synthetic {
    script: Vec<TokenId>,
    rates: Vec<f64>,
    prompt_len: usize,
    matched: usize,
}

impl Synthetic {
    /// Creates the proposer.
    ///
    /// `script` is the plain greedy continuation of the coming prompt. `rates[i]` is the probability
    /// that draft position i is correct if all before it are. Deeper positions use the last rate.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if `rates` is empty or a rate is outside 0 to 1.
    pub fn new(script: Vec<TokenId>, rates: Vec<f64>) -> Result<Self> {
        if rates.is_empty() || rates.iter().any(|rate| !(0.0..=1.0).contains(rate)) {
            return Err(Error::invalid("Give at least one acceptance rate, each from 0 to 1."));
        }
        Ok(Self { script, rates, prompt_len: 0, matched: 0 })
    }
}

impl Proposer for Synthetic {
    fn method(&self) -> Method {
        Method::Synthetic
    }

    fn begin(&mut self, prompt: &[TokenId]) {
        self.prompt_len = prompt.len();
        self.matched = 0;
    }

    fn propose(&mut self, cx: ProposeContext<'_>) -> Result<DraftTree> {
        let answer = &cx.committed[self.prompt_len..];
        let rest = &answer[self.matched..];
        let Some(script) = self.script[self.matched..].strip_prefix(rest) else {
            // The answer has diverged from the script, so the continuation is unknown.
            return Ok(DraftTree::new());
        };
        self.matched = answer.len();
        let n_vocab = cx.target.info().n_vocab as TokenId;
        let mut rates = self.rates.iter();
        let mut rate = 0.0;
        let mut draft = Vec::with_capacity(cx.plan.max_draft);
        for &token in script.iter().take(cx.plan.max_draft) {
            rate = rates.next().copied().unwrap_or(rate);
            let correct = unit(cx.rng) < rate;
            draft.push(if correct { token } else { (token + 1) % n_vocab });
        }
        Ok(DraftTree::certain_chain(draft))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_rates_outside_0_to_1() {
        for bad in [vec![], vec![1.1], vec![0.5, f64::NAN], vec![-0.1]] {
            assert!(Synthetic::new(vec![1], bad).is_err());
        }
        assert!(Synthetic::new(vec![1], vec![0.0, 1.0]).is_ok());
    }
}
