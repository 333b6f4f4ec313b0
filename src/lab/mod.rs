//! The lab: one position of an answer in detail, acceptance statistics of answers, predicted speedup, and a
//! simulated server.
//!
//! Pure: distributions, events and times are passed in. Tokens are drawn and accepted by [`hunch_core::verify`],
//! formulas come from [`hunch_core::theory`]. There is no model and no clock.

pub mod acceptance;
#[cfg(test)]
mod fixture;
mod history;
mod kind;
pub mod landscape;
pub mod position;
pub mod report;
pub mod rounds;
pub mod rules;
pub mod serving;
pub mod sessions;
pub mod what_if;
