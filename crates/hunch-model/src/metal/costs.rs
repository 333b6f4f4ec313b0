//! Predicted costs of passes on Apple GPUs, until they are measured: bytes, operations and dispatches.
//!
//! Pure functions. Nothing here was calibrated on a Mac, so every result is shown as predicted.

use std::borrow::Cow;

use serde::Serialize;

use super::attention::AttentionLayout;
use super::experts::block;
use super::products::TileRows;
use super::selftest::GpuTimes;
use super::workspace::SPAN;
use crate::gguf::Gguf;
use crate::spec::{Experts, LAYER_EMBEDDING_TABLE, LayerSpec, Mixer, ModelSpec};

/// Figures of the GPU of an Apple chip.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Chip {
    /// Name as Metal reports it.
    pub name: Cow<'static, str>,
    /// Memory bandwidth in 10^9 bytes per second.
    pub memory_gb_s: f64,
    /// GPU cores.
    pub cores: u32,
    /// Clock of the GPU in 10^9 cycles per second.
    pub clock_ghz: f64,
    /// Earlier chip whose figures are assumed, because those of this one are unknown.
    pub assumed_like: Option<&'static str>,
}

/// A row of [`CHIPS`]: name, clock in GHz, and configurations with cores and GB/s, the largest first.
type ChipRow = (&'static str, f64, &'static [(u32, f64)]);

/// Known chips, with bandwidth and cores from Apple's technical specifications. Later chips are assumed to be like the
/// last row of the same size.
///
/// Apple publishes no clocks. The clocks of M1 and M2 are from philipturner/metal-benchmarks. The clocks of M3 and M4
/// are from hmc-tech.com, where sources differ by 7%. The clock of M5 is assumed.
const CHIPS: [ChipRow; 18] = [
    ("Apple M1", 1.278, &[(8, 68.25), (7, 68.25)]),
    ("Apple M1 Pro", 1.296, &[(16, 204.8), (14, 204.8)]),
    ("Apple M1 Max", 1.296, &[(32, 409.6), (24, 409.6)]),
    ("Apple M1 Ultra", 1.296, &[(64, 819.2), (48, 819.2)]),
    ("Apple M2", 1.398, &[(10, 102.4), (8, 102.4)]),
    ("Apple M2 Pro", 1.398, &[(19, 204.8), (16, 204.8)]),
    ("Apple M2 Max", 1.398, &[(38, 409.6), (30, 409.6)]),
    ("Apple M2 Ultra", 1.398, &[(76, 819.2), (60, 819.2)]),
    ("Apple M3", 1.398, &[(10, 102.4), (8, 102.4)]),
    ("Apple M3 Pro", 1.398, &[(18, 153.6), (14, 153.6)]),
    ("Apple M3 Max", 1.398, &[(40, 409.6), (30, 307.2)]),
    ("Apple M3 Ultra", 1.398, &[(80, 819.2), (60, 819.2)]),
    ("Apple M4", 1.47, &[(10, 120.0), (8, 120.0)]),
    ("Apple M4 Pro", 1.578, &[(20, 273.0), (16, 273.0)]),
    ("Apple M4 Max", 1.578, &[(40, 546.0), (32, 410.0)]),
    ("Apple M5", 1.6, &[(10, 153.6), (8, 153.6)]),
    ("Apple M5 Pro", 1.6, &[(20, 307.0), (16, 307.0)]),
    ("Apple M5 Max", 1.6, &[(40, 614.0), (32, 460.0)]),
];

/// Larger numbers in the name of a chip are no numbers of cores.
const MOST_CORES: u32 = 1024;
/// Lanes of a core. A lane does one fused multiply-add per cycle, inside or outside the matrix unit
/// (philipturner/metal-benchmarks). The neural accelerators of M5 are not used.
const LANES: f64 = 128.0;
/// Assumed share of the lanes' cycles in which a kernel issues an operation.
const ISSUE: f64 = 0.8;
/// Default context of a prediction, in tokens.
pub const PREDICTED_CONTEXT: usize = 1024;
/// Operations to load, unpack and scale one weight: without and with matrix instructions. Counted in the kernels for
/// Q4_K (`tests/metal/ptx.rs`).
const WEIGHT_OPERATIONS: (f64, f64) = (2.85, 8.0);
/// Operations per weight in a product of one row, including the unpacking of its activations.
const ONE_ROW_OPERATIONS: f64 = 5.5;
/// Operations per weight and row: a multiply-add, and its share of the work on activations and sums. Without and with
/// matrix instructions.
const ROW_OPERATIONS: (f64, f64) = (1.54, 1.4);
/// Time of a dispatch on the GPU in milliseconds (antonellof/ferrox#149, measured as 5.16 microseconds).
const DISPATCH_MS: f64 = 0.005;
/// Time to commit a pass and wait for it, in milliseconds. Assumed.
const WAIT_MS: f64 = 0.2;
/// Dispatches of a layer, and of the rest of a pass. `tests/metal/models.rs` counts them.
const DISPATCHES: (usize, usize) = (10, 3);
/// Dispatches that a layer with a short convolution takes less.
const CONVOLUTION_DISPATCHES: usize = 2;
/// Dispatches of a pass for embeddings that layers have of their own, and of each layer.
const EMBEDDING_DISPATCHES: (usize, usize) = (4, 4);
/// Further dispatches of a layer with a dense network next to its experts.
const PARALLEL_DISPATCHES: usize = 8;
/// Further dispatches of a layer with experts, and of one with an expert that all rows use. Its score is one more.
const EXPERT_DISPATCHES: (usize, usize) = (3, 3);
/// End of the name of the tensor that scores the expert that all rows use.
const SHARED_SCORE: &str = ".ffn_gate_inp_shexp.weight";

/// Returns the operations of a weight in a product of `rows` rows, in as many tiles as it takes.
fn operations_of_rows(rows: usize) -> f64 {
    let tile = TileRows::of(rows);
    operations_of_weight(tile) * rows.div_ceil(tile.rows()) as f64
}

/// Returns the operations of a weight in a product with tiles of this many rows.
pub fn operations_of_weight(tile: TileRows) -> f64 {
    if tile.rows() == 1 {
        return ONE_ROW_OPERATIONS;
    }
    let (weight, row) = if tile.has_matrices() {
        (WEIGHT_OPERATIONS.1, ROW_OPERATIONS.1)
    } else {
        (WEIGHT_OPERATIONS.0, ROW_OPERATIONS.0)
    };
    weight + row * tile.rows() as f64
}

impl Chip {
    /// Returns the figures of a chip by its name, such as `Apple M4 Max` or `m4 max, 32 cores`. Case and `Apple` do not
    /// matter.
    ///
    /// `cores` are those of the GPU at hand, if the name has none. Without either, the largest configuration is taken.
    /// Later generations get the figures of the last known chip of their size, with their own cores. `None` for all
    /// other names.
    pub fn named(name: &str, cores: Option<u32>) -> Option<Self> {
        let (name, own) = split_cores(name);
        let cores = own.or(cores);
        let known = |name: &str| CHIPS.iter().find(|row| row.0 == name);
        if let Some(row) = known(&name) {
            return Some(Self::of(name.into(), row, cores, None));
        }
        let (generation, size) = generation_and_size(&name)?;
        let last =
            CHIPS.iter().rev().find(|row| generation_and_size(row.0).is_some_and(|row| row.1 == size))?;
        let is_later =
            CHIPS.iter().all(|row| generation_and_size(row.0).is_some_and(|row| row.0 < generation));
        is_later.then(|| Self::of(name.clone().into(), last, cores, Some(last.0)))
    }

    /// Returns the names of all known chips with their numbers of cores, as `named` reads them.
    pub fn all_names() -> impl Iterator<Item = String> {
        let names = |(name, _, configurations): &ChipRow| {
            let cores: Vec<String> =
                configurations.iter().rev().map(|(cores, _)| cores.to_string()).collect();
            format!("{name} ({} cores)", cores.join(", "))
        };
        CHIPS.iter().map(names)
    }

    /// Figures of a row. Other numbers of cores have the bandwidth of the next larger configuration.
    fn of(
        name: Cow<'static, str>,
        row: &ChipRow,
        cores: Option<u32>,
        assumed_like: Option<&'static str>,
    ) -> Self {
        let (_, clock_ghz, configurations) = *row;
        let largest = configurations[0];
        let cores = cores.unwrap_or(largest.0);
        let fits = |configuration: &&(u32, f64)| configuration.0 >= cores;
        let memory_gb_s = configurations.iter().rev().find(fits).unwrap_or(&largest).1;
        Self { name, memory_gb_s, cores, clock_ghz, assumed_like }
    }

    /// Returns the share of the bandwidth that products of one row reach. Taken from llama.cpp's rates: 0.79 on an M1,
    /// 0.74 on an M2 Pro, 0.6 on an M4 Max.
    fn memory_share(&self) -> f64 {
        match self.memory_gb_s {
            ..160.0 => 0.79,
            160.0..350.0 => 0.74,
            _ => 0.6,
        }
    }

    /// Returns the time of reading bytes or of operations, whichever is longer, in milliseconds.
    fn ms(&self, bytes: u64, operations: f64) -> f64 {
        let memory = bytes as f64 / (self.memory_gb_s * self.memory_share());
        let rate = f64::from(self.cores) * LANES * self.clock_ghz * ISSUE;
        memory.max(operations / rate) / 1e6
    }
}

/// Size of a pass of a model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PassSize {
    /// Bytes of weights that it reads, without those of experts.
    pub bytes: u64,
    /// Weights that it multiplies with, without those of experts.
    pub weights: u64,
    /// Layers.
    pub layers: usize,
    /// Layers with a short convolution, which takes fewer dispatches than attention.
    pub convolutions: usize,
    /// Dispatches for embeddings that layers have of their own.
    pub embedding_dispatches: usize,
    /// Bytes of the states of gated delta nets, which a pass reads once and writes once.
    pub states: u64,
    /// Experts of all layers. `None` for dense models.
    pub experts: Option<ExpertSize>,
    /// Attention of all layers.
    pub attention: AttentionSize,
}

/// Size of the experts of a pass. Its rows read a part of them, which grows with the rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ExpertSize {
    /// Experts of a layer and of a row.
    pub of_layer: Experts,
    /// Bytes of the weights of all experts.
    pub bytes: u64,
    /// Weights of all experts.
    pub weights: u64,
    /// Further dispatches of all layers.
    pub dispatches: usize,
}

impl ExpertSize {
    /// Returns how often a pass of `rows` rows reads an expert, relative to the number of experts. Each different
    /// expert is read at least once, and once for each block of the rows that chose it.
    fn reads(&self, rows: usize) -> f64 {
        let entries = (rows * self.of_layer.used) as f64;
        let blocks = self.of_layer.expected_distinct(rows).max(entries / block(rows).rows() as f64);
        blocks / self.of_layer.count as f64
    }
}

/// Size of the attention of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct AttentionSize {
    /// Heads of queries of a layer.
    pub queries: usize,
    /// Heads of keys of a layer.
    pub keys: usize,
    /// Width of a head.
    pub width: usize,
    /// Tokens that a row sees, added up over the layers.
    pub visible: usize,
}

impl AttentionSize {
    /// Returns the attention of a model after `context` tokens.
    fn of(spec: &ModelSpec, context: usize) -> Self {
        let seen = |window: Option<usize>| window.map_or(context, |window| window.min(context));
        // Heads of different widths count as their average.
        let (values, layers) = (spec.cached_values().sum::<usize>(), spec.cached_values().count());
        Self {
            queries: spec.n_head,
            keys: spec.n_kv_head,
            width: values.checked_div(2 * spec.n_kv_head * layers).unwrap_or(spec.head_dim),
            visible: spec
                .layers
                .iter()
                .filter(|layer| layer.mixer == Mixer::Attention)
                .map(|layer| seen(layer.window))
                .sum(),
        }
    }

    fn layout(&self, rows: usize) -> AttentionLayout {
        AttentionLayout::new(self.width, self.queries / self.keys.max(1), rows)
    }

    /// Returns the bytes that attention over `rows` rows reads. Keys and values are halves, read once for each block of
    /// rows. Each row, head and span has partial results. `tests/metal/bytes.rs` counts them.
    pub fn bytes(&self, rows: usize) -> u64 {
        let blocks = rows.div_ceil(self.layout(rows).rows);
        let cache = 2 * 2 * self.keys * self.width * blocks;
        let partial = rows * self.queries * (4 * self.width + 8);
        (self.visible * cache + self.visible * partial / SPAN) as u64
    }

    /// Returns the operations of attention over `rows` rows, idle lanes included. Each element of a key costs each head
    /// two multiply-adds, and one operation for loads and weights.
    fn operations(&self, rows: usize) -> f64 {
        let layout = self.layout(rows);
        let pairs = rows.div_ceil(layout.rows) * layout.pairs * layout.simdgroups * self.keys;
        (3 * self.visible * self.width) as f64 * pairs as f64
    }
}

impl PassSize {
    /// Returns the size of a pass of a model with this header, after [`PREDICTED_CONTEXT`] tokens.
    pub fn of(gguf: &Gguf, spec: &ModelSpec) -> Self {
        let tied = !gguf.tensors.contains_key("output.weight");
        let read = gguf.model_tensors().filter(|(name, _)| tied || *name != "token_embd.weight");
        // A pass reads rows of this table.
        let read = read.filter(|(name, _)| *name != LAYER_EMBEDDING_TABLE);
        let (mut all_rows, mut of_experts) = ((0, 0), (0, 0));
        for (name, tensor) in read {
            let part = if spec.share_read(name) < 1.0 { &mut of_experts } else { &mut all_rows };
            part.0 += tensor.range.len() as u64;
            part.1 += tensor.shape.iter().product::<usize>() as u64;
        }
        let experts = spec.experts.map(|experts| {
            let of_shared = experts.shared.map_or(0, |_| EXPERT_DISPATCHES.1);
            let layers = (0..spec.n_layer).filter(|layer| experts.are_in(*layer)).count();
            let scores = gguf.model_tensors().filter(|(name, _)| name.ends_with(SHARED_SCORE)).count();
            let of_parallel = experts.parallel.map_or(0, |_| PARALLEL_DISPATCHES);
            let dispatches = layers * (EXPERT_DISPATCHES.0 + of_shared + of_parallel) + scores;
            ExpertSize { of_layer: experts, bytes: of_experts.0, weights: of_experts.1, dispatches }
        });
        let attention = AttentionSize::of(spec, PREDICTED_CONTEXT);
        let is_convolution = |layer: &&LayerSpec| layer.mixer == Mixer::ShortConvolution;
        let (layers, convolutions) = (spec.n_layer, spec.layers.iter().filter(is_convolution).count());
        let states = spec.delta_state_bytes();
        let (in_all, of_layer) = EMBEDDING_DISPATCHES;
        let embedding_dispatches = spec.layer_embedding.map_or(0, |_| in_all + of_layer * layers);
        let (bytes, weights) = all_rows;
        Self { bytes, weights, layers, convolutions, embedding_dispatches, states, experts, attention }
    }

    /// Returns the size of a pass with other bytes: weights may be read in another type than that of the file. A pass of
    /// one row reads `of_row` bytes. All experts have `of_experts`.
    #[must_use]
    pub fn reading(self, of_row: u64, of_experts: u64) -> Self {
        let experts = self.experts.map(|experts| ExpertSize { bytes: of_experts, ..experts });
        let of_chosen = experts.map_or(0, |experts| (of_experts as f64 * experts.of_layer.share()) as u64);
        Self { bytes: of_row.saturating_sub(of_chosen), experts, ..self }
    }

    /// Returns the size of the pass after another number of tokens.
    #[must_use]
    pub fn after(self, spec: &ModelSpec, context: usize) -> Self {
        Self { attention: AttentionSize::of(spec, context), ..self }
    }

    fn overhead_ms(&self) -> f64 {
        let dispatches =
            DISPATCHES.0 * self.layers + DISPATCHES.1 - CONVOLUTION_DISPATCHES * self.convolutions;
        let dispatches = dispatches + self.embedding_dispatches;
        let dispatches = dispatches + self.experts.map_or(0, |experts| experts.dispatches);
        dispatches as f64 * DISPATCH_MS + WAIT_MS
    }
}

/// Returns the name of a chip as Metal writes it, and the cores that follow it.
fn split_cores(name: &str) -> (String, Option<u32>) {
    let lower = name.to_ascii_lowercase().replace("apple", " ");
    let words = || lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let is_of_name = |word: &&str| word.parse::<u32>().is_err() && !matches!(*word, "core" | "cores" | "gpu");
    let capitalised = |word: &str| word[..1].to_ascii_uppercase() + &word[1..];
    let name =
        words().filter(is_of_name).fold("Apple".to_owned(), |name, word| name + " " + &capitalised(word));
    let cores = words().find_map(|word| word.parse().ok()).filter(|cores| (1..=MOST_CORES).contains(cores));
    (name, cores)
}

/// Returns generation and size of a chip: 4 and "Max" of `Apple M4 Max`.
fn generation_and_size(name: &str) -> Option<(u32, &str)> {
    let name = name.strip_prefix("Apple M")?;
    let (generation, size) = name.split_once(' ').unwrap_or((name, ""));
    Some((generation.parse().ok()?, size))
}

/// Basis of a prediction.
#[derive(Clone, Debug, PartialEq)]
pub enum Basis {
    /// Figures of a chip.
    Chip(Chip),
    /// Times of a product, measured by the self-test.
    Measured(GpuTimes),
}

impl Basis {
    /// Predicts the time of a pass of `rows` rows in milliseconds.
    ///
    /// Rows choose experts independently of each other, so those of a text take less.
    pub fn pass_ms(&self, size: PassSize, rows: usize) -> f64 {
        let rows = rows.max(1);
        let attention = size.attention;
        let of_attention = match self {
            Self::Chip(chip) => chip.ms(attention.bytes(rows), attention.operations(rows)),
            Self::Measured(speed) => attention.bytes(rows) as f64 / speed.memory_gb_s / 1e6,
        };
        let of_states = match self {
            Self::Chip(chip) => chip.ms(2 * size.states, 0.0),
            Self::Measured(speed) => (2 * size.states) as f64 / speed.memory_gb_s / 1e6,
        };
        let of_experts = size.experts.map_or(0.0, |experts| {
            let all = self.products_ms((experts.bytes, experts.weights), block(rows).rows());
            all * experts.reads(rows)
        });
        let work = self.products_ms((size.bytes, size.weights), rows) + of_experts + of_attention;
        work + of_states + size.overhead_ms()
    }

    /// Predicts the time of products of `rows` rows with these bytes of weights in milliseconds.
    fn products_ms(&self, (bytes, weights): (u64, u64), rows: usize) -> f64 {
        match self {
            Self::Chip(chip) => {
                let tiles = rows.div_ceil(TileRows::of(rows).rows());
                chip.ms(bytes * tiles as u64, weights as f64 * operations_of_rows(rows))
            }
            Self::Measured(speed) => {
                let share = bytes as f64 / speed.product_bytes.max(1) as f64;
                let measured = rows.min(speed.product_ms.len());
                let ms = speed.product_ms.get(measured.wrapping_sub(1)).copied().unwrap_or(0.0);
                // More rows than were measured are bound by arithmetic. They have larger tiles, which unpack a weight once.
                share * ms * operations_of_rows(rows) / operations_of_rows(measured.max(1))
            }
        }
    }

    /// Predicts the times of passes of 1 to `most` rows in milliseconds.
    pub fn curve(&self, size: PassSize, most: usize) -> Vec<(usize, f64)> {
        (1..=most).map(|rows| (rows, self.pass_ms(size, rows))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Weighting;

    /// Qwen2.5 7B in Q4_K_M.
    const SEVEN_B: PassSize = PassSize {
        bytes: 4_370_000_000,
        weights: 7_070_000_000,
        layers: 28,
        convolutions: 0,
        embedding_dispatches: 0,
        states: 0,
        experts: None,
        attention: AttentionSize { queries: 28, keys: 4, width: 128, visible: 28 * PREDICTED_CONTEXT },
    };
    /// Qwen2.5 0.5B.
    const HALF_B: PassSize = PassSize {
        bytes: 390_000_000,
        weights: 494_000_000,
        layers: 24,
        convolutions: 0,
        embedding_dispatches: 0,
        states: 0,
        experts: None,
        attention: AttentionSize { queries: 14, keys: 2, width: 64, visible: 24 * PREDICTED_CONTEXT },
    };

    /// Experts of Qwen3 30B A3B in Q4_K_M: 8 of 128.
    const MIXTURE: ExpertSize = ExpertSize {
        of_layer: Experts {
            count: 128,
            used: 8,
            groups: None,
            n_ff: 768,
            shared: None,
            weighting: Weighting::Softmax,
            normalised: true,
            scale: 1.0,
            clamped: false,
            scales_input: false,
            dense_layers: 0,
            step: 1,
            dense_ff: 0,
            parallel: None,
            gelu: false,
            router_scale: 1.0,
        },
        bytes: 17_500_000_000,
        weights: 29_000_000_000,
        dispatches: 3 * 48,
    };

    fn chip(name: &str) -> Chip {
        Chip::named(name, None).unwrap_or_else(|| panic!("{name} is unknown"))
    }

    fn all_chips() -> impl Iterator<Item = Chip> {
        CHIPS.iter().flat_map(|row| row.2.iter().map(|(cores, _)| Chip::named(row.0, Some(*cores)).unwrap()))
    }

    #[test]
    fn chips_are_found_by_the_name_that_metal_reports() {
        assert_eq!((chip("Apple M4 Max").memory_gb_s, chip("Apple M4 Max").cores), (546.0, 40));
        assert_eq!((chip("m1").cores, &*chip("m1").name), (8, "Apple M1"));
        for unknown in [
            "simulated GPU",
            "Apple A18 Pro",
            "Apple M0",
            "Apple M",
            "",
            "40",
            "AMD Radeon Pro",
            "Apple M5 Ultra",
        ] {
            assert_eq!(Chip::named(unknown, Some(8)), None, "{unknown}");
        }
    }

    #[test]
    fn smaller_configurations_have_their_own_cores_and_bandwidth() {
        let of = |name: &str, cores| {
            let chip = Chip::named(name, cores).unwrap();
            (chip.cores, chip.memory_gb_s)
        };
        assert_eq!(of("Apple M4 Max", Some(32)), (32, 410.0));
        for text in ["M4 Max 32", "m4 max, 32 cores", "Apple M4 Max (32-core GPU)"] {
            assert_eq!(of(text, Some(40)), (32, 410.0), "{text}");
        }
        assert_eq!(of("Apple M1", Some(7)), (7, 68.25));
        assert_eq!(of("Apple M3 Max", Some(30)), (30, 307.2));
        // Numbers that Apple does not sell.
        assert_eq!(of("Apple M4 Max", Some(34)), (34, 546.0));
        assert_eq!(of("Apple M4 Max", Some(48)), (48, 546.0));
        assert_eq!(of("M4 Max 4000000000", None), (40, 546.0));
        let basis = |cores| Basis::Chip(Chip::named("Apple M4 Max", Some(cores)).unwrap());
        assert!(basis(32).pass_ms(SEVEN_B, 1) > 1.2 * basis(40).pass_ms(SEVEN_B, 1));
        assert!(basis(32).pass_ms(SEVEN_B, 16) > 1.2 * basis(40).pass_ms(SEVEN_B, 16));
    }

    #[test]
    fn later_chips_are_predicted_from_their_cores_and_the_last_known_chip() {
        let later = Chip::named("Apple M6 Pro", Some(24)).unwrap();
        assert_eq!((&*later.name, later.cores, later.memory_gb_s), ("Apple M6 Pro", 24, 307.0));
        assert_eq!(later.assumed_like, Some("Apple M5 Pro"));
        assert_eq!(chip("M7").cores, chip("M5").cores);
        // An M5 Ultra is no later chip, and may have other figures than an M3 Ultra.
        assert_eq!(chip("M6 Ultra").assumed_like, Some("Apple M3 Ultra"));
        assert!(all_chips().all(|chip| chip.assumed_like.is_none()));
    }

    #[test]
    fn names_of_the_table_are_found() {
        assert_eq!(Chip::all_names().count(), CHIPS.len());
        for (name, row) in Chip::all_names().zip(&CHIPS) {
            assert_eq!(&*chip(&name).name, row.0);
            assert!(row.2.is_sorted_by(|a, b| a.0 > b.0 && a.1 >= b.1), "{name}: the largest comes first");
        }
    }

    #[test]
    fn one_row_is_bound_by_memory_and_more_rows_never_cost_less() {
        for chip in all_chips() {
            let basis = Basis::Chip(chip.clone());
            let one = basis.pass_ms(SEVEN_B, 1);
            let floor = SEVEN_B.bytes as f64 / chip.memory_gb_s / 1e6;
            assert!(one > floor && one < 2.0 * floor + SEVEN_B.overhead_ms(), "{}: {one}", chip.name);
            let curve = basis.curve(SEVEN_B, 64);
            assert!(curve.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{}", chip.name);
            // Published times of 8 rows, for kernels of this kind, are 1.0 to 2.7 times as long as for one row. An M5 of 8
            // cores has fewer of them for its bandwidth than the chips of these measurements.
            let eight = basis.pass_ms(SEVEN_B, 8) / one;
            assert!((1.0..=2.9).contains(&eight), "{}: {eight}", chip.name);
        }
    }

    #[test]
    fn dispatches_bound_a_small_draft_on_a_large_chip() {
        let basis = Basis::Chip(chip("M4 Max"));
        let share = basis.pass_ms(HALF_B, 1) / basis.pass_ms(SEVEN_B, 1);
        let bytes = HALF_B.bytes as f64 / SEVEN_B.bytes as f64;
        assert!(share > 1.5 * bytes, "{share} against {bytes}");
        let more = PassSize { layers: 2 * HALF_B.layers, ..HALF_B };
        assert!(basis.pass_ms(more, 1) - basis.pass_ms(HALF_B, 1) > 1.0);
        let of_layer = MIXTURE.of_layer;
        let experts = ExpertSize { of_layer, bytes: 0, weights: 0, dispatches: 3 * HALF_B.layers };
        let of_experts = PassSize { experts: Some(experts), ..HALF_B };
        let added = basis.pass_ms(of_experts, 1) - basis.pass_ms(HALF_B, 1);
        assert!((added - 72.0 * DISPATCH_MS).abs() < 1e-9, "{added}");
    }

    #[test]
    fn measured_products_scale_by_bytes() {
        let product_ms: Vec<f64> = (1..=16).map(|rows| 1.0 + f64::from(rows) / 16.0).collect();
        let speed = GpuTimes { product_ms, product_bytes: 1000, memory_gb_s: 1.0 };
        let attention = AttentionSize::default();
        let size = PassSize {
            bytes: 4000,
            weights: 8000,
            layers: 0,
            convolutions: 0,
            embedding_dispatches: 0,
            states: 0,
            experts: None,
            attention,
        };
        let overhead = size.overhead_ms();
        let basis = Basis::Measured(speed);
        let ms = |rows| basis.pass_ms(size, rows) - overhead;
        assert!((ms(16) - 8.0).abs() < 1e-9 && (ms(8) - 6.0).abs() < 1e-9);
        // One tile of 32 or 64 rows unpacks a weight once.
        let more = |rows| operations_of_weight(rows) / operations_of_weight(TileRows::of(16));
        assert!((ms(32) - 8.0 * more(TileRows::of(32))).abs() < 1e-9 && ms(32) < 16.0, "{}", ms(32));
        assert!((ms(64) - 8.0 * more(TileRows::of(64))).abs() < 1e-9 && ms(64) < 32.0, "{}", ms(64));
        assert!((ms(65) - 2.0 * ms(64)).abs() < 1e-9, "two tiles");
        assert!((1..200).all(|rows| ms(rows) <= ms(rows + 1)));
    }

    #[test]
    fn more_rows_read_more_experts() {
        let reads = |rows| MIXTURE.reads(rows) * 128.0;
        assert!((reads(1) - 8.0).abs() < 1e-9);
        // 2 rows are expected to share half an expert.
        assert!((reads(2) - 15.5).abs() < 1e-9, "{}", reads(2));
        // Up to 4 rows share a load of an expert.
        assert!((reads(256) - 256.0 * 8.0 / 4.0).abs() < 1e-9);
        let speed = GpuTimes { product_ms: vec![1.0; 16], product_bytes: 100_000_000, memory_gb_s: 100.0 };
        for basis in [Basis::Chip(chip("M4 Max")), Basis::Measured(speed)] {
            let of_mixture = PassSize { experts: Some(MIXTURE), ..HALF_B };
            let [dense, mixture] = [HALF_B, of_mixture]
                .map(|size| [4, 16].map(|rows| basis.pass_ms(size, rows) / basis.pass_ms(size, 1)));
            assert!(mixture[0] > 2.0 && mixture[0] > 1.5 * dense[0], "{mixture:?} {dense:?}");
            assert!(mixture[1] > 1.5 * mixture[0], "{mixture:?}");
        }
    }

    #[test]
    fn longer_context_costs_its_bytes_and_its_rows() {
        let long = AttentionSize { visible: 28 * 4096, ..SEVEN_B.attention };
        let cache = (28 * 4096 * 2 * 2 * 4 * 128) as u64;
        // 28 heads of a row have 5.6% of the bytes of 4 heads of 128 keys and values.
        assert!(long.bytes(1) > cache * 105 / 100 && long.bytes(1) < cache * 106 / 100);
        // Partial results grow with the rows, the cache does not.
        assert!(long.bytes(16) > long.bytes(1) && long.bytes(16) < 2 * cache);
        assert!(long.bytes(17) > 2 * cache, "two blocks of rows");
        let at = |rows| {
            let basis = Basis::Chip(chip("M4 Max"));
            basis.pass_ms(PassSize { attention: long, ..SEVEN_B }, rows) - basis.pass_ms(SEVEN_B, rows)
        };
        assert!(at(1) > 0.5 && at(8) >= at(1) && at(16) > at(8), "{} {} {}", at(1), at(8), at(16));
    }
}
