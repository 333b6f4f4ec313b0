//! Tests of the round loop on toy models and of the depth controller on recorded rounds, in one binary.

#![allow(clippy::unwrap_used)]

mod block_head;
mod cached_head;
mod controls;
mod depth_replay;
mod equivalence;
mod failing_draft;
mod lossless;
mod registry;
mod rollback;
mod toy;
