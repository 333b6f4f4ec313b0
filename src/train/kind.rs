//! The kinds of heads that Hunch trains.

use std::fmt;
use std::str::FromStr;

use candle_core::Tensor;
use hunch_error::{Error, Result};
use serde::{Deserialize, Serialize};
use ts_rs::TS;

use super::eagle::{self, Eagle, STREAMS};
use super::features::Frozen;
use super::medusa::{self, MedusaTraining};
use super::mlp::{self, Mlp};
use super::network::HeadInTraining;
use super::start::StartData;

/// Architecture of a head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, TS)]
#[serde(rename_all = "lowercase")]
pub enum HeadKind {
    /// One feed-forward block over the last row and the last token. Drafts one token.
    #[default]
    Mlp,
    /// A network for each token of a draft, over the last row.
    Medusa,
    /// EAGLE-3: a decoder layer over all rows, which reads its own output. Drafts any number of tokens.
    Eagle,
}

impl HeadKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Mlp, Self::Medusa, Self::Eagle];

    /// Returns the name in commands and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mlp => "mlp",
            Self::Medusa => "medusa",
            Self::Eagle => "eagle",
        }
    }

    /// Returns the name of a file of a run of this kind. Kinds share the data, and nothing else.
    pub fn file(self, name: &str) -> String {
        match self {
            Self::Mlp => name.to_owned(),
            _ => format!("{self}-{name}"),
        }
    }

    /// Returns whether batches have whole answers, in their order.
    pub fn reads_text(self) -> bool {
        self == Self::Eagle
    }

    /// Returns the number of drafted tokens that a head of this kind learns, of `wanted` ones.
    pub fn depth(self, wanted: usize) -> usize {
        if self == Self::Mlp { 1 } else { wanted.max(1) }
    }

    /// Checks that heads of this kind can be trained for a target of width `n`, of which `taps` layers are collected.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if not.
    pub fn check(self, taps: usize, n: usize) -> Result<()> {
        if self == Self::Eagle && taps < STREAMS {
            return Err(Error::invalid(format!(
                "An EAGLE head reads {STREAMS} layers, but only {taps} of this model are collected. Train another kind."
            )));
        }
        // Rows of 8-bit weights have blocks of 32.
        if !n.is_multiple_of(32) {
            return Err(Error::invalid(format!(
                "A head for this model cannot be stored: its width of {n} is not a multiple of 32."
            )));
        }
        Ok(())
    }

    /// Returns the names of the trained tensors.
    pub fn names(self, depth: usize) -> Vec<String> {
        match self {
            Self::Mlp => mlp::NAMES.map(str::to_owned).into(),
            Self::Medusa => {
                (0..depth).flat_map(|k| medusa::NAMES.map(|name| format!("{k}.{name}"))).collect()
            }
            Self::Eagle => eagle::NAMES.map(str::to_owned).into(),
        }
    }

    /// Returns the weights before the first step, in the order of [`names`](Self::names).
    ///
    /// # Errors
    /// As [`StartData::regression`].
    pub fn start(self, frozen: &Frozen<'_>, start: &StartData<'_>) -> Result<Vec<Tensor>> {
        match self {
            Self::Mlp => Mlp::start(frozen, start),
            Self::Medusa => MedusaTraining::start(frozen, start),
            Self::Eagle => Eagle::start(frozen, start),
        }
    }

    /// Creates a network from its tensors.
    ///
    /// # Errors
    /// If the device fails.
    pub fn network(
        self,
        weights: &[Tensor],
        frozen: &Frozen<'_>,
        depth: usize,
    ) -> Result<Box<dyn HeadInTraining>> {
        Ok(match self {
            Self::Mlp => Box::new(Mlp::new(weights, frozen)?),
            Self::Medusa => Box::new(MedusaTraining::new(weights)?),
            Self::Eagle => Box::new(Eagle::new(weights, depth, eagle::head_dim(frozen.target.rows.n_embd))?),
        })
    }
}

impl fmt::Display for HeadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for HeadKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let names = Self::ALL.map(Self::name).join(", ");
        Self::ALL.into_iter().find(|kind| kind.name() == text).ok_or(format!("The kinds are {names}."))
    }
}
