//! Names of quantisations, such as "Q4_K_M".

use std::collections::BTreeMap;

use hunch_model::gguf::Gguf;
use hunch_model::low_bit;
use hunch_model::model_folder;

/// llama.cpp's numbers of file-level quantisations (`enum llama_ftype`), for all released types.
const FILE_TYPES: [(u32, &str); 36] = [
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (19, "IQ2_XXS"),
    (20, "IQ2_XS"),
    (21, "Q2_K_S"),
    (22, "IQ3_XS"),
    (23, "IQ3_XXS"),
    (24, "IQ1_S"),
    (25, "IQ4_NL"),
    (26, "IQ3_S"),
    (27, "IQ3_M"),
    (28, "IQ2_S"),
    (29, "IQ2_M"),
    (30, "IQ4_XS"),
    (31, "IQ1_M"),
    (32, "BF16"),
    (36, "TQ1_0"),
    (37, "TQ2_0"),
    (38, "MXFP4"),
    (39, "NVFP4"),
    (40, "Q1_0"),
    (41, "Q2_0"),
];

/// Returns a model's quantisation: the file's own statement, or the type of most weights. A low-bit copy has the
/// statement of its model, so its weights count.
pub(super) fn of(gguf: &Gguf) -> String {
    if low_bit::is_copy(gguf) {
        return of_most_weights(gguf);
    }
    if let Some(own) = gguf.str(model_folder::QUANTISATION) {
        return own.to_owned();
    }
    let stated = gguf.u32("general.file_type");
    if let Some((_, name)) = FILE_TYPES.iter().find(|(number, _)| stated == Some(*number)) {
        return (*name).to_owned();
    }
    of_most_weights(gguf)
}

fn of_most_weights(gguf: &Gguf) -> String {
    let mut weights: BTreeMap<&str, usize> = BTreeMap::new();
    for tensor in gguf.tensors.values() {
        let count: usize = tensor.shape.iter().product();
        let sum = weights.entry(tensor.dtype.name()).or_default();
        *sum = sum.saturating_add(count);
    }
    weights.into_iter().max_by_key(|(_, count)| *count).map_or_else(String::new, |(name, _)| name.to_owned())
}
