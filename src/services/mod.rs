//! Work that the window, the command line and the server share: judging pairs, loading, unloading when idle, comparing
//! and training. Also reading texts to copy from, searching for layers to skip, and remembering speeds.
//!
//! Services keep no state: callers pass folders, devices and models. Nothing here knows Tauri, prints to a terminal,
//! or sends events. [`App`](crate::app::App) and the command line show the results.

pub(crate) mod idle;
pub mod load;
pub mod measure;
pub mod pair;
pub mod skip_search;
pub mod texts;
pub mod train;
