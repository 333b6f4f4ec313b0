//! Drafting methods: names, summaries and what they require.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use crate::error::{Error, Result};

/// A drafting method: how tokens are proposed ahead of the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, TS)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// No drafting: one token per target pass.
    #[default]
    Plain,
    /// A smaller model drafts a chain (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318).
    DraftModel,
    /// A smaller model drafts a tree (SpecInfer, Miao et al., arXiv 2305.09781), grown by joint
    /// probability (EAGLE-2, Li et al., arXiv 2406.16858).
    DraftTree,
    /// Copies the continuation of the longest matching earlier n-gram (prompt lookup decoding).
    Ngram,
    /// Proposes the most frequent continuation of the longest repeated suffix (suffix decoding, Oliaro
    /// et al., arXiv 2411.04975).
    Suffix,
    /// Uses [`Suffix`](Self::Suffix) if it promises more, else [`DraftModel`](Self::DraftModel).
    Cascade,
    /// The target drafts for itself in extra rows of its passes (lookahead decoding, Fu et al., arXiv
    /// 2402.02057).
    Lookahead,
    /// The first layers of the target draft.
    EarlyExit,
    /// The target drafts with some layers skipped (Draft & Verify, Zhang et al., arXiv 2309.08168).
    LayerSkip,
    /// A copy of the target with fewer bits per weight drafts.
    LowBit,
    /// Proposes known tokens at a given acceptance rate. Measures the loop itself, in tests and bench.
    Synthetic,
}

impl Method {
    /// All selectable methods, plain first.
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

    /// Returns the methods usable with or without a draft model, plain first.
    ///
    /// Leaves out the low-bit copy, which needs time, disk space and memory to prepare.
    pub fn usable(with_draft: bool) -> Vec<Self> {
        let usable = |method: &Self| *method != Self::LowBit && (with_draft || !method.needs_draft());
        Self::ALL.into_iter().filter(usable).collect()
    }

    /// Returns whether the method needs a second model.
    pub fn needs_draft(self) -> bool {
        self.drafter() == Some(Self::DraftModel)
    }

    /// Returns the method whose draft passes cost the same: same model, same rows per pass.
    ///
    /// `None` if no model drafts.
    pub fn drafter(self) -> Option<Self> {
        match self {
            Self::DraftModel | Self::DraftTree | Self::Cascade => Some(Self::DraftModel),
            Self::EarlyExit | Self::LayerSkip | Self::LowBit => Some(self),
            Self::Plain | Self::Ngram | Self::Suffix | Self::Lookahead | Self::Synthetic => None,
        }
    }

    /// Returns a one-line description.
    pub fn summary(self) -> &'static str {
        match self {
            Method::Plain => "No speculation",
            Method::DraftModel => "A draft model proposes a chain of tokens",
            Method::DraftTree => "A draft model proposes a tree of continuations",
            Method::Ngram => "Copies what followed the same tokens earlier",
            Method::Suffix => "Proposes the most frequent continuation of the longest repeated suffix",
            Method::Cascade => "suffix where it promises more, else draft-model",
            Method::Lookahead => "The target drafts for itself in extra rows of its passes",
            Method::EarlyExit => "The first layers of the target draft",
            Method::LayerSkip => "The target drafts with some layers skipped",
            Method::LowBit => "A low-bit copy of the target drafts",
            Method::Synthetic => "Drafts with a fixed acceptance rate, for benchmarks",
        }
    }

    /// Returns the name used on the command line and in JSON.
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
            Error::invalid(format!("Unknown method \"{name}\". Choose one of {names}."))
        })
    }
}
