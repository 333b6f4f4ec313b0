//! Predicted costs of five chips, as `docs/metal.md` has them.

use hunch_model::metal::costs::{AttentionSize, Basis, Chip, PREDICTED_CONTEXT, PassSize};

/// Qwen2.5 7B in Q4_K_M.
const MODEL: PassSize = PassSize {
    bytes: 4_370_000_000,
    weights: 7_070_000_000,
    layers: 28,
    convolutions: 0,
    embedding_dispatches: 0,
    states: 0,
    experts: None,
    attention: AttentionSize { queries: 28, keys: 4, width: 128, visible: 28 * PREDICTED_CONTEXT },
};

#[test]
fn docs_have_the_predictions_of_five_chips() {
    let page = include_str!("../../../../docs/metal.md");
    println!(
        "figure: predicted: Qwen2.5 7B in Q4_K_M after {PREDICTED_CONTEXT} tokens. Products take max(bytes / bandwidth, \
         operations / rate), attention too. A dispatch takes 5 us more, a pass 0.2 ms."
    );
    let mut missing = Vec::new();
    for name in ["M1", "M2 Pro", "M3 Max", "M4", "M5"] {
        let chip = Chip::named(name, None).unwrap();
        let Chip { cores, memory_gb_s, .. } = chip;
        let basis = Basis::Chip(chip);
        let one = basis.pass_ms(MODEL, 1);
        let times = [2, 5, 9, 16].map(|rows| format!("{:.2}", basis.pass_ms(MODEL, rows) / one));
        let row = format!("| {name} | {cores} | {memory_gb_s} | {one:.1} | {} |", times.join(" | "));
        println!("figure: predicted: {row}");
        if !page.contains(&row) {
            missing.push(row);
        }
    }
    assert!(missing.is_empty(), "docs/metal.md lacks these rows:\n{}", missing.join("\n"));
}
