//! Errors of the round loop. Errors of models and proposers pass through as [`Error::Model`] with
//! their own type intact.

/// Result with this crate's [`Error`] by default.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a [`LanguageModel`](crate::model::LanguageModel) or
/// [`Proposer`](crate::propose::Proposer) implementation, in its own type.
pub type ModelError = Box<dyn std::error::Error + Send + Sync>;

/// Error of drafting, verifying or a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A parameter is out of range or the request is inconsistent. The message states the range.
    #[error("{0}")]
    InvalidRequest(String),
    /// The prompt does not fit the model's context.
    #[error(
        "The prompt has {prompt} tokens, but this model's context holds {context}. Shorten the prompt or the conversation."
    )]
    ContextOverflow {
        /// Tokens in the prompt.
        prompt: usize,
        /// Tokens that the context can hold.
        context: usize,
    },
    /// The format of the answer allows none of the tokens that the model can choose.
    #[error("The answer cannot continue in the required format: none of the model's tokens fits here.")]
    NothingAllowed,
    /// All scores of a model are NaN or minus infinity.
    #[error("The model's scores are not numbers. Its file may be damaged. Download it again.")]
    UnusableScores,
    /// A model or proposer failed.
    #[error(transparent)]
    Model(ModelError),
    /// A broken invariant: a bug in this crate, or a model or proposer that violates its contract.
    #[error("Internal error: {0}. This is a defect in Hunch; please report it.")]
    Internal(String),
}

impl Error {
    /// Creates an [`Error::InvalidRequest`] with this message.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::InvalidRequest(message.into())
    }

    /// Wraps the error of a model or a proposer.
    pub fn model(error: impl Into<ModelError>) -> Self {
        Self::Model(error.into())
    }
}
