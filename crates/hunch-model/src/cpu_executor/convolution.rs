//! Short gated convolutions on the CPU. Their projections are products like those of attention.
//!
//! Each channel of a row is computed by itself and in one order, so its bits do not depend on the other rows.

use crate::cache::convolution_states::{ConvolutionPlan, StateSource, move_rows};

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
    plan: &ConvolutionPlan,
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
    use crate::cpu_executor::rollback_tests::{StateLayer, Text, change, check};
    use crate::device::KvType;
    use crate::spec::state::RESTORE_STEP;
    use crate::spec::tests::tiny;
    use crate::spec::{LayerRope, LayerSpec, Mixer, ModelSpec};

    const WIDTH: usize = 16;

    fn spec(positions: usize) -> ModelSpec {
        let convolution =
            LayerSpec { mixer: Mixer::ShortConvolution, rope: LayerRope::None, ..LayerSpec::PLAIN };
        ModelSpec { convolution: Some(positions), layers: vec![convolution], ..tiny(1) }
    }

    /// Token as the input of the only layer.
    fn value(token: u32, channel: usize) -> f32 {
        ((token * 31 + channel as u32 * 7) % 97) as f32 / 13.0 - 3.0
    }

    struct Layer {
        cache: KvCache,
        weights: Vec<f32>,
    }

    impl Layer {
        fn new(positions: usize) -> Self {
            let weights = (0..WIDTH * positions).map(|i| ((i * 5) % 11) as f32 / 7.0 - 0.6).collect();
            Self { cache: KvCache::on_host(&spec(positions), 4096, KvType::F16), weights }
        }
    }

    impl StateLayer for Layer {
        fn cache(&mut self) -> &mut KvCache {
            &mut self.cache
        }

        fn pass(&mut self, tokens: &[u32], mask: &RowMask) -> Vec<u32> {
            let plan = self.cache.convolution_plan(mask).unwrap().unwrap();
            let of = |shift: u32| -> Vec<f32> {
                tokens.iter().flat_map(|&token| (0..WIDTH).map(move |i| value(token + shift, i))).collect()
            };
            let (b, c, mut x, mut out) = (of(1), of(2), of(0), Vec::new());
            let input = ConvolutionInput { b: &b, c: &c, weights: &self.weights };
            convolve(&input, &mut x, &plan, self.cache.host_convolution_state(0).unwrap(), &mut out);
            out.iter().map(|value| value.to_bits()).collect()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn state_equals_that_of_a_text_without_rollback(
            positions in 2usize..9,
            changes in proptest::collection::vec(change(), 1..14),
        ) {
            check(changes, || Layer::new(positions), RESTORE_STEP - 1);
        }
    }

    #[test]
    fn memory_is_what_the_parameters_predict() {
        let mut text = Text::new(Layer::new(3));
        for count in [1, 300, 2000] {
            text.chain(&vec![1; count]);
            let capacity = text.layer.cache.len().next_multiple_of(256);
            assert!(text.layer.cache.bytes() >= spec(3).state_bytes(capacity));
        }
        // The input of all positions would take 64 * 3000 / (320 + 2 * 3000 / 64) times the bytes per position.
        assert!(text.layer.cache.bytes() < 2301 * WIDTH * 4 / 4);
    }

    #[test]
    fn pass_of_any_length_finds_the_rows_before_it() {
        for rows in [1, 63, 64, 65, 127, 128, 190, 191, 192, 193, 194, 256, 383, 384, 385] {
            let mut text = Text::new(Layer::new(3));
            text.chain(&[1; 70]);
            text.chain(&vec![2; rows]);
            text.assert_continues(|| Layer::new(3));
        }
    }
}
