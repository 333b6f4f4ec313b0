//! Gated delta nets: gathers the inputs of a pass, and runs the [kernel](hunch_kernels::delta_net) over them.
//!
//! Their projections are products like those of attention. Which states a pass reads and keeps is up to
//! [`checkpoints`](crate::cache::checkpoints).

use crate::cache::checkpoints::{DeltaMemory, DeltaPlan};
use crate::spec::{DeltaNet, HeadOrder};
use hunch_kernels::Threads;
use hunch_kernels::activation::{gated_silu, rms_norm_in_place, sigmoids};
use hunch_kernels::delta_net::{DeltaBuffers, DeltaPass, DeltaStates, delta_decays, delta_net};

/// Weights of a gated delta net without its projections. See [`DeltaNetWeights`](crate::tensor_names::DeltaNetWeights).
pub(crate) struct DeltaWeights<'a> {
    pub(crate) net: DeltaNet,
    pub(crate) convolution: &'a [f32],
    pub(crate) rates: &'a [f32],
    pub(crate) bias: &'a [f32],
    pub(crate) norm: &'a [f32],
    /// Epsilon of all norms.
    pub(crate) eps: f32,
}

/// Projections of the rows of a pass.
pub(crate) struct DeltaProjections<'a> {
    /// Queries, keys and values before the convolution, `[rows, channels]`.
    pub(crate) channels: &'a [f32],
    /// Strengths before the sigmoid, `[rows, value heads]`, or with the decays where the file joins them.
    pub(crate) strengths: &'a [f32],
    /// Decays before their activation, `[rows, value heads]`, where the file has them alone.
    pub(crate) decays: Option<&'a [f32]>,
}

/// Buffers that are reused between layers and passes.
#[derive(Default)]
pub(crate) struct DeltaSpace {
    /// Inputs: those before the checkpoint, those that are read again, those of the pass.
    inputs: Vec<f32>,
    /// Working memory of the kernel.
    mixed: Vec<f32>,
    /// Output of the kernel.
    out: Vec<f32>,
}

impl DeltaSpace {
    /// Runs the rows of a pass from the states in `memory`, and writes there what the plan keeps.
    ///
    /// `gate` has the gates of the output, `[rows, width]`, and becomes `silu(gate) * norm(output)`.
    pub(crate) fn run(
        &mut self,
        threads: &Threads,
        (weights, projections): (&DeltaWeights<'_>, &DeltaProjections<'_>),
        plan: &DeltaPlan,
        memory: &mut DeltaMemory,
        gate: &mut [f32],
    ) {
        let shape = weights.net.shape();
        let width = shape.row();
        let of_checkpoint = (shape.positions - 1) * width;
        self.inputs.clear();
        match plan.from {
            Some(from) => {
                self.inputs.extend_from_slice(&memory.before[from * of_checkpoint..][..of_checkpoint]);
            }
            // Nothing is before the text.
            None => self.inputs.resize(of_checkpoint, 0.0),
        }
        for &place in &plan.again {
            self.inputs.extend_from_slice(&memory.inputs[place * width..][..width]);
        }
        let first = self.inputs.len();
        append_rows(weights, projections, &mut self.inputs);
        for (row, place) in plan.held_rows() {
            let input = &self.inputs[first + row * width..][..width];
            memory.inputs[place * width..][..width].copy_from_slice(input);
        }
        for &(node, place) in &plan.saves {
            let seen = plan.seen_after(node).iter().map(|&at| &self.inputs[at * width..][..width]);
            let before = memory.before[place * of_checkpoint..].chunks_exact_mut(width);
            before.zip(seen).for_each(|(to, from)| to.copy_from_slice(from));
        }
        self.out.resize(gate.len(), 0.0);
        let pass = DeltaPass {
            nodes: &plan.nodes,
            is_forked: plan.is_forked,
            seen: &plan.seen,
            inputs: &self.inputs,
            convolution: weights.convolution,
            eps: weights.eps,
        };
        let states = DeltaStates { from: plan.from, saves: &plan.saves };
        let buffers = DeltaBuffers { states: &mut memory.states, mixed: &mut self.mixed, out: &mut self.out };
        delta_net(threads, shape, pass, states, buffers);
        let heads = self.out.chunks_exact_mut(shape.head_dim);
        heads.for_each(|head| rms_norm_in_place(head, weights.norm, weights.eps));
        gated_silu(gate, &self.out);
    }
}

/// Appends the input of each row: its channels, decays and strengths.
fn append_rows(weights: &DeltaWeights<'_>, projections: &DeltaProjections<'_>, inputs: &mut Vec<f32>) {
    let (net, shape) = (weights.net, weights.net.shape());
    let heads = net.value_heads;
    for (row, channels) in projections.channels.chunks_exact(shape.channels()).enumerate() {
        inputs.extend_from_slice(channels);
        let from = inputs.len();
        inputs.resize(from + 2 * heads, 0.0);
        let (decays, strengths) = inputs[from..].split_at_mut(heads);
        match (net.order, projections.decays) {
            (HeadOrder::Tiled, Some(own)) => {
                decays.copy_from_slice(&own[row * heads..][..heads]);
                strengths.copy_from_slice(&projections.strengths[row * heads..][..heads]);
            }
            // Strengths and decays of the value heads of each key head in turn.
            _ => {
                let group = heads / net.key_heads;
                let joined = projections.strengths[row * 2 * heads..][..2 * heads].chunks_exact(2 * group);
                let both = strengths.chunks_exact_mut(group).zip(decays.chunks_exact_mut(group));
                for (joined, (strengths, decays)) in joined.zip(both) {
                    strengths.copy_from_slice(&joined[..group]);
                    decays.copy_from_slice(&joined[group..]);
                }
            }
        }
        delta_decays(decays, weights.bias, weights.rates);
        sigmoids(strengths);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hunch_kernels::RowMask;
    use proptest::prelude::*;

    use crate::cache::KvCache;
    use crate::cpu_executor::rollback_tests::{Change, StateLayer, Text, change, check};
    use crate::device::KvType;
    use crate::spec::state::DELTA_CHECKPOINTS;
    use crate::spec::tests::tiny;
    use crate::spec::{LayerRope, LayerSpec, Mixer, ModelSpec};

    fn net(positions: usize, order: HeadOrder) -> DeltaNet {
        DeltaNet { key_heads: 1, value_heads: 2, head_dim: 32, positions, order }
    }

    fn spec(net: DeltaNet) -> ModelSpec {
        let layer = LayerSpec { mixer: Mixer::DeltaNet, rope: LayerRope::None, ..LayerSpec::PLAIN };
        ModelSpec { delta_net: Some(net), layers: vec![layer], ..tiny(1) }
    }

    /// The only layer of a model, whose projections are functions of the token.
    struct Layer {
        net: DeltaNet,
        cache: KvCache,
        threads: Threads,
        space: DeltaSpace,
    }

    impl Layer {
        fn new(net: DeltaNet) -> Self {
            Self {
                net,
                cache: KvCache::on_host(&spec(net), 8192, KvType::F16),
                threads: Threads::new(1).unwrap(),
                space: DeltaSpace::default(),
            }
        }
    }

    impl StateLayer for Layer {
        fn cache(&mut self) -> &mut KvCache {
            &mut self.cache
        }

        fn pass(&mut self, tokens: &[u32], mask: &RowMask) -> Vec<u32> {
            let plan = self.cache.delta_plan(mask).unwrap().unwrap();
            let of = |shift: u32, width: usize| -> Vec<f32> {
                let value = move |token: u32, i: usize| {
                    ((token * 31 + shift + i as u32 * 7) % 97) as f32 / 48.0 - 1.0
                };
                tokens.iter().flat_map(|&token| (0..width).map(move |i| value(token, i))).collect()
            };
            let shape = self.net.shape();
            let joined = self.net.order == HeadOrder::Grouped;
            let (channels, decays) = (of(0, shape.channels()), of(3, 2));
            let strengths = of(2, if joined { 4 } else { 2 });
            let mut gate = of(1, shape.width());
            let convolution: Vec<f32> =
                (0..shape.channels() * shape.positions).map(|i| ((i * 5) % 11) as f32 / 7.0 - 0.6).collect();
            let weights = DeltaWeights {
                net: self.net,
                convolution: &convolution,
                rates: &[-0.1, -0.3],
                bias: &[0.2, -0.5],
                norm: &[1.0; 32],
                eps: 1e-6,
            };
            let decays = (!joined).then_some(&decays[..]);
            let projections = DeltaProjections { channels: &channels, strengths: &strengths, decays };
            let memory = self.cache.delta_memory(0).unwrap();
            self.space.run(&self.threads, (&weights, &projections), &plan, memory, &mut gate);
            gate.iter().map(|value| value.to_bits()).collect()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn state_equals_that_of_a_text_without_rollback(
            positions in 2usize..6,
            changes in proptest::collection::vec(change(), 1..14),
        ) {
            // Inputs of rejected drafts are held, so no token runs again.
            check(changes, || Layer::new(net(positions, HeadOrder::Tiled)), 0);
        }
    }

    #[test]
    fn draft_after_a_far_rollback_runs_no_token_again() {
        // Back to 2 tokens, whose inputs are lost, then more rows than there are checkpoints.
        let changes = [Change::Chain(1), Change::Chain(300), Change::Truncate(7)];
        let draft = Change::Rows { count: 2 * DELTA_CHECKPOINTS, kept: 0 };
        check([&changes[..], &[draft]].concat(), || Layer::new(net(2, HeadOrder::Tiled)), 0);
    }

    #[test]
    fn memory_is_what_the_parameters_predict_for_any_text() {
        let net = net(4, HeadOrder::Grouped);
        let mut text = Text::new(Layer::new(net));
        for count in [1, 300, 2000] {
            text.chain(&vec![1; count]);
            assert_eq!(text.layer.cache.bytes(), spec(net).state_bytes(count));
        }
    }

    #[test]
    fn going_back_runs_a_bounded_number_of_tokens_again() {
        let net = net(4, HeadOrder::Tiled);
        for back in [1, 10, 64, 65, 100, 128, 200, 500, 1000, 2000, 3500] {
            let mut text = Text::new(Layer::new(net));
            // Prefill in blocks, then an answer.
            (0..120).for_each(|_| drop(text.chain(&[1; 32])));
            (0..200).for_each(|_| drop(text.chain(&[2])));
            let len = text.layer.cache.len();
            let again = text.truncate(len - back);
            let most = if back <= 64 { 0 } else { 4 * back };
            println!("{back} back: {again} again");
            assert!(again <= most, "{again} tokens for {back}");
            text.assert_continues(|| Layer::new(net));
        }
    }

    #[test]
    fn drafts_that_leave_out_layers_keep_no_states() {
        let net = net(4, HeadOrder::Tiled);
        let mut text = Text::new(Layer::new(net));
        text.chain(&[1; 40]);
        for depth in [3, 20] {
            let cache = text.layer.cache();
            for row in 0..depth {
                cache.reserve(1).unwrap();
                // The layer is left out: its state is not written.
                cache.delta_plan(&RowMask::causal(40 + row, 1)).unwrap();
                cache.advance(1);
            }
            cache.truncate(40);
            text.assert_continues(|| Layer::new(net));
        }
    }
}
