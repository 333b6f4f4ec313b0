//! Check of short convolutions.

use hunch_error::Result;

use super::super::activations::{Activations, Forms};
use super::super::convolution::GpuConvolution;
use super::super::gpu::Buffer;
use super::checks::{CheckOutcome, Tester};
use super::reference::{VALUE_BOUND, checked, near, noise};

/// Earlier rows that a row reads.
const REACH: usize = 2;
const ROWS: usize = 4;
const PLACES: usize = 6;
const NONE: u32 = u32::MAX;

impl Tester<'_> {
    /// A tree of rows that follow places, each other, and nothing.
    pub(super) fn convolution(&self) -> Result<CheckOutcome> {
        let width = 320;
        let place = |place: usize| (ROWS + place) as u32;
        // The two rows that a row reads, and the two places that it is written to.
        let plan = [
            [place(4), place(1), place(0), NONE],
            [place(1), 0, place(2), place(5)],
            [NONE, 0, NONE, NONE],
            [0, 2, NONE, place(3)],
        ];
        let (x, weights) = (noise(ROWS * 3 * width, 31), noise(width * (REACH + 1), 32));
        let state = noise(PLACES * width, 33);
        let (of_state, out) = (self.floats(&state)?, Activations::new(self.gpu, ROWS, width)?);
        let input = GpuConvolution {
            x: &self.floats(&x)?,
            weights: &self.floats(&weights)?,
            plan: &Buffer::with_words(self.gpu, plan.as_flattened())?,
            state: &of_state,
            rows: ROWS,
            width,
            reach: REACH,
        };
        self.kernels.convolve(input, out.written_as(Forms::ALL))?;
        let part = |row: usize, part: usize, channel: usize| f64::from(x[(3 * row + part) * width + channel]);
        let gated = |row: usize, channel: usize| part(row, 0, channel) * part(row, 2, channel);
        let read = |word: u32, channel: usize| match word as usize {
            _ if word == NONE => 0.0,
            row if row < ROWS => gated(row, channel),
            place => f64::from(state[(place - ROWS) * width + channel]),
        };
        let mut after: Vec<f64> = state.iter().map(|value| f64::from(*value)).collect();
        let mut expected = Vec::with_capacity(ROWS * width);
        for (row, words) in plan.iter().enumerate() {
            for channel in 0..width {
                let weights = &weights[channel * (REACH + 1)..][..REACH + 1];
                let earlier = words[..REACH].iter().map(|&word| read(word, channel));
                let values = earlier.chain([gated(row, channel)]).zip(weights);
                let sum: f64 = values.map(|(value, weight)| value * f64::from(*weight)).sum();
                expected.push(part(row, 1, channel) * sum);
                for &word in words[REACH..].iter().filter(|&&word| word != NONE) {
                    after[(word as usize - ROWS) * width + channel] = gated(row, channel);
                }
            }
        }
        let is_right = checked(&out, ROWS * width, expected)?.is_some();
        Ok(CheckOutcome::of(is_right && near(&of_state.read_floats(0, state.len())?, after, VALUE_BOUND)))
    }
}
