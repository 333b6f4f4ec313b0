//! Checks of gated delta nets, and of the gated attention of their models.

use hunch_error::Result;
use hunch_kernels::RowMask;
use hunch_kernels::delta_net::{DeltaNode, DeltaShape};

use super::super::activations::{Activations, Forms};
use super::super::attention::{GpuAttention, Scoring};
use super::super::delta_net::{DeltaSpace, DeltaSteps, DeltaVectors, GpuDeltaNet, GpuDeltaPlan};
use super::super::gpu::Buffer;
use super::super::workspace::AttentionSpace;
use super::checks::{CheckOutcome, Tester};
use super::reference::{
    AttentionCase, SUM_BOUND, VALUE_BOUND, attention_in_f64, checked, half_bytes, halves, near, noise,
    same_bits,
};

/// Positions that the convolution sees.
const POSITIONS: usize = 3;
/// States that are held.
const PLACES: usize = 3;
/// Held rows before those of the checkpoints.
const HELD: usize = 6;
const EPS: f32 = 1e-6;
const NONE: u32 = u32::MAX;

/// A layer with its memory before a pass.
struct Layer {
    shape: DeltaShape,
    convolution: Vec<f32>,
    rates: Vec<f32>,
    bias: Vec<f32>,
    norm: Vec<f32>,
    states: Vec<f32>,
    held: Vec<f32>,
}

/// A layer on the GPU.
struct GpuLayer {
    weights: [Buffer; 4],
    states: Buffer,
    held: Buffer,
}

/// Results of a pass in f64.
struct Expected {
    outputs: Vec<f64>,
    states: Vec<f64>,
    held: Vec<f64>,
}

impl Layer {
    fn new(head_dim: usize, is_tiled: bool) -> Self {
        let shape = DeltaShape { key_heads: 2, value_heads: 4, head_dim, positions: POSITIONS, is_tiled };
        let mut held = noise((HELD + PLACES * (POSITIONS - 1)) * shape.row(), 46);
        for row in held.chunks_exact_mut(shape.row()) {
            // Decays and strengths are from 0 to 1.
            row[shape.channels()..].iter_mut().for_each(|gate| *gate = 0.5 + 0.5 * *gate);
        }
        Self {
            shape,
            convolution: noise(shape.channels() * POSITIONS, 41),
            rates: noise(shape.value_heads, 42).iter().map(|rate| -0.4 - 0.3 * rate).collect(),
            bias: noise(shape.value_heads, 43),
            norm: noise(head_dim, 44),
            states: noise(PLACES * shape.state(), 45).iter().map(|value| 0.3 * value).collect(),
            held,
        }
    }

    /// Returns the values of a row of projections.
    fn stride(&self) -> usize {
        self.shape.row() + self.shape.width()
    }

    /// Returns the input row that a word names, in f64.
    fn input(&self, steps: &DeltaSteps<'_>, x: &[f32], word: u32) -> Vec<f64> {
        let DeltaShape { key_heads, value_heads: heads, .. } = self.shape;
        let (width, channels) = (self.shape.row(), self.shape.channels());
        let wide = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<f64>>();
        if word == NONE {
            return vec![0.0; width];
        }
        let Some(place) = (word as usize).checked_sub(steps.rows) else {
            let x = &x[word as usize * self.stride()..][..self.stride()];
            let gates = &x[channels + self.shape.width()..];
            let mut row = wide(&x[..channels]);
            let group = heads / key_heads;
            let raw = |head: usize| match self.shape.is_tiled {
                true => (gates[heads + head], gates[head]),
                false => {
                    let first = head / group * 2 * group + head % group;
                    (gates[first + group], gates[first])
                }
            };
            row.extend((0..heads).map(|head| {
                let softplus = (f64::from(raw(head).0) + f64::from(self.bias[head])).exp().ln_1p();
                (f64::from(self.rates[head]) * softplus).exp()
            }));
            row.extend((0..heads).map(|head| 1.0 / (1.0 + (-f64::from(raw(head).1)).exp())));
            return row;
        };
        wide(&self.held[place * width..][..width])
    }

    /// Computes a pass over the projections `x`.
    fn expected(&self, steps: &DeltaSteps<'_>, x: &[f32]) -> Expected {
        let (shape, width) = (self.shape, self.shape.row());
        let (d, channels, of_state) = (shape.head_dim, shape.channels(), shape.state());
        let mut outputs = vec![0f64; steps.rows * shape.width()];
        let mut states: Vec<f64> = self.states.iter().map(|value| f64::from(*value)).collect();
        let mut held: Vec<f64> = self.held.iter().map(|value| f64::from(*value)).collect();
        let first =
            steps.from.map_or(vec![0.0; of_state], |from| states[from * of_state..][..of_state].to_vec());
        let mut after: Vec<Vec<f64>> = Vec::new();
        for (index, (node, seen)) in steps.nodes.iter().zip(steps.seen.chunks_exact(POSITIONS)).enumerate() {
            let inputs: Vec<Vec<f64>> = seen.iter().map(|word| self.input(steps, x, *word)).collect();
            let mixed: Vec<f64> = (0..channels)
                .map(|channel| {
                    let weights = &self.convolution[channel * POSITIONS..][..POSITIONS];
                    let products = inputs.iter().zip(weights).map(|(row, w)| row[channel] * f64::from(*w));
                    let sum: f64 = products.sum();
                    sum / (1.0 + (-sum).exp())
                })
                .collect();
            let unit = |head: usize| -> Vec<f64> {
                let head = &mixed[head * d..][..d];
                let norm = (head.iter().map(|x| x * x).sum::<f64>() + f64::from(EPS)).sqrt();
                head.iter().map(|x| x / norm).collect()
            };
            let mut state = node.parent.map_or(first.clone(), |parent| after[parent].clone());
            for (head, state) in state.chunks_exact_mut(d * d).enumerate() {
                let (q, k) = (unit(shape.key_head(head)), unit(shape.key_heads + shape.key_head(head)));
                let own = &inputs[POSITIONS - 1][channels..];
                let (decay, strength) = (own[head], own[shape.value_heads + head]);
                for (column, keys) in state.chunks_exact_mut(d).enumerate() {
                    let v = mixed[(2 * shape.key_heads + head) * d + column];
                    keys.iter_mut().for_each(|value| *value *= decay);
                    let seen: f64 = keys.iter().zip(&k).map(|(value, k)| value * k).sum();
                    keys.iter_mut().zip(&k).for_each(|(value, k)| *value += k * strength * (v - seen));
                    if let Some(row) = node.row {
                        let read: f64 = keys.iter().zip(&q).map(|(value, q)| value * q).sum();
                        outputs[row * shape.width() + head * d + column] = read / (d as f64).sqrt();
                    }
                }
            }
            for &(_, place) in steps.saves.iter().filter(|(of, _)| *of == index) {
                states[place * of_state..][..of_state].copy_from_slice(&state);
                let before = HELD + place * (POSITIONS - 1);
                for (at, input) in inputs[1..].iter().enumerate() {
                    held[(before + at) * width..][..channels].copy_from_slice(&input[..channels]);
                }
            }
            after.push(state);
        }
        for (row, outputs) in outputs.chunks_exact_mut(shape.width()).enumerate() {
            let gates = &x[row * self.stride() + channels..][..shape.width()];
            for (head, gates) in outputs.chunks_exact_mut(d).zip(gates.chunks_exact(d)) {
                let mean = head.iter().map(|x| x * x).sum::<f64>() / d as f64;
                let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
                for ((value, gate), weight) in head.iter_mut().zip(gates).zip(&self.norm) {
                    let gate = f64::from(*gate);
                    *value *= scale * f64::from(*weight) * gate / (1.0 + (-gate).exp());
                }
            }
        }
        for &(row, place) in steps.held {
            held[place * width..][..width].copy_from_slice(&self.input(steps, x, row as u32));
        }
        Expected { outputs, states, held }
    }
}

impl Tester<'_> {
    fn upload(&self, layer: &Layer) -> Result<GpuLayer> {
        let Layer { convolution, rates, bias, norm, states, held, .. } = layer;
        let [convolution, rates, bias, norm] = [convolution, rates, bias, norm].map(|of| self.floats(of));
        let weights = [convolution?, rates?, bias?, norm?];
        Ok(GpuLayer { weights, states: self.floats(states)?, held: self.floats(held)? })
    }

    /// Runs a pass over the projections `x`, and returns its output.
    fn run_delta_net(
        &self,
        shape: DeltaShape,
        layer: &GpuLayer,
        steps: DeltaSteps<'_>,
        x: &[f32],
    ) -> Result<Activations> {
        let plan = GpuDeltaPlan::new(self.gpu, steps)?;
        let space = DeltaSpace::for_pass(self.gpu, None, shape, &plan)?;
        let out = Activations::new(self.gpu, steps.rows, shape.width())?;
        let [convolution, rates, bias, norm] = &layer.weights;
        let net = GpuDeltaNet {
            shape,
            x: &self.floats(x)?,
            weights: DeltaVectors { convolution, rates, bias, norm },
            eps: EPS,
            states: &layer.states,
            held: &layer.held,
        };
        self.kernels.delta_net(net, &plan, &space, out.written_as(Forms::ALL))?;
        Ok(out)
    }

    /// Attention of rows that have queries and then gates.
    pub(super) fn gated_attention(&self) -> Result<CheckOutcome> {
        let (queries, keys, width, capacity, rows) = (4, 2, 64, 140, 3);
        let (row, mask, scoring) = (queries * width, RowMask::causal(130, rows), Scoring::of_width(width));
        let q: Vec<f32> = noise(rows * 2 * row, 48).iter().map(|value| 3.0 * value).collect();
        let cache = halves(noise(2 * capacity * keys * width, 49));
        let q_buffer = self.floats(&q)?;
        let input = GpuAttention {
            q: &q_buffer,
            stride: 2 * row,
            cache: &Buffer::with_bytes(self.gpu, &half_bytes(&cache))?,
            capacity,
            rows,
            queries,
            keys,
            width,
            scoring,
            sinks: None,
            gates: Some(q_buffer.at_value(row)),
        };
        let space = AttentionSpace::new(self.gpu, &mask, queries, width, None)?;
        let out = Activations::new(self.gpu, rows, row)?;
        self.kernels.attention(input, &space, out.written_as(Forms::ALL))?;
        let own: Vec<f32> = q.chunks_exact(2 * row).flat_map(|of_row| of_row[..row].to_vec()).collect();
        let gates = q.chunks_exact(2 * row).flat_map(|of_row| &of_row[row..]);
        let case = AttentionCase { queries, keys, width, capacity, scoring, sinks: &[] };
        let attended = (0..rows).flat_map(|row| attention_in_f64(&own, &cache, &mask, row, case));
        let expected = attended.zip(gates).map(|(value, gate)| value / (1.0 + (-f64::from(*gate)).exp()));
        Ok(CheckOutcome::of(near(&out.floats.read_floats(0, rows * row)?, expected, SUM_BOUND)))
    }

    /// Gated delta nets with heads of a width: trees and a chain, which has the bits of its rows alone.
    pub(super) fn delta_net(&self, head_dim: usize) -> Result<CheckOutcome> {
        let node = |parent, row, is_branch| DeltaNode { parent, row, is_branch };
        let held = |place: usize| (4 + place) as u32;
        // A held row is read again, and rows 1 and 2 follow row 0. One row takes the place of that held row.
        let branches = DeltaSteps {
            rows: 4,
            nodes: &[
                node(None, None, false),
                node(Some(0), Some(0), true),
                node(Some(1), Some(1), false),
                node(Some(1), Some(2), false),
                node(Some(3), Some(3), false),
            ],
            is_forked: false,
            seen: &[
                [held(HELD + 2), held(HELD + 3), held(4)],
                [held(HELD + 3), held(4), 0],
                [held(4), 0, 1],
                [held(4), 0, 2],
                [0, 2, 3],
            ]
            .concat(),
            from: Some(1),
            saves: &[(0, 2), (4, 0)],
            held: &[(0, 4), (1, 0), (3, 2)],
            first_checkpoint: HELD,
        };
        // Two rows begin the text.
        let forked = DeltaSteps {
            rows: 2,
            nodes: &[node(None, Some(1), false), node(None, Some(0), false)],
            is_forked: true,
            seen: &[NONE, NONE, 1, NONE, NONE, 0],
            from: None,
            saves: &[],
            held: &[],
            first_checkpoint: HELD,
        };
        for (steps, is_tiled) in [(branches, false), (forked, true)] {
            let layer = Layer::new(head_dim, is_tiled);
            let (x, on_gpu) = (self.projections(&layer, steps.rows), self.upload(&layer)?);
            let out = self.run_delta_net(layer.shape, &on_gpu, steps, &x)?;
            let Expected { outputs, states, held } = layer.expected(&steps, &x);
            let all_near = |buffer: &Buffer, expected: Vec<f64>| -> Result<bool> {
                Ok(near(&buffer.read_floats(0, expected.len())?, expected, VALUE_BOUND))
            };
            let is_right = checked(&out, steps.rows * layer.shape.width(), outputs)?.is_some();
            if !(is_right && all_near(&on_gpu.states, states)? && all_near(&on_gpu.held, held)?) {
                return Ok(CheckOutcome::Differs);
            }
        }
        self.delta_net_alone(head_dim)
    }

    /// Compares the rows of a chain with passes of one row, of which each begins with the state of the one before.
    fn delta_net_alone(&self, head_dim: usize) -> Result<CheckOutcome> {
        const ROWS: usize = 5;
        let layer = Layer::new(head_dim, true);
        let (width, x) = (layer.shape.width(), self.projections(&layer, ROWS));
        let node = |row: usize| DeltaNode { parent: row.checked_sub(1), row: Some(row), is_branch: false };
        let nodes: Vec<DeltaNode> = (0..ROWS).map(node).collect();
        let seen = |rows: usize| -> Vec<u32> {
            let word =
                |at: usize| at.checked_sub(POSITIONS - 1).map_or((rows + HELD + at) as u32, |row| row as u32);
            (0..rows).flat_map(|row| (row..row + POSITIONS).map(word)).collect()
        };
        let steps = DeltaSteps {
            rows: ROWS,
            nodes: &nodes,
            is_forked: false,
            seen: &seen(ROWS),
            from: Some(0),
            saves: &[],
            held: &[],
            first_checkpoint: HELD,
        };
        let together = self.run_delta_net(layer.shape, &self.upload(&layer)?, steps, &x)?;
        let on_gpu = self.upload(&layer)?;
        for (row, x) in x.chunks_exact(layer.stride()).enumerate() {
            let places = [row % 2, (row + 1) % 2];
            let mut seen = seen(1);
            seen[..POSITIONS - 1].iter_mut().for_each(|word| *word += (places[0] * (POSITIONS - 1)) as u32);
            let (from, saves) = (Some(places[0]), [(0, places[1])]);
            let one = DeltaSteps { rows: 1, nodes: &nodes[..1], seen: &seen, from, saves: &saves, ..steps };
            let alone = self.run_delta_net(layer.shape, &on_gpu, one, x)?;
            let [alone, among] = [(&alone, 0), (&together, row)]
                .map(|(of, row)| of.floats.read_floats(4 * row * width, width));
            if !same_bits(&alone?, &among?) {
                return Ok(CheckOutcome::DependsOnRows);
            }
        }
        Ok(CheckOutcome::Passed)
    }

    fn projections(&self, layer: &Layer, rows: usize) -> Vec<f32> {
        noise(rows * layer.stride(), 47).iter().map(|value| 2.0 * value).collect()
    }
}
