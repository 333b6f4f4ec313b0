//! Self-test of the kernels on the GPU at hand. It compares results with arithmetic in f64 on the CPU, and the
//! bits of a product's row alone and among others. It also takes times. Choosing an executor does not belong here.

use std::sync::Arc;
use std::time::Instant;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use half::f16;
use hunch_kernels::activation::Activation;
use hunch_kernels::{RowMask, WeightType};
use serde::{Deserialize, Serialize};

use super::gpu::{Buffer, Gpu};
use super::kernels::{AttentionInput, HeadsInput, Kernels, Product, Scaling, Scoring, SpecialHeads};
use super::matrix::Matrix;
use super::packed::UNIT;
use super::workspace::{Activations, AttentionSpace, WRITE_CODES, WRITE_FLOATS, WRITE_HALVES};
use hunch_core::sample::DrawSettings;
use hunch_error::{Error, Result};

/// Weight types with a kernel.
pub(super) const TYPES: [WeightType; 13] = [
    WeightType::F32,
    WeightType::F16,
    WeightType::BF16,
    WeightType::Q4_0,
    WeightType::Q4_1,
    WeightType::Q5_0,
    WeightType::Q5_1,
    WeightType::Q8_0,
    WeightType::Q2K,
    WeightType::Q3K,
    WeightType::Q4K,
    WeightType::Q5K,
    WeightType::Q6K,
];
/// Widths of heads with a kernel.
pub const HEAD_WIDTHS: [usize; 5] = [32, 64, 96, 128, 256];
/// Most rows of a tested product.
const ROWS: usize = 16;
/// Bound of the error of a product or of attention, relative to the magnitudes summed.
const SUM_BOUND: f64 = 1e-5;
/// Bound of the error of other kernels, relative to the largest value.
const VALUE_BOUND: f64 = 1e-5;
/// Bound of the error of a value in the cache, which is a half of 11 bits.
const HALF_BOUND: f64 = 1.0 / 2048.0;
const ALL_FORMS: u32 = WRITE_CODES | WRITE_HALVES | WRITE_FLOATS;

/// Result of testing one part of the kernels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Name of the part, such as `product Q4_K`.
    pub part: String,
    /// The problem, or `None` if it passed.
    pub problem: Option<String>,
}

/// Measured times of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// Time of a Q4_K product of 1 to 16 rows, in milliseconds: t(M) for M = 1, 2, ...
    pub product_ms: Vec<f64>,
    /// Bytes of weights that the product reads.
    pub product_bytes: u64,
    /// Memory bandwidth of a copy, read and written, in 10^9 bytes per second.
    pub memory_gb_s: f64,
}

/// Results of a self-test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelfTest {
    /// One finding for each part.
    pub findings: Vec<Finding>,
    /// Measured times. `None` if a kernel they need failed.
    pub speed: Option<Speed>,
}

/// Sizes of the timed work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Rows and columns of the timed product.
    pub product: (usize, usize),
    /// Bytes of the timed copy.
    pub copy_bytes: usize,
    /// Dispatches between two waits.
    pub dispatches: usize,
    /// Repetitions, of which the fastest counts.
    pub repetitions: usize,
}

impl Workload {
    /// Work for a real GPU: 75 MB of weights and a copy of 128 MiB, larger than the caches of most chips.
    pub const REAL: Self =
        Self { product: (16_384, 8192), copy_bytes: 128 << 20, dispatches: 8, repetitions: 5 };
    /// Work for a simulated GPU, whose times mean nothing.
    pub const SIMULATED: Self = Self { product: (8, 256), copy_bytes: 64, dispatches: 1, repetitions: 1 };
}

/// Returns the name of the part that multiplies weights of a type.
pub fn product_part(dtype: WeightType) -> String {
    format!("product {dtype}")
}

/// Returns the name of the part that computes attention over heads of a width.
pub fn attention_part(width: usize) -> String {
    format!("attention {width}")
}

/// Name of the part that chooses drafted tokens.
pub const CHOICE_PART: &str = "choice";
/// Names of the parts that do not depend on the model.
pub const COMMON_PARTS: [&str; 5] = ["norm", "gate", "heads", "cache", CHOICE_PART];

/// Returns the names of all parts, in the order of their tests.
pub fn all_parts() -> impl Iterator<Item = String> {
    let products = TYPES.into_iter().map(product_part);
    let common = COMMON_PARTS.into_iter().chain([DRAW_PART]).map(str::to_owned);
    products.chain(common).chain(HEAD_WIDTHS.map(attention_part))
}

/// Name of the part that draws tokens. No model depends on it: the host draws again and notices a difference.
pub const DRAW_PART: &str = "draw";

impl SelfTest {
    /// Tests all kernels of a GPU and measures times.
    pub fn run(kernels: &Kernels, workload: Workload) -> Self {
        let test = Tester { kernels, gpu: kernels.gpu() };
        let mut findings = Vec::new();
        let mut note = |part: String, checked: Result<Check>| {
            let problem = match checked {
                Ok(Check::Passed) => None,
                Ok(Check::Differs) => Some(format!("{part} differs from the CPU")),
                Ok(Check::DependsOnRows) => Some(format!("{part} depends on the number of rows")),
                Err(error) => Some(format!("{part} failed: {error}")),
            };
            findings.push(Finding { part, problem });
        };
        for dtype in TYPES {
            note(product_part(dtype), test.product(dtype));
        }
        let [norm, gate, heads, cache, choice] = COMMON_PARTS.map(str::to_owned);
        note(norm, test.norm());
        note(gate, test.gate());
        note(heads, test.heads());
        note(cache, test.cache());
        note(choice, test.choice());
        note(DRAW_PART.into(), test.draws());
        for width in HEAD_WIDTHS {
            note(attention_part(width), test.attention(width));
        }
        // A GPU that cannot be timed is still of use. Its costs stay predicted.
        Self { findings, speed: test.speed(workload).ok() }
    }

    /// Returns the problem of the first of these parts that did not pass. A part that was not tested did not.
    pub fn problem_of<'a>(&self, parts: impl IntoIterator<Item = &'a String>) -> Option<String> {
        parts.into_iter().find_map(|part| match self.findings.iter().find(|found| found.part == *part) {
            Some(finding) => finding.problem.clone(),
            None => Some(format!("{part} was not tested")),
        })
    }

    /// Iterates over the problems.
    pub fn problems(&self) -> impl Iterator<Item = &str> {
        self.findings.iter().filter_map(|finding| finding.problem.as_deref())
    }
}

/// Outcome of a test that ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    Passed,
    Differs,
    DependsOnRows,
}

impl Check {
    fn of(same: bool) -> Self {
        if same { Self::Passed } else { Self::Differs }
    }
}

struct Tester<'a> {
    kernels: &'a Kernels,
    gpu: &'a Arc<dyn Gpu>,
}

impl Tester<'_> {
    fn floats(&self, values: &[f32]) -> Result<Buffer> {
        Buffer::with_floats(self.gpu, values)
    }

    /// Products of one row, and of 5, 8 and 16 rows, and rows of a table.
    fn product(&self, dtype: WeightType) -> Result<Check> {
        // An incomplete tile of rows. Partitions of different lengths, unless superblocks forbid it.
        let (n, k) = (43, if dtype.block_size() == 256 { 768 } else { 608 });
        let (file, weights) = random_matrix(dtype, n, k)?;
        let matrix = Matrix::new(self.gpu, candle_type(dtype)?, (n, k), &file)?;
        let input = Codes::random(ROWS * k);
        let mut alone = Vec::new();
        for row in 0..ROWS {
            alone.extend(self.multiply(&matrix, &input.rows(row..row + 1, k), 1)?);
        }
        for (row, y) in alone.chunks_exact(n).enumerate() {
            let x = &input.values()[row * k..(row + 1) * k];
            for (w, y) in weights.chunks_exact(k).zip(y) {
                let parts = || w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
                let (sum, size) = parts().fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
                let near = (f64::from(*y) - sum).abs() <= SUM_BOUND * size;
                if !near {
                    return Ok(Check::Differs);
                }
            }
        }
        for rows in [5, 8, ROWS] {
            let together = self.multiply(&matrix, &input.rows(0..rows, k), rows)?;
            if !same_bits(&together, &alone[..rows * n]) {
                return Ok(Check::DependsOnRows);
            }
        }
        let tokens = [0, n as u32 - 1, 7];
        let out = Buffer::new(self.gpu, 4 * tokens.len() * k)?;
        let ids = Buffer::with_words(self.gpu, &tokens)?;
        self.kernels.take_rows(&matrix, (ids.input(), tokens.len()), 1.0, &out)?;
        let expected =
            tokens.iter().flat_map(|row| &weights[*row as usize * k..][..k]).map(|w| f64::from(*w));
        Ok(Check::of(near(&out.read_floats(0, tokens.len() * k)?, expected, VALUE_BOUND)))
    }

    fn multiply(&self, matrix: &Matrix, input: &Codes, rows: usize) -> Result<Vec<f32>> {
        let (n, activations) = (matrix.n(), Activations::new(self.gpu, rows, matrix.k())?);
        input.write(&activations)?;
        let out = self.floats(&vec![f32::NAN; rows * n])?;
        let scaling = Scaling::NONE;
        let product = Product { matrix, bias: None, out: &out, offset: 0, stride: n, add: false, scaling };
        self.kernels.multiply(product, &activations, rows)?;
        out.read_floats(0, rows * n)
    }

    fn norm(&self) -> Result<Check> {
        let (rows, width, eps) = (5, 608, 1e-5);
        let (x, weight) = (noise(rows * width, 1), noise(width, 2));
        let (x_buffer, weights) = (self.floats(&x)?, self.floats(&weight)?);
        let out = Activations::new(self.gpu, rows, width)?;
        self.kernels.norm(&x_buffer, &weights, (0, rows, width), eps, &out, ALL_FORMS)?;
        let expected = x.chunks_exact(width).flat_map(|x| normed(x, &weight, eps));
        let together = checked(&out, rows * width, expected)?;
        let one = Activations::new(self.gpu, 1, width)?;
        self.kernels.norm(&x_buffer, &weights, (3, 1, width), eps, &one, ALL_FORMS)?;
        let alone = one.floats.read_floats(0, width)?;
        Ok(match together {
            None => Check::Differs,
            Some(all) if same_bits(&alone, &all[3 * width..4 * width]) => Check::Passed,
            Some(_) => Check::DependsOnRows,
        })
    }

    fn gate(&self) -> Result<Check> {
        let (rows, width) = (3, 320);
        let x: Vec<f32> = noise(rows * 2 * width, 4).iter().map(|v| v * 12.0).collect();
        let out = Activations::new(self.gpu, rows, width)?;
        self.kernels.gate(&self.floats(&x)?, (rows, width), Activation::Silu, &out, ALL_FORMS)?;
        let expected = x.chunks_exact(2 * width).flat_map(|row| {
            let (gates, ups) = row.split_at(width);
            gates.iter().zip(ups).map(|(gate, up)| {
                let gate = f64::from(*gate);
                gate / (1.0 + (-gate).exp()) * f64::from(*up)
            })
        });
        Ok(Check::of(checked(&out, rows * width, expected)?.is_some()))
    }

    fn heads(&self) -> Result<Check> {
        for neighbours in [false, true] {
            let check = self.heads_of(neighbours)?;
            if check != Check::Passed {
                return Ok(check);
            }
        }
        Ok(Check::Passed)
    }

    /// Norms and rotates heads, and appends to the cache. `neighbours` is the pairing of the rotation.
    fn heads_of(&self, neighbours: bool) -> Result<Check> {
        let (rows, queries, keys, width, capacity, slot, eps) = (3, 4, 2, 64, 12, 7, 1e-6);
        let stride = (queries + 2 * keys) * width;
        let x = noise(rows * stride, 6);
        let norms = [noise(width, 7), noise(width, 8)];
        let (query_norm, key_norm) = (self.floats(&norms[0])?, self.floats(&norms[1])?);
        let angles: Vec<f64> =
            noise(rows * width / 2, 9).iter().map(|angle| f64::from(*angle) * 50.0).collect();
        let of_angles =
            |f: fn(f64) -> f64| self.floats(&angles.iter().map(|a| f(*a) as f32).collect::<Vec<_>>());
        let (cosines, sines) = (of_angles(f64::cos)?, of_angles(f64::sin)?);
        let x_buffer = self.floats(&x)?;
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
            special: SpecialHeads::default(),
        };
        self.kernels.heads(input)?;
        let mut expected_cache: Vec<f64> = cached.iter().map(|v| f64::from(*v)).collect();
        let mut expected_queries = Vec::new();
        for (row, x) in x.chunks_exact(stride).enumerate() {
            for (head, x) in x.chunks_exact(width).enumerate() {
                let is_value = head >= queries + keys;
                let head_values = if is_value {
                    x.iter().map(|v| f64::from(*v)).collect()
                } else {
                    let mut x = normed(x, &norms[usize::from(head >= queries)], eps);
                    rotate(&mut x, &angles[row * width / 2..][..width / 2], neighbours);
                    x
                };
                if head < queries {
                    expected_queries.extend(head_values);
                } else {
                    let side = if is_value { capacity * keys * width } else { 0 };
                    let at = side + (slot + row) * keys * width + (head - queries) % keys * width;
                    expected_cache[at..at + width].copy_from_slice(&head_values);
                }
            }
        }
        let after = x_buffer.read_floats(0, rows * stride)?;
        let after: Vec<f32> =
            after.chunks_exact(stride).flat_map(|row| row[..queries * width].to_vec()).collect();
        let cache = read_halves(&cache, cached.len())?;
        Ok(Check::of(near(&after, expected_queries, VALUE_BOUND) && near(&cache, expected_cache, HALF_BOUND)))
    }

    /// Moves of rows, and copies between buffers.
    fn cache(&self) -> Result<Check> {
        let (width, rows) = (64, 12);
        let values = halves(noise(rows * width, 11));
        let memory = Buffer::with_bytes(self.gpu, &half_bytes(&values))?;
        let moves = [(5, 6), (6, 9), (7, 11)];
        let mut expected = values.clone();
        for (to, from) in moves {
            expected.copy_within(from * width..(from + 1) * width, to * width);
        }
        let pairs: Vec<u32> = moves.iter().flat_map(|(to, from)| [*from as u32, *to as u32]).collect();
        let pairs = Buffer::with_words(self.gpu, &pairs)?;
        self.kernels.copy_rows(&memory, 0, &pairs, (moves.len(), width))?;
        let copy = Buffer::with_bytes(self.gpu, &vec![0; memory.bytes()])?;
        self.kernels.copy((&memory, 2 * width), (&copy, 0), 2 * (rows - 1) * width)?;
        let moved = read_halves(&memory, rows * width)?;
        let copied = read_halves(&copy, (rows - 1) * width)?;
        Ok(Check::of(same_bits(&moved, &expected) && same_bits(&copied, &expected[width..])))
    }

    /// The largest of many values, alone and twice.
    fn choice(&self) -> Result<Check> {
        let mut values = noise(1000, 14);
        let out = Buffer::new(self.gpu, 16)?;
        for (larger, expected) in [(vec![999], 999), (vec![613, 517], 517), (vec![0], 0)] {
            larger.iter().for_each(|i| values[*i] = 2.0);
            self.kernels.choose((&self.floats(&values)?, 0), values.len(), (&out, 4))?;
            larger.iter().for_each(|i| values[*i] = 0.0);
            if out.read(4, 4)? != u32::to_le_bytes(expected) {
                return Ok(Check::Differs);
            }
        }
        Ok(Check::Passed)
    }

    /// Draws of one of a thousand tokens, without and with filters.
    fn draws(&self) -> Result<Check> {
        let logits: Vec<f32> = noise(1000, 15).iter().map(|v| v * 8.0).collect();
        let (buffer, out) = (self.floats(&logits)?, Buffer::new(self.gpu, 16)?);
        let plain = DrawSettings { sharpness: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };
        let filtered = DrawSettings { sharpness: 1.5, top_k: 40, top_p: 0.9, min_p: 0.05 };
        for settings in [plain, filtered] {
            let expected = cumulative(&logits, settings);
            for unit in [0.1, 0.45, 0.83] {
                self.kernels.draw((&buffer, 0), logits.len(), (settings, unit), (&out, 4))?;
                let token = out.read(4, 4)?.try_into().map(u32::from_le_bytes).unwrap_or(u32::MAX) as usize;
                let before = if token == 0 { 0.0 } else { expected.get(token - 1).copied().unwrap_or(1.0) };
                let after = expected.get(token).copied().unwrap_or(0.0);
                if unit < before - SUM_BOUND || unit > after + SUM_BOUND {
                    return Ok(Check::Differs);
                }
            }
        }
        Ok(Check::Passed)
    }

    /// Attention of a chain and of a tree over two spans, and of a row alone.
    fn attention(&self, width: usize) -> Result<Check> {
        let (queries, keys, capacity, base) = (4, 2, 160, 130);
        let q: Vec<f32> = noise(3 * queries * width, 12).iter().map(|v| v * 3.0).collect();
        let cache = halves(noise(2 * capacity * keys * width, 13).iter().map(|v| v * 2.0).collect());
        let memory = Buffer::with_bytes(self.gpu, &half_bytes(&cache))?;
        let attend = |q: &[f32], mask: &RowMask| -> Result<Vec<f32>> {
            let (rows, stride) = (mask.rows(), queries * width);
            let space = AttentionSpace::new(self.gpu, mask, (queries, width), None)?;
            let out = Activations::new(self.gpu, rows, stride)?;
            let q = self.floats(q)?;
            let (q, cache, scoring) = (&q, &memory, Scoring::of_width(width));
            let shape = AttentionInput { q, stride, cache, capacity, rows, queries, keys, width, scoring };
            self.kernels.attention(shape, &space, &out, WRITE_FLOATS)?;
            out.floats.read_floats(0, rows * stride)
        };
        let tree = RowMask::tree(base, &[None, Some(0), Some(0)])?;
        for mask in [RowMask::causal(base, 3), tree] {
            let together = attend(&q, &mask)?;
            let expected = attention_in_f64(&q, &cache, &mask, (queries, keys, width, capacity));
            if !near(&together, expected, SUM_BOUND) {
                return Ok(Check::Differs);
            }
            let first = attend(&q[..queries * width], &RowMask::causal(base, 1))?;
            if !same_bits(&first, &together[..queries * width]) {
                return Ok(Check::DependsOnRows);
            }
        }
        Ok(Check::Passed)
    }

    fn speed(&self, work: Workload) -> Result<Speed> {
        let (n, k) = work.product;
        // A few random rows, again and again. Values do not change the time.
        let (some, _) = random_matrix(WeightType::Q4K, 8, k)?;
        let file: Vec<u8> = some.iter().copied().cycle().take(some.len() * n / 8).collect();
        let matrix = Matrix::new(self.gpu, GgmlDType::Q4K, (n, k), &file)?;
        let activations = Activations::new(self.gpu, ROWS, k)?;
        Codes::random(ROWS * k).write(&activations)?;
        let out = Buffer::new(self.gpu, 4 * ROWS * n)?;
        let (matrix, scaling) = (&matrix, Scaling::NONE);
        let product = Product { matrix, bias: None, out: &out, offset: 0, stride: n, add: false, scaling };
        let mut product_ms = Vec::new();
        for rows in 1..=ROWS {
            product_ms.push(self.ms(work, || self.kernels.multiply(product, &activations, rows))?);
        }
        let (from, to) = (Buffer::new(self.gpu, work.copy_bytes)?, Buffer::new(self.gpu, work.copy_bytes)?);
        let copy_ms = self.ms(work, || self.kernels.copy((&from, 0), (&to, 0), work.copy_bytes))?;
        let memory_gb_s = 2.0 * work.copy_bytes as f64 / copy_ms / 1e6;
        Ok(Speed { product_ms, product_bytes: file.len() as u64, memory_gb_s })
    }

    /// Returns the time of a dispatch in milliseconds. The clock stops after a wait.
    fn ms(&self, work: Workload, dispatch: impl Fn() -> Result<()>) -> Result<f64> {
        dispatch()?;
        self.gpu.wait()?;
        let mut best = f64::INFINITY;
        for _ in 0..work.repetitions.max(1) {
            let begun = Instant::now();
            for _ in 0..work.dispatches.max(1) {
                dispatch()?;
            }
            self.gpu.wait()?;
            best = best.min(begun.elapsed().as_secs_f64() * 1e3 / work.dispatches.max(1) as f64);
        }
        Ok(best)
    }
}

/// Activations that are codes times powers of two, so that the values have no rounding error.
struct Codes {
    codes: Vec<i8>,
    scale: f32,
}

impl Codes {
    fn random(count: usize) -> Self {
        Self { codes: noise(count, 99).iter().map(|v| (v * 127.0) as i8).collect(), scale: 1.0 / 64.0 }
    }

    fn rows(&self, rows: std::ops::Range<usize>, k: usize) -> Self {
        Self { codes: self.codes[rows.start * k..rows.end * k].to_vec(), scale: self.scale }
    }

    fn values(&self) -> Vec<f32> {
        self.codes.iter().map(|code| f32::from(*code) * self.scale).collect()
    }

    fn write(&self, to: &Activations) -> Result<()> {
        let codes = &self.codes;
        to.codes.write(0, &codes.iter().map(|code| *code as u8).collect::<Vec<u8>>())?;
        to.halves.write(0, &half_bytes(&codes.iter().map(|code| f32::from(*code)).collect::<Vec<_>>()))?;
        to.scales.write_floats(0, &vec![self.scale; codes.len() / UNIT])?;
        to.sums.write(0, &sums(codes).flat_map(i16::to_le_bytes).collect::<Vec<u8>>())?;
        to.floats.write_floats(0, &self.values())
    }
}

/// Sums of the codes of each half of a unit.
fn sums(codes: &[i8]) -> impl Iterator<Item = i16> + '_ {
    codes.chunks_exact(UNIT / 2).map(|half| half.iter().map(|code| i16::from(*code)).sum())
}

/// Returns candle's name of a type.
fn candle_type(dtype: WeightType) -> Result<GgmlDType> {
    dtype.candle().ok_or_else(|| Error::Internal(format!("candle does not know {dtype}")))
}

/// Returns a random matrix in file layout, and its values as candle dequantises them.
fn random_matrix(dtype: WeightType, n: usize, k: usize) -> Result<(Vec<u8>, Vec<f32>)> {
    let weights = Tensor::from_vec(noise(n * k, 7), (n, k), &Device::Cpu)?;
    let weights = QTensor::quantize(&weights, candle_type(dtype)?)?;
    let values = weights.dequantize(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
    Ok((weights.data()?.into_owned(), values))
}

/// Returns pseudo-random numbers between -1 and 1 (xorshift).
pub fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Rounds values to halves.
fn halves(values: Vec<f32>) -> Vec<f32> {
    values.into_iter().map(|v| f16::from_f32(v).to_f32()).collect()
}

fn half_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect()
}

fn read_halves(buffer: &Buffer, count: usize) -> Result<Vec<f32>> {
    let bytes = buffer.read(0, 2 * count)?;
    Ok(bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect())
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Returns `true` if values are within `bound` of `expected`, relative to the largest magnitude.
fn near(values: &[f32], expected: impl IntoIterator<Item = f64>, bound: f64) -> bool {
    let expected: Vec<f64> = expected.into_iter().collect();
    let top = expected.iter().fold(0f64, |top, v| top.max(v.abs()));
    values.len() == expected.len()
        && values.iter().zip(&expected).all(|(a, b)| (f64::from(*a) - b).abs() <= bound * top)
}

/// Returns the unquantised values of activations if they are near `expected` and the other forms belong to them.
fn checked(
    out: &Activations,
    count: usize,
    expected: impl IntoIterator<Item = f64>,
) -> Result<Option<Vec<f32>>> {
    let floats = out.floats.read_floats(0, count)?;
    let codes: Vec<i8> = out.codes.read(0, count)?.into_iter().map(|code| code as i8).collect();
    let scales = out.scales.read_floats(0, count / UNIT)?;
    let units = floats.chunks_exact(UNIT).zip(codes.chunks_exact(UNIT)).zip(&scales);
    // A code is the nearest one. The bound leaves room for the rounding of the division.
    let quantised = units.clone().all(|((values, codes), scale)| {
        let near = |(v, code): (&f32, &i8)| (v - f32::from(*code) * scale).abs() <= 0.501 * scale;
        values.iter().zip(codes).all(near) && codes.iter().any(|code| code.unsigned_abs() == 127)
    });
    let as_halves: Vec<f32> = codes.iter().map(|code| f32::from(*code)).collect();
    let same = out.halves.read(0, 2 * count)? == half_bytes(&as_halves)
        && out.sums.read(0, count / 8)? == sums(&codes).flat_map(i16::to_le_bytes).collect::<Vec<u8>>();
    Ok((near(&floats, expected, VALUE_BOUND) && quantised && same).then_some(floats))
}

fn normed(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(eps)).sqrt();
    x.iter().zip(weight).map(|(x, w)| f64::from(*x) * scale * f64::from(*w)).collect()
}

fn rotate(x: &mut [f64], angles: &[f64], neighbours: bool) {
    for (i, angle) in angles.iter().enumerate() {
        let (a, b) = if neighbours { (2 * i, 2 * i + 1) } else { (i, i + angles.len()) };
        let (sin, cos) = angle.sin_cos();
        (x[a], x[b]) = (x[a] * cos - x[b] * sin, x[a] * sin + x[b] * cos);
    }
}

/// Cumulative probabilities of tokens after the filters.
fn cumulative(logits: &[f32], settings: DrawSettings) -> Vec<f64> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |token: usize, sharpness: f32| (f64::from(logits[token] - top) * f64::from(sharpness)).exp();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    if settings.top_k > 0 {
        order.truncate(settings.top_k);
    }
    let total: f64 = order.iter().map(|token| weight(*token, 1.0)).sum();
    order.retain(|token| weight(*token, 1.0) >= f64::from(settings.min_p));
    let mut mass = 0.0;
    order.retain(|token| {
        let keep = mass < total * f64::from(settings.top_p);
        mass += weight(*token, 1.0);
        keep
    });
    let mut probabilities = vec![0.0; logits.len()];
    for token in &order {
        probabilities[*token] = weight(*token, settings.sharpness);
    }
    let total: f64 = probabilities.iter().sum();
    let mut sum = 0.0;
    let add = |p: f64| {
        sum += p / total;
        sum
    };
    probabilities.into_iter().map(add).collect()
}

/// Attention over a cache of keys, then values, `[capacity, keys * width]` each.
fn attention_in_f64(
    q: &[f32],
    cache: &[f32],
    mask: &RowMask,
    (queries, keys, width, capacity): (usize, usize, usize, usize),
) -> Vec<f64> {
    let mut out = Vec::new();
    for (row, q) in q.chunks_exact(queries * width).enumerate() {
        for (head, q) in q.chunks_exact(width).enumerate() {
            let at = |slot: usize| slot * keys * width + head / (queries / keys) * width;
            let slots: Vec<usize> = mask.visible(row).collect();
            let score = |slot: &usize| {
                let products = q.iter().zip(&cache[at(*slot)..][..width]);
                products.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() / (width as f64).sqrt()
            };
            let scores: Vec<f64> = slots.iter().map(score).collect();
            let top = scores.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b));
            let total: f64 = scores.iter().map(|s| (s - top).exp()).sum();
            out.extend((0..width).map(|i| {
                let value = |slot: usize| f64::from(cache[capacity * keys * width + at(slot) + i]);
                slots.iter().zip(&scores).map(|(slot, s)| (s - top).exp() * value(*slot)).sum::<f64>() / total
            }));
        }
    }
    out
}

/// Chip, system and version that a self-test belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Name of the chip.
    pub chip: String,
    /// Version of the operating system.
    pub system: String,
    /// Version of Hunch.
    pub version: String,
}

impl Machine {
    /// Describes this machine with a GPU.
    pub fn with(gpu: &dyn Gpu) -> Self {
        let system = sysinfo::System::long_os_version().unwrap_or_default();
        Self { chip: gpu.name(), system, version: env!("CARGO_PKG_VERSION").into() }
    }
}

/// A self-test and the machine it ran on, as kept in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The machine.
    pub machine: Machine,
    /// The results.
    #[serde(flatten)]
    pub test: SelfTest,
}

impl Record {
    /// Longest record that is read, in bytes.
    const MAX_BYTES: u64 = 1 << 20;

    /// Reads the record of a machine. A damaged file, one with other parts, or that of another machine, is treated as
    /// missing.
    pub fn read(path: &std::path::Path, machine: &Machine) -> Option<Self> {
        let is_record = |meta: std::fs::Metadata| meta.is_file() && meta.len() <= Self::MAX_BYTES;
        std::fs::metadata(path).ok().filter(|meta| is_record(meta.clone()))?;
        let record: Self = serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()?;
        let parts = record.test.findings.iter().map(|finding| finding.part.as_str());
        (record.machine == *machine && all_parts().eq(parts)).then_some(record)
    }

    /// Replaces the record in a file.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be written.
    pub fn write(&self, path: &std::path::Path) -> Result<()> {
        let io = |source| Error::Io { action: "write", path: path.to_path_buf(), source };
        let text = serde_json::to_string_pretty(self).map_err(|e| Error::Internal(e.to_string()))?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(io)?;
        }
        // Several programs may start at once, so each writes a file of its own.
        let new = path.with_extension(format!("{}.new", std::process::id()));
        std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path)).map_err(io)
    }
}
