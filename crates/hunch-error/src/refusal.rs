//! Refusals that the window can meet: their type, codes and values. `refusal/list.rs` has the list itself.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::ErrorCode;

/// Defines [`Refusal`] and [`RefusalReason`] from one list.
macro_rules! refusals {
    ($($(#[$attribute:meta])* $name:ident $({ $($(#[$field_doc:meta])* $field:ident: $kind:ty,)* })?,)*) => {
        /// A refused request, for a reason that the window shows in its own language. `Display` is the English
        /// message.
        #[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
        pub enum Refusal {
            $($(#[$attribute])* $name $({ $($(#[$field_doc])* $field: $kind,)* })?,)*
        }

        /// Name of a [`Refusal`], as the window receives it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, TS)]
        #[serde(rename_all = "snake_case")]
        pub enum RefusalReason {
            $(
                /// See the refusal of the same name.
                $name,
            )*
        }

        impl Refusal {
            /// Returns the reason without its values.
            pub fn reason(&self) -> RefusalReason {
                match self {
                    $(Self::$name { .. } => RefusalReason::$name,)*
                }
            }

            /// Returns the values that the window inserts into its words.
            pub(super) fn values(&self) -> Vec<(&'static str, Option<String>)> {
                match self {
                    $(Self::$name $({ $($field,)* })? => vec![$($((stringify!($field), $field.shown()),)*)?],)*
                }
            }

            /// Returns one refusal of every kind.
            #[cfg(test)]
            pub(crate) fn every() -> Vec<Self> {
                vec![$(Self::$name $({ $($field: Shown::sample(),)* })?,)*]
            }
        }
    };
}

mod list;

pub use list::{Refusal, RefusalReason};

/// Words of an English message for which the window has its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnglishOnly(pub String);

impl fmt::Display for EnglishOnly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A value of a refusal.
trait Shown {
    /// Returns the value as text, in plain decimals. `None` for what the window does not show, such as ids of the store.
    fn shown(&self) -> Option<String>;

    /// Returns some value.
    #[cfg(test)]
    fn sample() -> Self;
}

impl Shown for String {
    fn shown(&self) -> Option<String> {
        Some(self.clone())
    }

    #[cfg(test)]
    fn sample() -> Self {
        "text".into()
    }
}

impl Shown for PathBuf {
    fn shown(&self) -> Option<String> {
        Some(self.display().to_string())
    }

    #[cfg(test)]
    fn sample() -> Self {
        "/models".into()
    }
}

/// Implements [`Shown`] for a type of numbers.
macro_rules! shown_numbers {
    ($($number:ty),*) => {
        $(impl Shown for $number {
            fn shown(&self) -> Option<String> {
                Some(self.to_string())
            }

            #[cfg(test)]
            fn sample() -> Self {
                1
            }
        })*
    };
}

shown_numbers!(u32, u64, usize);

impl Shown for i64 {
    fn shown(&self) -> Option<String> {
        None
    }

    #[cfg(test)]
    fn sample() -> Self {
        1
    }
}

impl Shown for EnglishOnly {
    fn shown(&self) -> Option<String> {
        None
    }

    #[cfg(test)]
    fn sample() -> Self {
        Self("text".into())
    }
}

/// Writes the name that the window receives, in snake case.
impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl Refusal {
    /// Returns the failure kind, for branching.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotKept => ErrorCode::Store,
            Self::HubBusy { .. } | Self::HubSlow { .. } | Self::NoHubSearch { .. } => {
                ErrorCode::HubUnreachable
            }
            Self::NoSuchServerModel { .. } => ErrorCode::ModelNotFound,
            Self::ModelTooLarge { .. } | Self::TrainingTooLarge { .. } | Self::LaneDraftsTooLarge { .. } => {
                ErrorCode::OutOfMemory
            }
            Self::NoSuchRepository { .. } | Self::NoSuchHubFile { .. } => ErrorCode::HubNotFound,
            Self::TermsNeedToken { .. } | Self::TermsNotAccepted { .. } => ErrorCode::HubGated,
            Self::TokenRejected { .. } | Self::NoHubAccess { .. } | Self::KeychainFailed { .. } => {
                ErrorCode::HubToken
            }
            _ => ErrorCode::InvalidRequest,
        }
    }

    /// Returns the values that the window inserts into its words, and the `reason` that selects them.
    pub(crate) fn params(&self) -> Vec<(&'static str, String)> {
        let values = self.values().into_iter();
        let mut named: Vec<_> = values.filter_map(|(name, value)| Some((name, value?))).collect();
        named.push(("reason", self.reason().to_string()));
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, ErrorInfo};

    #[test]
    fn refusals_of_hub_store_and_memory_have_their_codes() {
        let code = |reason: RefusalReason| {
            let refusal = Refusal::every().into_iter().find(|refusal| refusal.reason() == reason);
            let info = ErrorInfo::from(&Error::from(refusal.unwrap()));
            assert_eq!(info.params["reason"], reason.to_string());
            info.code
        };
        assert_eq!(code(RefusalReason::DraftTooLarge), ErrorCode::InvalidRequest);
        assert_eq!(code(RefusalReason::NotKept), ErrorCode::Store);
        assert_eq!(code(RefusalReason::ModelTooLarge), ErrorCode::OutOfMemory);
        assert_eq!(code(RefusalReason::NoSuchHubFile), ErrorCode::HubNotFound);
        assert_eq!(code(RefusalReason::TermsNotAccepted), ErrorCode::HubGated);
        assert_eq!(code(RefusalReason::TokenRejected), ErrorCode::HubToken);
        assert_eq!(code(RefusalReason::HubBusy), ErrorCode::HubUnreachable);
    }

    #[test]
    fn params_match_the_names_in_the_window_strings() {
        let window = include_str!("../../../ui/src/lib/strings/keys.ts");
        let (_, table) = window.split_once("export const refusalParams = {").unwrap();
        for refusal in Refusal::every() {
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
        assert!(message.contains("needs 2 MB, and 0 MB are free"), "{message}");
    }
}
