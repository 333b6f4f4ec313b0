//! Messages of a conversation.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Instructions for the whole conversation.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct ChatMessage {
    /// Author.
    pub role: Role,
    /// Text.
    pub content: String,
}

/// Reasoning of a model before its answer, for models whose chat template has a switch for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Thinking {
    /// None. Models that always think do so with low effort.
    Off,
    /// With the effort that the template chooses.
    On,
    /// With low effort.
    Low,
    /// With medium effort.
    Medium,
    /// With high effort.
    High,
}

impl Thinking {
    /// All values.
    pub const ALL: [Self; 5] = [Self::Off, Self::On, Self::Low, Self::Medium, Self::High];

    /// Returns the name, such as "high".
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }

    /// Returns the effort for templates that have one. `None` leaves it to the template.
    pub fn effort(self) -> Option<&'static str> {
        match self {
            Self::On => None,
            Self::Off | Self::Low => Some("low"),
            Self::Medium => Some("medium"),
            Self::High => Some("high"),
        }
    }
}

impl fmt::Display for Thinking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Thinking {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|thinking| thinking.name() == text);
        found.ok_or_else(|| "expected on, off, low, medium or high".to_owned())
    }
}
