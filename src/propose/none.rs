//! Plain decoding: the proposer that proposes nothing.

use super::{Method, ProposeContext, Proposer, RoundOutcome};
use crate::draft::DraftTree;
use crate::error::Result;
use crate::token::TokenId;

/// Proposes nothing, so every round is one token.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Proposer for Plain {
    fn method(&self) -> Method {
        Method::Plain
    }

    fn begin(&mut self, _prompt: &[TokenId]) -> Result<()> {
        Ok(())
    }

    fn propose(&mut self, _cx: ProposeContext<'_>) -> Result<DraftTree> {
        Ok(DraftTree::new())
    }

    fn accept(&mut self, _outcome: &RoundOutcome<'_>) -> Result<()> {
        Ok(())
    }
}
