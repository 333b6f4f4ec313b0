//! Bytes that whole passes read and write after 4,096 tokens, counted on the simulated GPU in every dispatch.
//!
//! A byte counts once for each dispatch that moves it. `bytes` counts the loads of single kernels.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use candle_core::quantized::GgmlDType;
use hunch_core::model::{LanguageModel, LayerPlan, LogitRows, PassInput};
use hunch_error::Result;
use hunch_kernels::WeightType;
use hunch_model::decoder::Decoder;
use hunch_model::metal::gpu::{Argument, BufferId, Gpu, Grid, KernelId, KernelSource};
use hunch_model::metal::matrix::Matrix;
use hunch_model::weights::WeightFile;

use crate::default_model::default_model;
use crate::products::weights;
use hunch_testing::gguf_writer::GgufWriter;
use hunch_testing::simulator::{Moved, Simulator};
use hunch_testing::tiny::{EXPERTS, MIXTURE, Tiny, WIDTH, further};

/// Tokens of the context, with those of the pass.
const CONTEXT: usize = 4096;
/// Most bytes that a pass may read, relative to weights and cache read once.
const BOUND: f64 = 1.1;

/// Contents of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Contents {
    /// Written at load: matrices, norms and biases.
    Weights,
    /// Keys and values.
    Cache,
    /// All other buffers.
    Activations,
}

/// Bytes of a dispatch or of a pass, read and written, by the contents of their buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Bytes {
    weights: u64,
    cache_read: u64,
    cache_written: u64,
    activations_read: u64,
    activations_written: u64,
}

impl Bytes {
    fn add(&mut self, contents: Contents, loads: Moved, stores: Moved) {
        match contents {
            Contents::Weights => {
                assert_eq!(stores.by_threads, 0, "a kernel wrote weights");
                self.weights += loads.distinct;
            }
            Contents::Cache => {
                self.cache_read += loads.distinct;
                self.cache_written += stores.distinct;
            }
            Contents::Activations => {
                self.activations_read += loads.distinct;
                self.activations_written += stores.distinct;
            }
        }
    }

    fn plus(self, other: Self, times: u64) -> Self {
        Self {
            weights: self.weights + times * other.weights,
            cache_read: self.cache_read + times * other.cache_read,
            cache_written: self.cache_written + times * other.cache_written,
            activations_read: self.activations_read + times * other.activations_read,
            activations_written: self.activations_written + times * other.activations_written,
        }
    }

    fn sum(all: &[(String, Self)]) -> Self {
        all.iter().fold(Self::default(), |sum, (_, bytes)| sum.plus(*bytes, 1))
    }

    fn read(&self) -> u64 {
        self.weights + self.cache_read + self.activations_read
    }

    fn moved(&self) -> u64 {
        self.read() + self.cache_written + self.activations_written
    }
}

/// Simulated GPU that keeps the bytes of each dispatch.
struct Meter {
    simulator: Arc<Simulator>,
    state: Mutex<MeterState>,
}

#[derive(Default)]
struct MeterState {
    kernels: HashMap<u32, String>,
    buffers: HashMap<u32, Contents>,
    /// The model is loaded, so new buffers hold no weights.
    loaded: bool,
    /// Function and bytes of each dispatch.
    dispatches: Vec<(String, Bytes)>,
}

impl Meter {
    fn start() -> Arc<Self> {
        Arc::new(Self { simulator: Simulator::counting_traffic(), state: Mutex::default() })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, MeterState> {
        self.state.lock().unwrap()
    }
}

impl Gpu for Meter {
    fn name(&self) -> String {
        self.simulator.name()
    }
    fn compile(&self, source: &KernelSource) -> Result<KernelId> {
        let id = self.simulator.compile(source)?;
        self.state().kernels.insert(id.0, source.function.clone());
        Ok(id)
    }
    fn allocate(&self, bytes: usize) -> Result<BufferId> {
        let id = self.simulator.allocate(bytes)?;
        // The cache is never filled, and its values should be numbers.
        self.simulator.write(id, 0, &vec![0; bytes])?;
        let mut state = self.state();
        let contents = if state.loaded { Contents::Activations } else { Contents::Weights };
        state.buffers.insert(id.0, contents);
        Ok(id)
    }
    fn release(&self, buffer: BufferId) {
        self.simulator.release(buffer);
    }
    fn write(&self, buffer: BufferId, offset: usize, bytes: &[u8]) -> Result<()> {
        self.simulator.write(buffer, offset, bytes)
    }
    fn read(&self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<()> {
        self.simulator.read(buffer, offset, out)
    }
    fn dispatch(&self, kernel: KernelId, arguments: &[Argument<'_>], grid: Grid) -> Result<()> {
        self.simulator.dispatch(kernel, arguments, grid)?;
        let mut state = self.state();
        // The last buffer of this kernel is the cache.
        if let (Some("heads"), Some(Argument::Output(cache, _))) =
            (state.kernels.get(&kernel.0).map(String::as_str), arguments.last())
        {
            state.buffers.insert(cache.0, Contents::Cache);
        }
        let mut bytes = Bytes::default();
        for argument in arguments {
            let (Argument::Input(buffer, _) | Argument::Output(buffer, _)) = *argument else { continue };
            // A buffer that is bound twice has nothing left the second time.
            let traffic = self.simulator.take_traffic(buffer);
            bytes.add(state.buffers[&buffer.0], traffic.loads, traffic.stores);
        }
        let function = state.kernels[&kernel.0].clone();
        state.dispatches.push((function, bytes));
        Ok(())
    }
    fn wait(&self) -> Result<()> {
        self.simulator.wait()
    }
}

/// Model on a metered GPU.
struct Metered {
    meter: Arc<Meter>,
    model: Decoder,
    layers: usize,
}

impl Metered {
    /// Loads a model for `context` tokens, with a cache of that length.
    fn open(file: &WeightFile, context: usize) -> Self {
        let meter = Meter::start();
        let gpu: Arc<dyn Gpu> = meter.clone();
        let model = Decoder::load_on_gpu(file, &gpu, context).unwrap();
        meter.state().loaded = true;
        let layers = model.info().n_layer;
        let mut metered = Self { meter, model, layers };
        metered.extend_to(context);
        metered
    }

    /// Makes the cache longer with passes that skip all layers. Attention reads what the cache holds in any case.
    fn extend_to(&mut self, len: usize) {
        let all: Vec<usize> = (0..self.layers).collect();
        while self.model.cache_len() < len {
            let tokens = vec![1; 64.min(len - self.model.cache_len())];
            let layers = LayerPlan::Skip(&all);
            self.model.forward(PassInput { layers, ..PassInput::chain(&tokens, LogitRows::None) }).unwrap();
        }
    }

    /// Returns function and bytes of each dispatch of a pass over the last `rows` tokens of the cache.
    fn pass(&mut self, rows: usize) -> Vec<(String, Bytes)> {
        self.model.truncate(self.model.cache_len() - rows).unwrap();
        let tokens: Vec<u32> = (1..).take(rows).collect();
        self.meter.state().dispatches.clear();
        let logits = self.model.forward(PassInput::chain(&tokens, LogitRows::All)).unwrap().logits;
        assert!(logits.row(rows - 1).iter().all(|value| value.is_finite()));
        std::mem::take(&mut self.meter.state().dispatches)
    }
}

/// Prints the bytes of a pass, and returns those read relative to weights and cache read once.
fn report(name: &str, rows: usize, bytes: &Bytes) -> f64 {
    let once = (bytes.weights + bytes.cache_read) as f64;
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let (reads, all) = (bytes.read() as f64 / once, bytes.moved() as f64 / once);
    println!(
        "figure: bytes: {name} after {CONTEXT} tokens, {rows} rows. Weights {:.1} MB. Cache {:.1} MB \
         read, {:.2} MB written. Activations {:.1} MB read, {:.1} MB written. Reads are {reads:.3} of weights and \
         cache, with writes {all:.3}.",
        mb(bytes.weights),
        mb(bytes.cache_read),
        mb(bytes.cache_written),
        mb(bytes.activations_read),
        mb(bytes.activations_written),
    );
    reads
}

#[test]
fn default_model_reads_little_but_weights_and_cache() {
    let file = WeightFile::open(&default_model()).unwrap();
    let mut metered = Metered::open(&file, CONTEXT);
    let memory = metered.model.memory();
    let bytes = Bytes::sum(&metered.pass(1));
    let ratio = report("the default model", 1, &bytes);
    // The table of embeddings is the head too. A row of it is read once more.
    assert!(bytes.weights >= memory.weights as u64 && bytes.weights < memory.weights as u64 + 1024);
    assert_eq!(bytes.cache_read, memory.cache as u64);
    assert_eq!(bytes.cache_written, (memory.cache / CONTEXT) as u64);
    assert!(ratio <= BOUND, "{ratio}");
}

/// Shape of a layer of Qwen2.5 1.5B.
const QWEN: (usize, usize, usize, usize, usize) = (1536, 8960, 12, 2, 128);
/// Layers of Qwen2.5 1.5B.
const QWEN_LAYERS: u64 = 28;

/// Returns a file with two layers of Qwen2.5 1.5B and a small vocabulary, of random weights.
fn two_layers() -> Vec<u8> {
    let (n_embd, n_ff, n_head, n_kv_head, width) = QWEN;
    let (queries, keys) = (n_head * width, n_kv_head * width);
    let key = |name: &str| format!("qwen2.{name}");
    let mut writer = GgufWriter::new()
        .str("general.architecture", "qwen2")
        .str("general.name", "Two layers")
        .u32(&key("block_count"), 2)
        .u32(&key("context_length"), CONTEXT as u32)
        .u32(&key("embedding_length"), n_embd as u32)
        .u32(&key("feed_forward_length"), n_ff as u32)
        .u32(&key("attention.head_count"), n_head as u32)
        .u32(&key("attention.head_count_kv"), n_kv_head as u32)
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-6)
        .f32(&key("rope.freq_base"), 1e6);
    let dtype = WeightType::Q4K;
    // A few random rows, again and again.
    let matrix = |writer: GgufWriter, name: String, n: usize, k: usize| {
        let (rows, _) = weights(dtype, 8, k, n as u64);
        let data = rows.iter().copied().cycle().take(rows.len() / 8 * n).collect();
        writer.raw_tensor(&name, &[k as u64, n as u64], dtype.number(), None, data)
    };
    writer = matrix(writer, "token_embd.weight".into(), 256, n_embd);
    for layer in 0..2 {
        for (part, n, k) in [
            ("attn_q", queries, n_embd),
            ("attn_k", keys, n_embd),
            ("attn_v", keys, n_embd),
            ("attn_output", n_embd, queries),
            ("ffn_gate", n_ff, n_embd),
            ("ffn_up", n_ff, n_embd),
            ("ffn_down", n_embd, n_ff),
        ] {
            writer = matrix(writer, format!("blk.{layer}.{part}.weight"), n, k);
        }
        for norm in ["attn_norm", "ffn_norm"] {
            let name = format!("blk.{layer}.{norm}.weight");
            writer = writer.tensor(&name, &[n_embd], GgmlDType::F32, &vec![1.0; n_embd]);
        }
    }
    writer.tensor("output_norm.weight", &[n_embd], GgmlDType::F32, &vec![1.0; n_embd]).bytes()
}

#[test]
fn pass_of_28_layers_reads_little_but_weights_and_cache() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("layers.gguf");
    std::fs::write(&path, two_layers()).unwrap();
    let mut metered = Metered::open(&WeightFile::open(&path).unwrap(), CONTEXT);
    for rows in [1, 4] {
        let dispatches = metered.pass(rows);
        // The embedding, two layers, and norm and head.
        let (first, second) = (&dispatches[1..11], &dispatches[11..21]);
        assert_eq!(first, second, "layers of one shape move the same bytes");
        let bytes = Bytes::sum(&dispatches).plus(Bytes::sum(first), QWEN_LAYERS - 2);
        let ratio = report("28 layers of Qwen2.5 1.5B without the head", rows, &bytes);
        assert!(ratio <= BOUND, "{rows} rows: {ratio}");
    }
}

#[test]
fn only_the_experts_of_a_pass_are_read_and_once() {
    let folder = tempfile::tempdir().unwrap();
    let tiny = Tiny { dtype: GgmlDType::Q4K, layers: 1, ..further(MIXTURE) };
    let file = WeightFile::open(&tiny.write(folder.path(), "tiny")).unwrap();
    let mut metered = Metered::open(&file, 64);
    // Gates, ups and downs of an expert, in 4.5 bits as the kernels keep them.
    let matrix = Matrix::bytes_in_memory(WeightType::Q4K, WIDTH, WIDTH).unwrap() as u64;
    for rows in [1, 2] {
        // The first use of a kernel compares it with others.
        metered.pass(rows);
        let dispatches = metered.pass(rows);
        let distinct = metered.model.expert_use().unwrap().distinct;
        assert!(distinct >= EXPERTS.1 as f64 && distinct < EXPERTS.0 as f64, "{rows} rows: {distinct}");
        let of_experts = dispatches.iter().filter(|(function, _)| function == "multiply_experts");
        let weights: Vec<u64> = of_experts.map(|(_, bytes)| bytes.weights).collect();
        let expert = distinct as u64 * matrix;
        assert_eq!(weights, [2 * expert, expert], "{rows} rows, {distinct} experts");
    }
}
