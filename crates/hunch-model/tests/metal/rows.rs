//! Norm, gate, heads and attention on the simulated GPU. Results are within stated bounds of f64. Their bits are the
//! same for any number of rows, any schedule, and for chains and trees.

use std::sync::Arc;

use half::f16;
use hunch_kernels::activation::Activation;
use hunch_kernels::{LayerWindow, RowMask, Window};
use hunch_model::metal::activations::{Activations, Forms};
use hunch_model::metal::attention::{GpuAttention, Scoring};
use hunch_model::metal::gpu::{Buffer, Gpu};
use hunch_model::metal::heads::{HeadsInput, SpecialHeads};
use hunch_model::metal::kernels::Kernels;
use hunch_model::metal::rows::{GateInput, NormInput, NormedUpdate};
use hunch_model::metal::workspace::{AttentionSpace, attention_result_bytes, attention_rows_at_once};

use crate::machine::Machine;
use crate::reference::{half_bytes, noise, quantise};
use hunch_testing::simulator::Schedule;

/// Numbers of rows of each test, with a schedule.
pub(crate) fn row_counts() -> impl Iterator<Item = (usize, Schedule)> {
    (1..=16).chain([MOST_ROWS]).map(|rows| (rows, Schedule::ALL[rows % Schedule::ALL.len()]))
}

/// Most rows of a test.
pub(crate) const MOST_ROWS: usize = 32;

pub(crate) fn start() -> (Machine, Arc<dyn Gpu>, Kernels) {
    let machine = Machine::start();
    let gpu = machine.gpu.clone();
    (machine, gpu.clone(), Kernels::new(gpu))
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Checks that values are within `bound` of `expected`, relative to the largest magnitude.
pub(crate) fn assert_near(values: &[f32], expected: &[f64], bound: f64, what: &str) {
    assert_eq!(values.len(), expected.len());
    let top = expected.iter().fold(0f64, |top, v| top.max(v.abs()));
    for (i, (a, b)) in values.iter().zip(expected).enumerate() {
        let error = (f64::from(*a) - b).abs();
        assert!(error <= bound * top, "{what}, value {i}: {a}, expected {b}");
    }
}

/// Checks that codes, halves, scales and sums are those of the unquantised values, and returns the values.
pub(crate) fn checked_floats(out: &Activations, count: usize) -> Vec<f32> {
    let floats = out.floats.read_floats(0, count).unwrap();
    let blocks = quantise(&floats);
    let codes: Vec<i8> = blocks.iter().flat_map(|b| b.codes).collect();
    assert_eq!(out.codes.read(0, count).unwrap(), codes.iter().map(|c| *c as u8).collect::<Vec<u8>>());
    assert_eq!(out.halves.read(0, 2 * count).unwrap(), half_bytes(codes.iter().map(|c| f32::from(*c))));
    let scales: Vec<f32> = blocks.iter().map(|b| b.scale).collect();
    assert_eq!(bits(&out.scales.read_floats(0, scales.len()).unwrap()), bits(&scales));
    let sums: Vec<u8> = blocks.iter().flat_map(|b| b.sums).flat_map(i16::to_le_bytes).collect();
    assert_eq!(out.sums.read(0, sums.len()).unwrap(), sums);
    floats
}

#[test]
fn norm_matches_f64_and_quantises_its_output() {
    let (machine, gpu, kernels) = start();
    let (rows, width, eps) = (MOST_ROWS, 608, 1e-5);
    let (x, weight) = (noise(rows * width, 1), noise(width, 2));
    let (x_buffer, weight_buffer) =
        (Buffer::with_floats(&gpu, &x).unwrap(), Buffer::with_floats(&gpu, &weight).unwrap());
    let mut expected = Vec::new();
    for x in x.chunks_exact(width) {
        let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / width as f64;
        let scale = 1.0 / (mean + f64::from(eps)).sqrt();
        expected.extend(x.iter().zip(&weight).map(|(x, w)| f64::from(*x) * scale * f64::from(*w)));
    }
    let input =
        NormInput { x: &x_buffer, weight: Some(&weight_buffer), update: None, first: 0, rows, width, eps };
    let mut all: Vec<u32> = Vec::new();
    for (rows, schedule) in row_counts().collect::<Vec<_>>().into_iter().rev() {
        machine.set_schedule(schedule);
        let out = Activations::new(&gpu, rows, width).unwrap();
        kernels.norm(NormInput { rows, ..input }, out.written_as(Forms::ALL)).unwrap();
        let floats = checked_floats(&out, rows * width);
        assert_near(&floats, &expected[..rows * width], 1e-6, &format!("norm of {rows} rows"));
        if all.is_empty() {
            all = bits(&floats);
        }
        assert!(bits(&floats) == all[..rows * width], "{rows} rows, {schedule:?}");
    }
    // One row alone, from the middle of the input.
    let alone = Activations::new(&gpu, 1, width).unwrap();
    kernels.norm(NormInput { first: 3, rows: 1, ..input }, alone.written_as(Forms::ALL)).unwrap();
    assert_eq!(bits(&checked_floats(&alone, width)), all[3 * width..4 * width]);
}

#[test]
fn norm_adds_normed_updates_first() {
    let (machine, gpu, kernels) = start();
    let (width, eps, scale) = (608, 1e-5, 0.7);
    let (x, update) = (noise(MOST_ROWS * width, 1), noise(MOST_ROWS * width, 2));
    let weights = [noise(width, 3), noise(width, 4)];
    let normed = |x: &[f64], weight: &[f32]| -> Vec<f64> {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / width as f64;
        let scale = 1.0 / (mean + f64::from(eps)).sqrt();
        x.iter().zip(weight).map(|(x, w)| x * scale * f64::from(*w)).collect()
    };
    let (mut stream, mut expected) = (Vec::new(), Vec::new());
    for (x, update) in x.chunks_exact(width).zip(update.chunks_exact(width)) {
        let update = normed(&update.iter().map(|v| f64::from(*v)).collect::<Vec<_>>(), &weights[0]);
        let row: Vec<f64> =
            x.iter().zip(&update).map(|(x, u)| f64::from(*x) + f64::from(scale) * u).collect();
        expected.extend(normed(&row, &weights[1]));
        stream.extend(row);
    }
    let [update_weight, weight] = weights.each_ref().map(|w| Buffer::with_floats(&gpu, w).unwrap());
    let update = Buffer::with_floats(&gpu, &update).unwrap();
    let mut all: Vec<u32> = Vec::new();
    for (rows, schedule) in row_counts().collect::<Vec<_>>().into_iter().rev() {
        machine.set_schedule(schedule);
        let (x, stream) = (&x[..rows * width], &stream[..rows * width]);
        let x_buffer = Buffer::with_floats(&gpu, x).unwrap();
        let out = Activations::new(&gpu, rows, width).unwrap();
        let joins =
            |store| Some(NormedUpdate { rows: &update, weight: &update_weight, scale, factor: 1.0, store });
        let input = NormInput {
            x: &x_buffer,
            weight: Some(&weight),
            update: joins(false),
            first: 0,
            rows,
            width,
            eps,
        };
        kernels.norm(input, out.written_as(Forms::ALL)).unwrap();
        let floats = checked_floats(&out, rows * width);
        assert_near(&floats, &expected[..rows * width], 1e-6, &format!("norm of {rows} rows"));
        if all.is_empty() {
            all = bits(&floats);
        }
        assert!(bits(&floats) == all[..rows * width], "{rows} rows, {schedule:?}");
        assert_eq!(bits(&x_buffer.read_floats(0, x.len()).unwrap()), bits(x), "the rows are not written");
        // The last row alone.
        let last = NormInput { first: rows - 1, rows: 1, ..input };
        let alone = Activations::new(&gpu, 1, width).unwrap();
        kernels.norm(last, alone.written_as(Forms::ALL)).unwrap();
        let row = (rows - 1) * width..;
        assert_eq!(bits(&checked_floats(&alone, width)), bits(&floats[row]));
        // Without a norm, the output is the updated row.
        let plain = NormInput { weight: None, update: joins(true), ..input };
        kernels.norm(plain, out.written_as(Forms::ALL)).unwrap();
        let written = x_buffer.read_floats(0, x.len()).unwrap();
        assert_near(&written, stream, 1e-6, "stream");
        assert_eq!(bits(&checked_floats(&out, rows * width)), bits(&written));
    }
}

#[test]
fn gate_matches_f64_and_quantises_its_output() {
    let (machine, gpu, kernels) = start();
    let width = 320;
    let x: Vec<f32> = noise(MOST_ROWS * 2 * width, 4).iter().map(|v| v * 12.0).collect();
    let x_buffer = Buffer::with_floats(&gpu, &x).unwrap();
    for activation in [Activation::Silu, Activation::Gelu, Activation::Clamped] {
        let mut expected = Vec::new();
        for row in x.chunks_exact(2 * width) {
            let (gates, ups) = row.split_at(width);
            expected.extend(gates.iter().zip(ups).map(|(g, up)| {
                let g = f64::from(*g);
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044_715 * g.powi(3));
                let activated = match activation {
                    Activation::Silu => g / (1.0 + (-g).exp()),
                    Activation::Gelu => 0.5 * g * (1.0 + inner.tanh()),
                    Activation::Clamped => g.min(7.0) / (1.0 + (-1.702f32 as f64 * g.min(7.0)).exp()),
                };
                let up = f64::from(*up);
                activated * if activation == Activation::Clamped { up.clamp(-7.0, 7.0) + 1.0 } else { up }
            }));
        }
        let mut all: Vec<u32> = Vec::new();
        for (rows, schedule) in row_counts().collect::<Vec<_>>().into_iter().rev() {
            machine.set_schedule(schedule);
            let out = Activations::new(&gpu, rows, width).unwrap();
            kernels
                .gate(GateInput::joined(&x_buffer, rows, width, activation), out.written_as(Forms::ALL))
                .unwrap();
            let floats = checked_floats(&out, rows * width);
            let what = format!("{activation:?} of {rows} rows, {schedule:?}");
            assert_near(&floats, &expected[..rows * width], 1e-6, &what);
            if all.is_empty() {
                all = bits(&floats);
            }
            assert!(bits(&floats) == all[..rows * width], "{what}");
        }
    }
}

/// The bits are those of gates and ups that were multiplied before.
#[test]
fn gate_multiplies_rows_by_their_factors() {
    let (_, gpu, kernels) = start();
    let (rows, width) = (3, 320);
    let x = noise(rows * 2 * width, 4);
    let factors = [0.3, 1.0, 0.7];
    let scaled: Vec<f32> =
        x.chunks_exact(2 * width).zip(factors).flat_map(|(row, f)| row.iter().map(move |x| f * x)).collect();
    let of = |x: &[f32], factors: Option<&Buffer>| {
        let out = Activations::new(&gpu, rows, width).unwrap();
        let x = Buffer::with_floats(&gpu, x).unwrap();
        kernels
            .gate(
                GateInput { factors, ..GateInput::joined(&x, rows, width, Activation::Silu) },
                out.written_as(Forms::ALL),
            )
            .unwrap();
        bits(&checked_floats(&out, rows * width))
    };
    assert_eq!(of(&x, Some(&Buffer::with_floats(&gpu, &factors).unwrap())), of(&scaled, None));
}

#[test]
fn activations_of_zero_have_codes_of_zero() {
    let (_, gpu, kernels) = start();
    let out = Activations::new(&gpu, 1, 64).unwrap();
    let x = Buffer::with_floats(&gpu, &[0.0; 128]).unwrap();
    kernels.gate(GateInput::joined(&x, 1, 64, Activation::Silu), out.written_as(Forms::ALL)).unwrap();
    assert_eq!(checked_floats(&out, 64), [0.0; 64]);
}

/// Norms of heads in a test.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Norms {
    None,
    PerHead,
    Joint,
}

/// Norms, pairing of neighbours, rotated elements of a head, and factors of queries.
type HeadsCase = (Norms, bool, Option<usize>, bool);

#[test]
fn heads_are_normed_rotated_and_appended() {
    let (machine, gpu, kernels) = start();
    let (queries, keys, width, capacity, slot, eps) = (4, 2, 64, 40, 7, 1e-6);
    let stride = (queries + 2 * keys) * width;
    let x = noise(MOST_ROWS * stride, 6);
    let norms = [noise(queries * width, 7), noise(keys * width, 8)];
    let buffers = norms.each_ref().map(|n| Buffer::with_floats(&gpu, n).unwrap());
    let factors: Vec<f32> = (0..MOST_ROWS).map(|row| 1.0 + row as f32 / 4.0).collect();
    let factors_buffer = Buffer::with_floats(&gpu, &factors).unwrap();
    let cases: [HeadsCase; 9] = [
        (Norms::None, false, Some(width), false),
        (Norms::PerHead, false, Some(width), false),
        (Norms::None, true, Some(width), false),
        (Norms::PerHead, true, Some(width), true),
        (Norms::PerHead, true, None, false),
        (Norms::Joint, false, Some(width), false),
        (Norms::Joint, true, Some(width), true),
        (Norms::None, false, Some(48), true),
        (Norms::PerHead, true, Some(32), false),
    ];
    // All cases together try each number of rows twice.
    let counts: Vec<(usize, Schedule)> = row_counts().collect();
    let tried = cases.iter().enumerate().flat_map(|(i, case)| {
        let own = [4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3, counts.len() - 1];
        own.map(|count| (*case, counts[count % counts.len()]))
    });
    // The earlier rows of a case have the same bits.
    let mut last: Option<(HeadsCase, Vec<u32>)> = None;
    for (case, (rows, schedule)) in tried {
        machine.set_schedule(schedule);
        let x = &x[..rows * stride];
        let (norm, neighbours, rotated, has_factors) = case;
        let half = rotated.unwrap_or(width) / 2;
        let angles: Vec<f64> = noise(MOST_ROWS * half, 9).iter().map(|a| f64::from(*a) * 50.0).collect();
        let of_angles = |f: fn(f64) -> f64| {
            Buffer::with_floats(&gpu, &angles.iter().map(|a| f(*a) as f32).collect::<Vec<f32>>()).unwrap()
        };
        let (cosines, sines) = (of_angles(f64::cos), of_angles(f64::sin));
        let x_buffer = Buffer::with_floats(&gpu, x).unwrap();
        let own = Buffer::new(&gpu, 4 * rows * stride).unwrap();
        let before = half_bytes(noise(2 * capacity * keys * width, 10).into_iter());
        let cache = Buffer::with_bytes(&gpu, &before).unwrap();
        let input = HeadsInput {
            x: &x_buffer,
            rows,
            queries,
            keys,
            width,
            query_norm: (norm != Norms::None).then_some(&buffers[0]),
            key_norm: (norm != Norms::None).then_some(&buffers[1]),
            angles: rotated.map(|_| (&cosines, &sines)),
            neighbours,
            cache: &cache,
            capacity,
            slot,
            eps,
            special: SpecialHeads {
                rotated,
                joint: (norm == Norms::Joint).then_some(&own),
                factors: has_factors.then_some(&factors_buffer),
                ..SpecialHeads::default()
            },
        };
        kernels.heads(input).unwrap();
        let mut expected_cache: Vec<f64> =
            before.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f64()).collect();
        let mut expected_queries = Vec::new();
        for (row, x) in x.chunks_exact(stride).enumerate() {
            for (head, values) in x.chunks_exact(width).enumerate() {
                let mut values: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
                let is_value = head >= queries + keys;
                if norm != Norms::None && !is_value {
                    let (kind, first, count) =
                        if head < queries { (0, 0, queries) } else { (1, queries, keys) };
                    let (part, at) = match norm {
                        Norms::Joint => (&x[first * width..(first + count) * width], head - first),
                        _ => (&x[head * width..(head + 1) * width], 0),
                    };
                    let mean = part.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / part.len() as f64;
                    for (v, w) in values.iter_mut().zip(&norms[kind][at * width..]) {
                        *v *= f64::from(*w) / (mean + f64::from(eps)).sqrt();
                    }
                }
                if rotated.is_some() && !is_value {
                    for i in 0..half {
                        let (a, b) = if neighbours { (2 * i, 2 * i + 1) } else { (i, i + half) };
                        let (s, c) = angles[row * half + i].sin_cos();
                        (values[a], values[b]) =
                            (values[a] * c - values[b] * s, values[a] * s + values[b] * c);
                    }
                }
                if head < queries {
                    let factor = if has_factors { f64::from(factors[row]) } else { 1.0 };
                    expected_queries.extend(values.iter().map(|v| v * factor));
                } else {
                    let head = head - queries;
                    let side = if is_value { capacity * keys * width } else { 0 };
                    let at = side + (slot + row) * keys * width + head % keys * width;
                    expected_cache[at..at + width].copy_from_slice(&values);
                }
            }
        }
        let after = if norm == Norms::Joint { &own } else { &x_buffer };
        let after = after.read_floats(0, rows * stride).unwrap();
        let after: Vec<f32> =
            after.chunks_exact(stride).flat_map(|row| row[..queries * width].to_vec()).collect();
        let what = format!("{case:?}, {rows} rows, {schedule:?}");
        assert_near(&after, &expected_queries, 1e-6, &format!("queries, {what}"));
        if let Some((of, before)) = &last {
            let common = before.len().min(after.len());
            assert!(*of != case || bits(&after)[..common] == before[..common], "{what}");
        }
        last = Some((case, bits(&after)));
        let cache = cache.read(0, before.len()).unwrap();
        let cache: Vec<f32> =
            cache.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect();
        // A half has 11 bits.
        assert_near(&cache, &expected_cache, 1.0 / 2048.0, &format!("cache, {what}"));
    }
}

/// Values beyond the range of halves become the largest half, as on the CPU.
#[test]
fn cache_holds_no_infinity() {
    let (_, gpu, kernels) = start();
    let (rows, keys, width, capacity) = (2, 1, 32, 4);
    let mut x = noise(rows * 3 * width, 6);
    let beyond = [1e9, -1e9, 65_519.0, 65_504.0, -65_520.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX];
    for at in [width, 2 * width, 4 * width, 5 * width] {
        x[at..at + beyond.len()].copy_from_slice(&beyond);
    }
    let x_buffer = Buffer::with_floats(&gpu, &x).unwrap();
    let cache = Buffer::with_bytes(&gpu, &vec![0; 2 * 2 * capacity * width]).unwrap();
    let input = HeadsInput {
        x: &x_buffer,
        rows,
        queries: 1,
        keys,
        width,
        query_norm: None,
        key_norm: None,
        angles: None,
        neighbours: false,
        cache: &cache,
        capacity,
        slot: 1,
        eps: 1e-6,
        special: SpecialHeads::default(),
    };
    kernels.heads(input).unwrap();
    let bytes = cache.read(0, 2 * 2 * capacity * width).unwrap();
    for (row, x) in x.chunks_exact(3 * width).enumerate() {
        for (side, part) in [(0, &x[width..2 * width]), (capacity * width, &x[2 * width..])] {
            let at = 2 * (side + (1 + row) * width);
            let on_cpu = part.iter().map(|v| v.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()));
            assert_eq!(bytes[at..at + 2 * width], half_bytes(on_cpu), "row {row}, side {side}");
        }
    }
}

/// Queries, and a cache with keys and values.
pub(crate) struct Context {
    gpu: Arc<dyn Gpu>,
    kernels: Kernels,
    queries: usize,
    keys: usize,
    width: usize,
    capacity: usize,
    scoring: Scoring,
    pub(crate) cache: Vec<f32>,
}

impl Context {
    fn attend(&self, cache: &[f32], q: &[f32], mask: &RowMask) -> Vec<f32> {
        checked_floats(&self.attention(cache, q, mask), mask.rows() * self.queries * self.width)
    }

    pub(crate) fn attention(&self, cache: &[f32], q: &[f32], mask: &RowMask) -> Activations {
        let space = AttentionSpace::new(&self.gpu, mask, self.queries, self.width, None).unwrap();
        self.attention_in(&space, cache, q, mask)
    }

    fn attention_in(&self, space: &AttentionSpace, cache: &[f32], q: &[f32], mask: &RowMask) -> Activations {
        let Self { gpu, queries, keys, width, capacity, .. } = self;
        let row = queries * width;
        let out = Activations::new(gpu, mask.rows(), row).unwrap();
        let input = GpuAttention {
            q: &Buffer::with_floats(gpu, q).unwrap(),
            stride: row,
            cache: &Buffer::with_bytes(gpu, &half_bytes(cache.iter().copied())).unwrap(),
            capacity: *capacity,
            rows: mask.rows(),
            queries: *queries,
            keys: *keys,
            width: *width,
            scoring: self.scoring,
            sinks: None,
            gates: None,
        };
        self.kernels.attention(input, space, out.written_as(Forms::ALL)).unwrap();
        out
    }

    /// Attention of every row in f64, over the cache as halves.
    fn expected(&self, q: &[f32], mask: &RowMask) -> Vec<f64> {
        let Self { queries, keys, width, capacity, .. } = *self;
        let cache: Vec<f64> = self.cache.iter().map(|v| f16::from_f32(*v).to_f64()).collect();
        let mut out = Vec::new();
        for row in 0..mask.rows() {
            for head in 0..queries {
                let q = &q[(row * queries + head) * width..][..width];
                let at = |slot: usize| slot * keys * width + head / (queries / keys) * width;
                let Scoring { scale, cap, window } = self.scoring;
                let mut slots: Vec<usize> = mask.visible(row).collect();
                let len = slots.len();
                slots.drain(Window::hidden(Window::of_layer(mask.window(), window, len), len));
                let score = |slot: usize| {
                    let key = &cache[at(slot)..][..width];
                    let score = q.iter().zip(key).map(|(q, k)| f64::from(*q) * k).sum::<f64>();
                    let score = score * f64::from(scale);
                    cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
                };
                let scores: Vec<f64> = slots.iter().map(|s| score(*s)).collect();
                let top = scores.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
                let total: f64 = scores.iter().map(|s| (s - top).exp()).sum();
                for i in 0..width {
                    let value = |slot: usize| cache[capacity * keys * width + at(slot) + i];
                    let parts = slots.iter().zip(&scores).map(|(slot, s)| (s - top).exp() * value(*slot));
                    out.push(parts.sum::<f64>() / total);
                }
            }
        }
        out
    }
}

pub(crate) fn context(
    gpu: &Arc<dyn Gpu>,
    queries: usize,
    keys: usize,
    width: usize,
    capacity: usize,
) -> Context {
    let cache = noise(2 * capacity * keys * width, 11).iter().map(|v| v * 2.0).collect();
    let (kernels, scoring) = (Kernels::new(gpu.clone()), Scoring::of_width(width));
    Context { gpu: gpu.clone(), kernels, queries, keys, width, capacity, scoring, cache }
}

#[test]
fn attention_matches_f64_for_chains_and_trees() {
    let (machine, gpu, _) = start();
    let tree = [None, Some(0), Some(0), Some(2), Some(1)];
    for (queries, keys, width) in [(4, 2, 64), (7, 1, 128), (3, 3, 32), (2, 1, 256), (2, 2, 96)] {
        let context = context(&gpu, queries, keys, width, 400);
        // One span, a full span, and several.
        for base in [0, 3, 123, 128, 300] {
            for mask in [RowMask::causal(base, 5), RowMask::tree(base, &tree).unwrap()] {
                let q: Vec<f32> = noise(5 * queries * width, 12).iter().map(|v| v * 3.0).collect();
                let expected = context.expected(&q, &mask);
                for schedule in Schedule::ALL {
                    machine.set_schedule(schedule);
                    let out = context.attend(&context.cache, &q, &mask);
                    assert_near(
                        &out,
                        &expected,
                        4e-6,
                        &format!("{queries}x{width} after {base}, {schedule:?}"),
                    );
                }
            }
        }
    }
}

/// In a long context, a pass over a prompt attends in several dispatches.
#[test]
fn rows_attend_in_parts_with_the_same_bits() {
    let (_, gpu, _) = start();
    let (queries, keys, width) = (4, 2, 64);
    let context = Context { scoring: Scoring::of_width(width), ..context(&gpu, queries, keys, width, 400) };
    let window = Window { leading: 4, recent: 150 };
    for mask in [RowMask::causal(300, 40), RowMask::causal(300, 40).with_window(Some(window))] {
        let q = noise(40 * queries * width, 12);
        let mut space = AttentionSpace::new(&gpu, &mask, queries, width, None).unwrap();
        assert_eq!(space.rows_at_once, 40);
        let mut attend = |rows_at_once| {
            space.rows_at_once = rows_at_once;
            let out = context.attention_in(&space, &context.cache, &q, &mask);
            bits(&checked_floats(&out, q.len()))
        };
        let together = attend(40);
        for rows_at_once in [16, 32] {
            assert!(attend(rows_at_once) == together, "{rows_at_once} rows at once");
        }
    }
}

#[test]
fn attention_takes_as_many_rows_as_fit_and_at_least_those_of_a_draft() {
    let of_row = 32 * attention_result_bytes(128);
    assert_eq!(attention_rows_at_once(256, of_row), 256);
    assert_eq!(attention_rows_at_once(256, of_row * 512), 16);
    assert_eq!(attention_rows_at_once(256, of_row * 128), 112);
    assert_eq!(attention_rows_at_once(1, of_row * 100_000), 1);
    assert_eq!(attention_rows_at_once(5, 0), 5);
}

/// Chains of 1 to 16 and of 32 rows, and trees of up to 16, over two spans of keys.
#[test]
fn attention_matches_f64_for_every_number_of_rows() {
    let (machine, gpu, _) = start();
    let base = 120;
    for (queries, keys, width) in [(4, 2, 64), (6, 1, 128)] {
        let context = context(&gpu, queries, keys, width, 200);
        let q: Vec<f32> = noise(MOST_ROWS * queries * width, 12).iter().map(|v| v * 3.0).collect();
        for (rows, schedule) in row_counts() {
            machine.set_schedule(schedule);
            let parents: Vec<Option<usize>> =
                (0..rows).map(|row| row.checked_sub(1).map(|r| r / 2)).collect();
            let tree = (rows <= 16).then(|| RowMask::tree(base, &parents).unwrap());
            for mask in [RowMask::causal(base, rows)].into_iter().chain(tree) {
                let q = &q[..rows * queries * width];
                let out = context.attend(&context.cache, q, &mask);
                let what = format!("{queries} heads of {width}, {rows} rows, {schedule:?}");
                assert_near(&out, &context.expected(q, &mask), 4e-6, &what);
            }
        }
    }
}

#[test]
fn attention_with_caps_and_windows_matches_f64() {
    let (_, gpu, _) = start();
    let tree = [None, Some(0), Some(0), Some(2), Some(1)];
    let mut context = context(&gpu, 4, 2, 64, 400);
    // Windows within a span, of a span, over spans, and longer than the context.
    let windows = [(Some(3.0), None), (None, Some(1)), (Some(50.0), Some(128)), (None, Some(200))];
    let windows = windows.map(|(cap, window)| (cap, window.map(LayerWindow::Last)));
    // Chunks in which the rows are in two, and of a span.
    let chunks = [3, 128, 252].map(|positions| (None, Some(LayerWindow::Chunk(positions))));
    for (cap, window) in windows.into_iter().chain(chunks) {
        context.scoring = Scoring { scale: 0.2, cap, window };
        for base in [0, 3, 126, 250, 380] {
            for mask in [RowMask::causal(base, 5), RowMask::tree(base, &tree).unwrap()] {
                let q: Vec<f32> = noise(5 * 4 * 64, 12).iter().map(|v| v * 3.0).collect();
                let out = context.attend(&context.cache, &q, &mask);
                let what = format!("{:?} after {base}", context.scoring);
                assert_near(&out, &context.expected(&q, &mask), 4e-6, &what);
            }
        }
    }
}

/// First keys and last ones, in one span and apart, of passes of 1 to 16 rows. Keys that no row sees hold no numbers.
#[test]
fn attention_with_first_and_last_keys_matches_f64_for_every_number_of_rows() {
    let (machine, gpu, _) = start();
    let mut of_context = context(&gpu, 4, 2, 64, 420);
    let width = 2 * 64;
    let q: Vec<f32> = noise(MOST_ROWS * 4 * 64, 12).iter().map(|v| v * 3.0).collect();
    let windows = [(4, 1), (4, 40), (40, 100), (130, 90), (4, 1000)];
    for (leading, recent) in windows {
        let window = Some(Window { leading, recent });
        for (rows, schedule) in row_counts().filter(|(rows, _)| *rows <= 16) {
            machine.set_schedule(schedule);
            let parents: Vec<Option<usize>> =
                (0..rows).map(|row| row.checked_sub(1).map(|r| r / 2)).collect();
            for base in [0, 30, 390] {
                for mask in [RowMask::causal(base, rows), RowMask::tree(base, &parents).unwrap()] {
                    let mask = mask.with_window(window);
                    let q = &q[..rows * 4 * 64];
                    let (additive, slots) = (mask.additive(None), mask.slots());
                    let sees = |slot: usize| (0..rows).any(|row| additive[row * slots + slot] == 0.0);
                    let mut cache = of_context.cache.clone();
                    for slot in (0..of_context.capacity).filter(|slot| *slot >= slots || !sees(*slot)) {
                        for side in [0, of_context.capacity * width] {
                            cache[side + slot * width..][..width].fill(f32::NAN);
                        }
                    }
                    let out = of_context.attend(&cache, q, &mask);
                    let what = format!("{rows} rows after {base}, {window:?}, {schedule:?}");
                    assert_near(&out, &of_context.expected(q, &mask), 4e-6, &what);
                }
            }
        }
    }
    // A layer with a window of its own sees no first keys.
    // Nor does one with chunks, after the first one.
    use LayerWindow::{Chunk, Last};
    let mask = RowMask::causal(300, 3).with_window(Some(Window { leading: 4, recent: 100 }));
    let q = &q[..3 * 4 * 64];
    for window in [Last(60), Chunk(60), Chunk(301), Chunk(302), Chunk(1000)] {
        of_context.scoring.window = Some(window);
        let out = of_context.attend(&of_context.cache, q, &mask);
        assert_near(&out, &of_context.expected(q, &mask), 4e-6, &format!("{window:?}"));
    }
}

#[test]
fn attention_of_a_row_has_the_same_bits_alone_and_in_chains_and_trees() {
    use LayerWindow::{Chunk, Last};
    // The rows of chunks of 251 and 84 positions are in two of them.
    for window in [None, Some(Last(7)), Some(Last(150)), Some(Chunk(251)), Some(Chunk(84)), Some(Chunk(7))] {
        rows_of_chains_and_trees_agree(window, None);
    }
    for recent in [7, 150] {
        for window in [None, Some(Chunk(251)), Some(Chunk(84))] {
            rows_of_chains_and_trees_agree(window, Some(Window { leading: 4, recent }));
        }
    }
}

/// Every number of pairs in a simdgroup, and blocks of rows that are not full.
#[test]
fn attention_of_a_row_has_the_same_bits_in_every_layout() {
    let (machine, gpu, _) = start();
    let base = 250;
    for (group, width) in [(6, 64), (6, 128), (6, 256), (1, 32), (12, 96)] {
        let mut context = context(&gpu, 2 * group, 2, width, 400);
        context.scoring =
            Scoring { cap: Some(20.0), window: Some(LayerWindow::Last(140)), ..context.scoring };
        let row = 2 * group * width;
        let q = noise(33 * row, 13);
        let alone: Vec<Vec<u32>> = (0..33)
            .map(|r| {
                bits(&context.attend(
                    &context.cache,
                    &q[r * row..(r + 1) * row],
                    &RowMask::causal(base + r, 1),
                ))
            })
            .collect();
        // The narrow heads try each number of rows.
        let few = [2, 3, 5, 8, 16].map(|rows| (rows, Schedule::ALL[rows % 3]));
        let counts: Vec<_> = if width == 64 { row_counts().collect() } else { few.to_vec() };
        for (rows, schedule) in counts.into_iter().chain([(33, Schedule::default())]) {
            machine.set_schedule(schedule);
            let together = context.attend(&context.cache, &q[..rows * row], &RowMask::causal(base, rows));
            for (r, alone) in alone[..rows].iter().enumerate() {
                let among = bits(&together[r * row..(r + 1) * row]);
                assert!(among == *alone, "{group} heads of {width}: row {r} of {rows}");
            }
        }
        machine.set_schedule(Schedule::default());
    }
}

fn rows_of_chains_and_trees_agree(window: Option<LayerWindow>, of_pass: Option<Window>) {
    let (_, gpu, _) = start();
    let (queries, keys, width, base) = (4, 2, 64, 250);
    let mut context = context(&gpu, queries, keys, width, 400);
    context.scoring.window = window;
    let row = queries * width;
    let q = noise(5 * row, 13);
    // Rows 0, 2 and 3 are a branch. As a chain they are in slots that follow each other.
    let tree = RowMask::tree(base, &[None, Some(0), Some(0), Some(2), Some(1)]).unwrap().with_window(of_pass);
    let together = context.attend(&context.cache, &q, &tree);
    let mut cache = context.cache.clone();
    let width = keys * context.width;
    for side in [0, context.capacity * width] {
        for (to, from) in [(1, 2), (2, 3)] {
            let from = side + (base + from) * width;
            cache.copy_within(from..from + width, side + (base + to) * width);
        }
    }
    let branch: Vec<f32> = [0, 2, 3].iter().flat_map(|r| q[r * row..(r + 1) * row].to_vec()).collect();
    let chain = context.attend(&cache, &branch, &RowMask::causal(base, 3).with_window(of_pass));
    for (i, r) in [0, 2, 3].into_iter().enumerate() {
        let in_tree = bits(&together[r * row..(r + 1) * row]);
        assert_eq!(bits(&chain[i * row..(i + 1) * row]), in_tree, "row {r} in a chain");
        let mask = RowMask::causal(base + i, 1).with_window(of_pass);
        let alone = context.attend(&cache, &branch[i * row..(i + 1) * row], &mask);
        assert_eq!(bits(&alone), in_tree, "row {r} alone");
    }
}
