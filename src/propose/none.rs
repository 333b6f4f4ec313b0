//! Plain decoding: the proposer that proposes nothing.

use super::{Method, ProposeContext, Proposer};
use crate::draft::DraftTree;
use crate::error::Result;

/// Proposes nothing, so every round is one token.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Proposer for Plain {
    fn method(&self) -> Method {
        Method::Plain
    }

    fn propose(&mut self, _cx: ProposeContext<'_>) -> Result<DraftTree> {
        Ok(DraftTree::new())
    }
}
