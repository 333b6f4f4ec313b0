//! Gated delta nets and gated attention on the simulated GPU: kernels against those of the CPU, and models with rollback.
//! Bits do not depend on the rows of a pass, the schedule or the tree.

use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use hunch_core::model::{LanguageModel, LogitRows, PassInput, RowLayout};
use hunch_kernels::activation::{gate_by_sigmoid, gated_silu, rms_norm_in_place, sigmoids};
use hunch_kernels::delta_net::{
    COLUMNS, DeltaBuffers, DeltaNode, DeltaPass, DeltaShape, DeltaStates, delta_decays, delta_net,
};
use hunch_kernels::{RowMask, Threads, WeightType};
use hunch_model::decoder::Decoder;
use hunch_model::metal::activations::{Activations, Forms};
use hunch_model::metal::attention::{GpuAttention, Scoring};
use hunch_model::metal::delta_net::{DeltaSpace, DeltaSteps, DeltaVectors, GpuDeltaNet, GpuDeltaPlan};
use hunch_model::metal::gpu::{Buffer, Gpu};
use hunch_model::metal::kernels::Kernels;
use hunch_model::metal::workspace::AttentionSpace;
use hunch_model::spec::ModelSpec;
use hunch_model::weights::WeightFile;

use crate::models::{chain, on_cpu, on_gpu, tokens, worst};
use crate::products::weights;
use crate::reference::{half_bytes, noise};
use crate::rows::{MOST_ROWS, assert_near, bits, checked_floats, row_counts, start};
use hunch_testing::simulator::{Counts, Simulator};
use hunch_testing::tiny::{DELTA_NETS, Tiny, further};

/// Earlier positions that the convolution sees.
const REACH: usize = 3;
/// Held inputs that every pass reads again, and their places.
const AGAIN: [usize; 2] = [4, 1];
/// Held rows before those of the checkpoints.
const HELD: usize = 6;
/// Place of the state before a pass, and of the one after it.
const PLACES: [usize; 2] = [1, 0];
const EPS: f32 = 1e-6;

/// A layer with its memory before a pass.
struct Layer {
    shape: DeltaShape,
    convolution: Vec<f32>,
    rates: Vec<f32>,
    bias: Vec<f32>,
    norm: Vec<f32>,
    /// State before the pass, as the CPU lays it out.
    state: Vec<f32>,
    /// Inputs before the checkpoint, then those that are read again.
    inputs: Vec<f32>,
    /// Projections of [`MOST_ROWS`] rows.
    x: Vec<f32>,
}

/// Nodes of a pass.
struct Nodes {
    nodes: Vec<DeltaNode>,
    /// Inputs by their index: those of the layer, then the rows.
    seen: Vec<usize>,
}

impl Nodes {
    /// Puts the inputs that are read again and the rows below them in depth-first order. The last node of the first branch
    /// comes last, so its state is that of a chain.
    fn new(parents: &[Option<usize>]) -> Self {
        let is_branch = |of: Option<usize>| parents.iter().filter(|parent| **parent == of).count() > 1;
        let node = |parent, row, is_branch| DeltaNode { parent, row, is_branch };
        let mut all = Self {
            nodes: vec![node(None, None, false), node(Some(0), None, is_branch(None))],
            seen: (0..=REACH).chain(1..=REACH + 1).collect(),
        };
        all.follow(parents, None, 1);
        all
    }

    fn follow(&mut self, parents: &[Option<usize>], of: Option<usize>, parent: usize) {
        let children: Vec<usize> = (0..parents.len()).filter(|row| parents[*row] == of).collect();
        for row in children.into_iter().rev() {
            let is_branch = parents.iter().filter(|other| **other == Some(row)).count() > 1;
            let index = self.nodes.len();
            self.nodes.push(DeltaNode { parent: Some(parent), row: Some(row), is_branch });
            self.seen.extend_from_within(parent * (REACH + 1) + 1..(parent + 1) * (REACH + 1));
            self.seen.push(REACH + AGAIN.len() + row);
            self.follow(parents, Some(row), index);
        }
    }

    /// Returns the seen inputs as the GPU names them.
    fn words(&self, rows: usize) -> Vec<u32> {
        let word = |&at: &usize| {
            let place = match at.checked_sub(REACH + AGAIN.len()) {
                Some(row) => return row as u32,
                None if at >= REACH => AGAIN[at - REACH],
                None => HELD + PLACES[0] * REACH + at,
            };
            (rows + place) as u32
        };
        self.seen.iter().map(word).collect()
    }
}

impl Layer {
    fn new(head_dim: usize, is_tiled: bool) -> Self {
        let shape = DeltaShape { key_heads: 2, value_heads: 6, head_dim, positions: REACH + 1, is_tiled };
        let mut inputs = noise((REACH + AGAIN.len()) * shape.row(), 25);
        for row in inputs.chunks_exact_mut(shape.row()) {
            row[shape.channels()..].iter_mut().for_each(|gate| *gate = 0.5 + 0.5 * *gate);
        }
        let stride = shape.row() + shape.width();
        Self {
            shape,
            convolution: noise(shape.channels() * shape.positions, 21),
            rates: noise(shape.value_heads, 22).iter().map(|rate| -0.4 - 0.3 * rate).collect(),
            bias: noise(shape.value_heads, 23),
            norm: noise(head_dim, 24),
            state: noise(shape.state(), 26).iter().map(|value| 0.3 * value).collect(),
            inputs,
            x: noise(MOST_ROWS * stride, 27).iter().map(|value| 3.0 * value).collect(),
        }
    }

    fn stride(&self) -> usize {
        self.shape.row() + self.shape.width()
    }

    /// Returns a state with the columns of a head one after the other.
    fn by_columns(&self, state: &[f32]) -> Vec<f32> {
        let d = self.shape.head_dim;
        let at = |head: usize, column: usize, key: usize| {
            let block = head * (d / COLUMNS) + column / COLUMNS;
            state[(block * d + key) * COLUMNS + column % COLUMNS]
        };
        let columns = (0..self.shape.value_heads * d).map(|i| (i / d, i % d));
        columns.flat_map(|(head, column)| (0..d).map(move |key| at(head, column, key))).collect()
    }

    /// Returns output and last state of the CPU.
    fn on_cpu(&self, of: &Nodes, rows: usize) -> (Vec<f64>, Vec<f64>) {
        let (shape, width) = (self.shape, self.shape.width());
        let (channels, heads) = (shape.channels(), shape.value_heads);
        let (mut inputs, mut gates) = (self.inputs.clone(), Vec::new());
        for x in self.x.chunks_exact(self.stride()).take(rows) {
            let (of_channels, rest) = x.split_at(channels);
            let (gate, joined) = rest.split_at(width);
            gates.extend_from_slice(gate);
            let group = heads / shape.key_heads;
            let at = |head: usize, part: usize| match shape.is_tiled {
                true => joined[part * heads + head],
                false => joined[(head / group * 2 + part) * group + head % group],
            };
            let mut decays: Vec<f32> = (0..heads).map(|head| at(head, 1)).collect();
            let mut strengths: Vec<f32> = (0..heads).map(|head| at(head, 0)).collect();
            delta_decays(&mut decays, &self.bias, &self.rates);
            sigmoids(&mut strengths);
            inputs.extend(of_channels.iter().chain(&decays).chain(&strengths));
        }
        let mut memory = [self.state.clone(), vec![0.0; shape.state()]].concat();
        let mut out = vec![0.0; rows * width];
        let pass = DeltaPass {
            nodes: &of.nodes,
            is_forked: false,
            seen: &of.seen,
            inputs: &inputs,
            convolution: &self.convolution,
            eps: EPS,
        };
        let states = DeltaStates { from: Some(0), saves: &[(of.nodes.len() - 1, 1)] };
        let threads = Threads::new(1).unwrap();
        let buffers = DeltaBuffers { states: &mut memory, mixed: &mut Vec::new(), out: &mut out };
        delta_net(&threads, shape, pass, states, buffers);
        out.chunks_exact_mut(shape.head_dim).for_each(|head| rms_norm_in_place(head, &self.norm, EPS));
        gated_silu(&mut gates, &out);
        let wide = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect();
        (wide(&gates), wide(&self.by_columns(&memory[shape.state()..])))
    }

    /// Returns output and last state of the GPU.
    fn on_gpu(&self, gpu: &Arc<dyn Gpu>, kernels: &Kernels, of: &Nodes, rows: usize) -> (Vec<f32>, Vec<f32>) {
        let (shape, width) = (self.shape, self.shape.row());
        let floats = |values: &[f32]| Buffer::with_floats(gpu, values).unwrap();
        let saves = [(of.nodes.len() - 1, PLACES[1])];
        // Rows take the places of inputs that are read again too.
        let held: Vec<(usize, usize)> = (0..rows.min(HELD)).map(|place| (rows - 1 - place, place)).collect();
        let steps = DeltaSteps {
            rows,
            nodes: &of.nodes,
            is_forked: false,
            seen: &of.words(rows),
            from: Some(PLACES[0]),
            saves: &saves,
            held: &held,
            first_checkpoint: HELD,
        };
        let plan = GpuDeltaPlan::new(gpu, steps).unwrap();
        let space = DeltaSpace::for_pass(gpu, None, shape, &plan).unwrap();
        let mut memory = vec![0.0; (HELD + 2 * REACH) * width];
        for (input, place) in self
            .inputs
            .chunks_exact(width)
            .zip((0..REACH).map(|at| HELD + PLACES[0] * REACH + at).chain(AGAIN))
        {
            memory[place * width..][..width].copy_from_slice(input);
        }
        let (states, memory) = (Buffer::new(gpu, 8 * shape.state()).unwrap(), floats(&memory));
        states.write_floats(4 * PLACES[0] * shape.state(), &self.by_columns(&self.state)).unwrap();
        let out = Activations::new(gpu, rows, shape.width()).unwrap();
        let [convolution, rates, bias, norm] =
            [&self.convolution, &self.rates, &self.bias, &self.norm].map(|of| floats(of));
        let net = GpuDeltaNet {
            shape,
            x: &floats(&self.x[..rows * self.stride()]),
            weights: DeltaVectors { convolution: &convolution, rates: &rates, bias: &bias, norm: &norm },
            eps: EPS,
            states: &states,
            held: &memory,
        };
        kernels.delta_net(net, &plan, &space, out.written_as(Forms::ALL)).unwrap();
        let after = memory.read_floats(0, HELD * width).unwrap();
        for (row, place) in held {
            let x = &self.x[row * self.stride()..][..shape.channels()];
            assert_eq!(after[place * width..][..shape.channels()], *x, "row {row}");
        }
        let state = states.read_floats(4 * PLACES[1] * shape.state(), shape.state()).unwrap();
        (checked_floats(&out, rows * shape.width()), state)
    }
}

/// Chains of 1 to 16 and of 32 rows, and trees of up to 16, with heads of all widths.
#[test]
fn delta_net_matches_cpu_for_every_number_of_rows() {
    let (machine, gpu, kernels) = start();
    for (head_dim, is_tiled) in [(32, false), (64, true), (96, false), (128, true)] {
        let layer = Layer::new(head_dim, is_tiled);
        let width = layer.shape.width();
        let mut all: Vec<u32> = Vec::new();
        for (rows, schedule) in row_counts().collect::<Vec<_>>().into_iter().rev() {
            machine.set_schedule(schedule);
            let chain: Vec<Option<usize>> = (0..rows).map(|row| row.checked_sub(1)).collect();
            let tree: Vec<Option<usize>> =
                (0..rows).map(|row| row.checked_sub(1).map(|row| row / 2)).collect();
            for (parents, is_tree) in [(chain, false), (tree, true)] {
                // Wider heads try the chains alone.
                if is_tree && (rows > 16 || head_dim > 64) {
                    continue;
                }
                let nodes = Nodes::new(&parents);
                let what = format!("heads of {head_dim}, {rows} rows, tree: {is_tree}, {schedule:?}");
                let (output, state) = layer.on_gpu(&gpu, &kernels, &nodes, rows);
                let (expected, expected_state) = layer.on_cpu(&nodes, rows);
                assert_near(&output, &expected, 1e-5, &what);
                assert_near(&state, &expected_state, 1e-5, &format!("state, {what}"));
                if is_tree {
                    // The first two rows of a tree follow each other.
                    let first = rows.min(2) * width;
                    assert!(bits(&output[..first]) == all[..first], "{what}");
                    continue;
                }
                if all.is_empty() {
                    all = bits(&output);
                }
                assert!(bits(&output) == all[..rows * width], "{what}");
            }
        }
    }
}

#[test]
fn gated_attention_matches_cpu_for_every_number_of_rows() {
    let (machine, gpu, kernels) = start();
    let (queries, keys, width, capacity) = (4, 2, 64, 200);
    let row = queries * width;
    let q = noise(MOST_ROWS * 2 * row, 28);
    let cache = half_bytes(noise(2 * capacity * keys * width, 29).into_iter());
    let cache = Buffer::with_bytes(&gpu, &cache).unwrap();
    let mut all: Vec<u32> = Vec::new();
    for (rows, schedule) in row_counts().collect::<Vec<_>>().into_iter().rev() {
        machine.set_schedule(schedule);
        let q_buffer = Buffer::with_floats(&gpu, &q[..rows * 2 * row]).unwrap();
        let mask = RowMask::causal(130, rows);
        let attend = |gates| {
            let input = GpuAttention {
                q: &q_buffer,
                stride: 2 * row,
                cache: &cache,
                capacity,
                rows,
                queries,
                keys,
                width,
                scoring: Scoring::of_width(width),
                sinks: None,
                gates,
            };
            let space = AttentionSpace::new(&gpu, &mask, queries, width, None).unwrap();
            let out = Activations::new(&gpu, rows, row).unwrap();
            kernels.attention(input, &space, out.written_as(Forms::ALL)).unwrap();
            checked_floats(&out, rows * row)
        };
        let (mut expected, gated) = (attend(None), attend(Some(q_buffer.at_value(row))));
        let gates: Vec<f32> =
            q[..rows * 2 * row].chunks_exact(2 * row).flat_map(|of| of[row..].to_vec()).collect();
        gate_by_sigmoid(&mut expected, &gates);
        let expected: Vec<f64> = expected.iter().map(|value| f64::from(*value)).collect();
        assert_near(&gated, &expected, 1e-6, &format!("{rows} rows"));
        if all.is_empty() {
            all = bits(&gated);
        }
        assert!(bits(&gated) == all[..rows * row], "{rows} rows, {schedule:?}");
    }
}

fn last(model: &mut Decoder, tokens: &[u32]) -> Vec<u32> {
    let logits = model.forward(PassInput::chain(tokens, LogitRows::Last)).unwrap().logits;
    bits(logits.row(0))
}

/// Lengths with a checkpoint, with held inputs, and with neither.
#[test]
fn rollback_to_any_length_continues_as_if_the_rest_had_never_been() {
    let folder = tempfile::tempdir().unwrap();
    let simulator: Arc<dyn Gpu> = Simulator::start();
    for of in [DELTA_NETS, ("qwen3next", DELTA_NETS.1, 3)] {
        let path = Tiny { dtype: GgmlDType::Q8_0, ..further(of) }.write(folder.path(), "tiny");
        let (mut model, mut expected) = (on_gpu(&path, &simulator), on_gpu(&path, &simulator));
        let text = tokens(300, 3);
        for chunk in text.chunks(50) {
            last(&mut model, chunk);
        }
        // Each length is a rollback of the text of the one before, which is longer.
        for len in [299, 280, 257, 255, 128, 90, 3, 0] {
            model.truncate(len).unwrap();
            assert_eq!(model.cache_len(), len);
            expected.truncate(0).unwrap();
            if len > 0 {
                last(&mut expected, &text[..len]);
            }
            assert_eq!(last(&mut model, &[7, 9]), last(&mut expected, &[7, 9]), "{of:?}: {len}");
            // Rejected drafts, one after the other.
            for drafted in [5, 16, 2] {
                last(&mut model, &tokens(drafted, 8));
                model.truncate(len + 2).unwrap();
            }
            assert_eq!(last(&mut model, &[5]), last(&mut expected, &[5]), "{of:?}: drafts after {len}");
        }
    }
}

#[test]
fn branches_of_several_passes_have_states_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let simulator: Arc<dyn Gpu> = Simulator::start();
    for of in [DELTA_NETS, ("qwen3next", DELTA_NETS.1, 3)] {
        let path = further(of).write(folder.path(), "tiny");
        let mut model = on_gpu(&path, &simulator);
        let (prompt, draft) = (tokens(70, 1), tokens(5, 2));
        last(&mut model, &prompt);
        let mut fork = on_gpu(&path, &simulator);
        // A tree in two passes: rows 3 and 4 follow rows 2 and 1.
        let parents = [None, Some(0), Some(0)];
        let layout = RowLayout::Tree { parents: &parents };
        model.forward(PassInput { layout, ..PassInput::chain(&draft[..3], LogitRows::None) }).unwrap();
        let layout = RowLayout::Custom { since: 70, depths: &[2, 2], visible: &[0b01101, 0b10011] };
        let step = PassInput { layout, ..PassInput::chain(&draft[3..], LogitRows::All) };
        let rows = model.forward(step).unwrap().logits;
        for (row, path) in [[0, 2, 3], [0, 1, 4]].into_iter().enumerate() {
            fork.truncate(0).unwrap();
            last(&mut fork, &prompt);
            let alone = last(&mut fork, &path.map(|node| draft[node]));
            assert_eq!(bits(rows.row(row)), alone, "{of:?}: row {row}");
        }
        model.keep_rows(70, &[0, 1, 4]).unwrap();
        fork.truncate(73).unwrap();
        assert_eq!(last(&mut model, &[8]), last(&mut fork, &[8]), "{of:?}");
    }
}

/// Four projections of different types are two products. So are queries with gates, keys and values of three types.
#[test]
fn files_of_mixed_types_match_cpu_executor_and_take_a_dispatch_more() {
    let folder = tempfile::tempdir().unwrap();
    let simulator = Simulator::start();
    let gpu: Arc<dyn Gpu> = simulator.clone();
    let types = [
        ("attn_qkv", WeightType::Q4K),
        ("attn_gate", WeightType::Q6K),
        ("ssm_beta", WeightType::F16),
        ("ssm_alpha", WeightType::Q8_0),
        ("attn_q", WeightType::Q4K),
        ("attn_k", WeightType::Q6K),
        ("attn_v", WeightType::F16),
    ];
    let tiny = Tiny { dtype: GgmlDType::Q8_0, ..further(DELTA_NETS) };
    let one_type = WeightFile::open(&tiny.write(folder.path(), "one-type")).unwrap();
    let names = (0..tiny.layers).flat_map(|layer| types.map(|(name, dtype)| (layer, name, dtype)));
    let writer = names.fold(tiny.writer(), |writer, (layer, name, dtype)| {
        let name = format!("blk.{layer}.{name}.weight");
        let Some(tensor) = one_type.gguf().tensors.get(&name) else { return writer };
        let [n, k] = tensor.shape[..] else { panic!("{name} is no matrix") };
        let (data, _) = weights(dtype, n, k, 5);
        writer.without(&name).raw_tensor(&name, &[k as u64, n as u64], dtype.number(), None, data)
    });
    let path = folder.path().join("mixed.gguf");
    std::fs::write(&path, writer.bytes()).unwrap();
    let (mut model, mut cpu) = (on_gpu(&path, &gpu), on_cpu(&path));
    let ids = tokens(9, 3);
    let off = worst(&chain(&mut model, &ids[..5]), &chain(&mut cpu, &ids[..5]));
    assert!(off < 5e-2, "{off}");
    // The first pass compares the joined products with separate ones.
    chain(&mut model, &ids[5..7]);
    simulator.take_counts();
    chain(&mut model, &ids[7..]);
    assert_eq!(simulator.take_counts(), Counts { dispatches: 11 * tiny.layers + 3, waits: 1 });
}

#[test]
fn states_take_the_predicted_memory_and_stay_on_the_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let simulator = Simulator::start();
    let gpu: Arc<dyn Gpu> = simulator.clone();
    let path = further(DELTA_NETS).write(folder.path(), "tiny");
    let spec = ModelSpec::from_gguf(WeightFile::open(&path).unwrap().gguf()).unwrap();
    let mut model = on_gpu(&path, &gpu);
    last(&mut model, &tokens(250, 1));
    // Keys and values are halves.
    let keys = 256 * spec.cache_bytes_per_token() / 2;
    assert_eq!(model.memory().cache, spec.state_bytes(256) + keys);
    // Going back waits for nothing, and the next pass waits once.
    simulator.take_counts();
    model.truncate(240).unwrap();
    assert_eq!(simulator.take_counts(), Counts::default());
    chain(&mut model, &tokens(3, 2));
    assert_eq!(simulator.take_counts().waits, 1);
}
