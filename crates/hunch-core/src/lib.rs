//! Speculative decoding for any model: draft trees, acceptance rules, a lossless verifier, depth control
//! and the round loop.
//!
//! Implement [`model::LanguageModel`] for a model, and every method here works with it. The crate is
//! deterministic and has no tensor library, file access, clock or thread.
//!
//! # The round loop
//!
//! Decoding a token takes one pass over all weights of the model. A pass over a few tokens (rows) costs
//! little more than a pass over one. So a cheap **proposer** drafts the next tokens, and one pass of
//! the **target** scores all of them:
//!
//! 1. **Propose**: a [`propose::Proposer`] drafts a [`draft::DraftTree`] after the committed tokens.
//!    A sampled node carries the distribution q it was sampled from. A node that was chosen without
//!    chance is *certain*: its q is 1. An empty tree makes the round a plain decoding step.
//! 2. **Forward**: the target runs the last committed token and all nodes in one
//!    [`model::LanguageModel::forward`]. Row i gives the distribution p of the token after node i.
//! 3. **Verify**: [`verify::Verifier`] walks down the tree and accepts a drafted x with probability
//!    min(1, p(x)/q(x)). If all children of a node are rejected, the next token is drawn from
//!    norm(max(p - q, 0)). If a whole path is accepted, the target adds a bonus token. The output is
//!    distributed exactly as p, whatever was drafted.
//! 4. **Commit**: the cache keeps the rows of the accepted path, and the session commits its tokens.
//! 5. **Emit**: every token is emitted with its [`token::TokenOrigin`], p, q, round and position.
//!
//! [`session::Session`] is that loop. Plain decoding is the loop without a proposer.
//!
//! # Example
//!
//! Greedy decoding of a toy model, with n-gram lookup as the proposer:
//!
//! ```
//! use std::ops::ControlFlow;
//! use std::time::Duration;
//!
//! use hunch_core::propose::ngram::Ngram;
//! use hunch_core::sample::{Sampler, SamplingParams};
//! use hunch_core::session::{Session, SessionConfig};
//! use hunch_core::stats::Stopwatch;
//! use hunch_core::table::{TableConfig, TableModel};
//!
//! struct NoClock;
//! impl Stopwatch for NoClock {
//!     fn elapsed(&self) -> Duration {
//!         Duration::ZERO
//!     }
//! }
//!
//! let mut target = TableModel::new(TableConfig::default());
//! let mut proposer = Ngram::default();
//! let sampler = Sampler::new(SamplingParams::greedy())?;
//! let config = SessionConfig { max_draft: 4, max_tokens: 8, end_tokens: vec![], seed: 1, rule: Default::default() };
//!
//! let mut session = Session::new(&mut target, &sampler, &NoClock, config)?;
//! session.add_proposer(&mut proposer);
//! let _ = session.prefill(&[1, 2, 3], 0, &mut |_, _| ControlFlow::Continue(()))?;
//! let mut text = Vec::new();
//! for round in session {
//!     text.extend(round?.emitted.iter().map(|token| token.id));
//! }
//! assert_eq!(text.len(), 8);
//! # Ok::<(), hunch_core::error::Error>(())
//! ```
//!
//! # Modules
//!
//! To read the loop, start with [`session`], then [`verify`] and [`depth`]. To write a proposer, start with
//! [`propose`].
//!
//! | module | contents |
//! | --- | --- |
//! | [`session`] | the round loop |
//! | [`propose`], [`method`] | the proposers, and the registry of methods they make up |
//! | [`verify`], [`rule`] | the verifier, and the acceptance rules it applies |
//! | [`depth`], [`pass_cost`] | the number of tokens to draft, and the cost of passes by their rows |
//! | [`draft`] | draft trees, from proposer to verifier |
//! | [`sample`] | sampling parameters, from logits to distributions to tokens |
//! | [`model`], [`table`] | the trait of target and draft, and a toy model that implements it |
//! | [`token`], [`stats`] | emitted tokens with their origin, and the figures of an answer |
//! | [`theory`] | predicted acceptance and speedup, tests of distributions |
//! | [`quantile`] | medians, quantiles and means without outliers |
//! | [`chat`], [`limits`], [`error`] | shared types |
//!
//! Imports point one way: `session -> propose, verify -> depth, sample, draft -> token`.

#![cfg_attr(doctest, doc = include_str!("../README.md"))]

pub mod chat;
pub mod depth;
pub mod draft;
mod draft_window;
pub mod error;
pub mod limits;
pub mod method;
pub mod model;
pub mod pass_cost;
pub mod propose;
pub mod quantile;
pub mod rule;
pub mod sample;
pub mod session;
pub mod stats;
pub mod table;
pub mod theory;
pub mod token;
pub mod verify;
mod vocab_subset;
