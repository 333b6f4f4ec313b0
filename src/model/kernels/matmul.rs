//! The matrix product y = x W^T of f32 rows with a weight matrix as it lies in the GGUF file: the
//! heart of every linear layer on the CPU. Any number of rows, one result per row whatever their
//! number.
//!
//! Each row of activations is quantised once to 8 bits with a scale per 32 values (float weights
//! keep float activations); each piece of 256 weights is unpacked once and used for up to
//! [`TILE`] rows while it is in the first-level cache.

use std::ops::Range;
use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use rayon::prelude::*;

use super::blocks::{self, Format, PANEL, Panel};
use super::isa::{ActivationPanel, Isa, Scalar};
use super::mapping::MappedFile;

/// Rows that share one unpacking of the weights.
const TILE: usize = 16;

/// A weight matrix `[n, k]` inside a mapped file.
#[derive(Clone, Debug)]
pub struct WeightMatrix {
    file: Arc<MappedFile>,
    range: Range<usize>,
    dtype: GgmlDType,
    n: usize,
    k: usize,
}

/// The instruction set in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Level {
    fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if Self::Avx512.available() {
                return Self::Avx512;
            }
            if Self::Avx2.available() {
                return Self::Avx2;
            }
        }
        Self::Scalar
    }

    #[cfg(any(test, target_arch = "x86_64"))]
    fn available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
        }
    }
}

/// A pointer to the output that the tasks of one product share.
#[derive(Clone, Copy)]
struct Output(*mut f32);
// SAFETY: each task writes the columns of its own range of weight rows and nobody reads before all
// are done, so no two threads touch one element.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

/// What one task computes: weight rows `rows` against all activation rows.
struct Task<'a, A> {
    weights: &'a [u8],
    k: usize,
    n: usize,
    m: usize,
    activations: &'a [A],
    rows: Range<usize>,
    out: Output,
}

impl WeightMatrix {
    /// A matrix of `n` rows of `k` weights at `range` of `file`. `None` when the CPU kernels have
    /// no path for the type (Q2_K, Q3_K and the like) or the bytes are not there.
    pub fn new(
        file: Arc<MappedFile>,
        range: Range<usize>,
        dtype: GgmlDType,
        n: usize,
        k: usize,
    ) -> Option<Self> {
        let float = matches!(dtype, GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16);
        if !(float || blocks::has_panels(dtype)) || n == 0 || k == 0 || !k.is_multiple_of(dtype.block_size())
        {
            return None;
        }
        let bytes = (k / dtype.block_size()).checked_mul(dtype.type_size())?.checked_mul(n)?;
        if range.len() != bytes || range.end > file.bytes().len() {
            return None;
        }
        Some(Self { file, range, dtype, n, k })
    }

    /// Outputs a row.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Inputs a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// y `[m, n]` = x `[m, k]` times the transposed matrix.
    ///
    /// # Panics
    /// If `x` is not rows of `k`.
    pub fn forward(&self, x: &[f32]) -> Vec<f32> {
        self.forward_at(x, Level::best())
    }

    fn forward_at(&self, x: &[f32], level: Level) -> Vec<f32> {
        assert_eq!(x.len() % self.k, 0, "x is made of rows of k");
        let m = x.len() / self.k;
        let mut out = vec![0f32; m * self.n];
        let weights = &self.file.bytes()[self.range.clone()];
        use GgmlDType as T;
        match self.dtype {
            T::F32 => self.run(x, weights, m, &mut out, |t| rows_float(level, t, F32)),
            T::F16 => self.run(x, weights, m, &mut out, |t| rows_float(level, t, F16)),
            T::BF16 => self.run(x, weights, m, &mut out, |t| rows_float(level, t, Bf16)),
            quantised => {
                let activations = quantise(level, x, self.k);
                let a = &activations[..];
                match quantised {
                    T::Q4_0 => self.run(a, weights, m, &mut out, |t| rows::<blocks::Q4_0>(level, t)),
                    T::Q4_1 => self.run(a, weights, m, &mut out, |t| rows::<blocks::Q4_1>(level, t)),
                    T::Q5_0 => self.run(a, weights, m, &mut out, |t| rows::<blocks::Q5_0>(level, t)),
                    T::Q5_1 => self.run(a, weights, m, &mut out, |t| rows::<blocks::Q5_1>(level, t)),
                    T::Q8_0 => self.run(a, weights, m, &mut out, |t| rows::<blocks::Q8_0>(level, t)),
                    T::Q4K => self.run(a, weights, m, &mut out, |t| rows::<blocks::Q4K>(level, t)),
                    T::Q5K => self.run(a, weights, m, &mut out, |t| rows::<blocks::Q5K>(level, t)),
                    T::Q6K => self.run(a, weights, m, &mut out, |t| rows::<blocks::Q6K>(level, t)),
                    other => unreachable!("WeightMatrix::new refuses {other:?}"),
                }
            }
        }
        out
    }

    /// Splits the weight rows over the threads of the current pool.
    fn run<A: Sync>(
        &self,
        activations: &[A],
        weights: &[u8],
        m: usize,
        out: &mut [f32],
        task: impl Fn(Task<'_, A>) + Sync,
    ) {
        let threads = rayon::current_num_threads().max(1);
        let chunk = self.n.div_ceil(4 * threads).max(16);
        let shared = Output(out.as_mut_ptr());
        let (n, k) = (self.n, self.k);
        let one = |index: usize| {
            let rows = index * chunk..((index + 1) * chunk).min(n);
            task(Task { weights, k, n, m, activations, rows, out: shared });
        };
        let tasks = n.div_ceil(chunk);
        if tasks == 1 || threads == 1 {
            (0..tasks).for_each(one);
        } else {
            (0..tasks).into_par_iter().with_max_len(1).for_each(one);
        }
    }
}

/// Gives a generic function one instance per instruction set and picks at run time.
macro_rules! dispatch {
    ($level:expr, $name:ident[$($generic:ident),*]($($arg:expr),*)) => {
        match $level {
            // SAFETY: plain Rust runs everywhere.
            Level::Scalar => unsafe { $name::<$($generic,)* Scalar>($($arg),*) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the level is only used where `Level::available` holds.
            Level::Avx2 => unsafe { x86::$name::avx2::<$($generic),*>($($arg),*) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the level is only used where `Level::available` holds.
            Level::Avx512 => unsafe { x86::$name::avx512::<$($generic),*>($($arg),*) },
        }
    };
}

fn rows<F: Format>(level: Level, task: Task<'_, ActivationPanel>) {
    dispatch!(level, quantised_rows[F](task))
}

fn quantise(level: Level, x: &[f32], k: usize) -> Vec<ActivationPanel> {
    let mut panels = vec![ActivationPanel::ZERO; x.len() / k * k.div_ceil(PANEL)];
    dispatch!(level, quantise_rows[](x, k, &mut panels));
    panels
}

fn rows_float<W: FloatWeight>(level: Level, task: Task<'_, f32>, _: W) {
    dispatch!(level, float_rows[W](task))
}

#[inline(always)]
unsafe fn quantise_rows<I: Isa>(x: &[f32], k: usize, panels: &mut [ActivationPanel]) {
    let per_row = k.div_ceil(PANEL);
    for (row, panels) in x.chunks_exact(k).zip(panels.chunks_exact_mut(per_row)) {
        for (values, panel) in row.chunks(PANEL).zip(panels) {
            panel.quantise(values);
        }
    }
}

/// The product for quantised weights: unpack a panel once, use it for every row of the tile.
///
/// # Safety
/// The CPU has the instructions of `I`; the task's output has `m * n` elements.
#[inline(always)]
unsafe fn quantised_rows<F: Format, I: Isa>(task: Task<'_, ActivationPanel>) {
    let row_bytes = task.k / F::BLOCK * F::BYTES;
    let panels_per_row = task.k.div_ceil(PANEL);
    let blocks_per_panel = PANEL / F::BLOCK;
    let mut panel = Panel::ZERO;
    for n in task.rows.clone() {
        let row = &task.weights[n * row_bytes..(n + 1) * row_bytes];
        for tile in (0..task.m).step_by(TILE) {
            let height = TILE.min(task.m - tile);
            // SAFETY: the caller's contract.
            let mut acc = [unsafe { I::zero() }; TILE];
            for (index, bytes) in row.chunks(blocks_per_panel * F::BYTES).enumerate() {
                let blocks = bytes.len() / F::BYTES;
                for (b, block) in bytes.chunks_exact(F::BYTES).enumerate() {
                    // SAFETY: the caller's contract.
                    unsafe { F::unpack::<I>(block, b * F::BLOCK, &mut panel) };
                }
                let used = blocks * F::BLOCK;
                if used < PANEL {
                    // A short last panel: what is left of the one before must count for nothing.
                    panel.scale[used / 16..].fill(0.0);
                    panel.min[used / 16..].fill(0.0);
                }
                let quads = used.div_ceil(64);
                for (i, acc) in acc[..height].iter_mut().enumerate() {
                    let activations = &task.activations[(tile + i) * panels_per_row + index];
                    // SAFETY: the caller's contract; quads <= 4.
                    *acc = unsafe { I::dot(&panel, activations, quads, *acc) };
                }
            }
            for (i, acc) in acc[..height].iter().enumerate() {
                // SAFETY: row tile + i < m and column n < n of an m * n output, which only this
                // task writes.
                unsafe { *task.out.0.add((tile + i) * task.n + n) = I::sum(*acc) };
            }
        }
    }
}

/// How a float weight becomes f32.
trait FloatWeight: Copy {
    const BYTES: usize;
    unsafe fn decode<I: Isa>(bytes: &[u8]) -> f32;
}

#[derive(Clone, Copy)]
struct F32;
impl FloatWeight for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn decode<I: Isa>(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

#[derive(Clone, Copy)]
struct F16;
impl FloatWeight for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn decode<I: Isa>(bytes: &[u8]) -> f32 {
        // SAFETY: the caller runs inside a function that enables I.
        unsafe { I::f16(u16::from_le_bytes([bytes[0], bytes[1]])) }
    }
}

#[derive(Clone, Copy)]
struct Bf16;
impl FloatWeight for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn decode<I: Isa>(bytes: &[u8]) -> f32 {
        f32::from_bits(u32::from(u16::from_le_bytes([bytes[0], bytes[1]])) << 16)
    }
}

/// Partial sums of a float product: element i of a row goes to lane i % 16.
const LANES: usize = 16;

/// The product for float weights.
///
/// # Safety
/// The CPU has the instructions of `I`; the task's output has `m * n` elements.
#[inline(always)]
unsafe fn float_rows<W: FloatWeight, I: Isa>(task: Task<'_, f32>) {
    let row_bytes = task.k * W::BYTES;
    let mut piece = [0f32; PANEL];
    for n in task.rows.clone() {
        let row = &task.weights[n * row_bytes..(n + 1) * row_bytes];
        for tile in (0..task.m).step_by(TILE) {
            let height = TILE.min(task.m - tile);
            let mut acc = [[0f32; LANES]; TILE];
            for (index, bytes) in row.chunks(PANEL * W::BYTES).enumerate() {
                let used = bytes.len() / W::BYTES;
                for (w, b) in piece.iter_mut().zip(bytes.chunks_exact(W::BYTES)) {
                    // SAFETY: the caller's contract.
                    *w = unsafe { W::decode::<I>(b) };
                }
                for (i, acc) in acc[..height].iter_mut().enumerate() {
                    let from = (tile + i) * task.k + index * PANEL;
                    let x = &task.activations[from..from + used];
                    for (w, x) in piece[..used].chunks(LANES).zip(x.chunks(LANES)) {
                        for (lane, (w, x)) in acc.iter_mut().zip(w.iter().zip(x)) {
                            *lane += w * x;
                        }
                    }
                }
            }
            for (i, acc) in acc[..height].iter().enumerate() {
                // SAFETY: as in `quantised_rows`.
                unsafe { *task.out.0.add((tile + i) * task.n + n) = acc.iter().sum() };
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The generic functions compiled once per x86 extension.

    macro_rules! compiled {
        ($name:ident, <$($generic:ident: $bound:ident),*>, ($($arg:ident: $ty:ty),*)) => {
            pub(super) mod $name {
                #[allow(unused_imports)]
                use super::super::*;
                use super::super::super::isa::x86::{Avx2, Avx512};

                /// # Safety
                /// The CPU has AVX2, FMA and F16C; the rest as in the generic function.
                #[target_feature(enable = "avx2,fma,f16c")]
                pub(in super::super) unsafe fn avx2<$($generic: $bound),*>($($arg: $ty),*) {
                    // SAFETY: the caller's contract.
                    unsafe { super::super::$name::<$($generic,)* Avx2>($($arg),*) }
                }

                /// # Safety
                /// The CPU has AVX-512 F, BW, DQ, VL and VNNI; the rest as in the generic function.
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
                pub(in super::super) unsafe fn avx512<$($generic: $bound),*>($($arg: $ty),*) {
                    // SAFETY: the caller's contract.
                    unsafe { super::super::$name::<$($generic,)* Avx512>($($arg),*) }
                }
            }
        };
    }

    compiled!(quantised_rows, <F: Format>, (task: Task<'_, ActivationPanel>));
    compiled!(float_rows, <W: FloatWeight>, (task: Task<'_, f32>));
    compiled!(quantise_rows, <>, (x: &[f32], k: usize, panels: &mut [ActivationPanel]));
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use candle_core::quantized::QTensor;
    use candle_core::{Device, Tensor};

    use super::*;

    const TYPES: [GgmlDType; 11] = [
        GgmlDType::F32,
        GgmlDType::F16,
        GgmlDType::BF16,
        GgmlDType::Q4_0,
        GgmlDType::Q4_1,
        GgmlDType::Q5_0,
        GgmlDType::Q5_1,
        GgmlDType::Q8_0,
        GgmlDType::Q4K,
        GgmlDType::Q5K,
        GgmlDType::Q6K,
    ];

    fn levels() -> Vec<Level> {
        #[cfg(target_arch = "x86_64")]
        let all = [Level::Scalar, Level::Avx2, Level::Avx512];
        #[cfg(not(target_arch = "x86_64"))]
        let all = [Level::Scalar];
        all.into_iter().filter(|level| level.available()).collect()
    }

    fn noise(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..count)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
            })
            .collect()
    }

    /// A quantised random matrix that starts `shift` bytes into its file, and what it stands for.
    fn matrix(dtype: GgmlDType, n: usize, k: usize, shift: usize) -> (WeightMatrix, Vec<f32>) {
        let weights = Tensor::from_vec(noise(n * k, 7), (n, k), &Device::Cpu).unwrap();
        let quantised = QTensor::quantize(&weights, dtype).unwrap();
        let bytes = quantised.data().unwrap().into_owned();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![0xff; shift]).unwrap();
        file.write_all(&bytes).unwrap();
        let mapped = Arc::new(MappedFile::open(file.path()).unwrap());
        let matrix = WeightMatrix::new(mapped, shift..shift + bytes.len(), dtype, n, k).unwrap();
        let values = quantised.dequantize(&Device::Cpu).unwrap();
        (matrix, values.flatten_all().unwrap().to_vec1().unwrap())
    }

    fn width(dtype: GgmlDType) -> usize {
        // Not a multiple of a panel where the block size allows it.
        if dtype.block_size() == 256 { 768 } else { 608 }
    }

    /// Against the product in f64 of the weights with the activations as the kernel sees them.
    #[test]
    fn every_type_on_every_instruction_set_matches_f64() {
        for dtype in TYPES {
            let (n, k, m) = (37, width(dtype), 3);
            let (matrix, weights) = matrix(dtype, n, k, 2);
            let mut x = noise(m * k, 99);
            if blocks::has_panels(dtype) {
                // Round the inputs to 8 bits a block first, so that only the arithmetic is tested.
                for block in x.chunks_mut(32) {
                    let top = block.iter().fold(0f32, |a, v| a.max(v.abs()));
                    for v in block {
                        *v = (*v * (1.0 / (top / 127.0))).round_ties_even() * (top / 127.0);
                    }
                }
            }
            for level in levels() {
                let y = matrix.forward_at(&x, level);
                for row in 0..m {
                    for col in 0..n {
                        let (a, b) = (&x[row * k..(row + 1) * k], &weights[col * k..(col + 1) * k]);
                        let exact: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                        let size: f64 =
                            a.iter().zip(b).map(|(a, b)| (f64::from(*a) * f64::from(*b)).abs()).sum();
                        let error = (f64::from(y[row * n + col]) - exact).abs();
                        assert!(error < 4e-5 * size, "{dtype:?} {level:?}: {error} of {size}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_alone_and_among_others_on_any_number_of_threads() {
        for dtype in TYPES {
            let (n, k, m) = (70, width(dtype), 19);
            let (matrix, _) = matrix(dtype, n, k, 0);
            let x = noise(m * k, 3);
            for level in levels() {
                let alone: Vec<u32> = x
                    .chunks_exact(k)
                    .flat_map(|row| matrix.forward_at(row, level))
                    .map(f32::to_bits)
                    .collect();
                for rows in [2, 3, 5, 9, 16, 19] {
                    for threads in [1, 3] {
                        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                        let y = pool.install(|| matrix.forward_at(&x[..rows * k], level));
                        let together: Vec<u32> = y.into_iter().map(f32::to_bits).collect();
                        assert_eq!(together, alone[..rows * n], "{dtype:?} {level:?} {rows} rows");
                    }
                }
            }
        }
    }

    #[test]
    fn the_extremes_of_scales_and_codes_do_not_saturate() {
        for dtype in TYPES.into_iter().filter(|t| blocks::has_panels(*t)) {
            let k = width(dtype);
            let bytes_per_row = k / dtype.block_size() * dtype.type_size();
            // All bits set is a NaN scale in f16, so the halves that hold scales are put back to 1.
            let mut row = vec![0xffu8; bytes_per_row];
            let halves: &[usize] = match dtype {
                GgmlDType::Q6K => &[208],
                GgmlDType::Q4_1 | GgmlDType::Q5_1 | GgmlDType::Q4K | GgmlDType::Q5K => &[0, 2],
                _ => &[0],
            };
            for block in row.chunks_exact_mut(dtype.type_size()) {
                for &at in halves {
                    block[at..at + 2].copy_from_slice(&half::f16::ONE.to_bits().to_le_bytes());
                }
            }
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(&row).unwrap();
            let mapped = Arc::new(MappedFile::open(file.path()).unwrap());
            let matrix = WeightMatrix::new(mapped, 0..row.len(), dtype, 1, k).unwrap();
            let storage =
                candle_core::quantized::QStorage::from_data(row.into(), &Device::Cpu, dtype).unwrap();
            let weights = QTensor::new(storage, (1, k)).unwrap().dequantize(&Device::Cpu).unwrap();
            let weights = weights.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            for sign in [1.0f32, -1.0] {
                let exact: f64 = weights.iter().map(|w| f64::from(sign) * f64::from(*w)).sum();
                for level in levels() {
                    let y = matrix.forward_at(&vec![sign; k], level)[0];
                    let error = (f64::from(y) - exact).abs() / exact.abs();
                    assert!(error < 1e-4, "{dtype:?} {level:?}: {y}, not {exact}");
                }
            }
        }
    }

    #[test]
    fn what_the_kernels_have_no_path_for_is_refused() {
        let (matrix, _) = matrix(GgmlDType::Q4_0, 2, 64, 0);
        let file = matrix.file.clone();
        assert!(WeightMatrix::new(file.clone(), 0..36, GgmlDType::Q2K, 1, 256).is_none());
        assert!(WeightMatrix::new(file.clone(), 0..72, GgmlDType::Q4_0, 2, 65).is_none());
        assert!(WeightMatrix::new(file, 0..7200, GgmlDType::Q4_0, 200, 64).is_none());
    }
}
