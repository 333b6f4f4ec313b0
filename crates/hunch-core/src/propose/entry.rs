//! An entry of the registry of methods, and the macro that turns the entries into [`Method`].
//!
//! [`Method`]: super::Method

use std::any::TypeId;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::Proposer;
use super::layer_skip::DraftLayers;
use super::proposer::MethodOptions;

/// Registry entry of a method. Its needs, its cost model and its place in lists follow from the stages.
#[derive(Clone, Copy, Debug)]
pub struct MethodEntry {
    /// Name on the command line, in JSON and in stored files.
    pub name: &'static str,
    /// One-line description.
    pub summary: &'static str,
    /// Proposers in the order they are tried.
    pub stages: &'static [Stage],
    /// `true` if stages whose needs are not loaded are left out. Otherwise the method is refused without them.
    pub optional_stages: bool,
    /// `true` if the drafts of all stages are merged into one tree. Otherwise one stage drafts in a round.
    pub merges_stages: bool,
    /// Anchor of the section of `docs/methods.md` that describes it.
    pub docs: &'static str,
}

impl MethodEntry {
    /// Fields that an entry may leave out.
    pub(super) const DEFAULT: Self = Self {
        name: "",
        summary: "",
        stages: &[],
        optional_stages: false,
        merges_stages: false,
        docs: "methods",
    };
}

/// A proposer of a method. [`Proposers`](super::Proposers) holds it for a conversation.
#[derive(Clone, Copy, Debug)]
pub enum Stage {
    /// A proposer that needs only the text and the target. Created by [`Stage::of`].
    BuiltIn(Constructor),
    /// Texts that the user chose.
    Texts,
    /// The draft model, drafting a chain.
    DraftModel,
    /// The draft model, drafting a tree.
    DraftTree,
    /// A copy of the target with fewer bits per weight.
    LowBitCopy,
    /// A head trained for the target, drafting a chain.
    Head,
    /// A head trained for the target, drafting a tree.
    HeadTree,
    /// Some of the target's layers.
    TargetLayers {
        /// Chooses them from the options and the number of layers.
        layers: fn(&MethodOptions, usize) -> DraftLayers,
        /// The option that it reads.
        option: OptionName,
    },
    /// The synthetic proposer, which drafts from a known continuation (its script).
    Script,
}

impl Stage {
    /// Creates the stage of a proposer that needs only the text and the target.
    ///
    /// A conversation has one proposer of each type. Methods that name the same type share it.
    pub const fn of<P: Proposer + Default + 'static>() -> Self {
        Self::BuiltIn(Constructor { type_id: TypeId::of::<P>, create: || Box::new(P::default()) })
    }

    /// Returns the requirement that has to be loaded or set before the stage can draft.
    pub fn needs(&self) -> Needs {
        match self {
            Self::BuiltIn(_) | Self::TargetLayers { .. } => Needs::Nothing,
            Self::Texts => Needs::Texts,
            Self::DraftModel | Self::DraftTree => Needs::DraftModel,
            Self::LowBitCopy => Needs::LowBitCopy,
            Self::Head | Self::HeadTree => Needs::Head,
            Self::Script => Needs::Script,
        }
    }

    /// Returns whether the stage drafts with passes of a model, instead of lookups.
    pub fn has_model(&self) -> bool {
        match self {
            Self::BuiltIn(_) | Self::Texts | Self::Script => false,
            Self::DraftModel | Self::DraftTree | Self::Head | Self::HeadTree => true,
            Self::LowBitCopy | Self::TargetLayers { .. } => true,
        }
    }

    /// Returns whether an option changes the stage's drafts.
    pub fn reads(&self, option: OptionName) -> bool {
        match self {
            Self::DraftModel | Self::LowBitCopy => option == OptionName::DraftWindow,
            Self::DraftTree => matches!(option, OptionName::Tree | OptionName::DraftWindow),
            Self::TargetLayers { option: own, .. } => option == *own || option == OptionName::DraftWindow,
            Self::HeadTree => option == OptionName::Tree,
            Self::BuiltIn(_) | Self::Texts | Self::Head | Self::Script => false,
        }
    }
}

/// Creates proposers of one type.
#[derive(Clone, Copy)]
pub struct Constructor {
    type_id: fn() -> TypeId,
    create: fn() -> Box<dyn Proposer>,
}

impl Constructor {
    /// Creates a proposer without statistics.
    pub fn create(&self) -> Box<dyn Proposer> {
        (self.create)()
    }

    /// Returns the type of the proposer.
    pub(super) fn type_id(&self) -> TypeId {
        (self.type_id)()
    }
}

impl fmt::Debug for Constructor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Constructor").field(&self.type_id()).finish()
    }
}

/// Name of a field of [`MethodOptions`] that people set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub enum OptionName {
    /// [`MethodOptions::tree`].
    Tree,
    /// [`MethodOptions::exit_layer`].
    ExitLayer,
    /// [`MethodOptions::skipped_layers`].
    SkippedLayers,
    /// [`MethodOptions::draft_window`].
    DraftWindow,
}

impl OptionName {
    /// All options.
    pub const ALL: [Self; 4] = [Self::Tree, Self::ExitLayer, Self::SkippedLayers, Self::DraftWindow];
}

/// Requirement of a method beyond the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// The target is enough.
    Nothing,
    /// Texts that the user chose.
    Texts,
    /// A second, smaller model.
    DraftModel,
    /// A copy of the target with fewer bits per weight. It takes time, disk space and memory.
    LowBitCopy,
    /// A head trained for the target.
    Head,
    /// A known continuation, which only benchmarks have.
    Script,
}

/// Declares the enum `Method` and its entries. `name` comes first, the other fields are those of
/// [`MethodEntry`], as far as they differ from its default.
macro_rules! methods {
    ($(
        $(#[$meta:meta])*
        $variant:ident { name: $name:tt, $($field:ident: $value:expr),+ $(,)? }
    )+) => {
        /// A drafting method: how tokens are proposed ahead of the target.
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize,
            serde::Deserialize,
        )]
        // Data, not a list of names, so that the contract with the window stays when a method is added.
        #[cfg_attr(feature = "ts", derive(ts_rs::TS), ts(type = "string"))]
        pub enum Method {
            $($(#[$meta])* #[serde(rename = $name)] $variant,)+
        }

        impl Method {
            /// Every method, plain first.
            pub const REGISTERED: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Returns the entry in the registry.
            pub fn entry(self) -> &'static MethodEntry {
                match self {
                    $(Self::$variant => {
                        #[allow(clippy::needless_update)]
                        static ENTRY: MethodEntry =
                            MethodEntry { name: $name, $($field: $value,)+ ..MethodEntry::DEFAULT };
                        &ENTRY
                    })+
                }
            }
        }
    };
}
pub(super) use methods;
