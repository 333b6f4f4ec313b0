//! The table of supported architectures: the constants that their files do not contain. Nothing is read here.

use super::experts::ExpertKind;
use super::{HeadNorms, HeadOrder, Norms, QueryTemperature, RopeKind, Weighting};

/// Meaning of `attention.sliding_window` for an architecture.
#[derive(Clone, Copy)]
pub(super) enum Windows {
    /// Such models are rejected.
    Unsupported,
    /// The window of every layer.
    All,
    /// The window of all layers but every n-th, unless the file says otherwise.
    AllButEvery { step: usize, default: Option<usize> },
    /// The size of the chunks of all layers but every n-th, unless the file says otherwise.
    ChunksOfAllButEvery { step: usize, default: usize },
    /// The window of the layers that the file lists.
    Listed,
}

/// Soft bounds c, which turn a score x into c tanh(x / c), as in Gemma 2.
pub(super) struct Softcaps {
    /// Bound of attention scores.
    pub(super) attention: Option<f32>,
    /// Bound of logits.
    pub(super) logits: Option<f32>,
}

/// Constants of an architecture that its files do not contain.
pub(super) struct Architecture {
    pub(super) name: &'static str,
    pub(super) rope_kind: RopeKind,
    pub(super) norms: Norms,
    pub(super) head_norms: HeadNorms,
    pub(super) gelu: bool,
    pub(super) joined_gate: bool,
    /// Experts, if models may have them.
    pub(super) experts: Option<ExpertKind>,
    /// Attention has sinks.
    pub(super) sinks: bool,
    pub(super) windows: Windows,
    /// Layers without key heads have a short convolution instead of attention.
    pub(super) convolutions: bool,
    /// Most layers have a gated delta net, with heads in this order, and the others gated attention.
    pub(super) delta_nets: Option<HeadOrder>,
    /// Every n-th layer has no rotary embedding (SmolLM3). 0 if all layers have it.
    pub(super) no_rope_step: usize,
    /// Only layers with a window have a rotary embedding, if any layer has a window (EXAONE 4).
    pub(super) rope_in_windows_only: bool,
    /// Default base frequency of layers with a window, if it differs, or 0 for the model's base.
    pub(super) local_rope: Option<f32>,
    /// Layers may differ in heads and widths, share keys, and have embeddings of their own (Gemma 4). The file then has
    /// `rope_freqs`, which stops the rotation of some elements in layers without a window.
    pub(super) varied_layers: bool,
    /// Factor of attention scores, if it does not follow from the width of a head.
    pub(super) attention_scale: Option<f32>,
    /// Embeddings are multiplied by the square root of their width.
    pub(super) scaled_embedding: bool,
    /// The logits are divided by `logit_scale`.
    pub(super) divides_logits: bool,
    /// Default bounds of scores.
    pub(super) softcaps: Softcaps,
    /// Factor of queries by position, unless the file has one.
    pub(super) query_temperature: Option<QueryTemperature>,
    /// Number of layers of the size whose scores are scaled by `n_embd / n_head` instead of the head width.
    pub(super) scaled_by_width: Option<usize>,
    /// Hunch runs the layers that only draft.
    pub(super) mtp: bool,
}

/// Constants of Llama, which the other architectures vary.
const LLAMA: Architecture = Architecture {
    name: "llama",
    rope_kind: RopeKind::Interleaved,
    norms: Norms::Before,
    head_norms: HeadNorms::IfPresent,
    gelu: false,
    joined_gate: false,
    experts: None,
    sinks: false,
    windows: Windows::All,
    convolutions: false,
    delta_nets: None,
    no_rope_step: 0,
    rope_in_windows_only: false,
    local_rope: None,
    varied_layers: false,
    attention_scale: None,
    scaled_embedding: false,
    divides_logits: false,
    softcaps: Softcaps { attention: None, logits: None },
    query_temperature: None,
    scaled_by_width: None,
    mtp: false,
};

/// Constants of Qwen2, the plainest architecture with halved pairing.
const QWEN2: Architecture =
    Architecture { name: "qwen2", rope_kind: RopeKind::Halves, windows: Windows::Unsupported, ..LLAMA };

/// Experts of Qwen3.
const EXPERTS: ExpertKind = ExpertKind {
    weighting: Weighting::Softmax,
    normalised: true,
    always: true,
    clamped: false,
    interleaved: false,
    scales_input: false,
    parallel: false,
};

/// Constants of LFM2.
const LFM2: Architecture = Architecture {
    name: "lfm2",
    head_norms: HeadNorms::PerHead,
    windows: Windows::All,
    convolutions: true,
    ..QWEN2
};

/// Constants of Qwen3.5.
const QWEN35: Architecture = Architecture {
    name: "qwen35",
    norms: Norms::BeforeAsPost,
    head_norms: HeadNorms::PerHead,
    delta_nets: Some(HeadOrder::Tiled),
    mtp: true,
    ..QWEN2
};

/// Constants of Granite.
const GRANITE: Architecture =
    Architecture { name: "granite", windows: Windows::Unsupported, divides_logits: true, ..LLAMA };

/// Constants of Gemma 3.
const GEMMA3: Architecture = Architecture {
    name: "gemma3",
    norms: Norms::Both,
    head_norms: HeadNorms::PerHead,
    gelu: true,
    windows: Windows::AllButEvery { step: 6, default: None },
    local_rope: Some(10_000.0),
    scaled_embedding: true,
    scaled_by_width: Some(62),
    ..QWEN2
};

/// Supported architectures.
///
/// The values follow `llama_model_rope_type` and `src/models` of llama.cpp, except that the windows of
/// Mistral and Phi 3, which llama.cpp ignores, follow Hugging Face transformers.
pub(super) const ARCHITECTURES: [Architecture; 27] = [
    Architecture { experts: Some(ExpertKind { always: false, ..EXPERTS }), ..LLAMA },
    QWEN2,
    Architecture { name: "qwen2moe", experts: Some(ExpertKind { normalised: false, ..EXPERTS }), ..QWEN2 },
    Architecture { name: "qwen3", ..QWEN2 },
    Architecture { name: "qwen3moe", experts: Some(EXPERTS), ..QWEN2 },
    Architecture { name: "smollm3", no_rope_step: 4, windows: Windows::Unsupported, ..LLAMA },
    Architecture { name: "mistral3", windows: Windows::Unsupported, ..LLAMA },
    Architecture { name: "phi3", joined_gate: true, windows: Windows::All, ..QWEN2 },
    GRANITE,
    Architecture { name: "granitemoe", experts: Some(EXPERTS), ..GRANITE },
    Architecture {
        name: "olmo2",
        norms: Norms::After,
        head_norms: HeadNorms::Joint,
        windows: Windows::AllButEvery { step: 4, default: None },
        local_rope: Some(0.0),
        ..QWEN2
    },
    Architecture {
        name: "glm4",
        norms: Norms::Both,
        joined_gate: true,
        windows: Windows::Unsupported,
        ..LLAMA
    },
    GEMMA3,
    Architecture {
        name: "gemma2",
        head_norms: HeadNorms::IfPresent,
        windows: Windows::AllButEvery { step: 2, default: Some(4096) },
        local_rope: None,
        softcaps: Softcaps { attention: Some(50.0), logits: Some(30.0) },
        scaled_by_width: Some(46),
        ..GEMMA3
    },
    Architecture {
        name: "gemma4",
        head_norms: HeadNorms::WithValues,
        experts: Some(ExpertKind { always: false, parallel: true, ..EXPERTS }),
        windows: Windows::Listed,
        varied_layers: true,
        attention_scale: Some(1.0),
        softcaps: Softcaps { attention: None, logits: Some(30.0) },
        scaled_by_width: None,
        ..GEMMA3
    },
    Architecture {
        name: "exaone4",
        norms: Norms::After,
        head_norms: HeadNorms::PerHead,
        windows: Windows::AllButEvery { step: 4, default: None },
        rope_in_windows_only: true,
        ..QWEN2
    },
    Architecture {
        name: "olmoe",
        head_norms: HeadNorms::Joint,
        experts: Some(ExpertKind { normalised: false, ..EXPERTS }),
        ..QWEN2
    },
    Architecture {
        name: "glm4moe",
        norms: Norms::BeforeAsPost,
        experts: Some(ExpertKind { weighting: Weighting::Sigmoid, normalised: false, ..EXPERTS }),
        mtp: true,
        ..QWEN2
    },
    Architecture {
        name: "bailingmoe2",
        head_norms: HeadNorms::PerHead,
        experts: Some(ExpertKind { weighting: Weighting::Sigmoid, normalised: false, ..EXPERTS }),
        ..QWEN2
    },
    Architecture { name: "seed_oss", norms: Norms::BeforeAsPost, ..QWEN2 },
    Architecture {
        name: "gpt-oss",
        norms: Norms::BeforeAsPost,
        experts: Some(ExpertKind { weighting: Weighting::SoftmaxOfChosen, clamped: true, ..EXPERTS }),
        sinks: true,
        windows: Windows::AllButEvery { step: 2, default: None },
        ..QWEN2
    },
    LFM2,
    Architecture {
        name: "lfm2moe",
        experts: Some(ExpertKind { weighting: Weighting::Sigmoid, ..EXPERTS }),
        ..LFM2
    },
    QWEN35,
    Architecture { name: "qwen35moe", experts: Some(EXPERTS), ..QWEN35 },
    Architecture {
        name: "qwen3next",
        delta_nets: Some(HeadOrder::Grouped),
        experts: Some(EXPERTS),
        ..QWEN35
    },
    Architecture {
        name: "llama4",
        head_norms: HeadNorms::Unit,
        experts: Some(ExpertKind {
            weighting: Weighting::Sigmoid,
            normalised: false,
            interleaved: true,
            scales_input: true,
            ..EXPERTS
        }),
        windows: Windows::ChunksOfAllButEvery { step: 4, default: 8192 },
        no_rope_step: 4,
        query_temperature: Some(QueryTemperature {
            scale: 0.1,
            period: 8192,
            offset: 1,
            unrotated_only: true,
        }),
        ..LLAMA
    },
];

/// Number of experts of the size of Llama 4 without norms of queries and keys (Maverick).
pub(super) const EXPERTS_WITHOUT_HEAD_NORMS: usize = 128;

/// Returns `true` if models of this `general.architecture` run. The file itself may still be refused.
pub fn runs_architecture(name: &str) -> bool {
    ARCHITECTURES.iter().any(|row| row.name == name)
}
