//! Guesses that come true at given rates: what the loop itself costs, apart from any draft. For
//! tests and the bench.
//!
//! It knows the greedy continuation beforehand and proposes its next tokens, each replaced by a
//! wrong one with the chance asked for. Acceptance is left to the verifier: under greedy sampling
//! the scripted token is accepted and any other rejected, so the rates come out as asked, without a
//! thumb on the scale. Under any other sampling the output is still lossless, but the rates are
//! then the target's own, not the ones asked for.

use super::{Method, ProposeContext, Proposer};
use crate::draft::DraftTree;
use crate::error::{Error, Result};
use crate::sample::unit;
use crate::token::TokenId;

/// Proposes a known continuation, spoilt at given rates.
#[derive(Clone, Debug)]
pub struct Synthetic {
    script: Vec<TokenId>,
    rates: Vec<f64>,
    prompt_len: usize,
    followed: usize,
}

impl Synthetic {
    /// `script` is the plain greedy continuation of the prompt that will be given, `rates[i]` the
    /// probability that drafted position i is right when those before it are; deeper positions use
    /// the last rate.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when there is no rate, or one is not within 0 and 1.
    pub fn new(script: Vec<TokenId>, rates: Vec<f64>) -> Result<Self> {
        if rates.is_empty() || rates.iter().any(|rate| !(0.0..=1.0).contains(rate)) {
            return Err(Error::invalid("Acceptance rates must be numbers from 0 to 1, one or more."));
        }
        Ok(Self { script, rates, prompt_len: 0, followed: 0 })
    }
}

impl Proposer for Synthetic {
    fn method(&self) -> Method {
        Method::Synthetic
    }

    fn begin(&mut self, prompt: &[TokenId]) {
        self.prompt_len = prompt.len();
        self.followed = 0;
    }

    fn propose(&mut self, cx: ProposeContext<'_>) -> Result<DraftTree> {
        let answer = &cx.committed[self.prompt_len..];
        let rest = &answer[self.followed..];
        let Some(script) = self.script[self.followed..].strip_prefix(rest) else {
            // The answer has left the script: nothing is known of what follows.
            return Ok(DraftTree::new());
        };
        self.followed = answer.len();
        let n_vocab = cx.target.info().n_vocab as TokenId;
        let mut rates = self.rates.iter();
        let mut rate = 0.0;
        let mut draft = Vec::with_capacity(cx.plan.max_draft);
        for &token in script.iter().take(cx.plan.max_draft) {
            rate = rates.next().copied().unwrap_or(rate);
            let right = unit(cx.rng) < rate;
            draft.push(if right { token } else { (token + 1) % n_vocab });
        }
        Ok(DraftTree::certain_chain(draft))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_checked() {
        for bad in [vec![], vec![1.1], vec![0.5, f64::NAN], vec![-0.1]] {
            assert!(Synthetic::new(vec![1], bad).is_err());
        }
        assert!(Synthetic::new(vec![1], vec![0.0, 1.0]).is_ok());
    }
}
