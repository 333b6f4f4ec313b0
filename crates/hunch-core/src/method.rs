//! The drafting methods by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use crate::error::{Error, Result};

/// How tokens are guessed ahead of the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, TS)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Nothing is guessed: one token a pass.
    #[default]
    Plain,
    /// A smaller model drafts (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318).
    DraftModel,
    /// A smaller model drafts a tree of continuations (SpecInfer, Miao et al., arXiv 2305.09781; grown by
    /// joint probability as EAGLE-2, 2406.16858).
    DraftTree,
    /// The continuation of the longest earlier n-gram (prompt lookup decoding).
    Ngram,
    /// What most often followed the longest end of the text that occurred before (suffix decoding, Oliaro
    /// et al., arXiv 2411.04975).
    Suffix,
    /// [`Suffix`](Self::Suffix) where it promises more, else [`DraftModel`](Self::DraftModel).
    Cascade,
    /// The target guesses for itself, in rows that ride along (lookahead decoding, Fu et al., arXiv
    /// 2402.02057).
    Lookahead,
    /// The target's first layers draft.
    EarlyExit,
    /// The target drafts with some of its layers skipped (Draft & Verify, Zhang et al., arXiv 2309.08168).
    LayerSkip,
    /// A copy of the target in fewer bits drafts.
    LowBit,
    /// Guesses that are accepted at given rates: measures the loop itself. Tests and bench only.
    Synthetic,
}

impl Method {
    /// Every method that can be asked for, plain first.
    pub const ALL: [Self; 10] = [
        Self::Plain,
        Self::DraftModel,
        Self::DraftTree,
        Self::Ngram,
        Self::Suffix,
        Self::Cascade,
        Self::Lookahead,
        Self::EarlyExit,
        Self::LayerSkip,
        Self::LowBit,
    ];

    /// The methods that can be used with a target and perhaps a draft model, plain first. The low-bit copy,
    /// which takes time, disk and memory, is none of them.
    pub fn usable(with_draft: bool) -> Vec<Self> {
        let usable = |method: &Self| *method != Self::LowBit && (with_draft || !method.needs_draft());
        Self::ALL.into_iter().filter(usable).collect()
    }

    /// Whether it drafts with a second model.
    pub fn needs_draft(self) -> bool {
        self.drafter() == Some(Self::DraftModel)
    }

    /// The method that drafts by the same passes of the same model, with as many rows: what one of them
    /// costs, the other costs too. `None` where no model drafts.
    pub fn drafter(self) -> Option<Self> {
        match self {
            Self::DraftModel | Self::DraftTree | Self::Cascade => Some(Self::DraftModel),
            Self::EarlyExit | Self::LayerSkip | Self::LowBit => Some(self),
            Self::Plain | Self::Ngram | Self::Suffix | Self::Lookahead | Self::Synthetic => None,
        }
    }

    /// What it does, in a line.
    pub fn summary(self) -> &'static str {
        match self {
            Method::Plain => "No speculation",
            Method::DraftModel => "The draft model guesses",
            Method::DraftTree => "The draft model guesses several continuations at once",
            Method::Ngram => "What followed the same words earlier is guessed",
            Method::Suffix => "What most often followed the longest repeated end of the text is guessed",
            Method::Cascade => "suffix where it promises more, else draft-model",
            Method::Lookahead => "The target guesses for itself, in rows that ride along",
            Method::EarlyExit => "The target's own first layers guess",
            Method::LayerSkip => "The target guesses with some of its layers skipped",
            Method::LowBit => "A copy of the target in fewer bits guesses",
            Method::Synthetic => "Guesses that come true at given rates; for benchmarks",
        }
    }

    /// The method's name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Method::Plain => "plain",
            Method::DraftModel => "draft-model",
            Method::DraftTree => "draft-tree",
            Method::Ngram => "ngram",
            Method::Suffix => "suffix",
            Method::Cascade => "cascade",
            Method::Lookahead => "lookahead",
            Method::EarlyExit => "early-exit",
            Method::LayerSkip => "layer-skip",
            Method::LowBit => "low-bit",
            Method::Synthetic => "synthetic",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Method {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        let known = |method: &Self| method.name() == name;
        Self::ALL.into_iter().chain([Self::Synthetic]).find(known).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::invalid(format!("There is no method \"{name}\". Choose one of {names}."))
        })
    }
}
