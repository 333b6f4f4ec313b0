//! Errors of the kernels.

/// The error of a reader, as [`ReadAt`](crate::ReadAt) returns it.
pub type ReadError = Box<dyn std::error::Error + Send + Sync>;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why weights are not in memory, or a layout was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system has no room for a matrix.
    #[error("a weight matrix needs {} MiB", bytes >> 20)]
    OutOfMemory {
        /// Bytes that were asked for.
        bytes: usize,
    },
    /// The weights could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A layout does not describe the rows of its pass.
    #[error("{0}")]
    Layout(String),
}
