//! The Hunch application: engine, conversations, measurements and the command line of an app that shows speculative
//! decoding as it happens.
//!
//! The round loop is in [`hunch_core`]. Here, [`generate::generate`] adds text to it, [`engine::Engine`] gives it a
//! thread, and [`app::App`] is the interface that the window uses; the command line drives a generation itself.

pub mod api;
pub mod app;
pub mod bench;
pub mod engine;
pub mod event;
pub mod generate;
pub mod lab;
pub mod log;
pub mod proof;
pub mod store;
