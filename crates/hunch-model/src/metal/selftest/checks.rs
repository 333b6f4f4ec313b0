//! Checks of the parts of the kernels, and their times.

use std::sync::Arc;

use hunch_core::sample::DrawSettings;
use hunch_error::Result;
use hunch_kernels::activation::Activation;
use hunch_kernels::{LayerWindow, RowMask, WeightType, Window};

use super::super::activations::{Activations, Forms};
use super::super::attention::{GpuAttention, Scoring};
use super::super::choice::DrawInput;
use super::super::gpu::{Buffer, Gpu};
use super::super::heads::{HeadsInput, SpecialHeads};
use super::super::kernels::Kernels;
use super::super::matrix::Matrix;
use super::super::multiply::{GpuProduct, ResultScaling};
use super::super::products::TileRows;
use super::super::rows::{GateInput, NormInput, NormedUpdate, RowMoves};
use super::super::workspace::AttentionSpace;
use super::reference::{
    AttentionCase, Codes, HALF_BOUND, SUM_BOUND, VALUE_BOUND, activated, attention_in_f64, checked,
    cumulative, half_bytes, halves, near, noise, normed, random_matrix, read_halves, rotate, same_bits,
    upped,
};
use super::{GpuTimes, KernelPart, Workload};
use crate::pass_timer::{PassTimer, TimingObserver, seconds_of};

/// Most rows of a tested product and of attention.
const ROWS: usize = 16;
/// Keys before the rows of tested attention, in two spans.
const CONTEXT: usize = 130;
/// Heads of queries in tested attention. As many share keys as fill all lanes with 16 rows.
const QUERIES: usize = 12;
/// Norm and rotation of heads of 64 values.
#[derive(Clone, Copy)]
struct HeadsCase {
    /// Pairs neighbours instead of halves.
    neighbours: bool,
    rotated: usize,
    joint: bool,
    /// Factor of the queries of each row.
    factors: Option<[f32; 3]>,
    /// Values of a row after its heads.
    rest: usize,
    /// Norms values.
    norms_values: bool,
    /// The keys are the values too.
    values_are_keys: bool,
}

impl Default for HeadsCase {
    fn default() -> Self {
        Self {
            neighbours: false,
            rotated: 64,
            joint: false,
            factors: None,
            rest: 0,
            norms_values: false,
            values_are_keys: false,
        }
    }
}

/// Outcome of a check that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckOutcome {
    Passed,
    Differs,
    DependsOnRows,
}

impl CheckOutcome {
    pub(super) fn of(same: bool) -> Self {
        if same { Self::Passed } else { Self::Differs }
    }
}

/// Runs the checks on a GPU.
pub(super) struct Tester<'a> {
    pub(super) kernels: &'a Kernels,
    pub(super) gpu: &'a Arc<dyn Gpu>,
}

impl Tester<'_> {
    pub(super) fn floats(&self, values: &[f32]) -> Result<Buffer> {
        Buffer::with_floats(self.gpu, values)
    }

    /// Checks one part.
    ///
    /// # Errors
    /// If the GPU refuses a kernel or fails.
    pub(super) fn check(&self, part: KernelPart) -> Result<CheckOutcome> {
        match part {
            KernelPart::Product(dtype) => self.product(dtype),
            KernelPart::Output => self.output(),
            KernelPart::Cap => self.cap(),
            KernelPart::Joined => self.joined(),
            KernelPart::Norm => self.norm(),
            KernelPart::UpdateNorm => self.update_norm(),
            KernelPart::Gate(activation) => self.gate(activation),
            KernelPart::Heads => self.heads(),
            KernelPart::JointHeads => self.heads_of(HeadsCase { joint: true, ..HeadsCase::default() }),
            KernelPart::Cache => self.cache(),
            KernelPart::Choice => self.choice(),
            KernelPart::Draw => self.draws(),
            KernelPart::Attention(width) => self.attention(width),
            KernelPart::CappedAttention(width) => {
                let scoring = Scoring { cap: Some(3.0), ..Scoring::of_width(width) };
                self.attention_of_rows((width, scoring), &RowMask::causal(CONTEXT, 5), &[])
            }
            KernelPart::WindowAttention(width) => {
                // The windows of the rows begin in the first span and end in the second. The rows are in two chunks.
                for window in [LayerWindow::Last(20), LayerWindow::Chunk(CONTEXT + 3)] {
                    let scoring = Scoring { window: Some(window), ..Scoring::of_width(width) };
                    let mask = RowMask::causal(CONTEXT, 5);
                    let of_layer = self.attention_of_rows((width, scoring), &mask, &[])?;
                    if of_layer != CheckOutcome::Passed {
                        return Ok(of_layer);
                    }
                }
                // The window of drafts, with first keys.
                let window = Some(Window { leading: 4, recent: 20 });
                let mask = RowMask::causal(CONTEXT, 5).with_window(window);
                self.attention_of_rows((width, Scoring::of_width(width)), &mask, &[])
            }
            KernelPart::Sinks => {
                // Sinks of large, small and usual scores.
                let sinks: Vec<f32> = noise(QUERIES, 17).iter().map(|sink| sink * 8.0).collect();
                let mask = RowMask::causal(CONTEXT, 3);
                self.attention_of_rows((64, Scoring::of_width(64)), &mask, &sinks)
            }
            KernelPart::Experts => self.experts(WeightType::Q4K),
            KernelPart::Convolution => self.convolution(),
            KernelPart::GatedAttention => self.gated_attention(),
            KernelPart::DeltaNet(width) => self.delta_net(width),
        }
    }

    /// Products of one row and of more, and rows of a table.
    fn product(&self, dtype: WeightType) -> Result<CheckOutcome> {
        // An incomplete tile of rows. Partitions of different lengths, unless superblocks forbid it.
        let (n, k) = (43, if dtype.block_size() == 256 { 768 } else { 640 });
        let (file, weights) = random_matrix(dtype, n, k)?;
        let matrix = Matrix::new(self.gpu, dtype, (n, k), &file)?;
        let input = Codes::random(ROWS * k);
        let mut alone = Vec::new();
        for row in 0..ROWS {
            alone.extend(self.multiply(&matrix, &input.rows(row..row + 1, k), 1)?);
        }
        if !is_product(&alone, &weights, &input.values(), k) {
            return Ok(CheckOutcome::Differs);
        }
        // Each size of a tile of rows. More rows repeat the first ones.
        for rows in [2, 3, 5, 8, ROWS, 2 * ROWS, 3 * ROWS] {
            let together = self.multiply(&matrix, &input.cycled(rows * k), rows)?;
            let expected: Vec<f32> = alone.iter().copied().cycle().take(rows * n).collect();
            if !same_bits(&together, &expected) {
                return Ok(CheckOutcome::DependsOnRows);
            }
        }
        let tokens = [0, n as u32 - 1, 7];
        let out = Buffer::new(self.gpu, 4 * tokens.len() * k)?;
        let ids = Buffer::with_words(self.gpu, &tokens)?;
        self.kernels.take_rows(&matrix, ids.at_byte(0), tokens.len(), 1.0, &out)?;
        let expected =
            tokens.iter().flat_map(|row| &weights[*row as usize * k..][..k]).map(|w| f64::from(*w));
        Ok(CheckOutcome::of(near(&out.read_floats(0, tokens.len() * k)?, expected, VALUE_BOUND)))
    }

    fn multiply(&self, matrix: &Matrix, input: &Codes, rows: usize) -> Result<Vec<f32>> {
        let (n, activations) = (matrix.n(), Activations::new(self.gpu, rows, matrix.k())?);
        input.write(&activations)?;
        let out = self.floats(&vec![f32::NAN; rows * n])?;
        let scaling = ResultScaling::NONE;
        let product = GpuProduct { matrix, bias: None, out: out.at_value(0), stride: n, add: false, scaling };
        self.kernels.multiply(product, &activations, rows)?;
        out.read_floats(0, rows * n)
    }

    /// Products that are added to rows, with a bias and a factor, of packed weights and of floats.
    fn output(&self) -> Result<CheckOutcome> {
        let (n, k, stride, offset, scale) = (24, 64, 40, 8, 0.6);
        for (dtype, rows) in [(WeightType::Q8_0, 1), (WeightType::Q8_0, 3), (WeightType::F16, 3)] {
            let (matrix, activations, plain) = self.small_product(dtype, (n, k), rows)?;
            let (bias, before) = (noise(n, 3), noise(rows * stride, 4));
            let (bias_buffer, out) = (self.floats(&bias)?, self.floats(&before)?);
            let scaling = ResultScaling { scale, cap: None };
            let (matrix, bias_buffer) = (&matrix, Some(&bias_buffer));
            let product = GpuProduct {
                matrix,
                bias: bias_buffer,
                out: out.at_value(offset),
                stride,
                add: true,
                scaling,
            };
            self.kernels.multiply(product, &activations, rows)?;
            let mut expected: Vec<f64> = before.iter().map(|v| f64::from(*v)).collect();
            for (row, y) in plain.chunks_exact(n).enumerate() {
                for (column, y) in y.iter().enumerate() {
                    let sum = f64::from(*y) + f64::from(bias[column]);
                    expected[row * stride + offset + column] += f64::from(scale) * sum;
                }
            }
            if !near(&out.read_floats(0, rows * stride)?, expected, VALUE_BOUND) {
                return Ok(CheckOutcome::Differs);
            }
        }
        Ok(CheckOutcome::Passed)
    }

    /// Products of several types in one dispatch. The kernels compare them with a dispatch for each.
    fn joined(&self) -> Result<CheckOutcome> {
        use WeightType::{F16, Q4K, Q5K, Q6K};
        // Pairs and a triple as files of mixed quantisation have them. Each model compares those of its own.
        for types in [&[Q4K, F16][..], &[Q4K, Q6K], &[Q5K, Q6K], &[Q4K, Q5K, Q6K]] {
            self.join(types)?;
        }
        // The check of experts reports those that are wrong in a dispatch of their own.
        for types in [[Q4K, Q4K], [Q4K, Q6K]] {
            self.experts_of(types).ok();
        }
        Ok(CheckOutcome::of(self.kernels.join_problems().is_empty()))
    }

    /// Multiplies matrices of these types in one dispatch, with each number of rows in a tile of its own.
    fn join(&self, types: &[WeightType]) -> Result<()> {
        let (n, k) = (24, 256);
        let (mut matrices, mut weights) = (Vec::new(), Vec::new());
        for dtype in types {
            let (file, values) = random_matrix(*dtype, n, k)?;
            matrices.push(Matrix::new(self.gpu, *dtype, (n, k), &file)?);
            weights.push(values);
        }
        for rows in TileRows::ALL.map(TileRows::rows) {
            let input = Codes::random(rows * k);
            for (matrix, weights) in matrices.iter().zip(&weights) {
                // The check of a wrong type reports it. Its weights are converted, or no model uses our kernels.
                if !is_product(&self.multiply(matrix, &input, rows)?, weights, &input.values(), k) {
                    return Ok(());
                }
            }
            let activations = Activations::new(self.gpu, rows, k)?;
            input.write(&activations)?;
            let out = self.floats(&vec![f32::NAN; types.len() * rows * n])?;
            let product = |(i, matrix)| GpuProduct {
                matrix,
                bias: None,
                out: out.at_value(i * rows * n),
                stride: n,
                add: false,
                scaling: ResultScaling::NONE,
            };
            let products: Vec<GpuProduct<'_>> = matrices.iter().enumerate().map(product).collect();
            self.kernels.multiply_all(&products, &activations, rows)?;
        }
        Ok(())
    }

    /// Scaled products with a bound, as logits have it.
    fn cap(&self) -> Result<CheckOutcome> {
        let (n, k, scale, cap) = (24, 64, 4.0, 5.0);
        for (dtype, rows) in [(WeightType::Q8_0, 1), (WeightType::Q8_0, 3), (WeightType::F16, 3)] {
            let (matrix, activations, plain) = self.small_product(dtype, (n, k), rows)?;
            let (matrix, out) = (&matrix, Buffer::new(self.gpu, 4 * rows * n)?);
            let scaling = ResultScaling { scale, cap: Some(cap) };
            let product =
                GpuProduct { matrix, bias: None, out: out.at_value(0), stride: n, add: false, scaling };
            self.kernels.multiply(product, &activations, rows)?;
            let (scale, cap) = (f64::from(scale), f64::from(cap));
            let expected = plain.iter().map(|y| cap * (scale * f64::from(*y) / cap).tanh());
            if !near(&out.read_floats(0, rows * n)?, expected, VALUE_BOUND) {
                return Ok(CheckOutcome::Differs);
            }
        }
        Ok(CheckOutcome::Passed)
    }

    /// Returns a random matrix, random activations and their product.
    fn small_product(
        &self,
        dtype: WeightType,
        (n, k): (usize, usize),
        rows: usize,
    ) -> Result<(Matrix, Activations, Vec<f32>)> {
        let matrix = Matrix::new(self.gpu, dtype, (n, k), &random_matrix(dtype, n, k)?.0)?;
        let (input, activations) = (Codes::random(rows * k), Activations::new(self.gpu, rows, k)?);
        input.write(&activations)?;
        let plain = self.multiply(&matrix, &input, rows)?;
        Ok((matrix, activations, plain))
    }

    fn norm(&self) -> Result<CheckOutcome> {
        let (rows, width, eps) = (5, 608, 1e-5);
        let (x, weight) = (noise(rows * width, 1), noise(width, 2));
        let (x_buffer, weights) = (self.floats(&x)?, self.floats(&weight)?);
        let out = Activations::new(self.gpu, rows, width)?;
        let weight_buffer = Some(&weights);
        let input =
            NormInput { x: &x_buffer, weight: weight_buffer, update: None, first: 0, rows, width, eps };
        self.kernels.norm(input, out.written_as(Forms::ALL))?;
        let expected = x.chunks_exact(width).flat_map(|x| normed(x, &weight, eps));
        let together = checked(&out, rows * width, expected)?;
        let one = Activations::new(self.gpu, 1, width)?;
        self.kernels.norm(NormInput { first: 3, rows: 1, ..input }, one.written_as(Forms::ALL))?;
        let alone = one.floats.read_floats(0, width)?;
        Ok(match together {
            None => CheckOutcome::Differs,
            Some(all) if same_bits(&alone, &all[3 * width..4 * width]) => CheckOutcome::Passed,
            Some(_) => CheckOutcome::DependsOnRows,
        })
    }

    /// Norms of rows that an update joins first, by a norm of its own.
    fn update_norm(&self) -> Result<CheckOutcome> {
        let (rows, width, eps, scale, factor) = (3, 608, 1e-5, 0.7, 0.9);
        let (x, update) = (noise(rows * width, 1), noise(rows * width, 2));
        let weights = [noise(width, 3), noise(width, 4)];
        let (mut stream, mut expected) = (Vec::new(), Vec::new());
        for (x, update) in x.chunks_exact(width).zip(update.chunks_exact(width)) {
            let update = normed(update, &weights[0], eps);
            let row: Vec<f64> = x
                .iter()
                .zip(&update)
                .map(|(x, u)| f64::from(factor) * (f64::from(*x) + f64::from(scale) * u))
                .collect();
            let mean = row.iter().map(|v| v * v).sum::<f64>() / width as f64;
            let factor = 1.0 / (mean + f64::from(eps)).sqrt();
            expected.extend(row.iter().zip(&weights[1]).map(|(v, w)| v * factor * f64::from(*w)));
            stream.extend(row);
        }
        let (update_weight, weight) = (self.floats(&weights[0])?, self.floats(&weights[1])?);
        let (x, update) = (self.floats(&x)?, self.floats(&update)?);
        let joins =
            |store| Some(NormedUpdate { rows: &update, weight: &update_weight, scale, factor, store });
        let input =
            NormInput { x: &x, weight: Some(&weight), update: joins(false), first: 0, rows, width, eps };
        let one = Activations::new(self.gpu, 1, width)?;
        self.kernels.norm(NormInput { first: 1, rows: 1, ..input }, one.written_as(Forms::ALL))?;
        let out = Activations::new(self.gpu, rows, width)?;
        self.kernels.norm(NormInput { update: joins(true), ..input }, out.written_as(Forms::ALL))?;
        let alone = one.floats.read_floats(0, width)?;
        let stored = near(&x.read_floats(0, rows * width)?, stream, VALUE_BOUND);
        Ok(match checked(&out, rows * width, expected)? {
            Some(all) if stored && same_bits(&alone, &all[width..2 * width]) => CheckOutcome::Passed,
            Some(_) if stored => CheckOutcome::DependsOnRows,
            _ => CheckOutcome::Differs,
        })
    }

    fn gate(&self, activation: Activation) -> Result<CheckOutcome> {
        let (rows, width) = (3, 320);
        let x: Vec<f32> = noise(rows * 2 * width, 4).iter().map(|v| v * 12.0).collect();
        let factors = [0.75, 0.5, 1.25];
        let (x_buffer, factor_buffer) = (self.floats(&x)?, self.floats(&factors)?);
        let expected = |factors: [f32; 3]| {
            x.chunks_exact(2 * width).zip(factors).flat_map(move |(row, factor)| {
                let (gates, ups) = row.split_at(width);
                let scaled = move |value: &f32| f64::from(factor * value);
                gates.iter().zip(ups).map(move |(gate, up)| {
                    activated(scaled(gate), activation) * upped(scaled(up), activation)
                })
            })
        };
        for factors in [[1.0; 3], factors] {
            let out = Activations::new(self.gpu, rows, width)?;
            let input = GateInput {
                factors: (factors != [1.0; 3]).then_some(&factor_buffer),
                ..GateInput::joined(&x_buffer, rows, width, activation)
            };
            self.kernels.gate(input, out.written_as(Forms::ALL))?;
            if checked(&out, rows * width, expected(factors))?.is_none() {
                return Ok(CheckOutcome::Differs);
            }
        }
        // Gates and ups in buffers of their own, with other values before and after those of a row.
        let (stride, before, up_stride) = (width + 32, 64, width + 96);
        let (mut gates, mut ups) = (Vec::new(), vec![f32::NAN; before]);
        for row in x.chunks_exact(2 * width) {
            gates.extend_from_slice(&row[..width]);
            gates.extend([f32::NAN; 32]);
            ups.extend_from_slice(&row[width..]);
            ups.extend([f32::NAN; 96]);
        }
        let out = Activations::new(self.gpu, rows, width)?;
        let (gates, ups) = (self.floats(&gates)?, self.floats(&ups)?);
        let input = GateInput {
            gates: gates.at_value(0),
            gate_stride: stride,
            ups: ups.at_value(before),
            up_stride,
            rows,
            width,
            activation,
            factors: None,
        };
        self.kernels.gate(input, out.written_as(Forms::ALL))?;
        Ok(CheckOutcome::of(checked(&out, rows * width, expected([1.0; 3]))?.is_some()))
    }

    fn heads(&self) -> Result<CheckOutcome> {
        let plain = HeadsCase::default();
        let neighbours = HeadsCase { neighbours: true, ..plain };
        let partly = HeadsCase { rotated: 48, factors: Some([1.0, 1.25, 1.5]), rest: 16, ..plain };
        let normed_values = HeadsCase { norms_values: true, ..plain };
        let values_are_keys = HeadsCase { values_are_keys: true, rest: 32, ..normed_values };
        for case in [plain, neighbours, partly, normed_values, values_are_keys] {
            let check = self.heads_of(case)?;
            if check != CheckOutcome::Passed {
                return Ok(check);
            }
        }
        Ok(CheckOutcome::Passed)
    }

    /// Norms and rotates heads, and appends to the cache.
    fn heads_of(&self, case: HeadsCase) -> Result<CheckOutcome> {
        let HeadsCase { neighbours, rotated, joint, factors, rest, norms_values, values_are_keys } = case;
        let (rows, queries, keys, width, capacity, slot, eps) = (3, 4, 2, 64, 12, 7, 1e-6);
        let values = if values_are_keys { 0 } else { keys };
        let stride = (queries + keys + values) * width + rest;
        let x = noise(rows * stride, 6);
        // A joint norm has a weight for each value of all heads.
        let norms = [noise(queries * width, 7), noise(keys * width, 8)];
        let (query_norm, key_norm) = (self.floats(&norms[0])?, self.floats(&norms[1])?);
        let angles: Vec<f64> =
            noise(rows * rotated / 2, 9).iter().map(|angle| f64::from(*angle) * 50.0).collect();
        let of_angles =
            |f: fn(f64) -> f64| self.floats(&angles.iter().map(|a| f(*a) as f32).collect::<Vec<_>>());
        let (cosines, sines) = (of_angles(f64::cos)?, of_angles(f64::sin)?);
        let (x_buffer, own) = (self.floats(&x)?, self.floats(&vec![f32::NAN; x.len()])?);
        let factors_buffer = factors.map(|factors| self.floats(&factors)).transpose()?;
        let cached: Vec<f32> = halves(noise(2 * capacity * keys * width, 10));
        let cache = Buffer::with_bytes(self.gpu, &half_bytes(&cached))?;
        let input = HeadsInput {
            x: &x_buffer,
            rows,
            queries,
            keys,
            width,
            query_norm: Some(&query_norm),
            key_norm: Some(&key_norm),
            angles: Some((&cosines, &sines)),
            neighbours,
            cache: &cache,
            capacity,
            slot,
            eps,
            special: SpecialHeads {
                rotated: Some(rotated),
                joint: joint.then_some(&own),
                factors: factors_buffer.as_ref(),
                rest,
                norms_values,
                values_are_keys,
            },
        };
        self.kernels.heads(input)?;
        let mut expected_cache: Vec<f64> = cached.iter().map(|v| f64::from(*v)).collect();
        let mut expected_queries = Vec::new();
        for (row, x) in x.chunks_exact(stride).enumerate() {
            // Joint norms take all heads of queries, and all those of keys.
            let (of_queries, of_keys) = (&x[..queries * width], &x[queries * width..][..keys * width]);
            let joined = [normed(of_queries, &norms[0], eps), normed(of_keys, &norms[1], eps)];
            // Values may be the keys once more.
            let of_values = (x.chunks_exact(width).skip(queries + values)).take(keys);
            let heads = x.chunks_exact(width).take(queries + keys).chain(of_values);
            for (head, x) in heads.enumerate() {
                let is_value = head >= queries + keys;
                let kind = usize::from(head >= queries);
                let head_values: Vec<f64> = if is_value && norms_values {
                    normed(x, &[1.0; 64], eps)
                } else if is_value {
                    x.iter().map(|v| f64::from(*v)).collect()
                } else {
                    let at = (head - kind * queries) * width;
                    let mut x = if joint {
                        joined[kind][at..at + width].to_vec()
                    } else {
                        normed(x, &norms[kind][..width], eps)
                    };
                    rotate(&mut x[..rotated], &angles[row * rotated / 2..][..rotated / 2], neighbours);
                    x
                };
                if head < queries {
                    let factor = factors.map_or(1.0, |factors| f64::from(factors[row]));
                    expected_queries.extend(head_values.iter().map(|v| v * factor));
                } else {
                    let side = if is_value { capacity * keys * width } else { 0 };
                    let at = side + (slot + row) * keys * width + (head - queries) % keys * width;
                    expected_cache[at..at + width].copy_from_slice(&head_values);
                }
            }
        }
        let after = if joint { &own } else { &x_buffer }.read_floats(0, rows * stride)?;
        let after: Vec<f32> =
            after.chunks_exact(stride).flat_map(|row| row[..queries * width].to_vec()).collect();
        let cache = read_halves(&cache, cached.len())?;
        Ok(CheckOutcome::of(
            near(&after, expected_queries, VALUE_BOUND) && near(&cache, expected_cache, HALF_BOUND),
        ))
    }

    /// Moves of rows, and copies between buffers.
    fn cache(&self) -> Result<CheckOutcome> {
        let (width, rows) = (64, 12);
        let values = halves(noise(rows * width, 11));
        let memory = Buffer::with_bytes(self.gpu, &half_bytes(&values))?;
        let moves = [(6, 5), (9, 6), (11, 7)];
        let mut expected = values.clone();
        for (from, to) in moves {
            expected.copy_within(from * width..(from + 1) * width, to * width);
        }
        self.kernels.move_rows(memory.at_byte(0), &RowMoves::new(self.gpu, &moves)?, width)?;
        let copy = Buffer::with_bytes(self.gpu, &vec![0; memory.bytes()])?;
        self.kernels.copy(memory.at_byte(2 * width), copy.at_byte(0), 2 * (rows - 1) * width)?;
        let moved = read_halves(&memory, rows * width)?;
        let copied = read_halves(&copy, (rows - 1) * width)?;
        Ok(CheckOutcome::of(same_bits(&moved, &expected) && same_bits(&copied, &expected[width..])))
    }

    /// The largest of many values, alone and twice.
    fn choice(&self) -> Result<CheckOutcome> {
        let mut values = noise(1000, 14);
        let out = Buffer::new(self.gpu, 16)?;
        for (larger, expected) in [(vec![999], 999), (vec![613, 517], 517), (vec![0], 0)] {
            larger.iter().for_each(|i| values[*i] = 2.0);
            self.kernels.choose(self.floats(&values)?.at_value(0), values.len(), out.at_byte(4))?;
            larger.iter().for_each(|i| values[*i] = 0.0);
            if out.read(4, 4)? != u32::to_le_bytes(expected) {
                return Ok(CheckOutcome::Differs);
            }
        }
        Ok(CheckOutcome::Passed)
    }

    /// Draws of one of a thousand tokens, without and with filters.
    fn draws(&self) -> Result<CheckOutcome> {
        let logits: Vec<f32> = noise(1000, 15).iter().map(|v| v * 8.0).collect();
        let (buffer, out) = (self.floats(&logits)?, Buffer::new(self.gpu, 16)?);
        let plain = DrawSettings { sharpness: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };
        let filtered = DrawSettings { sharpness: 1.5, top_k: 40, top_p: 0.9, min_p: 0.05 };
        for settings in [plain, filtered] {
            let expected = cumulative(&logits, settings);
            for unit in [0.1, 0.45, 0.83] {
                let (logits, count) = (buffer.at_value(0), logits.len());
                self.kernels.draw(DrawInput { logits, count, settings, unit }, out.at_byte(4))?;
                let token = out.read(4, 4)?.try_into().map(u32::from_le_bytes).unwrap_or(u32::MAX) as usize;
                let before = if token == 0 { 0.0 } else { expected.get(token - 1).copied().unwrap_or(1.0) };
                let after = expected.get(token).copied().unwrap_or(0.0);
                if unit < before - SUM_BOUND || unit > after + SUM_BOUND {
                    return Ok(CheckOutcome::Differs);
                }
            }
        }
        Ok(CheckOutcome::Passed)
    }

    /// Attention of a chain of all layouts of rows, and of a tree.
    fn attention(&self, width: usize) -> Result<CheckOutcome> {
        let scoring = Scoring::of_width(width);
        let tree = RowMask::tree(CONTEXT, &[None, Some(0), Some(0)])?;
        match self.attention_of_rows((width, scoring), &tree, &[])? {
            CheckOutcome::Passed => {
                self.attention_of_rows((width, scoring), &RowMask::causal(CONTEXT, ROWS), &[])
            }
            failed => Ok(failed),
        }
    }

    /// Attention over two spans against f64, and against its first rows alone.
    fn attention_of_rows(
        &self,
        (width, scoring): (usize, Scoring),
        mask: &RowMask,
        sinks: &[f32],
    ) -> Result<CheckOutcome> {
        let (queries, keys, capacity, rows) = (QUERIES, 2, CONTEXT + ROWS, mask.rows());
        let stride = queries * width;
        let q: Vec<f32> = noise(rows * stride, 12).iter().map(|v| v * 3.0).collect();
        let cache = halves(noise(2 * capacity * keys * width, 13).iter().map(|v| v * 2.0).collect());
        let memory = Buffer::with_bytes(self.gpu, &half_bytes(&cache))?;
        let sinks_buffer = (!sinks.is_empty()).then(|| self.floats(sinks)).transpose()?;
        let attend = |mask: &RowMask| -> Result<Vec<f32>> {
            let space = AttentionSpace::new(self.gpu, mask, queries, width, None)?;
            let out = Activations::new(self.gpu, mask.rows(), stride)?;
            let q = self.floats(&q[..mask.rows() * stride])?;
            let (q, cache, rows) = (&q, &memory, mask.rows());
            let sinks = sinks_buffer.as_ref();
            let gates = None;
            let shape = GpuAttention {
                q,
                stride,
                cache,
                capacity,
                rows,
                queries,
                keys,
                width,
                scoring,
                sinks,
                gates,
            };
            self.kernels.attention(shape, &space, out.written_as(Forms::FLOATS))?;
            out.floats.read_floats(0, rows * stride)
        };
        let together = attend(mask)?;
        let shape = AttentionCase { queries, keys, width, capacity, scoring, sinks };
        for row in [0, rows / 2, rows - 1] {
            let expected = attention_in_f64(&q, &cache, mask, row, shape);
            if !near(&together[row * stride..(row + 1) * stride], expected, SUM_BOUND) {
                return Ok(CheckOutcome::Differs);
            }
        }
        // The first row of a tree is that of a chain.
        let first = if mask.is_causal() { rows } else { 2 };
        for fewer in [1, 2, 5, 8].into_iter().filter(|fewer| *fewer < first) {
            let few = attend(&RowMask::causal(CONTEXT, fewer).with_window(mask.window()))?;
            if !same_bits(&few, &together[..fewer * stride]) {
                return Ok(CheckOutcome::DependsOnRows);
            }
        }
        Ok(CheckOutcome::Passed)
    }

    /// Times products of 1 to 16 rows, and a copy.
    ///
    /// # Errors
    /// If the GPU refuses a kernel or fails.
    pub(super) fn speed(&self, work: Workload) -> Result<GpuTimes> {
        let (n, k) = work.product;
        // A few random rows, again and again. Values do not change the time.
        let (some, _) = random_matrix(WeightType::Q4K, 8, k)?;
        let file: Vec<u8> = some.iter().copied().cycle().take(some.len() * n / 8).collect();
        let matrix = Matrix::new(self.gpu, WeightType::Q4K, (n, k), &file)?;
        let activations = Activations::new(self.gpu, ROWS, k)?;
        Codes::random(ROWS * k).write(&activations)?;
        let out = Buffer::new(self.gpu, 4 * ROWS * n)?;
        let (matrix, scaling) = (&matrix, ResultScaling::NONE);
        let product = GpuProduct { matrix, bias: None, out: out.at_value(0), stride: n, add: false, scaling };
        let (from, to) = (Buffer::new(self.gpu, work.copy_bytes)?, Buffer::new(self.gpu, work.copy_bytes)?);
        // Products by their rows, and the copy, as no rows.
        let mut timer = PassTimer::new((0..=ROWS).collect());
        let mut time = |_, &rows: &usize| {
            let seconds = self.seconds(work, || match rows {
                0 => self.kernels.copy(from.at_byte(0), to.at_byte(0), work.copy_bytes),
                rows => self.kernels.multiply(product, &activations, rows),
            });
            seconds.map(Some)
        };
        TimingObserver::none(|watch| timer.run(work.repetitions.max(1), &mut time, watch))?;
        let times = timer.since(0);
        let ms = |rows: usize| times.least(&rows).unwrap_or(f64::INFINITY) * 1e3;
        let product_ms = (1..=ROWS).map(ms).collect();
        let memory_gb_s = 2.0 * work.copy_bytes as f64 / ms(0) / 1e6;
        Ok(GpuTimes { product_ms, product_bytes: file.len() as u64, memory_gb_s })
    }

    /// Returns the seconds of a dispatch. The clock stops after a wait.
    fn seconds(&self, work: Workload, dispatch: impl Fn() -> Result<()>) -> Result<f64> {
        let count = work.dispatches.max(1);
        let all = seconds_of(|| {
            for _ in 0..count {
                dispatch()?;
            }
            self.gpu.wait()
        })?;
        Ok(all / count as f64)
    }
}

/// Returns whether `y` is the product of `x`, `[rows, k]`, with `weights`, `[n, k]`, within the bound of a sum.
fn is_product(y: &[f32], weights: &[f32], x: &[f32], k: usize) -> bool {
    let rows = x.chunks_exact(k).flat_map(|x| weights.chunks_exact(k).map(move |w| (x, w)));
    rows.zip(y).all(|((x, w), y)| {
        let parts = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
        let (sum, size) = parts.fold((0.0, 0.0), |(sum, size), part| (sum + part, size + part.abs()));
        (f64::from(*y) - sum).abs() <= SUM_BOUND * size
    })
}
