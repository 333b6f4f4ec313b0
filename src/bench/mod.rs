//! Benchmarks and comparisons: the same prompts through every method.
//!
//! [`suite`] holds prompts. [`runner`] measures a benchmark and [`compare`] a comparison. Both make turns: `turns`
//! computes their figures, and [`identity`] compares their tokens. [`PassTimer`](hunch_model::pass_timer::PassTimer) times passes, [`cost_table`] and
//! [`cost_curve`] turn the times into costs. Nothing here prints.
//!
//! Models and clocks are known only to `lanes`, [`compare`], [`model_bench`], [`peak_memory`], [`passes`], [`drafts`],
//! [`timed_passes`], [`skip_search`], [`tree_search`], [`second_turn`], [`cost_curve`] and `candle`. The rest is pure: times come from
//! [`hunch_core::stats`] and the [`Bench`] passed in, predictions from [`hunch_core::theory`].

#[cfg(feature = "candle-baseline")]
pub mod candle;
#[cfg(feature = "candle-baseline")]
mod candle_model;
pub mod compare;
pub mod cost_curve;
pub mod cost_table;
pub mod drafts;
pub mod figures;
pub mod identity;
mod lanes;
mod method_config;
pub mod model_bench;
pub mod passes;
pub mod peak_memory;
pub mod report;
pub mod runner;
pub mod second_turn;
pub mod skip_search;
pub mod skip_sets;
pub mod suite;
pub mod timed_passes;
pub mod tree_search;
mod turns;

pub use identity::{Difference, IdentityReport};
pub use method_config::MethodConfig;
pub use report::{BenchReport, MethodReport};
pub use runner::{Bench, BenchPlan, BenchProgress, Setting, run};
pub use suite::{Suite, SuitePrompt};
pub use turns::MeasuredAnswer;
