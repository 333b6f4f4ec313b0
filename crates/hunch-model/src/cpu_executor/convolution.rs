//! Short gated convolutions on the CPU. Their projections are products like those of attention.
//!
//! Each channel of a row is computed by itself and in one order, so its bits do not depend on the other rows.

use crate::cache::states::{StatePlan, StateSource, move_rows};

/// Projections of the rows of a pass, `[rows, width]` each, and the weights of a layer.
pub(crate) struct ConvolutionInput<'a> {
    /// Gate of the output.
    pub(crate) c: &'a [f32],
    /// Gate of the input.
    pub(crate) b: &'a [f32],
    /// Weights, `[width, positions]`, the earliest position first.
    pub(crate) weights: &'a [f32],
}

/// Computes `out = c * conv(b * x)`, and writes the rows `b * x` to the state of the layer, `[places, width]`.
///
/// `x` becomes `b * x`.
pub(crate) fn convolve(
    input: &ConvolutionInput<'_>,
    x: &mut [f32],
    plan: &StatePlan,
    state: &mut [f32],
    out: &mut Vec<f32>,
) {
    let width = x.len() / plan.rows;
    x.iter_mut().zip(input.b).for_each(|(x, b)| *x *= b);
    move_rows(state, &plan.moves, width);
    out.clear();
    out.resize(x.len(), 0.0);
    let positions = plan.reach + 1;
    let mut add = |row: usize, values: &[f32], position: usize| {
        let weights = input.weights.chunks_exact(positions).map(|weights| weights[position]);
        let sums = out[row * width..][..width].iter_mut();
        sums.zip(values).zip(weights).for_each(|((sum, value), weight)| *sum += value * weight);
    };
    for row in 0..plan.rows {
        for (position, source) in plan.reads(row).enumerate() {
            match source {
                StateSource::None => {}
                StateSource::Row(earlier) => add(row, &x[earlier * width..][..width], position),
                StateSource::Place(place) => add(row, &state[place * width..][..width], position),
            }
        }
        add(row, &x[row * width..][..width], plan.reach);
    }
    out.iter_mut().zip(input.c).for_each(|(sum, c)| *sum *= c);
    for (row, values) in x.chunks_exact(width).enumerate() {
        plan.writes(row).for_each(|place| state[place * width..][..width].copy_from_slice(values));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hunch_kernels::RowMask;
    use proptest::prelude::*;

    use crate::cache::KvCache;
    use crate::device::KvType;
    use crate::spec::tests::tiny;
    use crate::spec::{LayerRope, LayerSpec, Mixer, ModelSpec};

    const WIDTH: usize = 16;

    fn spec(positions: usize) -> ModelSpec {
        let convolution = LayerSpec { mixer: Mixer::ShortConvolution, window: None, rope: LayerRope::None };
        ModelSpec { convolution: Some(positions), layers: vec![convolution], ..tiny(1) }
    }

    /// Token as the input of the only layer.
    fn value(token: u32, channel: usize) -> f32 {
        ((token * 31 + channel as u32 * 7) % 97) as f32 / 13.0 - 3.0
    }

    /// A layer with a text: its tokens, and the rows of the last pass.
    struct Layer {
        cache: KvCache,
        tokens: Vec<u32>,
        weights: Vec<f32>,
    }

    impl Layer {
        fn new(positions: usize) -> Self {
            let weights = (0..WIDTH * positions).map(|i| ((i * 5) % 11) as f32 / 7.0 - 0.6).collect();
            Self { cache: KvCache::on_host(&spec(positions), 4096, KvType::F16), tokens: Vec::new(), weights }
        }

        fn run(&mut self, tokens: &[u32], mask: &RowMask) -> Vec<u32> {
            self.cache.reserve(tokens.len()).unwrap();
            let plan = self.cache.plan(mask).unwrap().unwrap();
            let of = |shift: u32| -> Vec<f32> {
                tokens.iter().flat_map(|&token| (0..WIDTH).map(move |i| value(token + shift, i))).collect()
            };
            let (b, c, mut x, mut out) = (of(1), of(2), of(0), Vec::new());
            let input = ConvolutionInput { b: &b, c: &c, weights: &self.weights };
            convolve(&input, &mut x, &plan, self.cache.host_state(0).unwrap(), &mut out);
            self.cache.advance(tokens.len());
            self.tokens.extend(tokens);
            out.iter().map(|value| value.to_bits()).collect()
        }

        fn chain(&mut self, tokens: &[u32]) -> Vec<u32> {
            self.run(tokens, &RowMask::causal(self.cache.len(), tokens.len()))
        }

        /// As the decoder does it.
        fn truncate(&mut self, len: usize) {
            let (held, again) = (self.cache.restorable(len), self.tokens.clone());
            assert!(held <= len && len - held < 64, "{held} of {len}");
            self.cache.truncate(held);
            self.tokens.truncate(held);
            if held < len {
                self.chain(&again[held..len]);
            }
        }

        /// Checks the next row against a text that was never rolled back.
        fn assert_continues(&mut self, positions: usize) {
            assert_eq!(self.tokens.len(), self.cache.len());
            let mut fresh = Self::new(positions);
            let tokens = self.tokens.clone();
            if !tokens.is_empty() {
                fresh.chain(&tokens);
            }
            assert_eq!(self.chain(&[5]), fresh.chain(&[5]), "after {} tokens", tokens.len());
            self.truncate(tokens.len());
        }
    }

    #[derive(Clone, Debug)]
    enum Change {
        Chain(usize),
        Tree {
            seeds: Vec<u32>,
            kept: usize,
        },
        /// A draft of some rows that is dropped.
        Draft(usize),
        /// Rollback by a share of the text, in thousandths.
        Truncate(usize),
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            (1usize..300).prop_map(Change::Chain),
            (1usize..5).prop_map(Change::Chain),
            (proptest::collection::vec(any::<u32>(), 1..64), any::<usize>())
                .prop_map(|(seeds, kept)| Change::Tree { seeds, kept }),
            (1usize..40).prop_map(Change::Draft),
            (0usize..1001).prop_map(Change::Truncate),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn state_equals_that_of_a_text_without_rollback(
            positions in 2usize..9,
            changes in proptest::collection::vec(change(), 1..14),
        ) {
            let mut layer = Layer::new(positions);
            let mut next = 0;
            let mut tokens = |count: usize| -> Vec<u32> {
                next += count as u32;
                (0..count as u32).map(|i| (next * 17 + i * 29) % 1009).collect()
            };
            for change in changes {
                let base = layer.cache.len();
                match change {
                    Change::Chain(count) => drop(layer.chain(&tokens(count))),
                    Change::Draft(count) => {
                        layer.chain(&tokens(count));
                        layer.truncate(base);
                    }
                    Change::Truncate(share) => layer.truncate(base * share / 1000),
                    Change::Tree { seeds, kept } => {
                        let parents: Vec<Option<usize>> = seeds.iter().enumerate()
                            .map(|(i, seed)| (*seed as usize % (i + 1)).checked_sub(1)).collect();
                        let nodes = tokens(parents.len());
                        let mask = RowMask::tree(base, &parents).unwrap();
                        let rows = layer.run(&nodes, &mask);
                        let node = kept % nodes.len();
                        let path: Vec<usize> = mask.visible_tail(node).map(|slot| slot - base).collect();
                        layer.cache.keep_rows(base, &path).unwrap();
                        layer.tokens.truncate(base);
                        layer.tokens.extend(path.iter().map(|&row| nodes[row]));
                        // The node's row is that of its path alone.
                        let mut fresh = Layer::new(positions);
                        let alone = fresh.chain(&layer.tokens.clone());
                        prop_assert_eq!(&rows[node * WIDTH..][..WIDTH], &alone[alone.len() - WIDTH..]);
                    }
                }
                layer.assert_continues(positions);
            }
        }
    }

    #[test]
    fn memory_is_what_the_parameters_predict() {
        let mut layer = Layer::new(3);
        for count in [1, 300, 2000] {
            layer.chain(&vec![1; count]);
            let capacity = layer.cache.len().next_multiple_of(256);
            assert!(layer.cache.bytes() >= spec(3).state_bytes(capacity));
        }
        // The input of all positions would take 64 * 3000 / (320 + 2 * 3000 / 64) times the bytes per position.
        assert!(layer.cache.bytes() < 2301 * WIDTH * 4 / 4);
    }

    #[test]
    fn pass_of_any_length_finds_the_rows_before_it() {
        for rows in [1, 63, 64, 65, 127, 128, 190, 191, 192, 193, 194, 256, 383, 384, 385] {
            let mut layer = Layer::new(3);
            layer.chain(&[1; 70]);
            layer.chain(&vec![2; rows]);
            layer.assert_continues(3);
        }
    }
}
