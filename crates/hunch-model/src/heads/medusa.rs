//! Medusa (Cai et al., arXiv 2401.10774): a residual block and an output head for each position of a draft. All read
//! the target's final state h, and none reads drafted tokens.
//!
//! ```text
//! x = x + silu(W x + b) for each block, from x = h
//! logits = head * x
//! ```
//!
//! Tensors are `k.l.linear` for block l of position k, and `k.L` for its output head, with L blocks.

use hunch_core::token::TokenId;
use hunch_error::Result;
use hunch_kernels::Threads;
use hunch_kernels::activation::Activation;

use super::last_state::{Network, Work};
use super::linear::Linear;
use crate::tensor_files::TensorFiles;

/// Most positions and blocks.
const MOST: usize = 16;

/// Positions and blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MedusaShape {
    /// Tokens that are drafted.
    pub(super) positions: usize,
    blocks: usize,
    /// Width of the target.
    pub(super) width: usize,
    /// Tokens that are scored.
    pub(super) n_vocab: usize,
}

impl MedusaShape {
    /// Recognises the tensors of Medusa.
    pub(super) fn of(file: &TensorFiles) -> Option<Self> {
        let has = |k: usize, l: usize| file.shape(&format!("{k}.{l}.linear.weight")).is_some();
        let positions = (0..MOST).take_while(|&k| has(k, 0)).count();
        let blocks = (0..MOST).take_while(|&l| has(0, l)).count();
        let [n_vocab, width] = *file.shape(&format!("0.{blocks}.weight"))? else { return None };
        (positions > 0).then_some(Self { positions, blocks, width, n_vocab })
    }

    /// Returns whether a tensor belongs to it.
    pub(super) fn has(self, name: &str) -> bool {
        let parts: Vec<&str> = name.split('.').collect();
        let number = |text: &str, below: usize| text.parse().is_ok_and(|number: usize| number < below);
        match parts[..] {
            [k, l, "linear", "weight" | "bias"] => number(k, self.positions) && number(l, self.blocks),
            [k, l, "weight"] => number(k, self.positions) && l.parse() == Ok(self.blocks),
            _ => false,
        }
    }
}

/// The networks of all positions.
pub(super) struct Medusa {
    positions: Vec<Position>,
    bytes: usize,
}

struct Position {
    blocks: Vec<Linear>,
    head: Linear,
}

impl Medusa {
    /// Loads the networks.
    ///
    /// # Errors
    /// If a tensor is missing, has the wrong shape or is not finite.
    pub(super) fn load(file: &TensorFiles, shape: MedusaShape, threads: &Threads) -> Result<Self> {
        let MedusaShape { positions, blocks, width, n_vocab } = shape;
        let load = |name: &str, n| Linear::load(&file.weights, name, (n, width), threads);
        let position = |k: usize| {
            let block = |l: usize| load(&format!("{k}.{l}.linear"), width);
            let blocks: Vec<Linear> = (0..blocks).map(block).collect::<Result<_>>()?;
            let l = blocks.len();
            Ok(Position { blocks, head: load(&format!("{k}.{l}"), n_vocab)? })
        };
        let positions: Vec<Position> = (0..positions).map(position).collect::<Result<_>>()?;
        let of = |position: &Position| {
            position.head.bytes(width) + position.blocks.iter().map(|block| block.bytes(width)).sum::<usize>()
        };
        let bytes = positions.first().map_or(0, of);
        Ok(Self { positions, bytes })
    }
}

impl Network for Medusa {
    fn reads_drafts(&self) -> bool {
        false
    }

    fn depth(&self) -> usize {
        self.positions.len()
    }

    fn step(&self, work: &mut Work<'_>, at: usize, state: &mut Vec<f32>, _: TokenId) -> Result<Vec<f32>> {
        let Position { blocks, head } = &self.positions[at];
        let mut x = state.clone();
        let ones = vec![1.0; x.len()];
        for block in blocks {
            let mut update = vec![0.0; x.len()];
            block.apply(work.threads, &x, work.quantised, &mut update, false);
            Activation::Silu.gate(&mut update, &ones);
            x.iter_mut().zip(&update).for_each(|(x, update)| *x += update);
        }
        let mut logits = vec![0.0; head.matrix.rows()];
        head.apply(work.threads, &x, work.quantised, &mut logits, false);
        Ok(logits)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}
