//! Tests of the round loop on toy models, in one binary.

#![allow(clippy::unwrap_used)]

mod equivalence;
mod failing_draft;
mod lossless;
mod rollback;
mod toy;
