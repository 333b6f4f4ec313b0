//! The option `--max-draft`: a number of tokens, or `auto`, which stands for [`DepthController`](super::DepthController).

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};
use crate::limits::MAX_DRAFT;

/// Most tokens to draft in a round: a number, or `"auto"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS), ts(type = "number | \"auto\""))]
pub enum MaxDraft {
    /// The depth with the highest measured throughput, chosen each round.
    #[default]
    Auto,
    /// A fixed number of tokens, 1 to [`MAX_DRAFT`]. Fewer when the proposer has fewer.
    Fixed(u32),
}

impl MaxDraft {
    /// Checks the number.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when it is not 1 to [`MAX_DRAFT`].
    pub fn validate(self) -> Result<()> {
        match self {
            Self::Fixed(k) if !(1..=MAX_DRAFT as u32).contains(&k) => {
                Err(Error::invalid(format!("max_draft is {k}; it must be 1 to {MAX_DRAFT}, or auto.")))
            }
            _ => Ok(()),
        }
    }

    /// Most tokens that a round may draft.
    pub fn limit(self) -> usize {
        match self {
            Self::Auto => MAX_DRAFT,
            Self::Fixed(k) => k as usize,
        }
    }
}

impl std::fmt::Display for MaxDraft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(k) => write!(f, "{k}"),
        }
    }
}

impl std::str::FromStr for MaxDraft {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            number => number.parse().map(Self::Fixed).map_err(|_| "it is neither a number nor auto".into()),
        }
    }
}

impl Serialize for MaxDraft {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        match self {
            Self::Auto => to.serialize_str("auto"),
            Self::Fixed(k) => to.serialize_u32(*k),
        }
    }
}

impl<'de> Deserialize<'de> for MaxDraft {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Wire {
            Number(u32),
            Word(String),
        }
        match Wire::deserialize(from)? {
            Wire::Number(k) => Ok(Self::Fixed(k)),
            Wire::Word(word) => word.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_numbers_and_auto_from_json() {
        let json = |max: MaxDraft| serde_json::to_string(&max).unwrap();
        assert_eq!((json(MaxDraft::Auto), json(MaxDraft::Fixed(4))), ("\"auto\"".into(), "4".into()));
        let read = |text: &str| serde_json::from_str::<MaxDraft>(text);
        assert_eq!((read("\"auto\"").unwrap(), read("7").unwrap()), (MaxDraft::Auto, MaxDraft::Fixed(7)));
        assert!(read("\"deep\"").is_err() && read("-1").is_err());
    }

    #[test]
    fn accepts_depths_from_1_to_the_limit() {
        assert!(MaxDraft::Fixed(0).validate().is_err() && MaxDraft::Fixed(16).validate().is_err());
        assert!(MaxDraft::Auto.validate().is_ok() && MaxDraft::Fixed(15).validate().is_ok());
    }
}
