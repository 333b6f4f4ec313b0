//! Shapes of draft trees, and how they are written in options.

use std::fmt;
use std::str::FromStr;

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
    /// A fixed number of children of every node, from the root's level on.
    Static(Vec<LevelShape>),
}

/// Children of the nodes of a level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LevelShape {
    /// Each node has as many.
    Same(usize),
    /// Children of each node, in order. Nodes are ordered by their parents, then by rank. Nodes beyond the list have
    /// none.
    Each(Vec<usize>),
}

impl LevelShape {
    /// Creates the shape of a level from the children of all its nodes.
    fn of(counts: &[usize]) -> Self {
        match counts {
            [first, rest @ ..] if rest.iter().all(|count| count == first) => Self::Same(*first),
            _ => {
                let used = counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
                // A single number would be for all nodes.
                Self::Each(counts[..used.max(2)].to_vec())
            }
        }
    }

    /// Returns the children of a node.
    fn children(&self, node: usize) -> usize {
        match self {
            Self::Same(children) => *children,
            Self::Each(counts) => counts.get(node).copied().unwrap_or(0),
        }
    }

    /// Returns the children of the first `nodes` nodes.
    fn children_before(&self, nodes: usize) -> usize {
        match self {
            Self::Same(children) => nodes.saturating_mul(*children),
            Self::Each(counts) => counts.iter().take(nodes).sum(),
        }
    }
}

impl TreeShape {
    /// Creates a shape whose nodes of a level have equally many children.
    pub fn by_level(children: impl IntoIterator<Item = usize>) -> Self {
        Self::Static(children.into_iter().map(LevelShape::Same).collect())
    }

    /// Creates a shape from the children of every node, by level. See [`ExpectedTree::children`].
    ///
    /// [`ExpectedTree::children`]: crate::theory::ExpectedTree::children
    pub fn by_node(levels: &[Vec<usize>]) -> Self {
        let has_children = |level: &&Vec<usize>| level.iter().any(|&children| children > 0);
        Self::Static(levels.iter().take_while(has_children).map(|level| LevelShape::of(level)).collect())
    }

    /// Returns whether branches follow the draft's confidence, the default.
    pub fn is_dynamic(&self) -> bool {
        matches!(self, Self::Dynamic)
    }

    /// Returns the most children of a node. `ranks` leads to it from the root: the number of siblings before each node
    /// on the path.
    pub(super) fn children_of(&self, ranks: &[usize]) -> usize {
        let Self::Static(levels) = self else { return usize::MAX };
        let Some((last, above)) = levels.get(..=ranks.len()).and_then(<[LevelShape]>::split_last) else {
            return 0;
        };
        let node = above.iter().zip(ranks).fold(0, |node, (level, rank)| level.children_before(node) + rank);
        last.children(node)
    }
}

impl fmt::Display for LevelShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same(children) => write!(f, "{children}"),
            Self::Each(counts) => {
                let counts: Vec<String> = counts.iter().map(usize::to_string).collect();
                f.write_str(&counts.join(","))
            }
        }
    }
}

impl fmt::Display for TreeShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dynamic => f.write_str("dynamic"),
            Self::Static(levels) => {
                let levels: Vec<String> = levels.iter().map(LevelShape::to_string).collect();
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
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Parses the level of `nodes` nodes.
fn parse_level(text: &str, nodes: usize) -> Result<LevelShape, String> {
    let counts: Option<Vec<usize>> = text.split(',').map(|count| count.parse().ok()).collect();
    let counts = counts.filter(|counts| {
        counts.iter().all(|&children| children <= MAX_DRAFT) && counts.iter().any(|&children| children > 0)
    });
    match counts.as_deref() {
        None => Err(format!(
            "choose dynamic, or children by level such as 3x2x1 or 3x2,1x1, each at most {MAX_DRAFT} and not only 0"
        )),
        Some(counts) if counts.len() > nodes => {
            Err(format!("{text} has {} numbers, but its level has {nodes} nodes", counts.len()))
        }
        Some(&[children]) => Ok(LevelShape::Same(children)),
        Some(counts) => Ok(LevelShape::Each(counts.to_vec())),
    }
}

impl FromStr for TreeShape {
    type Err = String;

    /// Parses `dynamic`, or children by level. `3x2x1` gives three children to the root, two to each of them, and one to
    /// each of theirs. Where nodes of a level differ, commas separate their numbers, as in `3x2,1x1`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "dynamic" {
            return Ok(Self::Dynamic);
        }
        let mut nodes = 1;
        let level = |text| {
            let level = parse_level(text, nodes)?;
            nodes = level.children_before(nodes);
            Ok(level)
        };
        text.split('x').map(level).collect::<Result<_, String>>().map(Self::Static)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theory::ExpectedTree;

    #[test]
    fn shapes_keep_their_text() {
        for text in ["dynamic", "1", "3x2x1", "15x15x15", "3x2,1x1", "2x1,0x2", "2x0,3x1,0,2"] {
            let shape: TreeShape = text.parse().unwrap();
            assert_eq!(shape.to_string(), text);
        }
        for text in [
            "",
            "3x",
            "x",
            "0",
            "3x0",
            "3x0,0",
            "16",
            "2x1,1,1",
            "1,1",
            "3 x 2",
            "-1",
            "99999999999999999999",
            "wide",
            "3,2",
        ] {
            assert!(text.parse::<TreeShape>().is_err(), "{text}");
        }
    }

    #[test]
    fn children_follow_the_path_of_ranks() {
        let shape: TreeShape = "3x2,0,1x0,4,1x1".parse().unwrap();
        let wanted: [(&[usize], usize); 9] = [
            (&[], 3),
            (&[0], 2),
            (&[1], 0),
            (&[2], 1),
            (&[0, 0], 0),
            (&[0, 1], 4),
            (&[2, 0], 1),
            (&[2, 0, 0], 1),
            (&[2, 0, 0, 0], 0),
        ];
        for (ranks, children) in wanted {
            assert_eq!(shape.children_of(ranks), children, "{ranks:?}");
        }
        assert_eq!(TreeShape::by_level([3, 2]).children_of(&[2]), 2);
        assert_eq!(TreeShape::Dynamic.children_of(&[7]), usize::MAX);
    }

    #[test]
    fn shape_of_the_best_tree_has_its_nodes() {
        let acceptance = |_: usize, rank: usize| [0.5, 0.3, 0.2, 0.1][rank.min(3)];
        for nodes in 1..=MAX_DRAFT {
            let tree = ExpectedTree::best(nodes, acceptance);
            let shape = TreeShape::by_node(&tree.children());
            assert_eq!(shape.to_string().parse::<TreeShape>().unwrap(), shape);
            let mut paths = vec![Vec::new()];
            let mut found = 0;
            while let Some(ranks) = paths.pop() {
                for rank in 0..shape.children_of(&ranks) {
                    found += 1;
                    paths.push([&ranks[..], &[rank]].concat());
                }
            }
            assert_eq!(found, nodes, "{shape}");
        }
    }
}
