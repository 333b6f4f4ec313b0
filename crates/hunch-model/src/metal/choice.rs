//! Dispatch of kernels that choose a token by its logits.

use hunch_core::sample::DrawSettings;
use hunch_error::Result;

use super::constants::constants;
use super::gpu::{Argument, BufferAt, Grid};
use super::kernels::{Kernel, Kernels, LANES};

/// Largest top-k of a draw.
pub const MAX_TOP_K: usize = 128;
/// Threadgroup memory of a draw: maxima and counts of 256 threads, 512 tokens twice, and 32 numbers.
const DRAW_SCRATCH: usize = 4 * (2 * 256 + 2 * 2 * 512 + 32);

/// Draw of a token with a random number.
#[derive(Clone, Copy, Debug)]
pub struct DrawInput<'a> {
    /// First logit.
    pub logits: BufferAt<'a>,
    /// Number of tokens drawn from.
    pub count: usize,
    /// Filters and temperature.
    pub settings: DrawSettings,
    /// Random number in `[0, 1)`.
    pub unit: f64,
}

impl Kernels {
    /// Writes the index of the largest of `count` values, and of equal ones the lowest.
    ///
    /// # Errors
    /// If the device fails.
    pub fn choose(&self, values: BufferAt<'_>, count: usize, chosen: BufferAt<'_>) -> Result<()> {
        let constants = ChoiceConstants { count: count as u32 }.words();
        let arguments = [Argument::Constants(&constants), values.input(), chosen.output()];
        self.run(Kernel::Choose, &arguments, Grid::new([1, 1, 1], 8 * LANES).with_scratch(64))
    }

    /// Returns `true` if [`draw`](Self::draw) follows these settings: its kernel compiles, and few enough tokens can
    /// be left by the filters.
    pub fn can_draw(&self, settings: &DrawSettings) -> bool {
        let DrawSettings { top_k, top_p, min_p, .. } = *settings;
        let bounded = if top_k > 0 { top_k <= MAX_TOP_K } else { min_p > 0.0 || top_p >= 1.0 };
        bounded && self.get(Kernel::Draw).is_ok()
    }

    /// Draws a token, by inverting the cumulative sum of probabilities.
    ///
    /// Sums are in f32, so the token may differ from that of a draw in f64 if the number is close to a boundary. If the
    /// filters leave more tokens than fit in threadgroup memory, the token is the most likely one.
    ///
    /// # Errors
    /// If the device fails.
    pub fn draw(&self, input: DrawInput<'_>, chosen: BufferAt<'_>) -> Result<()> {
        let DrawInput { logits, count, settings, unit } = input;
        let DrawSettings { sharpness, top_k, top_p, min_p } = settings;
        let constants = DrawConstants {
            count: count as u32,
            unit: unit as f32,
            sharpness,
            // A top-k of all tokens is none.
            top_k: if top_k < count { top_k as u32 } else { 0 },
            top_p,
            min_p,
        };
        let constants = constants.words();
        let arguments = [Argument::Constants(&constants), logits.input(), chosen.output()];
        self.run(Kernel::Draw, &arguments, Grid::new([1, 1, 1], 8 * LANES).with_scratch(DRAW_SCRATCH))
    }
}

constants! {
    /// Choice of the most likely token.
    ChoiceConstants { count: u32 }
}

constants! {
    /// Draw of a token.
    DrawConstants { count: u32, unit: f32, sharpness: f32, top_k: u32, top_p: f32, min_p: f32 }
}
