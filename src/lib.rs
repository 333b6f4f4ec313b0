//! Speculative decoding you can see: the engine, the application and what the command line needs.
//!
//! # The round loop
//!
//! Decoding a token costs one pass of the whole model over its weights, and a pass over a few rows
//! costs hardly more than a pass over one. So a cheap **proposer** guesses what comes next, and one
//! pass of the **target** scores all guesses at once:
//!
//! 1. **propose**: a [`propose::Proposer`] drafts a [`draft::DraftTree`] after the committed tokens,
//!    each node with the law q it was drawn from. An empty tree makes the round a plain step.
//! 2. **forward**: the target runs the last committed token and all nodes in one
//!    [`model::LanguageModel::forward`]; row i gives the law p of what follows node i.
//! 3. **verify**: [`verify::Verifier`] walks down the tree. A drafted x is accepted with probability
//!    min(1, p(x)/q(x)); at the first position where all is rejected the token is drawn from
//!    norm(max(p - q, 0)); when a whole path is accepted the target adds a bonus token. The law of
//!    the output is exactly p, whatever was drafted.
//! 4. **keep**: the cache keeps the rows of the accepted path, the session commits its tokens.
//! 5. **emit**: every token leaves with its [`token::TokenOrigin`], p, q, round and position.
//!
//! [`session::Session`] is that loop, [`generate::generate`] puts text around it, [`engine::Engine`]
//! gives it a thread, [`app::App`] is what the window talks to; the command line drives a generation itself.
//!
//! ```
//! use hunch::model::table::{TableConfig, TableModel};
//! use hunch::propose::ngram::Ngram;
//! use hunch::sample::{Sampler, SamplingParams};
//! use hunch::session::{Session, SessionConfig};
//! # struct Still;
//! # impl hunch::stats::Stopwatch for Still {
//! #     fn elapsed(&self) -> std::time::Duration { std::time::Duration::ZERO }
//! # }
//! let mut target = TableModel::new(TableConfig::default());
//! let mut proposer = Ngram::default();
//! let sampler = Sampler::new(SamplingParams::greedy())?;
//! let config = SessionConfig { max_draft: 4, max_tokens: 8, end_tokens: vec![], seed: 1, rule: Default::default() };
//! let mut session = Session::new(&mut target, &sampler, &Still, config)?;
//! session.ask(&mut proposer, None);
//! let _ = session.prefill(&[1, 2, 3], 0, &mut |_, _| std::ops::ControlFlow::Continue(()))?;
//! let emitted: usize = session.map(|round| round.map(|r| r.emitted.len())).sum::<Result<_, _>>()?;
//! assert_eq!(emitted, 8);
//! # Ok::<(), hunch::error::Error>(())
//! ```

pub mod api;
pub mod app;
pub mod bench;
pub mod depth;
pub mod draft;
pub mod engine;
pub mod error;
pub mod event;
pub mod generate;
pub mod lab;
pub mod library;
pub mod log;
pub mod model;
pub mod proof;
pub mod propose;
pub mod rule;
pub mod sample;
pub mod session;
pub mod stats;
pub mod store;
pub mod text;
pub mod theory;
pub mod token;
pub mod verify;
