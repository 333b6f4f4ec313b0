//! Model files that other programs cut short, replace, delete or write over: a loaded model needs its file no more,
//! and one that changes while it is loaded is refused in words. Programs of their own, so that a signal would be seen.

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
use hunch_model::device::{Compute, DeviceChoice};
use hunch_model::gguf::Gguf;
use hunch_model::split;

use crate::cli::{command, hunch, last_json, text};
use crate::support::tiny::Tiny;

/// What another program does to a file.
#[derive(Clone, Copy, Debug)]
enum Harm {
    CutShort,
    WrittenOver,
    Replaced,
    Deleted,
}

const HARMS: [Harm; 4] = [Harm::CutShort, Harm::WrittenOver, Harm::Replaced, Harm::Deleted];

fn harm(path: &Path, how: Harm) {
    match how {
        Harm::CutShort => File::options().write(true).open(path).unwrap().set_len(0).unwrap(),
        Harm::WrittenOver => {
            let len = std::fs::metadata(path).unwrap().len() as usize;
            std::fs::write(path, vec![0xa5; len]).unwrap();
        }
        Harm::Replaced => {
            let other = path.with_extension("other");
            std::fs::write(&other, b"GGUF").unwrap();
            std::fs::rename(other, path).unwrap();
        }
        Harm::Deleted => std::fs::remove_file(path).unwrap(),
    }
}

/// Models of this kind in a data folder: a whole one, one in two parts and a draft.
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

/// Runs the program until it writes its answer, does harm to every model file there is, and gives what it printed.
fn answer_under(harmed: Harm, data: &Path, arguments: &[&str]) -> serde_json::Value {
    let mut child = command(data, arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut first = [0];
    out.read_exact(&mut first).unwrap();
    for path in gguf_files(data) {
        harm(&path, harmed);
    }
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.success(), "{harmed:?}: {} {}", ended.status, text(&ended.stderr));
    serde_json::from_slice(rest.trim_ascii_end().rsplit(|&byte| byte == b'\n').next().unwrap()).unwrap()
}

/// Long enough that the file is gone for most of it; the pipe is full long before.
const TOKENS: &str = "200";

#[test]
fn answers_to_the_end_whatever_becomes_of_the_files() {
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
        let harms = if thorough { &HARMS[..] } else { &HARMS[..2] };
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
            let undisturbed = {
                let data = data_folder(kind);
                last_json(&hunch(data.path(), &arguments))
            };
            for &harmed in harms {
                let data = data_folder(kind);
                let disturbed = answer_under(harmed, data.path(), &arguments);
                let what = format!("{:?}, {target} by {method}, {harmed:?}", kind.dtype);
                assert_eq!(disturbed["tokens"], undisturbed["tokens"], "{what}");
                assert_eq!(disturbed["dropped_drafts"].as_array().map(Vec::len), Some(0), "{what}");
            }
        }
    }
}

/// Loads a model of which a file comes to harm when so many of its tensors were read.
fn load_under(harmed: Harm, path: &Path, after: usize) -> Result<(), Error> {
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let files = split::files(path);
    for file in &files {
        File::options().write(true).open(file).unwrap().set_modified(long_ago).unwrap();
    }
    let left = std::sync::atomic::AtomicUsize::new(after);
    let watch = move |_: hunch::generate::LoadStep<'_>| {
        if left.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) == 1 {
            files.iter().for_each(|file| harm(file, harmed));
        }
        ControlFlow::Continue(())
    };
    let plan = LoadPlan { progress: Some(Arc::new(watch)), ..LoadPlan::of(path) };
    let compute = Compute::open(DeviceChoice::Cpu, Some(2)).unwrap();
    Models::load_by(&plan, &compute).map(drop)
}

#[test]
fn refuses_a_file_that_changes_while_it_is_loaded() {
    for dtype in [GgmlDType::F32, GgmlDType::Q4_0, GgmlDType::Q3K] {
        for parts in [1, 3] {
            for after in [1, 2, 9] {
                for harmed in HARMS {
                    let folder = tempfile::tempdir().unwrap();
                    let tiny = Tiny { dtype, tied: after == 2, ..Tiny::default() };
                    let path = match parts {
                        1 => tiny.write(folder.path(), "model"),
                        parts => tiny.write_split(folder.path(), "model", parts),
                    };
                    let loaded = load_under(harmed, &path, after);
                    let what = format!("{dtype:?} in {parts} files, {harmed:?} after {after} tensors");
                    match harmed {
                        // What was opened is still there.
                        Harm::Replaced | Harm::Deleted => loaded.expect(&what),
                        Harm::CutShort | Harm::WrittenOver => {
                            let error = loaded.expect_err(&what);
                            let words = error.to_string();
                            assert_eq!(error.code(), ErrorCode::Io, "{what}: {words}");
                            assert!(
                                words.contains("model") && words.contains("load it again"),
                                "{what}: {words}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn predicts_a_copy_of_the_table_only_where_there_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let weights = |dtype, tied| {
        let path = Tiny { dtype, tied, ..Tiny::default() }.write(folder.path(), "model");
        let gguf = Gguf::read(&path).unwrap();
        let table = gguf.tensors["token_embd.weight"].range.len() as u64;
        let all = gguf.tensors.values().map(|tensor| tensor.range.len() as u64).sum::<u64>();
        (Footprint::from_header(&gguf, false).unwrap().predicted(1).weights, all, table)
    };
    for tied in [true, false] {
        let (predicted, all, _) = weights(GgmlDType::F32, tied);
        assert_eq!(predicted, all, "every tensor once");
    }
    // The CPU's kernels have no matrix of this type, so the table is beside the head.
    let (predicted, all, table) = weights(GgmlDType::Q3K, true);
    assert_eq!(predicted, all + table);
}
