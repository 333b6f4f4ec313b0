//! The Hunch application: an app that shows speculative decoding as it happens.
//!
//! The round loop is in [`hunch_core`]. [`generate::generate`] turns its tokens into text, and [`engine::Engine`] runs
//! it on a thread. [`app::App`] is the interface of the window, [`serve`] that of other programs. The command line
//! runs generations itself. [`remote`] asks other servers.

pub mod api;
pub mod app;
pub mod bench;
mod clock;
pub mod distil;
pub mod engine;
pub mod event;
pub mod generate;
pub mod lab;
pub mod log;
pub mod proof;
pub mod remote;
pub mod serve;
pub mod server_answers;
pub mod services;
pub mod store;
pub mod train;

/// The version of this build. Release builds add the commit: `0.1.0 (0123456789ab)`.
pub const VERSION: &str = env!("HUNCH_VERSION");
