//! Speculative decoding without a backend: draft trees, acceptance rules, a lossless verifier, depth control and
//! the round loop. Bring a model by implementing [`model::LanguageModel`]; everything here is pure and
//! deterministic. No tensor library, no file, no clock, no thread.
//!
//! # The round loop
//!
//! Decoding a token costs one pass of the whole model over its weights, and a pass over a few rows
//! costs hardly more than a pass over one. So a cheap **proposer** guesses what comes next, and one
//! pass of the **target** scores all guesses at once:
//!
//! 1. **Propose**: a [`propose::Proposer`] drafts a [`draft::DraftTree`] after the committed tokens,
//!    each node with the distribution q it was drawn from. An empty tree makes the round a plain step.
//! 2. **Forward**: the target runs the last committed token and all nodes in one
//!    [`model::LanguageModel::forward`]; row i gives the distribution p of the token after node i.
//! 3. **Verify**: [`verify::Verifier`] walks down the tree. A drafted x is accepted with probability
//!    min(1, p(x)/q(x)). At the first position where all is rejected the token is drawn from
//!    norm(max(p - q, 0)); when a whole path is accepted the target adds a bonus token. The output is
//!    distributed exactly as p, whatever was drafted.
//! 4. **Keep**: the cache keeps the rows of the accepted path, the session commits its tokens.
//! 5. **Emit**: every token leaves with its [`token::TokenOrigin`], p, q, round and position.
//!
//! [`session::Session`] is that loop. Plain decoding is the loop without a proposer.
//!
//! ```
//! use hunch_core::propose::ngram::Ngram;
//! use hunch_core::sample::{Sampler, SamplingParams};
//! use hunch_core::session::{Session, SessionConfig};
//! use hunch_core::table::{TableConfig, TableModel};
//! # struct Still;
//! # impl hunch_core::stats::Stopwatch for Still {
//! #     fn elapsed(&self) -> std::time::Duration { std::time::Duration::ZERO }
//! # }
//! let mut target = TableModel::new(TableConfig::default());
//! let mut proposer = Ngram::default();
//! let sampler = Sampler::new(SamplingParams::greedy())?;
//! let config = SessionConfig { max_draft: 4, max_tokens: 8, end_tokens: vec![], seed: 1, rule: Default::default() };
//! let mut session = Session::new(&mut target, &sampler, &Still, config)?;
//! session.add_proposer(&mut proposer, None);
//! let _ = session.prefill(&[1, 2, 3], 0, &mut |_, _| std::ops::ControlFlow::Continue(()))?;
//! let emitted: usize = session.map(|round| round.map(|r| r.emitted.len())).sum::<Result<_, _>>()?;
//! assert_eq!(emitted, 8);
//! # Ok::<(), hunch_core::error::Error>(())
//! ```
//!
//! # Modules
//!
//! An arrow points to what a module uses: `session -> propose, verify -> depth, sample, draft -> token`.

pub mod chat;
pub mod depth;
#[allow(missing_docs, dead_code, unused)]
#[doc(hidden)]
pub mod draft;
pub mod error;
pub mod limits;
pub mod method;
pub mod model;
pub mod pass_cost;
pub mod propose;
pub mod rule;
pub mod sample;
pub mod session;
pub mod stats;
pub mod table;
pub mod theory;
pub mod token;
pub mod verify;
mod vocab_subset;
