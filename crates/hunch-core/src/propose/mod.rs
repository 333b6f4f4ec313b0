//! The registry of drafting methods: one module and one entry each. Adding a method touches its own
//! file and this one.
//!
//! A proposer drafts tokens. It never decides acceptance, never commits a token, and leaves the
//! target's cache as it found it. [`ngram`] is the shortest example, [`suffix`] one that keeps state.
//!
//! An entry lists the method's *stages*: the proposers that it tries in order. `Stage::of::<P>()` is a
//! proposer that needs only the text and the target. The other stages stand for a draft model, a copy
//! of the target, a trained head or some of the target's layers. [`Proposers`] holds what they stand
//! for. Weights of models and heads come from outside this crate, behind
//! [`LanguageModel`](crate::model::LanguageModel) and [`head::DraftHead`].
//!
//! | field | meaning |
//! | --- | --- |
//! | `name` | name on the command line, in JSON and in stored files; lower case with hyphens |
//! | `summary` | line in `--help` and in the window; no full stop |
//! | `stages` | proposers in the order they are tried |
//! | `optional_stages` | `true` leaves out stages whose needs are not loaded; refused by default |
//! | `merges_stages` | `true` merges the drafts of all stages into one tree; by default one of them drafts |
//! | `docs` | anchor of a section of `docs/methods.md`, such as `the-text-drafts` |
//!
//! The variant is an entry's name in Rust: [`Proposer::method`] returns it.

mod chain;
pub mod draft_model;
pub mod draft_tree;
mod entry;
pub mod head;
pub mod layer_skip;
pub mod lookahead;
pub(crate) mod merged_tree;
pub mod ngram;
mod proposer;
mod proposers;
pub mod retrieval;
mod shortlist;
pub mod suffix;
pub mod synthetic;

pub use entry::{Constructor, MethodEntry, Needs, OptionName, Stage};
pub(crate) use proposer::taps_of;
pub use proposer::{AuxRows, MethodOptions, ProposeContext, Proposer, RoundOutcome};
pub use proposers::Proposers;

use layer_skip::DraftLayers;
use lookahead::Lookahead;
use ngram::Ngram;
use suffix::Suffix;

// Plain first, then the most recommended ones. The command line and the window list them in this order.
entry::methods! {
    /// No drafting: one token per target pass.
    #[default]
    Plain {
        name: "plain",
        summary: "No speculation",
        stages: &[],
        docs: "methods",
    }
    /// Uses the one of [`Suffix`](Self::Suffix), [`Retrieval`](Self::Retrieval), [`DraftModel`](Self::DraftModel) and
    /// [`Head`](Self::Head) that is expected to yield the most tokens per millisecond, as far as they are loaded. None if
    /// plain decoding is expected to be faster.
    #[serde(alias = "cascade-head")]
    Auto {
        name: "auto",
        summary: "The loaded draft expected to be fastest, or none",
        stages: &[Stage::of::<Suffix>(), Stage::Texts, Stage::DraftModel, Stage::Head],
        optional_stages: true,
        docs: "auto",
    }
    /// Uses [`Suffix`](Self::Suffix) if it expects more accepted tokens, else [`DraftModel`](Self::DraftModel).
    Cascade {
        name: "cascade",
        summary: "suffix if it expects more accepted tokens, else draft-model",
        stages: &[Stage::of::<Suffix>(), Stage::DraftModel],
        docs: "a-smaller-model-drafts",
    }
    /// A smaller model drafts a chain (Leviathan et al., arXiv 2211.17192; Chen et al., 2302.01318).
    DraftModel {
        name: "draft-model",
        summary: "A draft model proposes a chain of tokens",
        stages: &[Stage::DraftModel],
        docs: "a-smaller-model-drafts",
    }
    /// A smaller model drafts a tree (SpecInfer, Miao et al., arXiv 2305.09781), grown by joint
    /// probability (EAGLE-2, Li et al., arXiv 2406.16858).
    DraftTree {
        name: "draft-tree",
        summary: "A draft model proposes a tree of continuations",
        stages: &[Stage::DraftTree],
        docs: "a-smaller-model-drafts",
    }
    /// Merges chains of [`Suffix`](Self::Suffix), [`Head`](Self::Head) and [`DraftModel`](Self::DraftModel) into one tree, as
    /// far as they are loaded (merge-based trees of SpecInfer, arXiv 2305.09781).
    MergedTree {
        name: "merged-tree",
        summary: "All loaded drafts at once, merged into one tree",
        stages: &[Stage::of::<Suffix>(), Stage::DraftModel, Stage::Head],
        optional_stages: true,
        merges_stages: true,
        docs: "several-drafts-at-once",
    }
    /// Uses [`Suffix`](Self::Suffix) if it expects more accepted tokens, else [`Head`](Self::Head).
    SuffixHead {
        name: "suffix-head",
        summary: "suffix if it expects more accepted tokens, else head",
        stages: &[Stage::of::<Suffix>(), Stage::Head],
        docs: "a-trained-head-drafts",
    }
    /// Uses [`Ngram`](Self::Ngram) if it expects more accepted tokens, else [`Head`](Self::Head).
    NgramHead {
        name: "ngram-head",
        summary: "ngram if it expects more accepted tokens, else head",
        stages: &[Stage::of::<Ngram>(), Stage::Head],
        docs: "a-trained-head-drafts",
    }
    /// Proposes the most frequent continuation of the longest repeated suffix (suffix decoding, Oliaro
    /// et al., arXiv 2411.04975).
    Suffix {
        name: "suffix",
        summary: "Proposes the most frequent continuation of the longest repeated suffix",
        stages: &[Stage::of::<Suffix>()],
        docs: "the-text-drafts",
    }
    /// Copies the continuation of the longest matching earlier n-gram (prompt lookup decoding).
    Ngram {
        name: "ngram",
        summary: "Copies what followed the same tokens earlier",
        stages: &[Stage::of::<Ngram>()],
        docs: "the-text-drafts",
    }
    /// Proposes what followed the same tokens in texts that the user chose (REST, He et al., arXiv 2311.08252).
    Retrieval {
        name: "retrieval",
        summary: "Copies what followed the same tokens in your texts",
        stages: &[Stage::Texts],
        docs: "the-text-drafts",
    }
    /// A trained head drafts from the target's hidden states (as in EAGLE, Li et al., arXiv 2401.15077).
    Head {
        name: "head",
        summary: "A head trained on the target's hidden states drafts",
        stages: &[Stage::Head],
        docs: "a-trained-head-drafts",
    }
    /// A trained head drafts a tree, grown by joint probability (EAGLE-2, Li et al., arXiv 2406.16858). A Medusa
    /// head's tree is part of the product of each position's tokens (Cai et al., arXiv 2401.10774).
    HeadTree {
        name: "head-tree",
        summary: "A trained head proposes a tree of continuations",
        stages: &[Stage::HeadTree],
        docs: "a-trained-head-drafts",
    }
    /// The target drafts for itself in extra rows of its passes (lookahead decoding, Fu et al., arXiv
    /// 2402.02057).
    Lookahead {
        name: "lookahead",
        summary: "The target drafts for itself in extra rows of its passes",
        stages: &[Stage::of::<Lookahead>()],
        docs: "the-target-drafts",
    }
    /// The target drafts with some layers skipped (Draft & Verify, Zhang et al., arXiv 2309.08168).
    LayerSkip {
        name: "layer-skip",
        summary: "The target drafts with some layers skipped",
        stages: &[Stage::TargetLayers { layers: DraftLayers::skip, option: OptionName::SkippedLayers }],
        docs: "the-target-drafts",
    }
    /// The first layers of the target draft.
    EarlyExit {
        name: "early-exit",
        summary: "The first layers of the target draft",
        stages: &[Stage::TargetLayers { layers: DraftLayers::early_exit, option: OptionName::ExitLayer }],
        docs: "the-target-drafts",
    }
    /// A copy of the target with fewer bits per weight drafts.
    LowBit {
        name: "low-bit",
        summary: "A low-bit copy of the target drafts",
        stages: &[Stage::LowBitCopy],
        docs: "the-target-drafts",
    }
    /// Proposes known tokens at a given acceptance rate. Measures the loop itself, in tests and bench.
    Synthetic {
        name: "synthetic",
        summary: "Drafts with a fixed acceptance rate, for benchmarks",
        stages: &[Stage::Script],
        docs: "methods",
    }
}
