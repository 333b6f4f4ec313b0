//! Tests of model files that other programs truncate, replace, delete or overwrite.
//!
//! A loaded model does not need its file. A file modified during loading is rejected with an error. The
//! tests run in separate processes to detect signals.

use std::fs::File;
use std::io::{BufReader, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use candle_core::quantized::GgmlDType;
use hunch::generate::{LoadPlan, Models};
use hunch_error::{Error, ErrorCode};
use hunch_library::fit::Footprint;
use hunch_model::gguf::Gguf;
use hunch_model::split;

use crate::cli::{command, hunch, last_json, text};
use crate::support::cpu;
use hunch_testing::tiny::Tiny;

/// Change to a file by another program.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Truncated,
    Overwritten,
    Replaced,
    Deleted,
}

const DAMAGES: [Damage; 4] = [Damage::Truncated, Damage::Overwritten, Damage::Replaced, Damage::Deleted];

fn apply_damage(path: &Path, how: Damage) {
    match how {
        Damage::Truncated => File::options().write(true).open(path).unwrap().set_len(0).unwrap(),
        Damage::Overwritten => {
            let len = std::fs::metadata(path).unwrap().len() as usize;
            std::fs::write(path, vec![0xa5; len]).unwrap();
        }
        Damage::Replaced => {
            let other = path.with_extension("other");
            std::fs::write(&other, b"GGUF").unwrap();
            std::fs::rename(other, path).unwrap();
        }
        Damage::Deleted => std::fs::remove_file(path).unwrap(),
    }
}

/// Creates a data folder with a model in one file, one in two parts, and a draft.
fn data_folder(kind: Tiny) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    std::fs::create_dir(&models).unwrap();
    kind.write(&models, "target");
    kind.write_split(&models, "split", 2);
    Tiny { layers: 1, ..kind }.write(&models, "draft");
    folder
}

fn gguf_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else { return files };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(gguf_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "gguf") {
            files.push(path);
        }
    }
    files
}

/// Runs the program until it starts to answer, damages all model files, and returns its output.
fn answer_with_damage(damage: Damage, data: &Path, arguments: &[&str]) -> serde_json::Value {
    let mut child = command(data, arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut first = [0];
    out.read_exact(&mut first).unwrap();
    for path in gguf_files(data) {
        apply_damage(&path, damage);
    }
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{damage:?}: {} {}", ended.status, text(&ended.stderr));
    serde_json::from_slice(rest.trim_ascii_end().rsplit(|&byte| byte == b'\n').next().unwrap()).unwrap()
}

/// Long enough that the files are damaged during most of the answer.
const TOKENS: &str = "200";

#[test]
fn completes_answer_after_files_are_damaged() {
    let kinds = [
        Tiny { dtype: GgmlDType::F32, ..Tiny::default() },
        Tiny { dtype: GgmlDType::Q4_0, tied: false, ..Tiny::default() },
        Tiny { dtype: GgmlDType::Q6K, ..Tiny::default() },
        Tiny { dtype: GgmlDType::Q3K, ..Tiny::default() },
    ];
    for (kind, thorough) in kinds.into_iter().zip([true, false, false, false]) {
        let methods: &[(&str, &str)] = match thorough {
            true => &[
                ("target", "plain"),
                ("target", "draft-model"),
                ("target", "layer-skip"),
                ("target", "low-bit"),
                ("split", "ngram"),
            ],
            false => &[("target", "plain")],
        };
        let damages = if thorough { &DAMAGES[..] } else { &DAMAGES[..2] };
        for &(target, method) in methods {
            let arguments = [
                "run",
                "--raw",
                "hello hello",
                "--target",
                target,
                "--draft",
                "draft",
                "--method",
                method,
                "--max-draft",
                "3",
                "--max-tokens",
                TOKENS,
                "--temperature",
                "0",
                "--logit-bias",
                "257=-100",
                "--device",
                "cpu",
                "--json",
            ];
            let undamaged = {
                let data = data_folder(kind);
                last_json(&hunch(data.path(), &arguments))
            };
            for &damage in damages {
                let data = data_folder(kind);
                let damaged = answer_with_damage(damage, data.path(), &arguments);
                let what = format!("{:?}, {target} by {method}, {damage:?}", kind.dtype);
                assert_eq!(damaged["tokens"], undamaged["tokens"], "{what}");
                assert_eq!(damaged["dropped_drafts"].as_array().map(Vec::len), Some(0), "{what}");
            }
        }
    }
}

/// Loads a model whose files are damaged after `after` tensors.
fn load_with_damage(damage: Damage, path: &Path, after: usize) -> Result<(), Error> {
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let files = split::files(path);
    for file in &files {
        File::options().write(true).open(file).unwrap().set_modified(long_ago).unwrap();
    }
    let left = std::sync::atomic::AtomicUsize::new(after);
    let watch = move |_: hunch::generate::LoadStep<'_>| {
        if left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) == 1 {
            files.iter().for_each(|file| apply_damage(file, damage));
        }
        ControlFlow::Continue(())
    };
    let plan = LoadPlan { progress: Some(Arc::new(watch)), ..LoadPlan::of(path) };
    let compute = cpu();
    Models::load_by(&plan, &compute).map(drop)
}

#[test]
fn rejects_file_modified_during_loading() {
    for dtype in [GgmlDType::F32, GgmlDType::Q4_0, GgmlDType::Q3K] {
        for parts in [1, 3] {
            for after in [1, 2, 9] {
                for damage in DAMAGES {
                    let folder = tempfile::tempdir().unwrap();
                    let tiny = Tiny { dtype, tied: after == 2, ..Tiny::default() };
                    let path = match parts {
                        1 => tiny.write(folder.path(), "model"),
                        parts => tiny.write_split(folder.path(), "model", parts),
                    };
                    let loaded = load_with_damage(damage, &path, after);
                    let what = format!("{dtype:?} in {parts} files, {damage:?} after {after} tensors");
                    match damage {
                        // The open file handle still has the original content.
                        Damage::Replaced | Damage::Deleted => loaded.expect(&what),
                        Damage::Truncated | Damage::Overwritten => {
                            let error = loaded.expect_err(&what);
                            let message = error.to_string();
                            assert_eq!(error.code(), ErrorCode::Io, "{what}: {message}");
                            assert!(
                                message.contains("model") && message.contains("load it again"),
                                "{what}: {message}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn predicts_memory_of_separate_embedding_table() {
    let folder = tempfile::tempdir().unwrap();
    let compute = cpu();
    let weights = |dtype, tied| {
        let path = Tiny { dtype, tied, ..Tiny::default() }.write(folder.path(), "model");
        let gguf = Gguf::read(&path).unwrap();
        let table = gguf.tensors["token_embd.weight"].range.len() as u64;
        let all = gguf.tensors.values().map(|tensor| tensor.range.len() as u64).sum::<u64>();
        (Footprint::on_device(&gguf, &compute).unwrap().predicted(1).weights, all, table)
    };
    for tied in [true, false] {
        let (predicted, all, _) = weights(GgmlDType::F32, tied);
        assert_eq!(predicted, all, "each tensor counts once");
    }
    // There is no CPU kernel for this type, so table and head are separate.
    let (predicted, all, table) = weights(GgmlDType::Q3K, true);
    assert_eq!(predicted, all + table);
}
