//! Shapes of draft trees, and how they are written in options.

use serde::{Deserialize, Serialize};

use crate::limits::MAX_DRAFT;

/// Shape of a draft tree. In JSON, the text of the option `--tree`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
#[cfg_attr(feature = "ts", derive(ts_rs::TS), ts(type = "string"))]
pub enum TreeShape {
    /// Branches where a second child is more likely to be accepted than a deeper token.
    #[default]
    Dynamic,
    /// A fixed number of children per node, by level.
    Static(Vec<usize>),
}

impl TreeShape {
    /// Returns whether branches follow the draft's confidence, the default.
    pub fn is_dynamic(&self) -> bool {
        matches!(self, Self::Dynamic)
    }

    /// Returns the maximum number of children at `depth`.
    pub(super) fn children_at(&self, depth: usize) -> usize {
        match self {
            Self::Dynamic => usize::MAX,
            Self::Static(levels) => levels.get(depth).copied().unwrap_or(0),
        }
    }
}

impl std::fmt::Display for TreeShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dynamic => f.write_str("dynamic"),
            Self::Static(levels) => {
                let levels: Vec<String> = levels.iter().map(usize::to_string).collect();
                f.write_str(&levels.join("x"))
            }
        }
    }
}

impl From<TreeShape> for String {
    fn from(shape: TreeShape) -> Self {
        shape.to_string()
    }
}

impl TryFrom<String> for TreeShape {
    type Error = String;
    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl std::str::FromStr for TreeShape {
    type Err = String;

    /// Parses `dynamic`, or children per level such as `3x2x1`.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "dynamic" {
            return Ok(Self::Dynamic);
        }
        let level = |part: &str| match part.parse() {
            Ok(children) if (1..=MAX_DRAFT).contains(&children) => Ok(children),
            _ => Err(format!("choose dynamic, or children by level such as 3x2x1, each 1 to {MAX_DRAFT}")),
        };
        text.split('x').map(level).collect::<std::result::Result<_, _>>().map(Self::Static)
    }
}
