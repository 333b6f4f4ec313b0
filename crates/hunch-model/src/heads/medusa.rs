//! Medusa (Cai et al., arXiv 2401.10774): a residual block and an output head for each position of a draft. All read
//! the target's final state h, and none reads drafted tokens.
//!
//! ```text
//! x = x + silu(W x + b) for each block, from x = h
//! logits = head * x
//! ```
//!
//! Tensors are `k.l.linear` for block l of position k, and `k.L` for its output head, with L blocks.
//!
//! Heads that Hunch trains have one block. h is scaled before it, and the output heads score a part of the vocabulary.

use hunch_core::token::TokenId;
use hunch_error::Result;
use hunch_kernels::Threads;
use hunch_kernels::activation::Activation;

use super::last_state::{LastStateNetwork, ProductSpace};
use super::linear::{Linear, vector};
use super::memory::depth;
use super::vocabulary::own_vocabulary;
use crate::spec::ModelSpec;
use crate::tensor_files::TensorFiles;
use crate::weights::WeightFile;

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
    positions: Vec<LoadedPosition>,
    bytes: usize,
    own: Option<Own>,
}

/// Parts of the heads that Hunch trains.
struct Own {
    /// Factor and constant of each dimension of h.
    in_scale: Vec<f32>,
    in_shift: Vec<f32>,
    /// Token of each row of the output heads.
    vocabulary: Vec<TokenId>,
    n_vocab: usize,
}

struct LoadedPosition {
    blocks: Vec<Linear>,
    head: Linear,
}

impl Medusa {
    /// Loads the networks.
    ///
    /// # Errors
    /// If a tensor is missing, has the wrong shape or is not finite.
    pub(super) fn load(file: &TensorFiles, shape: MedusaShape, threads: &Threads) -> Result<Self> {
        Self::of(&file.weights, shape, None, threads)
    }

    /// Loads a head that Hunch trained.
    ///
    /// # Errors
    /// As [`load`](Self::load), and if it does not fit the target.
    pub(super) fn load_own(file: &WeightFile, target: &ModelSpec, threads: &Threads) -> Result<Self> {
        let (n, gguf) = (target.n_embd, file.gguf());
        let vocabulary = own_vocabulary(gguf, target.n_vocab)?;
        let shape = MedusaShape { positions: depth(gguf)?, blocks: 1, width: n, n_vocab: vocabulary.len() };
        let own = Own {
            in_scale: vector(file, "in_scale", n)?,
            in_shift: vector(file, "in_shift", n)?,
            vocabulary,
            n_vocab: target.n_vocab,
        };
        Self::of(file, shape, Some(own), threads)
    }

    fn of(file: &WeightFile, shape: MedusaShape, own: Option<Own>, threads: &Threads) -> Result<Self> {
        let MedusaShape { positions, blocks, width, n_vocab } = shape;
        let load = |name: &str, n| Linear::load(file, name, (n, width), threads);
        let position = |k: usize| {
            let block = |l: usize| load(&format!("{k}.{l}.linear"), width);
            let blocks: Vec<Linear> = (0..blocks).map(block).collect::<Result<_>>()?;
            let l = blocks.len();
            Ok(LoadedPosition { blocks, head: load(&format!("{k}.{l}"), n_vocab)? })
        };
        let positions: Vec<LoadedPosition> = (0..positions).map(position).collect::<Result<_>>()?;
        let of = |position: &LoadedPosition| {
            position.head.bytes(width) + position.blocks.iter().map(|block| block.bytes(width)).sum::<usize>()
        };
        let bytes = positions.first().map_or(0, of);
        Ok(Self { positions, bytes, own })
    }
}

impl LastStateNetwork for Medusa {
    fn reads_drafts(&self) -> bool {
        false
    }

    fn depth(&self) -> usize {
        self.positions.len()
    }

    fn step(
        &self,
        space: &mut ProductSpace<'_>,
        at: usize,
        state: &mut Vec<f32>,
        _: TokenId,
    ) -> Result<Vec<f32>> {
        let LoadedPosition { blocks, head } = &self.positions[at];
        let mut x = state.clone();
        if let Some(Own { in_scale, in_shift, .. }) = &self.own {
            let scales = in_scale.iter().zip(in_shift);
            x.iter_mut().zip(scales).for_each(|(x, (scale, shift))| *x = *x * scale + shift);
        }
        let ones = vec![1.0; x.len()];
        for block in blocks {
            let mut update = vec![0.0; x.len()];
            block.apply(space.threads, &x, space.quantised, &mut update, false);
            Activation::Silu.gate(&mut update, &ones);
            x.iter_mut().zip(&update).for_each(|(x, update)| *x += update);
        }
        let mut scores = vec![0.0; head.matrix.rows()];
        head.apply(space.threads, &x, space.quantised, &mut scores, false);
        let Some(Own { vocabulary, n_vocab, .. }) = &self.own else { return Ok(scores) };
        let mut logits = vec![f32::NEG_INFINITY; *n_vocab];
        vocabulary.iter().zip(&scores).for_each(|(&token, &score)| logits[token as usize] = score);
        Ok(logits)
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}
