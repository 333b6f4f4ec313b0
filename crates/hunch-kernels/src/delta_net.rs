//! Gated delta nets on the CPU (Yang et al., arXiv 2412.06464; `Qwen3NextGatedDeltaNet` of Hugging Face transformers).
//!
//! A head has a state S, `[key, value]`. Each position multiplies it by a decay and reads what it has at its key k. Then
//! it moves that towards its value v by a share, the strength:
//!
//! ```text
//! S = decay * S,   S = S + k (strength * (v - S^T k))^T,   output = S^T q
//! ```
//!
//! q, k and v are projections after a short convolution and SiLU; q and k are normed. Columns of S do not depend on each
//! other. A task takes [`COLUMNS`] columns of a head along all nodes of a pass, so its part of the state stays in the L1
//! cache. Each node follows from its parent alone, in one order of additions. Its bits do not depend on the other rows,
//! the threads, or the tree. Memory of states belongs to the model.

use super::activation::{exp, widened};
#[cfg(target_arch = "x86_64")]
use super::isa::Level;
use super::threads::{SharedSlice, Threads};

/// Columns of a head's state that a task takes. Divides the width of a head.
pub const COLUMNS: usize = 32;
/// Largest width of a head.
pub const MAX_HEAD: usize = 128;

/// Sizes of a gated delta net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Number of key heads, and of query heads.
    pub key_heads: usize,
    /// Number of value heads, each with a state. A multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of all heads: a multiple of [`COLUMNS`], at most [`MAX_HEAD`].
    pub head_dim: usize,
    /// Positions that the convolution sees, its own included.
    pub positions: usize,
    /// `true` if value head h has key head `h % key_heads`, otherwise `h / (value_heads / key_heads)`.
    pub is_tiled: bool,
}

impl DeltaShape {
    /// Returns the channels of the convolution: queries, keys and values of all heads.
    pub fn channels(&self) -> usize {
        (2 * self.key_heads + self.value_heads) * self.head_dim
    }

    /// Returns the width of the output of a row.
    pub fn width(&self) -> usize {
        self.value_heads * self.head_dim
    }

    /// Returns the values of an input row: channels, then the decay and then the strength of each value head.
    pub fn row(&self) -> usize {
        self.channels() + 2 * self.value_heads
    }

    /// Returns the values of the states of all heads.
    pub fn state(&self) -> usize {
        self.value_heads * self.head_dim * self.head_dim
    }

    /// Returns the key head of a value head.
    pub fn key_head(&self, head: usize) -> usize {
        if self.is_tiled { head % self.key_heads } else { head / (self.value_heads / self.key_heads) }
    }
}

/// Position of a pass, or one before it whose input is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNode {
    /// Node before it. `None` if it follows the first state.
    pub parent: Option<usize>,
    /// Row of the output. `None` if its output is not wanted.
    pub row: Option<usize>,
    /// `true` if the state after it is kept for a later node than the next.
    pub is_branch: bool,
}

/// Nodes of a pass in depth-first order: each follows its parent at once, or after the nodes below an earlier child.
#[derive(Clone, Copy)]
pub struct DeltaPass<'a> {
    /// Nodes.
    pub nodes: &'a [DeltaNode],
    /// `true` if several nodes follow the first state.
    pub is_forked: bool,
    /// For each node the input rows that its convolution sees, the earliest first, its own last,
    /// `[nodes, positions]`.
    pub seen: &'a [usize],
    /// Input rows, `[rows, `[`DeltaShape::row`]`]`.
    pub inputs: &'a [f32],
    /// Weights of the convolution, `[channels, positions]`, the earliest position first.
    pub convolution: &'a [f32],
    /// Added to the sum of squares of a query or key in its norm.
    pub eps: f32,
}

/// States of a layer: those that a pass begins with, and those that it keeps.
#[derive(Clone, Copy)]
pub struct DeltaStates<'a> {
    /// Place of the state before the nodes. `None` for zeros.
    pub from: Option<usize>,
    /// Places of the states after some nodes: node, place. A place may be that of `from`.
    pub saves: &'a [(usize, usize)],
}

/// Memory that a pass reads and writes.
pub struct DeltaBuffers<'a> {
    /// States of all places, `[places, `[`DeltaShape::state`]`]`.
    pub states: &'a mut [f32],
    /// Working memory. Its contents do not matter.
    pub mixed: &'a mut Vec<f32>,
    /// Outputs, `[output rows, `[`DeltaShape::width`]`]`, before their norm and gate.
    pub out: &'a mut [f32],
}

/// Computes the outputs of a pass.
///
/// # Panics
/// If the sizes do not match.
pub fn delta_net(
    threads: &Threads,
    shape: DeltaShape,
    pass: DeltaPass<'_>,
    states: DeltaStates<'_>,
    buffers: DeltaBuffers<'_>,
) {
    let DeltaBuffers { states: memory, mixed, out } = buffers;
    let DeltaShape { value_heads, head_dim: d, .. } = shape;
    assert!(d.is_multiple_of(COLUMNS) && d <= MAX_HEAD, "there is no kernel for heads of width {d}");
    assert!(value_heads.is_multiple_of(shape.key_heads), "value heads must share the key heads evenly");
    assert_eq!(pass.seen.len(), pass.nodes.len() * shape.positions, "each node must see its positions");
    assert_eq!(pass.convolution.len(), shape.channels() * shape.positions, "weights must match the shape");
    mixed.resize(pass.nodes.len() * shape.channels(), 0.0);
    convolve(threads, shape, pass, mixed);
    let (memory, out) = (SharedSlice::new(memory), SharedSlice::new(out));
    let blocks = d / COLUMNS;
    let block_len = d * COLUMNS;
    threads.run(value_heads * blocks, &|task| {
        let (head, block) = (task / blocks, task % blocks);
        let place = |place: usize| place * shape.state() + task * block_len;
        // SAFETY: both slices stay borrowed until all tasks are done. No other task uses this block of a state, or
        // these columns of the output, and this task uses one part at a time.
        let part = |of: SharedSlice<f32>, from: usize, len: usize| unsafe { of.part(from, len) };
        let mut state = [0f32; MAX_HEAD * COLUMNS];
        let state = &mut state[..block_len];
        if let Some(from) = states.from {
            state.copy_from_slice(part(memory, place(from), block_len));
        }
        let mut kept: Vec<(Option<usize>, Vec<f32>)> = Vec::new();
        if pass.is_forked {
            kept.push((None, state.to_vec()));
        }
        let channel = |part: usize, head: usize| (part * shape.key_heads + head) * d;
        let of_key = shape.key_head(head);
        let (q, k) = (channel(0, of_key), channel(1, of_key));
        let v = channel(2, 0) + head * d + block * COLUMNS;
        for (index, node) in pass.nodes.iter().enumerate() {
            if node.parent != index.checked_sub(1) {
                while kept.last().is_some_and(|(of, _)| *of != node.parent) {
                    kept.pop();
                }
                let Some((_, parent)) = kept.last() else { panic!("the state of a branch must be kept") };
                state.copy_from_slice(parent);
            }
            let mixed = &mixed[index * shape.channels()..][..shape.channels()];
            let own = pass.seen[(index + 1) * shape.positions - 1];
            let gates = &pass.inputs[own * shape.row() + shape.channels()..][..2 * value_heads];
            let step = DeltaStep {
                q: &mixed[q..q + d],
                k: &mixed[k..k + d],
                v: &mixed[v..v + COLUMNS],
                decay: gates[head],
                strength: gates[value_heads + head],
            };
            match node.row {
                Some(row) => {
                    let from = row * shape.width() + head * d + block * COLUMNS;
                    advance(state, &step, part(out, from, COLUMNS));
                }
                None => update(state, &step),
            }
            if node.is_branch {
                kept.push((Some(index), state.to_vec()));
            }
            for &(_, to) in states.saves.iter().filter(|(of, _)| *of == index) {
                part(memory, place(to), block_len).copy_from_slice(state);
            }
        }
    });
}

/// Computes the convolutions of all nodes, `[nodes, channels]`, with SiLU. Queries and keys are normed, and queries
/// scaled by the root of their width.
fn convolve(threads: &Threads, shape: DeltaShape, pass: DeltaPass<'_>, mixed: &mut [f32]) {
    let DeltaShape { key_heads, value_heads, head_dim: d, positions, .. } = shape;
    let (channels, row_len) = (shape.channels(), shape.row());
    let mixed = SharedSlice::new(mixed);
    threads.run(2 * key_heads + value_heads, &|head| {
        let mut weights = vec![0f32; positions * d];
        for (channel, of_channel) in
            pass.convolution[head * d * positions..][..d * positions].chunks_exact(positions).enumerate()
        {
            for (position, weight) in of_channel.iter().enumerate() {
                weights[position * d + channel] = *weight;
            }
        }
        for (index, seen) in pass.seen.chunks_exact(positions).enumerate() {
            // SAFETY: the slice stays borrowed until all tasks are done, and no other task uses these channels.
            let out = unsafe { mixed.part(index * channels + head * d, d) };
            out.fill(0.0);
            for (weights, row) in weights.chunks_exact(d).zip(seen) {
                add_product(out, &pass.inputs[row * row_len + head * d..][..d], weights);
            }
            silu(out);
            if head < 2 * key_heads {
                let scale = if head < key_heads { 1.0 / (d as f32).sqrt() } else { 1.0 };
                norm(out, pass.eps, scale);
            }
        }
    });
}

/// Input of a node for some columns of a head.
struct DeltaStep<'a> {
    /// Query and key, as wide as a head.
    q: &'a [f32],
    k: &'a [f32],
    /// Value, [`COLUMNS`] of it.
    v: &'a [f32],
    decay: f32,
    strength: f32,
}

widened! {
    /// Moves columns of a state on, `[key, COLUMNS]`, and writes their output.
    fn advance(state: &mut [f32], step: &DeltaStep<'_>, out: &mut [f32]) {
        let change = changes(state, step);
        let mut sums = [0f32; COLUMNS];
        for ((row, k), q) in state.chunks_exact_mut(COLUMNS).zip(step.k).zip(step.q) {
            for ((value, change), sum) in row.iter_mut().zip(&change).zip(&mut sums) {
                *value += k * change;
                *sum += q * *value;
            }
        }
        out.copy_from_slice(&sums);
    }
}

widened! {
    /// Moves columns of a state on as [`advance`], with the same bits and without output.
    fn update(state: &mut [f32], step: &DeltaStep<'_>) {
        let change = changes(state, step);
        for (row, k) in state.chunks_exact_mut(COLUMNS).zip(step.k) {
            for (value, change) in row.iter_mut().zip(&change) {
                *value += k * change;
            }
        }
    }
}

/// Applies the decay, and returns what the node changes at its key.
#[inline(always)]
fn changes(state: &mut [f32], step: &DeltaStep<'_>) -> [f32; COLUMNS] {
    let mut seen = [0f32; COLUMNS];
    for (row, k) in state.chunks_exact_mut(COLUMNS).zip(step.k) {
        for (value, seen) in row.iter_mut().zip(&mut seen) {
            *value *= step.decay;
            *seen += k * *value;
        }
    }
    for (seen, v) in seen.iter_mut().zip(step.v) {
        *seen = step.strength * (v - *seen);
    }
    seen
}

widened! {
    /// Computes `out += x * weights`.
    fn add_product(out: &mut [f32], x: &[f32], weights: &[f32]) {
        for (out, (x, weight)) in out.iter_mut().zip(x.iter().zip(weights)) {
            *out += x * weight;
        }
    }
}

widened! {
    /// Computes `x / (1 + e^-x)` in place.
    fn silu(x: &mut [f32]) {
        x.iter_mut().for_each(|x| *x /= 1.0 + exp(-*x));
    }
}

widened! {
    /// Computes `x * scale / sqrt(sum(x^2) + eps)` in place.
    fn norm(x: &mut [f32], eps: f32, scale: f32) {
        let mut sums = [0f32; COLUMNS];
        for part in x.chunks(COLUMNS) {
            for (sum, x) in sums.iter_mut().zip(part) {
                *sum += x * x;
            }
        }
        let factor = scale / (sums.iter().sum::<f32>() + eps).sqrt();
        x.iter_mut().for_each(|x| *x *= factor);
    }
}

widened! {
    /// Computes the decays `e^(rate * ln(1 + e^(x + bias)))` in place. Rates are negative.
    pub fn delta_decays(x: &mut [f32], bias: &[f32], rates: &[f32]) {
        for (x, (bias, rate)) in x.iter_mut().zip(bias.iter().zip(rates)) {
            let x_biased = *x + bias;
            // Above 20 the logarithm is x within rounding.
            let softplus = if x_biased > 20.0 { x_biased } else { exp(x_biased).ln_1p() };
            *x = exp(rate * softplus);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: DeltaShape =
        DeltaShape { key_heads: 2, value_heads: 4, head_dim: 64, positions: 3, is_tiled: false };

    fn noise(len: usize, seed: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
    }

    /// Input rows with decays and strengths from 0 to 1, after zeros before the text.
    fn inputs(rows: usize) -> Vec<f32> {
        let (reach, width) = (SHAPE.positions - 1, SHAPE.row());
        let mut inputs = noise((reach + rows) * width, 3);
        inputs[..reach * width].fill(0.0);
        for row in inputs.chunks_exact_mut(width) {
            row[SHAPE.channels()..].iter_mut().for_each(|gate| *gate = 0.5 + 0.5 * *gate);
        }
        inputs
    }

    fn chain(rows: usize) -> (Vec<DeltaNode>, Vec<usize>) {
        let node = |row: usize| DeltaNode { parent: row.checked_sub(1), row: Some(row), is_branch: false };
        let seen = (0..rows).flat_map(|row| row..row + SHAPE.positions).collect();
        ((0..rows).map(node).collect(), seen)
    }

    /// Computes the formulas of the module in f64, one head at a time.
    fn reference(shape: DeltaShape, inputs: &[f32], convolution: &[f32], rows: usize) -> Vec<f64> {
        let (d, width) = (shape.head_dim, shape.row());
        let mut out = vec![0f64; rows * shape.width()];
        let channel = |row: usize, channel: usize| -> f64 {
            let weights = &convolution[channel * shape.positions..][..shape.positions];
            let sum: f64 = weights
                .iter()
                .enumerate()
                .map(|(i, weight)| f64::from(*weight) * f64::from(inputs[(row + i) * width + channel]))
                .sum();
            sum / (1.0 + (-sum).exp())
        };
        let normed = |row: usize, first: usize| -> Vec<f64> {
            let head: Vec<f64> = (first..first + d).map(|at| channel(row, at)).collect();
            let norm = (head.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            head.iter().map(|x| x / norm).collect()
        };
        for head in 0..shape.value_heads {
            let key_head = shape.key_head(head);
            let mut state = vec![vec![0f64; d]; d];
            for row in 0..rows {
                let q = normed(row, key_head * d);
                let k = normed(row, (shape.key_heads + key_head) * d);
                let gates = &inputs[(row + shape.positions - 1) * width + shape.channels()..];
                let (decay, strength) = (f64::from(gates[head]), f64::from(gates[shape.value_heads + head]));
                for column in 0..d {
                    let v = channel(row, (2 * shape.key_heads + head) * d + column);
                    state.iter_mut().for_each(|of_key| of_key[column] *= decay);
                    let seen: f64 = state.iter().zip(&k).map(|(of_key, k)| of_key[column] * k).sum();
                    state
                        .iter_mut()
                        .zip(&k)
                        .for_each(|(of_key, k)| of_key[column] += k * strength * (v - seen));
                    let read: f64 = state.iter().zip(&q).map(|(of_key, q)| of_key[column] * q).sum();
                    out[row * shape.width() + head * d + column] = read / (d as f64).sqrt();
                }
            }
        }
        out
    }

    fn run(shape: DeltaShape, rows: usize, threads: usize) -> Vec<f32> {
        let (nodes, seen) = chain(rows);
        let (inputs, convolution) = (inputs(rows), noise(shape.channels() * shape.positions, 9));
        let pass = DeltaPass {
            nodes: &nodes,
            is_forked: false,
            seen: &seen,
            inputs: &inputs,
            convolution: &convolution,
            eps: 1e-6,
        };
        let mut out = vec![0.0; rows * shape.width()];
        let states = DeltaStates { from: None, saves: &[] };
        let threads = Threads::new(threads).unwrap();
        let buffers = DeltaBuffers { states: &mut [], mixed: &mut Vec::new(), out: &mut out };
        delta_net(&threads, shape, pass, states, buffers);
        out
    }

    #[test]
    fn matches_formulas_in_f64() {
        let rows = if cfg!(miri) { 2 } else { 40 };
        for is_tiled in [false, true] {
            let shape = DeltaShape { is_tiled, ..SHAPE };
            let ours = run(shape, rows, 1);
            let convolution = noise(shape.channels() * shape.positions, 9);
            let expected = reference(shape, &inputs(rows), &convolution, rows);
            let largest = expected.iter().fold(0f64, |m, v| m.max(v.abs()));
            for (ours, expected) in ours.iter().zip(&expected) {
                assert!((f64::from(*ours) - expected).abs() < 1e-5 * largest, "{ours}, not {expected}");
            }
        }
    }

    #[test]
    fn threads_change_no_bit() {
        let rows = if cfg!(miri) { 2 } else { 9 };
        assert_eq!(run(SHAPE, rows, 1), run(SHAPE, rows, 3));
    }

    #[test]
    fn saved_states_and_branches_continue_with_the_same_bits() {
        let whole = run(SHAPE, 6, 1);
        let (inputs, convolution) = (inputs(6), noise(SHAPE.channels() * SHAPE.positions, 9));
        let (mut memory, mut mixed) = (vec![0.0; 2 * SHAPE.state()], Vec::new());
        let threads = Threads::new(2).unwrap();
        let (nodes, seen) = chain(3);
        let mut pass = DeltaPass {
            nodes: &nodes,
            is_forked: false,
            seen: &seen,
            inputs: &inputs,
            convolution: &convolution,
            eps: 1e-6,
        };
        let mut first = vec![0.0; 3 * SHAPE.width()];
        let states = DeltaStates { from: None, saves: &[(2, 1)] };
        let buffers = DeltaBuffers { states: &mut memory, mixed: &mut mixed, out: &mut first };
        delta_net(&threads, SHAPE, pass, states, buffers);
        assert_eq!(first, whole[..first.len()]);
        // Rows 3, 4 and 5 of the text, and a branch of row 5 alone before them.
        let node = |parent, row, is_branch| DeltaNode { parent, row: Some(row), is_branch };
        let nodes =
            [node(None, 0, false), node(None, 1, true), node(Some(1), 2, false), node(Some(1), 3, false)];
        let seen = [3, 4, 7, 3, 4, 5, 4, 5, 7, 4, 5, 6];
        pass = DeltaPass { nodes: &nodes, is_forked: true, seen: &seen, ..pass };
        let mut out = vec![0.0; 4 * SHAPE.width()];
        let states = DeltaStates { from: Some(1), saves: &[(3, 0), (0, 1)] };
        let buffers = DeltaBuffers { states: &mut memory, mixed: &mut mixed, out: &mut out };
        delta_net(&threads, SHAPE, pass, states, buffers);
        let row = |of: &[f32], row: usize| of[row * SHAPE.width()..][..SHAPE.width()].to_vec();
        assert_eq!(row(&out, 1), row(&whole, 3));
        assert_eq!(row(&out, 3), row(&whole, 4));
        assert_ne!(row(&out, 2), row(&whole, 4));
        // The state after row 4 continues.
        let nodes = [node(None, 0, false)];
        pass = DeltaPass { nodes: &nodes, is_forked: false, seen: &[5, 6, 7], ..pass };
        let mut last = vec![0.0; SHAPE.width()];
        let states = DeltaStates { from: Some(0), saves: &[] };
        let buffers = DeltaBuffers { states: &mut memory, mixed: &mut mixed, out: &mut last };
        delta_net(&threads, SHAPE, pass, states, buffers);
        assert_eq!(last, row(&whole, 5));
    }

    #[test]
    fn decays_match_f64() {
        for i in -400..400 {
            let x = i as f32 / 10.0;
            let mut decay = [x];
            delta_decays(&mut decay, &[0.5], &[-0.7]);
            let expected = (-0.7 * (f64::from(x) + 0.5).exp().ln_1p()).exp();
            assert!((f64::from(decay[0]) - expected).abs() < 1e-6, "{x}: {}, not {expected}", decay[0]);
        }
    }
}
