//! Executor for the CPU on the kernels of `hunch-kernels`.
//!
//! Working memory is reused between passes. All steps are row-invariant, so prefill and verification
//! run the same code. Kernels do not belong here.

pub(crate) mod convolution;
pub(crate) mod delta_net;
mod experts;
mod layers;
#[cfg(test)]
mod rollback_tests;
mod sequences;

use std::sync::Arc;

use candle_core::quantized::QMatMul;
use candle_core::{Device, Module, Tensor};

use crate::cache::KvCache;
use crate::device::Compute;
use crate::executor::{Executor, LayerStep, SequenceExecutor, WantedResults};
use crate::rope::Rope;
use crate::spec::{LAYER_EMBEDDING_TABLE, ModelSpec};
use crate::tensor_names::{LayerEmbeddingInput, ModelWeights};
use crate::weights::{Embedding, ExpertMatrices, MatrixRows, WeightFile};
use hunch_core::model::{LogitRows, PassOutput, Rows, VocabSubset};
use hunch_core::token::TokenId;
use hunch_error::Result;
use hunch_kernels::RowMask;
use hunch_kernels::activation::{rms_norm, scale};
use hunch_kernels::matmul::{BLOCK_ROWS, Product, ProductInput, multiply, multiply_blocks};
use hunch_kernels::quantise::QuantisedRows;
use hunch_kernels::{Threads, WeightMatrix};
pub(crate) use layers::CpuLayers;
use layers::Workspace;
use sequences::CpuSequences;

/// Model on the CPU.
pub(crate) struct CpuExecutor {
    layers: CpuLayers,
    embedding: Arc<Embedding>,
    output: Arc<OutputWeights>,
    layer_embedding: Option<Arc<LayerEmbeddingTable>>,
    taps: Vec<Rows>,
}

/// Weights of the input of the layers' own embeddings.
struct LayerEmbeddingTable {
    /// Embeddings of all layers for a token, `[n_layer * width]`.
    table: Embedding,
    input: LayerEmbeddingInput<Linear, Vec<f32>>,
}

/// Weights after the layers.
struct OutputWeights {
    /// Norm before the output head.
    norm: Vec<f32>,
    head: Linear,
}

struct Linear {
    weight: Weight,
    bias: Option<Vec<f32>>,
    n: usize,
}

enum Weight {
    /// Matrix for the CPU kernels.
    Kernel(WeightMatrix),
    /// Matrix for candle. Used for types without a CPU kernel (Q3_K).
    Candle(QMatMul),
}

impl CpuExecutor {
    /// Loads a model file into memory.
    ///
    /// # Errors
    /// If a tensor is missing or has the wrong shape, or there is not enough memory.
    pub(crate) fn load(file: &WeightFile, spec: &ModelSpec, compute: &Compute) -> Result<Self> {
        let linear = |rows: &MatrixRows| Linear::load(file, rows, compute.threads());
        let experts = |of: &ExpertMatrices| file.expert_stack(of, compute.threads());
        let ModelWeights { layers, output_norm: norm, head, layer_embedding: input } =
            ModelWeights::load(file, spec, linear, |name, shape| values(file, name, shape), ones, experts)?;
        let layer_embedding = input.zip(spec.layer_embedding).map(|(input, of)| -> Result<_> {
            let size = (spec.n_vocab, spec.n_layer * of.width);
            let table = file.host_table(LAYER_EMBEDDING_TABLE, size, compute.threads())?;
            Ok(Arc::new(LayerEmbeddingTable { table, input }))
        });
        let table = (spec.n_vocab, spec.n_embd);
        Ok(Self {
            embedding: Arc::new(file.host_embedding(table, head.matrix(), compute.threads())?),
            layers: CpuLayers::new(spec.clone(), layers, Rope::new(file, spec)?, compute),
            output: Arc::new(OutputWeights { norm, head }),
            layer_embedding: layer_embedding.transpose()?,
            taps: Vec::new(),
        })
    }

    /// Computes logits of the selected rows, only for the tokens of `vocab_subset` if there is one.
    fn logits(&mut self, rows: LogitRows, vocab_subset: Option<&VocabSubset>) -> Result<Rows> {
        let CpuLayers { spec, compute, workspace, .. } = &mut self.layers;
        let Workspace { x, h, quantised, .. } = workspace;
        let from = match rows {
            LogitRows::None => return Ok(Rows::default()),
            LogitRows::All => 0,
            LogitRows::Last => x.len() - spec.n_embd,
        };
        let OutputWeights { norm, head } = &*self.output;
        let h = normed(&x[from..], Some(norm), spec.rms_eps as f32, h);
        let threads = compute.threads();
        let rest = if vocab_subset.is_some() { f32::NEG_INFINITY } else { 0.0 };
        let mut logits = vec![rest; h.len() / spec.n_embd * spec.n_vocab];
        if let (Some(matrix), Some(vocab_subset)) = (head.matrix_without_bias(), vocab_subset) {
            quantise_for(threads, &[head], h, quantised);
            multiply_blocks(
                threads,
                ProductInput { x: h, quantised },
                matrix,
                vocab_subset.blocks(),
                &mut logits,
            );
        } else {
            products(threads, h, quantised, [(head, &mut logits)], false)?;
        }
        spec.logit_scaling().apply(&mut logits);
        Ok(Rows::new(spec.n_vocab, logits))
    }

    /// Returns an executor that shares the weights and has its own empty cache.
    fn fork_cpu(&self) -> Self {
        let (embedding, output) = (self.embedding.clone(), self.output.clone());
        let layer_embedding = self.layer_embedding.clone();
        Self { layers: self.layers.fork(), embedding, output, layer_embedding, taps: Vec::new() }
    }

    /// Returns the embeddings of `tokens`, `[rows, n_embd]`, and computes the inputs of the layers' own embeddings.
    fn embed(&mut self, tokens: &[TokenId]) -> Result<Vec<f32>> {
        let mut x = self.embedding.host_rows(tokens)?;
        if self.layers.spec.embedding_scale != 1.0 {
            scale(&mut x, self.layers.spec.embedding_scale);
        }
        if let Some(LayerEmbeddingTable { table, input }) = self.layer_embedding.as_deref() {
            let of_tokens = table.host_rows(tokens)?;
            self.layers.layer_embedding_inputs(input, &x, &of_tokens)?;
        }
        Ok(x)
    }
}

// The blocks of a vocabulary subset must match the blocks of the kernel.
const _: () = assert!(VocabSubset::WIDTH == BLOCK_ROWS);

impl Executor for CpuExecutor {
    fn begin(&mut self, tokens: &[TokenId], mask: &RowMask) -> Result<()> {
        let x = self.embed(tokens)?;
        self.layers.begin(x, mask)
    }

    fn step(&mut self, layer: usize, step: LayerStep) -> Result<()> {
        self.layers.step(layer, step)
    }

    fn tap(&mut self, at: usize, _wanted: WantedResults) -> Result<()> {
        self.taps.truncate(at);
        self.taps.push(self.layers.residual());
        Ok(())
    }

    fn results(&mut self, wanted: WantedResults, vocab_subset: Option<&VocabSubset>) -> Result<PassOutput> {
        let mut taps = std::mem::take(&mut self.taps);
        taps.truncate(wanted.taps);
        Ok(PassOutput { logits: self.logits(wanted.logits, vocab_subset)?, taps })
    }

    fn fork(&self) -> Box<dyn Executor> {
        Box::new(self.fork_cpu())
    }

    fn sequences(&self, count: usize) -> Option<Box<dyn SequenceExecutor>> {
        // The rows of a pass would need a plan for each sequence. Their decoders take turns.
        let spec = &self.layers.spec;
        let shares = spec.attention_layers() == spec.n_layer;
        shares.then(|| Box::new(CpuSequences::new(self, count)) as Box<dyn SequenceExecutor>)
    }

    fn host_embedding(&self) -> Option<Arc<Embedding>> {
        Some(self.embedding.clone())
    }

    fn distinct_experts(&self) -> Option<f64> {
        self.layers.workspace.experts.distinct()
    }

    fn host_head(&self) -> Option<WeightMatrix> {
        self.output.head.matrix_without_bias().cloned()
    }

    fn cache(&self) -> &KvCache {
        self.layers.cache()
    }

    fn cache_mut(&mut self) -> &mut KvCache {
        self.layers.cache_mut()
    }
}

impl Linear {
    fn load(file: &WeightFile, rows: &MatrixRows, threads: &Threads) -> Result<Self> {
        let weight = match file.matrix(rows, threads)? {
            Some(matrix) => Weight::Kernel(matrix),
            None => Weight::Candle(file.quantised(rows, &Device::Cpu)?),
        };
        Ok(Self { weight, bias: file.bias(rows)?, n: rows.n })
    }

    fn matrix(&self) -> Option<&WeightMatrix> {
        match &self.weight {
            Weight::Kernel(matrix) => Some(matrix),
            Weight::Candle(_) => None,
        }
    }

    /// Returns the matrix if the layer has a kernel and no bias.
    fn matrix_without_bias(&self) -> Option<&WeightMatrix> {
        self.matrix().filter(|_| self.bias.is_none())
    }
}

fn values(file: &WeightFile, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
    Ok(file.values(name, shape, &Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?)
}

#[expect(clippy::unnecessary_wraps, reason = "other executors copy vectors to a device, which may fail")]
fn ones(len: usize) -> Result<Vec<f32>> {
    Ok(vec![1.0; len])
}

/// Returns the RMS norm of every row of `x`, computed in `h`, or `x` itself without a norm.
fn normed<'a>(x: &'a [f32], weight: Option<&[f32]>, eps: f32, h: &'a mut Vec<f32>) -> &'a [f32] {
    let Some(weight) = weight else { return x };
    h.resize(x.len(), 0.0);
    let width = weight.len();
    for (x, h) in x.chunks_exact(width).zip(h.chunks_exact_mut(width)) {
        rms_norm(x, weight, eps, h);
    }
    h
}

/// Quantises `x` if one of the layers needs it.
fn quantise_for(threads: &Threads, linears: &[&Linear], x: &[f32], quantised: &mut QuantisedRows) {
    if linears.iter().any(|l| l.matrix().is_some_and(WeightMatrix::wants_quantised)) {
        quantised.fill(threads, x);
    }
}

/// Applies linear layers with one input, each to its own output. `add` adds instead of overwriting.
fn products<const N: usize>(
    threads: &Threads,
    x: &[f32],
    quantised: &mut QuantisedRows,
    linears: [(&Linear, &mut [f32]); N],
    add: bool,
) -> Result<()> {
    quantise_for(threads, &linears.each_ref().map(|(linear, _)| *linear), x, quantised);
    let mut kernel_products = Vec::with_capacity(N);
    for (linear, out) in linears {
        match &linear.weight {
            Weight::Kernel(matrix) => {
                kernel_products.push(Product { matrix, bias: linear.bias.as_deref(), out, add });
            }
            Weight::Candle(weight) => candle_product(weight, linear, x, out, add)?,
        }
    }
    multiply(threads, ProductInput { x, quantised }, &mut kernel_products);
    Ok(())
}

fn candle_product(weight: &QMatMul, linear: &Linear, x: &[f32], out: &mut [f32], add: bool) -> Result<()> {
    let rows = out.len() / linear.n;
    let x = Tensor::from_slice(x, (rows, x.len() / rows), &Device::Cpu)?;
    let y = weight.forward(&x)?.flatten_all()?.to_vec1::<f32>()?;
    for (index, (out, value)) in out.iter_mut().zip(y).enumerate() {
        let value = linear.bias.as_ref().map_or(value, |bias| value + bias[index % linear.n]);
        *out = if add { *out + value } else { value };
    }
    Ok(())
}
