//! Tiny models whose text can be learned. Random weights write text without any rule, which no draft can predict.
//!
//! The next token mostly follows from the last one. The mapping is in the output head. Layers add a little noise to
//! the residual stream, or much of it.

use std::path::{Path, PathBuf};

use candle_core::quantized::GgmlDType;

use hunch_testing::tiny::{Noise, Tiny, VOCABULARY, WIDTH};

/// Tokens that follow each other in a cycle: a range of printable characters.
const FIRST: u32 = 64;
const CYCLE: u32 = 32;
/// Factor of the embeddings in the output head. The likeliest token has a probability of about 0.7.
const CERTAINTY: f32 = 0.045;

/// A model of layers of Llama with a rule in its text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Learnable {
    /// Layers.
    pub(crate) layers: usize,
    /// Largest weight of the layers' matrices. Large ones hide the rule.
    pub(crate) noise: f32,
    /// Type of the layers' matrices. Decoding with 8 bits takes a fraction of the time.
    pub(crate) dtype: GgmlDType,
}

impl Default for Learnable {
    fn default() -> Self {
        Self { layers: 2, noise: 0.02, dtype: GgmlDType::Q8_0 }
    }
}

/// Returns the likeliest token after another.
pub(crate) fn successor(token: u32) -> u32 {
    // A linear congruential generator with full period.
    FIRST + (5 * (token % CYCLE) + 3) % CYCLE
}

impl Learnable {
    /// Writes the model to a folder and returns its path.
    pub(crate) fn write(&self, folder: &Path, name: &str) -> PathBuf {
        let Self { layers, noise, dtype } = *self;
        let tiny = Tiny { tied: false, layers, matrices: noise, dtype, ..Tiny::default() };
        let embedding = Noise::new(tiny.seed).many(VOCABULARY * WIDTH, 1.0);
        let mut head = Noise::new(tiny.seed + 1_000).many(VOCABULARY * WIDTH, CERTAINTY);
        for (token, embedding) in embedding.chunks_exact(WIDTH).enumerate() {
            let row = &mut head[successor(token as u32) as usize * WIDTH..][..WIDTH];
            row.iter_mut().zip(embedding).for_each(|(weight, x)| *weight += CERTAINTY * x);
        }
        let writer = tiny
            .writer()
            .without("token_embd.weight")
            .without("output.weight")
            .tensor("token_embd.weight", &[VOCABULARY, WIDTH], GgmlDType::F32, &embedding)
            .tensor("output.weight", &[VOCABULARY, WIDTH], GgmlDType::F32, &head);
        let path = folder.join(format!("{name}.gguf"));
        std::fs::write(&path, writer.bytes()).unwrap();
        path
    }
}
