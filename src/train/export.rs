//! Export: from trained tensors to the files that decoding loads, with the scale of the states folded in.

use std::path::Path;

use candle_core::Tensor;
use half::f16;
use hunch_error::{Error, Result};
use hunch_model::atomic_file::{self, PART};
use hunch_model::heads::{self, HeadFacts, MedusaPosition, MedusaWeights, MlpWeights};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::json;

use super::eagle::{self, ROPE_BASE, STREAMS};
use super::fit::FitRun;
use super::kind::HeadKind;
use super::ops::EPS;

/// Files of an EAGLE head in its folder.
const WEIGHTS: &str = "model.safetensors";
const CONFIG: &str = "config.json";
/// Entry of the configuration that names the program that wrote it, and its value here.
const PRODUCER: (&str, &str) = ("producer", "hunch");

/// Writes the best weights of a fit: a file for [`HeadKind::Mlp`] and [`HeadKind::Medusa`], a folder for
/// [`HeadKind::Eagle`]. A file is replaced in one step.
///
/// # Errors
/// [`Error::Io`] if a file cannot be written, [`Error::InvalidRequest`] if the target's width is not a multiple of 32.
pub fn write(fit: &FitRun<'_>, path: &Path) -> Result<()> {
    let mut weights = BestTensors::of(fit)?;
    match fit.recipe().kind {
        HeadKind::Mlp => mlp(fit, &mut weights, path),
        HeadKind::Medusa => medusa(fit, &mut weights, path),
        HeadKind::Eagle => eagle(fit, &mut weights, path),
    }
}

/// Checks a place for a head, before any work. A head that was trained here is replaced, and nothing else.
///
/// # Errors
/// [`Error::InvalidRequest`] if something else is there.
pub fn check_place(kind: HeadKind, path: &Path) -> Result<()> {
    let invalid =
        |reason: &str| Err(Error::invalid(format!("{} {reason} Nothing was changed.", path.display())));
    if kind != HeadKind::Eagle {
        if path.is_dir() {
            return invalid("is a folder. Give the name of a file.");
        }
        let is_free = !path.exists() || heads::is_own(path);
        return if is_free { Ok(()) } else { invalid("is not a head of Hunch. Give another name.") };
    }
    if path.exists() && !path.is_dir() {
        return invalid("is a file, and an EAGLE head is a folder. Give another name.");
    }
    let is_own = is_written_here(&path.join(CONFIG));
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let known = |name: &std::ffi::OsStr| {
        let is_head = is_own && (name == WEIGHTS || name == CONFIG);
        is_head || name == ".DS_Store" || name.to_str().is_some_and(is_unfinished)
    };
    if entries.map(|entry| entry.file_name()).any(|name| !known(&name)) {
        return invalid("has files that are not of a head of Hunch. Give an empty folder, or a new name.");
    }
    Ok(())
}

/// Copies a head to a place that was [checked](check_place). Each file is replaced in one step.
///
/// # Errors
/// [`Error::Io`] if a file cannot be written.
pub fn copy(kind: HeadKind, from: &Path, to: &Path) -> Result<()> {
    if kind != HeadKind::Eagle {
        return atomic_file::copy(from, to);
    }
    // The configuration comes first, as it does when the head is written.
    [CONFIG, WEIGHTS].iter().try_for_each(|file| atomic_file::copy(&from.join(file), &to.join(file)))?;
    remove_unfinished(to);
    Ok(())
}

/// Returns whether a file of an EAGLE head was left by a kill while it was written.
fn is_unfinished(name: &str) -> bool {
    let stem = |file: &'static str| file.split_once('.').map_or(file, |(stem, _)| stem);
    name.ends_with(PART) && [WEIGHTS, CONFIG].iter().any(|file| name.starts_with(stem(file)))
}

/// Removes files of an EAGLE head that a kill left unfinished. One that stays does no harm.
fn remove_unfinished(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_unfinished) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Returns whether a configuration was written by [`write`].
fn is_written_here(config: &Path) -> bool {
    let read = |text: Vec<u8>| serde_json::from_slice::<serde_json::Value>(&text).ok();
    let config = std::fs::read(config).ok().and_then(read);
    config.is_some_and(|config| config[PRODUCER.0] == PRODUCER.1)
}

/// Tensors of the best weights, in the order of [`HeadKind::names`].
struct BestTensors(std::vec::IntoIter<Vec<f32>>);

impl BestTensors {
    fn of(fit: &FitRun<'_>) -> Result<Self> {
        let values = |tensor: &Tensor| -> Result<Vec<f32>> { Ok(tensor.flatten_all()?.to_vec1::<f32>()?) };
        Ok(Self(fit.best().iter().map(values).collect::<Result<Vec<_>>>()?.into_iter()))
    }

    fn next(&mut self) -> Vec<f32> {
        self.0.next().unwrap_or_default()
    }
}

fn facts(fit: &FitRun<'_>) -> Result<HeadFacts> {
    let target = fit.frozen().target;
    Ok(HeadFacts {
        vocabulary: fit.frozen().vocabulary.clone(),
        training_tokens: fit.training_tokens(),
        acceptance: fit.best_acceptance().first.sampled,
        target_name: target.rows.name.clone(),
        target: target.fingerprint()?,
    })
}

fn mlp(fit: &FitRun<'_>, weights: &mut BestTensors, path: &Path) -> Result<()> {
    let (frozen, target) = (fit.frozen(), fit.frozen().target);
    let mut next = || weights.next();
    let (mut fc, mut fc_bias, norm, gate, up, down) = (next(), next(), next(), next(), next(), next());
    let (mean, deviation) = frozen.final_standard();
    let (n, inputs) = (target.rows.n_embd, target.inputs() * target.rows.n_embd);
    // The network reads (f - mean) / deviation, the file f itself.
    for (row, bias) in fc.chunks_exact_mut(inputs).zip(&mut fc_bias) {
        for (weight, (mean, deviation)) in row[..n].iter_mut().zip(mean.iter().zip(deviation)) {
            *weight /= deviation;
            *bias -= *weight * mean;
        }
    }
    let layers = target.taps.split_last().map_or(Vec::new(), |(_, layers)| layers.to_vec());
    heads::write_mlp(
        path,
        &MlpWeights {
            layers,
            feed_forward: gate.len() / n,
            fc,
            fc_bias,
            norm,
            gate,
            up,
            down,
            out_scale: deviation.to_vec(),
            out_shift: mean.to_vec(),
        },
        &facts(fit)?,
    )
}

fn medusa(fit: &FitRun<'_>, weights: &mut BestTensors, path: &Path) -> Result<()> {
    let (mean, deviation) = fit.frozen().final_standard();
    let position = |_| MedusaPosition {
        block: weights.next(),
        block_bias: weights.next(),
        output: weights.next(),
        output_bias: weights.next(),
    };
    heads::write_medusa(
        path,
        &MedusaWeights {
            in_scale: deviation.iter().map(|deviation| 1.0 / deviation).collect(),
            in_shift: mean.iter().zip(deviation).map(|(mean, deviation)| -mean / deviation).collect(),
            positions: (0..fit.recipe().depth).map(position).collect(),
        },
        &facts(fit)?,
    )
}

/// Writes an EAGLE-3 head as others publish them, with norms before fc.
fn eagle(fit: &FitRun<'_>, weights: &mut BestTensors, path: &Path) -> Result<()> {
    let (frozen, target) = (fit.frozen(), fit.frozen().target);
    let (n, scored) = (target.rows.n_embd, frozen.vocabulary.len());
    let head_dim = eagle::head_dim(n);
    let mut next = || weights.next();
    let (fc, mut fc_bias) = (next(), next());
    let from = (target.taps.len() - STREAMS) * n;
    let (mean, deviation) = (&frozen.standard.mean[from..], &frozen.standard.deviation[from..]);
    // The network reads (s - mean) / deviation, the file s / deviation.
    for (row, bias) in fc.chunks_exact(STREAMS * n).zip(&mut fc_bias) {
        let shift =
            row.iter().zip(mean.iter().zip(deviation)).map(|(weight, (mean, dev))| weight * mean / dev);
        *bias -= shift.sum::<f32>();
    }
    let mut file = TensorList::default();
    file.matrix("fc.weight", fc, n);
    file.vector("fc.bias", &fc_bias);
    for (i, deviation) in deviation.chunks_exact(n).enumerate() {
        // The final state was standardised after the target's output norm.
        let is_final = i + 1 == STREAMS;
        let scale =
            |(at, dev): (usize, &f32)| if is_final { target.rows.output_norm[at] / dev } else { 1.0 / dev };
        file.vector(
            &format!("fc_norm.{i}.weight"),
            &deviation.iter().enumerate().map(scale).collect::<Vec<_>>(),
        );
    }
    file.vector("midlayer.input_layernorm.weight", &next());
    file.vector("midlayer.hidden_norm.weight", &next());
    for part in ["q_proj", "k_proj"] {
        file.matrix(&format!("midlayer.self_attn.{part}.weight"), next(), n);
        file.vector(&format!("midlayer.self_attn.{part}.bias"), &next());
    }
    file.matrix("midlayer.self_attn.v_proj.weight", next(), n);
    file.matrix("midlayer.self_attn.o_proj.weight", next(), n);
    file.vector("midlayer.post_attention_layernorm.weight", &next());
    let gate = next();
    let ff = gate.len() / n;
    file.matrix("midlayer.mlp.gate_proj.weight", gate, ff);
    file.matrix("midlayer.mlp.up_proj.weight", next(), ff);
    file.matrix("midlayer.mlp.down_proj.weight", next(), n);
    file.vector("norm.weight", &next());
    file.matrix("lm_head.weight", next(), scored);
    file.vector("lm_head.bias", &next());
    let offsets = frozen.vocabulary.iter().zip(0i64..).map(|(&token, row)| i64::from(token) - row);
    file.0.push(("d2t".into(), Dtype::I64, vec![scored], offsets.flat_map(i64::to_le_bytes).collect()));
    let mut marks = vec![0; target.rows.n_vocab];
    frozen.vocabulary.iter().for_each(|&token| marks[token as usize] = 1);
    file.0.push(("t2d".into(), Dtype::BOOL, vec![marks.len()], marks));
    let config = json!({
        PRODUCER.0: PRODUCER.1,
        "architectures": ["LlamaForCausalLMEagle3"],
        "base_model_name_or_path": target.rows.name,
        heads::TARGET_IN_CONFIG: target.fingerprint()?,
        heads::ACCEPTANCE_IN_CONFIG: fit.best_acceptance().first.sampled,
        "hidden_size": n,
        "intermediate_size": ff,
        "num_attention_heads": n / head_dim,
        "num_key_value_heads": n / head_dim,
        "head_dim": head_dim,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "attention_bias": true,
        "rms_norm_eps": EPS,
        "rope_theta": ROPE_BASE,
        "vocab_size": target.rows.n_vocab,
        "draft_vocab_size": scored,
        // Layers whose output is read.
        "eagle_config": { "eagle_aux_hidden_state_layer_ids": target.taps[target.taps.len() - STREAMS..] },
        "torch_dtype": "float16",
        "training_tokens": fit.training_tokens(),
    });
    let text = serde_json::to_string_pretty(&config).map_err(|error| Error::Internal(error.to_string()))?;
    // The configuration comes first: it marks the folder as written here.
    atomic_file::write(&path.join(CONFIG), text)?;
    file.write(&path.join(WEIGHTS))?;
    remove_unfinished(path);
    Ok(())
}

/// Tensors of a safetensors file: name, type, shape and bytes.
#[derive(Default)]
struct TensorList(Vec<(String, Dtype, Vec<usize>, Vec<u8>)>);

impl TensorList {
    /// Adds a matrix of `rows` rows, in 16 bits.
    fn matrix(&mut self, name: &str, values: Vec<f32>, rows: usize) {
        let shape = vec![rows, values.len() / rows.max(1)];
        let bytes = values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect();
        self.0.push((name.into(), Dtype::F16, shape, bytes));
    }

    fn vector(&mut self, name: &str, values: &[f32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.0.push((name.into(), Dtype::F32, vec![values.len()], bytes));
    }

    fn write(&self, path: &Path) -> Result<()> {
        let internal = |error: safetensors::SafeTensorError| Error::Internal(error.to_string());
        let views = self.0.iter().map(|(name, dtype, shape, bytes)| {
            Ok((&name[..], TensorView::new(*dtype, shape.clone(), bytes).map_err(internal)?))
        });
        let bytes = safetensors::serialize(views.collect::<Result<Vec<_>>>()?, None).map_err(internal)?;
        atomic_file::write(path, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_heads_that_were_trained_here_are_replaced() {
        let root = tempfile::tempdir().unwrap();
        let check = |kind, name: &str| check_place(kind, &root.path().join(name)).is_ok();
        let write = |name: &str, text: &str| {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let shipped = "crates/hunch-model/heads/smollm2-135m-instruct.gguf";
        std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(shipped), root.path().join("own.gguf"))
            .unwrap();
        write("other.gguf", "GGUF of something else");
        for kind in [HeadKind::Mlp, HeadKind::Medusa] {
            assert!(check(kind, "new.gguf") && check(kind, "own.gguf"));
            assert!(!check(kind, "other.gguf") && !check(kind, "."));
        }
        let eagle = |name| check(HeadKind::Eagle, name);
        assert!(eagle("new") && !eagle("own.gguf"));
        write("unfinished/model.abc.part", "");
        write("unfinished/.DS_Store", "");
        assert!(eagle("unfinished"), "a kill while the first file was written");
        write("downloaded/config.json", "{\"hidden_size\": 64}");
        write("downloaded/model.safetensors", "");
        assert!(!eagle("downloaded"), "of someone else");
        write("trained/config.json", "{\"producer\": \"hunch\"}");
        assert!(eagle("trained"), "a kill between the files");
        write("trained/model.safetensors", "");
        assert!(eagle("trained"));
        write("trained/notes.txt", "");
        assert!(!eagle("trained"));
    }
}
