//! Refusals that the window can meet. [`RefusalReason`] is the closed list for which it has words in every language.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// A refused request, for a reason that the window shows in its own language. `Display` is the English message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A conversation with this id was deleted.
    #[error("There is no conversation {id} any more. Choose another one.")]
    NoSuchConversation {
        /// Its id in the store.
        id: i64,
    },
    /// A message with this id was deleted.
    #[error("There is no message {id} any more. Choose another one.")]
    NoSuchMessage {
        /// Its id in the store.
        id: i64,
    },
    /// A saved comparison with this id was deleted.
    #[error("There is no comparison {id} any more. Choose another one.")]
    NoSuchComparison {
        /// Its id in the store.
        id: i64,
    },
    /// The loaded target has not written the answer, whose tokens belong to another vocabulary.
    #[error(
        "This answer is by {writer}, and {loaded} is loaded. Load {writer} to continue with it, or answer again."
    )]
    OtherWriter {
        /// Name of the target that wrote the answer.
        writer: String,
        /// Name of the loaded target.
        loaded: String,
    },
    /// The token was not stored as an alternative at its position.
    #[error(
        "That token is not among the alternatives that were kept for this place. Choose one of those shown."
    )]
    NotAnAlternative,
    /// The token ends an answer.
    #[error("That token ends the answer, so nothing can follow it. Choose another one.")]
    EndToken,
    /// The answer tested no drafted token.
    #[error("This answer tested no draft. Choose one of a method that drafts.")]
    NothingDrafted,
    /// The file is no exported conversation.
    #[error("This is not a conversation that Hunch has exported ({detail}). Nothing was added.")]
    NotAConversation {
        /// The defect of the file, in English.
        detail: String,
    },
    /// The exported conversation has a version that this Hunch does not read.
    #[error(
        "This conversation was exported in version {version} of the format, and this Hunch reads version {readable}. \
         Nothing was added. Import it with the Hunch that exported it."
    )]
    ConversationVersion {
        /// Version of the file.
        version: u32,
        /// Version that can be read.
        readable: u32,
    },
    /// A file to attach has no text.
    #[error("“{name}” is empty, so it was not attached. Choose another file.")]
    EmptyFile {
        /// Name of the file.
        name: String,
    },
    /// A file has the name that the default extension completes.
    #[error(
        "{} exists already, so nothing was written. Choose that file to replace it, or choose another name.",
        path.display()
    )]
    FileExists {
        /// The existing file.
        path: PathBuf,
    },
    /// The folder is one of those searched for models.
    #[error("{} is already searched. Choose another folder.", folder.display())]
    FolderKnown {
        /// The folder.
        folder: PathBuf,
    },
    /// The model is loaded, so its files stay.
    #[error("{name} is in memory. Nothing was removed. Unload it or open another model first.")]
    ModelInMemory {
        /// Name of the model.
        name: String,
    },
    /// The library does not list the model, and the user has not chosen its file.
    #[error("{name} is not in the library. Open it with “Open model…”, or add its folder to the library.")]
    ModelNotInLibrary {
        /// Path or name of the model.
        name: String,
    },
    /// The draft has more weights than the target.
    #[error(
        "The draft is larger than the target, so it cannot save time. Swap the two, or choose a smaller draft."
    )]
    DraftTooLarge,
    /// The text is no access token of the Hub. It is not quoted.
    #[error(
        "This is not a Hub token: it must be one word of plain characters, like hf_…. Copy it again from your settings \
         on the Hub."
    )]
    NotAToken,
    /// The disk has no room for the training data.
    #[error(
        "The training data need {} MB, and {} MB are free. Train on fewer tokens, or free some space.",
        needed.div_ceil(1_000_000), free / 1_000_000
    )]
    NoDiskForTraining {
        /// Bytes that the data still need.
        needed: u64,
        /// Free bytes on the disk.
        free: u64,
    },
    /// The chat template has no text before the user's, so the model cannot write prompts.
    #[error("This model's chat template has no user turn, so the model cannot write prompts for itself.")]
    NoUserTurn,
}

/// Name of a [`Refusal`], as the window receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum RefusalReason {
    /// See [`Refusal::NoSuchConversation`].
    NoSuchConversation,
    /// See [`Refusal::NoSuchMessage`].
    NoSuchMessage,
    /// See [`Refusal::NoSuchComparison`].
    NoSuchComparison,
    /// See [`Refusal::OtherWriter`].
    OtherWriter,
    /// See [`Refusal::NotAnAlternative`].
    NotAnAlternative,
    /// See [`Refusal::EndToken`].
    EndToken,
    /// See [`Refusal::NothingDrafted`].
    NothingDrafted,
    /// See [`Refusal::NotAConversation`].
    NotAConversation,
    /// See [`Refusal::ConversationVersion`].
    ConversationVersion,
    /// See [`Refusal::EmptyFile`].
    EmptyFile,
    /// See [`Refusal::FileExists`].
    FileExists,
    /// See [`Refusal::FolderKnown`].
    FolderKnown,
    /// See [`Refusal::ModelInMemory`].
    ModelInMemory,
    /// See [`Refusal::ModelNotInLibrary`].
    ModelNotInLibrary,
    /// See [`Refusal::DraftTooLarge`].
    DraftTooLarge,
    /// See [`Refusal::NotAToken`].
    NotAToken,
    /// See [`Refusal::NoDiskForTraining`].
    NoDiskForTraining,
    /// See [`Refusal::NoUserTurn`].
    NoUserTurn,
}

/// Writes the name that the window receives, in snake case.
impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Refusal {
    /// Returns the reason without its values.
    pub fn reason(&self) -> RefusalReason {
        match self {
            Self::NoSuchConversation { .. } => RefusalReason::NoSuchConversation,
            Self::NoSuchMessage { .. } => RefusalReason::NoSuchMessage,
            Self::NoSuchComparison { .. } => RefusalReason::NoSuchComparison,
            Self::OtherWriter { .. } => RefusalReason::OtherWriter,
            Self::NotAnAlternative => RefusalReason::NotAnAlternative,
            Self::EndToken => RefusalReason::EndToken,
            Self::NothingDrafted => RefusalReason::NothingDrafted,
            Self::NotAConversation { .. } => RefusalReason::NotAConversation,
            Self::ConversationVersion { .. } => RefusalReason::ConversationVersion,
            Self::EmptyFile { .. } => RefusalReason::EmptyFile,
            Self::FileExists { .. } => RefusalReason::FileExists,
            Self::FolderKnown { .. } => RefusalReason::FolderKnown,
            Self::ModelInMemory { .. } => RefusalReason::ModelInMemory,
            Self::ModelNotInLibrary { .. } => RefusalReason::ModelNotInLibrary,
            Self::DraftTooLarge => RefusalReason::DraftTooLarge,
            Self::NotAToken => RefusalReason::NotAToken,
            Self::NoDiskForTraining { .. } => RefusalReason::NoDiskForTraining,
            Self::NoUserTurn => RefusalReason::NoUserTurn,
        }
    }

    /// Returns the values that the window inserts into its words, and the `reason` that selects them. Ids of the store
    /// are left out: the window shows none.
    pub(crate) fn params(&self) -> Vec<(&'static str, String)> {
        let mut named = match self {
            Self::NoSuchConversation { .. }
            | Self::NoSuchMessage { .. }
            | Self::NoSuchComparison { .. }
            | Self::NotAnAlternative
            | Self::EndToken
            | Self::NothingDrafted
            | Self::DraftTooLarge
            | Self::NotAToken
            | Self::NoUserTurn => Vec::new(),
            Self::OtherWriter { writer, loaded } => {
                vec![("writer", writer.clone()), ("loaded", loaded.clone())]
            }
            Self::NotAConversation { detail } => vec![("detail", detail.clone())],
            Self::ConversationVersion { version, readable } => {
                vec![("version", version.to_string()), ("readable", readable.to_string())]
            }
            Self::FileExists { path } => vec![("path", path.display().to_string())],
            Self::FolderKnown { folder } => vec![("folder", folder.display().to_string())],
            Self::EmptyFile { name } | Self::ModelInMemory { name } | Self::ModelNotInLibrary { name } => {
                vec![("name", name.clone())]
            }
            Self::NoDiskForTraining { needed, free } => {
                vec![("needed", needed.to_string()), ("free", free.to_string())]
            }
        };
        named.push(("reason", self.reason().to_string()));
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, ErrorCode, ErrorInfo};

    /// Returns one refusal of every kind.
    fn every_refusal() -> Vec<Refusal> {
        let text = || String::from("text");
        let path = || PathBuf::from("/models");
        vec![
            Refusal::NoSuchConversation { id: 1 },
            Refusal::NoSuchMessage { id: 1 },
            Refusal::NoSuchComparison { id: 1 },
            Refusal::OtherWriter { writer: text(), loaded: text() },
            Refusal::NotAnAlternative,
            Refusal::EndToken,
            Refusal::NothingDrafted,
            Refusal::NotAConversation { detail: text() },
            Refusal::ConversationVersion { version: 2, readable: 1 },
            Refusal::EmptyFile { name: text() },
            Refusal::FileExists { path: path() },
            Refusal::FolderKnown { folder: path() },
            Refusal::ModelInMemory { name: text() },
            Refusal::ModelNotInLibrary { name: text() },
            Refusal::DraftTooLarge,
            Refusal::NotAToken,
            Refusal::NoDiskForTraining { needed: 1, free: 0 },
            Refusal::NoUserTurn,
        ]
    }

    #[test]
    fn every_reason_that_the_window_knows_has_one_refusal() {
        let union = RefusalReason::inline(&ts_rs::Config::default());
        let mut exported: Vec<String> =
            union.split('|').map(|name| name.trim().trim_matches('"').to_owned()).collect();
        exported.sort_unstable();
        let mut reasons: Vec<String> =
            every_refusal().iter().map(|refusal| refusal.reason().to_string()).collect();
        reasons.sort_unstable();
        assert_eq!(reasons, exported);
        assert!(reasons.contains(&"no_such_conversation".into()));
    }

    #[test]
    fn refusals_are_invalid_requests_with_a_reason() {
        for refusal in every_refusal() {
            let (message, reason) = (refusal.to_string(), refusal.reason().to_string());
            let info = ErrorInfo::from(&Error::from(refusal));
            assert_eq!((info.code, info.message), (ErrorCode::InvalidRequest, message));
            assert_eq!(info.params["reason"], reason);
        }
    }

    #[test]
    fn params_match_the_names_in_the_window_strings() {
        let window = include_str!("../../../ui/src/lib/strings/keys.ts");
        let (_, table) = window.split_once("export const refusalParams = {").unwrap();
        for refusal in every_refusal() {
            let reason = refusal.reason().to_string();
            let (_, row) = table.split_once(&format!("\n  {reason}: [")).expect(&reason);
            let (row, _) = row.split_once(']').expect(&reason);
            let mut named: Vec<&str> = row.split(", ").map(|name| name.trim_matches('\'')).collect();
            named.retain(|name| !name.is_empty());
            named.push("reason");
            named.sort_unstable();
            let params = Error::from(refusal).params();
            assert!(params.values().all(|value| !value.is_empty()), "{reason}");
            assert_eq!(params.keys().map(String::as_str).collect::<Vec<_>>(), named, "{reason}");
        }
    }

    #[test]
    fn survive_the_round_loop_with_their_reason() {
        let round_loop = hunch_core::error::Error::from(Error::from(Refusal::DraftTooLarge));
        let back = Error::from(round_loop);
        assert!(matches!(back, Error::Refused(Refusal::DraftTooLarge)), "{back:?}");
    }

    #[test]
    fn training_message_rounds_needed_space_up_and_free_space_down() {
        let message = Refusal::NoDiskForTraining { needed: 1_000_001, free: 999_999 }.to_string();
        assert!(message.contains("need 2 MB, and 0 MB are free"), "{message}");
    }
}
