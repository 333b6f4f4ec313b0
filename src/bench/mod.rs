//! The bench: the same prompts through every method, and what came of it. Suites of prompts, the
//! runner that measures, the figures made of pairs of answers, and the report. Nothing here prints, and only
//! `lanes`, [`compare`], [`model`], [`memory`], [`passes`], [`drafts`], [`skip_search`], [`second_turn`] and [`candle`]
//! know a model or read a clock: to the rest, times come from [`hunch_core::stats`] and the [`Bench`] passed in, predictions
//! from [`hunch_core::theory`].

#[cfg(feature = "candle-baseline")]
pub mod candle;
#[cfg(feature = "candle-baseline")]
mod candle_model;
pub mod compare;
pub mod costs;
pub mod drafts;
pub mod figures;
mod lanes;
pub mod memory;
mod method_config;
pub mod model;
pub mod passes;
pub mod report;
pub mod runner;
pub mod second_turn;
pub mod skip_search;
pub mod skip_sets;
pub mod suite;
pub mod timed_passes;

pub use method_config::MethodConfig;
pub use report::{BenchReport, Difference, IdentityReport, MethodReport};
pub use runner::{Answer, Bench, BenchPlan, Progress, Setting, run};
pub use suite::{Suite, SuitePrompt};
