//! The lab: what happens at one position of an answer, what became of the drafts of answers, and what a
//! machine's costs make of acceptance. Pure: distributions, events and times are handed in; tokens are drawn and
//! accepted by [`hunch_core::verify`] alone, formulas are those of [`hunch_core::theory`]. No model, no clock, no text
//! but what tokens are called.

pub mod acceptance;
mod history;
mod kind;
pub mod landscape;
pub mod position;
pub mod report;
pub mod rounds;
pub mod rules;
pub mod sessions;
pub mod what_if;
