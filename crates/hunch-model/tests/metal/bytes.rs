//! Bytes that products and attention read, counted by the simulator. Weights come from memory once for up to 64 rows.
//!
//! Keys and values come from memory once, for all rows of a pass and all heads that share them. The cost model counts
//! the same bytes. Whole passes are in `traffic`.

use std::sync::Arc;

use hunch_kernels::{RowMask, WeightType};
use hunch_model::metal::activations::{Activations, Forms};
use hunch_model::metal::attention::{AttentionLayout, GpuAttention, Scoring};
use hunch_model::metal::costs::{AttentionSize, PassSize};
use hunch_model::metal::gpu::{Buffer, Gpu};
use hunch_model::metal::kernels::Kernels;
use hunch_model::metal::matrix::Matrix;
use hunch_model::metal::multiply::{GpuProduct, ResultScaling};
use hunch_model::metal::workspace::{ATTENTION_ROWS, AttentionSpace};

use crate::products::{upload, weights};
use crate::reference::{half_bytes, noise};
use hunch_testing::simulator::{Moved, Simulator};

/// Tokens of the context, with those of the pass.
const CONTEXT: usize = 4096;

/// Loads of attention over one head of keys.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    cache: Moved,
    queries: Moved,
    /// Weighted values, largest scores and sums of weights.
    partial: Moved,
}

fn count(group: usize, width: usize, mask: &RowMask) -> Counted {
    let simulator = Simulator::counting_traffic();
    let gpu: Arc<dyn Gpu> = simulator.clone();
    let (rows, capacity) = (mask.rows(), CONTEXT);
    let space = AttentionSpace::new(&gpu, mask, group, width, None).unwrap();
    let out = Activations::new(&gpu, rows, group * width).unwrap();
    let q = Buffer::with_floats(&gpu, &noise(rows * group * width, 1)).unwrap();
    let cache = half_bytes(noise(2 * capacity * width, 2).into_iter());
    let cache = Buffer::with_bytes(&gpu, &cache).unwrap();
    let input = GpuAttention {
        q: &q,
        stride: group * width,
        cache: &cache,
        capacity,
        rows,
        queries: group,
        keys: 1,
        width,
        scoring: Scoring::of_width(width),
        sinks: None,
        gates: None,
    };
    Kernels::new(gpu).attention(input, &space, out.written_as(Forms::FLOATS)).unwrap();
    let of = |buffer: &Buffer| simulator.take_traffic(buffer.id()).loads;
    let (values, stats) = (of(&space.partial), of(&space.stats));
    let partial = Moved {
        by_threads: values.by_threads + stats.by_threads,
        distinct: values.distinct + stats.distinct,
    };
    Counted { cache: of(&cache), queries: of(&q), partial }
}

/// A model: query heads, key heads, width of a head, layers, and weights that a pass reads.
type Model = (&'static str, usize, usize, usize, usize, u64);

const MODELS: [Model; 2] =
    [("Qwen2.5 1.5B", 12, 2, 128, 28, 1_543_000_000), ("Llama 3 8B", 32, 8, 128, 32, 7_504_000_000)];

#[test]
fn cache_is_read_once_by_a_pass_of_up_to_16_rows() {
    for (name, queries, keys, width, layers, weights) in MODELS {
        // Q4_K has 4.5 bits a weight. Larger types have a smaller share of other bytes.
        let weight_bytes = weights * 9 / 16;
        let one_read = (CONTEXT * 2 * width * 2) as u64;
        let least = weight_bytes + (layers * keys) as u64 * one_read;
        for rows in [1, 2, 5, 8, 16] {
            let group = queries / keys;
            let counted = count(group, width, &RowMask::causal(CONTEXT - rows, rows));
            // Each byte by one thread.
            assert_eq!(
                counted.cache,
                Moved { by_threads: one_read, distinct: one_read },
                "{name}, {rows} rows"
            );
            // A threadgroup reads its queries. They are small enough for the GPU's own cache.
            assert!(counted.queries.distinct < 1 << 18, "{counted:?}");
            let of_head = counted.cache.distinct + counted.queries.distinct + counted.partial.distinct;
            let read = weight_bytes + (layers * keys) as u64 * of_head;
            let ratio = read as f64 / least as f64;
            println!(
                "{name}, {rows} rows: {} MB, {ratio:.3} of the least, {:.3} of the weights",
                read / 1_000_000,
                read as f64 / weight_bytes as f64
            );
            assert!(ratio <= 1.1, "{name}, {rows} rows: {ratio}");

            let size = PassSize {
                bytes: weight_bytes,
                weights,
                layers,
                convolutions: 0,
                embedding_dispatches: 0,
                states: 0,
                experts: None,
                attention: AttentionSize { queries, keys, width, visible: layers * CONTEXT },
            };
            let predicted = size.attention.bytes(rows);
            let of_attention = (layers * keys) as u64 * (counted.cache.distinct + counted.partial.distinct);
            let error = predicted as f64 / of_attention as f64 - 1.0;
            assert!(error.abs() < 1e-3, "{name}, {rows} rows: {predicted} predicted, {of_attention} read");
        }
    }
}

#[test]
fn trees_read_only_their_own_keys_again() {
    let parents: Vec<Option<usize>> = (0..16).map(|row: usize| row.checked_sub(1).map(|r| r / 2)).collect();
    for base in [512, 1000] {
        let mask = RowMask::tree(base, &parents).unwrap();
        let counted = count(6, 128, &mask);
        let shared = (base * 2 * 128 * 2) as u64;
        let seen: usize = (0..16).map(|row| mask.visible_tail(row).count()).sum();
        let own = (seen * 2 * 128 * 2) as u64;
        assert_eq!(counted.cache.by_threads, shared + own, "after {base}");
    }
}

/// Longer passes, as those of a prompt, read the cache once for each 16 rows. So do models of which many heads share
/// keys, with fewer rows.
#[test]
fn more_rows_than_a_threadgroup_has_read_the_cache_again() {
    let one_read = |mask: &RowMask, rows: usize| {
        // The last row of each block sees the most keys.
        (0..mask.rows())
            .collect::<Vec<_>>()
            .chunks(rows)
            .map(|block| 512 + block.len() + block[0])
            .sum::<usize>()
    };
    for (group, width, rows) in [(2, 64, 40), (16, 128, 16), (6, 256, 16)] {
        let mask = RowMask::causal(512, rows);
        let block = AttentionLayout::new(width, group, rows).rows;
        assert!(block <= ATTENTION_ROWS && block * group <= 128);
        let expected = one_read(&mask, block) * 2 * width * 2;
        assert_eq!(count(group, width, &mask).cache.by_threads, expected as u64, "{group} heads of {width}");
    }
}

/// Units of 32 weights of a product.
const UNITS: u64 = 32 * 512 / 32;

/// Loads of the weights of a product, and their bytes.
fn count_product(dtype: WeightType, rows: usize) -> (Moved, u64) {
    let (n, k) = (32, 512);
    let simulator = Simulator::counting_traffic();
    let gpu: Arc<dyn Gpu> = simulator.clone();
    let matrix = Matrix::new(&gpu, dtype, (n, k), &weights(dtype, n, k, 1).0).unwrap();
    let (x, _) = upload(&gpu, &noise(rows * k, 2), k);
    let out = Buffer::new(&gpu, 4 * rows * n).unwrap();
    let scaling = ResultScaling::NONE;
    let product =
        GpuProduct { matrix: &matrix, bias: None, out: out.at_value(0), stride: n, add: false, scaling };
    Kernels::new(gpu).multiply(product, &x, rows).unwrap();
    let (Matrix::Packed { buffer, .. } | Matrix::Float { buffer, .. }) = &matrix;
    (simulator.take_traffic(buffer.id()).loads, Matrix::bytes_in_memory(dtype, n, k).unwrap() as u64)
}

#[test]
fn weights_are_read_once_by_a_product_of_up_to_64_rows() {
    // Bytes of 32 weights: low bits, high bits, and scales with those of their superblock, which each unit loads.
    for (dtype, low, high, scales) in [
        (WeightType::Q4K, 16, 0, 6),
        (WeightType::Q5_1, 16, 4, 4),
        (WeightType::Q6K, 16, 8, 6),
        (WeightType::Q8_0, 32, 0, 2),
        (WeightType::BF16, 64, 0, 0),
        (WeightType::F32, 128, 0, 0),
    ] {
        for rows in [1, 2, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 200] {
            let (loads, bytes) = count_product(dtype, rows);
            assert_eq!(loads.distinct, bytes, "{dtype}, {rows} rows");
            // Lanes of a row load the same high bits and scales, at the same time.
            let (of_high, of_scales) = if rows > 4 { (4, 8) } else { (1, 1) };
            let once = UNITS * (low + of_high * high + of_scales * scales);
            assert_eq!(loads.by_threads, rows.div_ceil(64) as u64 * once, "{dtype}, {rows} rows");
        }
    }
}
