//! Names and shapes of the tensors of one layer. The callbacks of an executor read them.

use super::{
    AttentionWeights, ConvolutionWeights, DeltaNetWeights, Dense, FeedForward, LayerEmbedding, LayerWeights,
    MixerWeights, Mixture, Parallel,
};
use crate::spec::{
    DeltaNet, Experts, HeadNorms, HeadOrder, LayerEmbeddingShape, LayerRope, Mixer, ModelSpec, Norms,
};
use crate::weights::{ExpertMatrices, MatrixRows, WeightFile};
use hunch_error::Result;

/// Callbacks that read tensors in the form of an executor, see [`ModelWeights::load`](super::ModelWeights::load).
pub(super) struct Loaders<'a, L, V, E> {
    pub(super) linear: &'a dyn Fn(&MatrixRows) -> Result<L>,
    pub(super) vector: &'a dyn Fn(&str, &[usize]) -> Result<V>,
    pub(super) ones: &'a dyn Fn(usize) -> Result<V>,
    pub(super) experts: &'a dyn Fn(&ExpertMatrices) -> Result<E>,
}

/// Loader of a layer.
pub(super) struct LayerLoader<'a, L, V, E> {
    pub(super) file: &'a WeightFile,
    pub(super) spec: &'a ModelSpec,
    /// Number of the layer in the spec.
    pub(super) place: usize,
    /// Number of the layer in the file.
    pub(super) index: usize,
    pub(super) loaders: Loaders<'a, L, V, E>,
}

/// Names of the two norms of a layer on one side of its blocks: of attention and of the feed-forward network.
type NormNames = Option<[&'static str; 2]>;

impl<L, V, E> LayerLoader<'_, L, V, E> {
    /// Loads the layer.
    ///
    /// # Errors
    /// Any error of the callbacks.
    pub(super) fn load(&self) -> Result<LayerWeights<L, V, E>> {
        let (before, after) = self.norm_names();
        let (output, output_width) = self.output();
        Ok(LayerWeights {
            mixer_norm: self.norm(before.map(|names| names[0]))?,
            mixer: self.mixer_weights()?,
            output: self.whole(output, self.spec.n_embd, output_width)?,
            mixer_post_norm: self.norm(after.map(|names| names[0]))?,
            feed_forward_norm: self.norm(before.map(|names| names[1]))?,
            feed_forward: self.feed_forward()?,
            feed_forward_post_norm: self.norm(after.map(|names| names[1]))?,
            layer_embedding: self
                .spec
                .layer_embedding
                .map(|embedding| self.layer_embedding(embedding))
                .transpose()?,
            output_scale: self.optional("layer_output_scale.weight", 1)?,
        })
    }

    fn name(&self, part: &str) -> String {
        format!("blk.{}.{part}", self.index)
    }

    fn has(&self, part: &str) -> bool {
        self.file.has(&self.name(part))
    }

    /// Loads a whole matrix of `n` rows and `k` columns.
    fn whole(&self, part: &str, n: usize, k: usize) -> Result<L> {
        (self.loaders.linear)(&MatrixRows::whole(&self.name(part), n, k))
    }

    fn vector(&self, part: &str, shape: &[usize]) -> Result<V> {
        (self.loaders.vector)(&self.name(part), shape)
    }

    /// Loads a vector that the file need not have.
    fn optional(&self, part: &str, len: usize) -> Result<Option<V>> {
        self.has(part).then(|| self.vector(part, &[len])).transpose()
    }

    /// Returns the names of the norms before and after the blocks.
    fn norm_names(&self) -> (NormNames, NormNames) {
        match self.spec.norms {
            Norms::Before => (Some(["attn_norm", "ffn_norm"]), None),
            Norms::BeforeAsPost => (Some(["attn_norm", "post_attention_norm"]), None),
            Norms::After => (None, Some(["post_attention_norm", "post_ffw_norm"])),
            Norms::Both => (Some(["attn_norm", "ffn_norm"]), Some(["post_attention_norm", "post_ffw_norm"])),
        }
    }

    fn norm(&self, name: Option<&str>) -> Result<Option<V>> {
        name.map(|name| self.vector(&format!("{name}.weight"), &[self.spec.n_embd])).transpose()
    }

    /// Loads the norm of queries or keys. `joint` is the width of those of all heads.
    fn head_norm(&self, part: &str, joint: usize) -> Result<Option<V>> {
        let of_layer = &self.spec.layers[self.place];
        let width = self.spec.heads(self.place).width;
        match self.spec.head_norms {
            HeadNorms::IfPresent if !self.has(part) => Ok(None),
            HeadNorms::IfPresent | HeadNorms::PerHead | HeadNorms::WithValues => {
                self.vector(part, &[width]).map(Some)
            }
            HeadNorms::Joint => self.vector(part, &[joint]).map(Some),
            HeadNorms::Unit if of_layer.rope == LayerRope::None => Ok(None),
            HeadNorms::Unit => (self.loaders.ones)(self.spec.head_dim).map(Some),
        }
    }

    fn mixer_weights(&self) -> Result<MixerWeights<L, V>> {
        let linear = self.loaders.linear;
        let [first, second, third] = self.projections();
        Ok(match (self.convolution_positions(), self.delta_net()) {
            (Some(positions), _) => MixerWeights::ShortConvolution(ConvolutionWeights {
                b: linear(&first)?,
                c: linear(&second)?,
                x: linear(&third)?,
                kernel: self.vector("shortconv.conv.weight", &[self.spec.n_embd, positions])?,
            }),
            (None, Some(net)) => {
                let projections = [linear(&first)?, linear(&second)?, linear(&third)?];
                MixerWeights::DeltaNet(self.delta_net_weights(net, projections)?)
            }
            (None, None) => MixerWeights::Attention(self.attention(&first, &second, &third)?),
        })
    }

    fn attention(
        &self,
        queries: &MatrixRows,
        keys: &MatrixRows,
        values: &MatrixRows,
    ) -> Result<AttentionWeights<L, V>> {
        let linear = self.loaders.linear;
        let (of_queries, of_keys) = self.widths();
        let has_keys = self.spec.layers[self.place].shares_keys_of.is_none();
        let sinks = || self.vector("attn_sinks.weight", &[self.spec.n_head]);
        Ok(AttentionWeights {
            queries: linear(queries)?,
            keys: has_keys.then(|| linear(keys)).transpose()?,
            values: (has_keys && self.has_values(values)).then(|| linear(values)).transpose()?,
            query_norm: self.head_norm("attn_q_norm.weight", of_queries)?,
            key_norm: if has_keys { self.head_norm("attn_k_norm.weight", of_keys)? } else { None },
            sinks: self.spec.sinks.then(sinks).transpose()?,
        })
    }

    fn mixer(&self) -> Mixer {
        self.spec.layers[self.place].mixer
    }

    /// Returns the delta net, if it is the mixer of the layer.
    fn delta_net(&self) -> Option<DeltaNet> {
        self.spec.delta_net.filter(|_| self.mixer() == Mixer::DeltaNet)
    }

    /// Returns the positions of the short convolution, if it is the mixer of the layer.
    fn convolution_positions(&self) -> Option<usize> {
        self.spec.convolution.filter(|_| self.mixer() == Mixer::ShortConvolution)
    }

    /// Returns the widths of all queries, and of all keys or values, of a row.
    fn widths(&self) -> (usize, usize) {
        let Self { spec, .. } = self;
        let heads = spec.heads(self.place);
        match self.convolution_positions() {
            Some(_) => (spec.n_embd, spec.n_embd),
            None => (spec.n_head * heads.width, heads.values()),
        }
    }

    /// Returns the rows of queries, keys and values, or those of the mixer in place of attention.
    fn projections(&self) -> [MatrixRows; 3] {
        let (q_width, kv_width) = self.widths();
        let queries = if self.spec.gated_attention { 2 * q_width } else { q_width };
        // The names of the parts are in the order of their rows in the joined matrix.
        let parts = match self.delta_net().map(|net| (net, net.shape())) {
            None => [("attn_q", queries), ("attn_k", kv_width), ("attn_v", kv_width)],
            Some((net, shape)) => {
                let (part, factor) = strengths_of(net.order);
                [
                    ("attn_qkv", shape.channels()),
                    ("attn_gate", shape.width()),
                    (part, factor * net.value_heads),
                ]
            }
        };
        let joined = self.joined_projection().map(|part| self.name(part));
        MatrixRows::parts(joined.as_deref(), parts.map(|(part, n)| (self.name(part), n)), self.spec.n_embd)
    }

    /// Returns the name of the matrix that has queries, keys and values, if one has.
    fn joined_projection(&self) -> Option<&'static str> {
        match self.mixer() {
            Mixer::ShortConvolution => Some("shortconv.in_proj"),
            Mixer::DeltaNet => None,
            Mixer::Attention => self.has("attn_qkv.weight").then_some("attn_qkv"),
        }
    }

    /// Returns whether the layer has a matrix of values. Layers whose keys are their values have none.
    fn has_values(&self, values: &MatrixRows) -> bool {
        self.spec.head_norms != HeadNorms::WithValues
            || self.joined_projection().is_some()
            || self.file.has(&values.weight())
    }

    /// Returns the name of the output projection, and the width of its input.
    fn output(&self) -> (&'static str, usize) {
        let (q_width, _) = self.widths();
        match (self.mixer(), self.delta_net()) {
            (Mixer::ShortConvolution, _) => ("shortconv.out_proj", q_width),
            (_, Some(net)) => ("ssm_out", net.shape().width()),
            _ => ("attn_output", q_width),
        }
    }

    fn delta_net_weights(
        &self,
        net: DeltaNet,
        [channels, gates, strengths]: [L; 3],
    ) -> Result<DeltaNetWeights<L, V>> {
        let shape = net.shape();
        let decays = || self.whole("ssm_alpha", net.value_heads, self.spec.n_embd);
        Ok(DeltaNetWeights {
            channels,
            gates,
            strengths,
            decays: (net.order == HeadOrder::Tiled).then(decays).transpose()?,
            convolution: self.vector("ssm_conv1d.weight", &[shape.channels(), shape.positions])?,
            rates: self.vector("ssm_a", &[net.value_heads])?,
            bias: self.vector("ssm_dt.bias", &[net.value_heads])?,
            norm: self.vector("ssm_norm.weight", &[net.head_dim])?,
        })
    }

    fn feed_forward(&self) -> Result<FeedForward<L, V, E>> {
        Ok(match self.spec.experts {
            None => FeedForward::Dense(self.dense(self.spec.dense_width(self.place), "")?),
            Some(of) if !of.are_in(self.place) => FeedForward::Dense(self.dense(of.dense_ff, "")?),
            Some(of) => FeedForward::Mixture(self.mixture(of)?),
        })
    }

    /// Loads a network whose matrices have names with this suffix.
    fn dense(&self, n_ff: usize, suffix: &str) -> Result<Dense<L>> {
        let Self { spec, loaders: Loaders { linear, .. }, .. } = self;
        let part = |part: &str| format!("{part}{suffix}");
        let separate = self.has(&format!("{}.weight", part("ffn_gate")));
        let joined = (spec.joined_gate && !separate).then(|| self.name(&part("ffn_up")));
        let gate_up = ["ffn_gate", "ffn_up"].map(|name| (self.name(&part(name)), n_ff));
        let [gate, up] = MatrixRows::parts(joined.as_deref(), gate_up, spec.n_embd);
        Ok(Dense {
            gate: linear(&gate)?,
            up: linear(&up)?,
            down: self.whole(&part("ffn_down"), spec.n_embd, n_ff)?,
        })
    }

    fn mixture(&self, of: Experts) -> Result<Mixture<L, V, E>> {
        let n_embd = self.spec.n_embd;
        Ok(Mixture {
            router: self.whole("ffn_gate_inp", of.count, n_embd)?,
            bias: self.optional("exp_probs_b.bias", of.count)?,
            gate: self.expert_inputs("ffn_gate_exps", of, 0)?,
            up: self.expert_inputs("ffn_up_exps", of, of.n_ff)?,
            down: self.experts("ffn_down_exps", of, n_embd, of.n_ff)?,
            shared: of.shared.map(|n_ff| self.dense(n_ff, "_shexp")).transpose()?,
            shared_weight: self.optional("ffn_gate_inp_shexp.weight", n_embd)?,
            factors: self.optional("ffn_down_exps.scale", of.count)?,
            parallel: of.parallel.map(|n_ff| self.parallel(n_ff)).transpose()?,
        })
    }

    /// Loads the matrices of all experts, each of `n` rows and `k` columns.
    fn experts(&self, part: &str, of: Experts, n: usize, k: usize) -> Result<E> {
        (self.loaders.experts)(&ExpertMatrices::whole(self.name(part), of.count, (n, k)))
    }

    /// Loads the gates or ups of all experts. Both may be one matrix, in which they begin at row `first`.
    fn expert_inputs(&self, part: &str, of: Experts, first: usize) -> Result<E> {
        let n_embd = self.spec.n_embd;
        if !self.has("ffn_gate_up_exps.weight") {
            return self.experts(part, of, of.n_ff, n_embd);
        }
        let both = ExpertMatrices::whole(self.name("ffn_gate_up_exps"), of.count, (2 * of.n_ff, n_embd));
        (self.loaders.experts)(&both.rows(first, of.n_ff))
    }

    fn parallel(&self, n_ff: usize) -> Result<Parallel<L, V>> {
        let norm = |part: &str| self.vector(part, &[self.spec.n_embd]);
        Ok(Parallel {
            dense: self.dense(n_ff, "")?,
            post_norm: norm("post_ffw_norm_1.weight")?,
            experts_norm: norm("pre_ffw_norm_2.weight")?,
            experts_post_norm: norm("post_ffw_norm_2.weight")?,
            router_norm: norm("ffn_gate_inp.scale")?,
        })
    }

    fn layer_embedding(
        &self,
        LayerEmbeddingShape { width }: LayerEmbeddingShape,
    ) -> Result<LayerEmbedding<L, V>> {
        let n_embd = self.spec.n_embd;
        Ok(LayerEmbedding {
            gate: self.whole("inp_gate", width, n_embd)?,
            projection: self.whole("proj", n_embd, width)?,
            post_norm: self.vector("post_norm.weight", &[n_embd])?,
        })
    }
}

/// Returns the name of the matrix with the strengths of a gated delta net, and its rows for each value head.
fn strengths_of(order: HeadOrder) -> (&'static str, usize) {
    match order {
        HeadOrder::Grouped => ("ssm_ba", 2),
        HeadOrder::Tiled => ("ssm_beta", 1),
    }
}
