//! Error types of this crate.

/// Error returned by a [`ReadAt`](crate::ReadAt) callback.
pub type ReadError = Box<dyn std::error::Error + Send + Sync>;

/// Result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Failure to load weights, or an invalid row layout.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Memory for a weight matrix could not be allocated.
    #[error("not enough memory for a weight matrix of {} MB", bytes.div_ceil(1_000_000))]
    OutOfMemory {
        /// Requested size in bytes.
        bytes: usize,
    },
    /// The weights could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The layout is not valid for the rows of its pass.
    #[error("{0}")]
    Layout(String),
}
