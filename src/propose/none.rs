//! Plain decoding: the proposer that proposes nothing.

use std::ops::ControlFlow;

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

    fn begin(
        &mut self,
        _prompt: &[TokenId],
        _go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        Ok(ControlFlow::Continue(()))
    }

    fn propose(&mut self, _cx: ProposeContext<'_>) -> Result<DraftTree> {
        Ok(DraftTree::new())
    }

    fn accept(&mut self, _outcome: &RoundOutcome<'_>) -> Result<()> {
        Ok(())
    }
}
