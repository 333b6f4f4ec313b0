//! Synthetic drafts with a given acceptance rate. Measures the cost of the loop itself, apart from any
//! drafting. For tests and the bench.
//!
//! The proposer knows the greedy continuation (the script) and proposes its next tokens, each replaced
//! by a wrong one with the given probability. The verifier still decides: under greedy sampling it
//! accepts the scripted token and rejects any other, so the rate is exact. Under other sampling the
//! output stays lossless, but the rate follows the target's distribution.

use super::{Method, ProposeContext, Proposer};
use crate::draft::DraftTree;
use crate::error::{Error, Result};
use crate::sample::unit;
use crate::token::TokenId;

/// Proposes a known continuation with errors at a given rate.
#[derive(Clone, Debug)]
pub struct Synthetic {
    script: Vec<TokenId>,
    rate: f64,
    prompt_len: usize,
    matched: usize,
}

impl Synthetic {
    /// Creates the proposer.
    ///
    /// `script` is the plain greedy continuation of the coming prompt. `rate` is the probability that a
    /// drafted token is correct if all before it are.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if the rate is outside 0 to 1.
    pub fn new(script: Vec<TokenId>, rate: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&rate) {
            return Err(Error::invalid(format!("The acceptance rate is {rate}; choose one from 0 to 1.")));
        }
        Ok(Self { script, rate, prompt_len: 0, matched: 0 })
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
        let drafted = |&token: &TokenId| if unit(cx.rng) < self.rate { token } else { (token + 1) % n_vocab };
        Ok(DraftTree::certain_chain(script.iter().take(cx.plan.max_draft).map(drafted)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_rates_outside_0_to_1() {
        for bad in [1.1, f64::NAN, -0.1] {
            assert!(Synthetic::new(vec![1], bad).is_err());
        }
        assert!(Synthetic::new(vec![1], 0.0).is_ok() && Synthetic::new(vec![1], 1.0).is_ok());
    }
}
