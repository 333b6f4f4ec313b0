//! Errors of drafting and verifying. A failure inside a model or a proposer that somebody else
//! wrote travels through the round loop as [`Error::Model`], with its own type intact.

/// The result of every fallible operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of a [`LanguageModel`](crate::model::LanguageModel) or a
/// [`Proposer`](crate::propose::Proposer), in that implementation's own type.
pub type ModelError = Box<dyn std::error::Error + Send + Sync>;

/// A failure of drafting, verifying or the model underneath.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter is out of its range, or the request makes no sense. The text names the range.
    #[error("{0}")]
    InvalidRequest(String),
    /// The tokens do not fit the model's context.
    #[error(
        "The prompt has {prompt} tokens, and this model's context holds {context}. Shorten the prompt or the conversation."
    )]
    ContextOverflow {
        /// Tokens in the prompt.
        prompt: usize,
        /// Tokens that the context holds.
        context: usize,
    },
    /// A model or a proposer failed.
    #[error(transparent)]
    Model(ModelError),
    /// A broken invariant: a defect in this crate, or in a model or proposer that breaks its contract.
    #[error("Internal error: {0}. This is a defect in Hunch; please report it.")]
    Internal(String),
}

impl Error {
    /// An [`Error::InvalidRequest`] with this text.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::InvalidRequest(message.into())
    }

    /// Wraps the error of a model or a proposer.
    pub fn model(error: impl Into<ModelError>) -> Self {
        Self::Model(error.into())
    }
}
