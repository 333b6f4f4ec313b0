//! Low-bit copies of a model, for use as drafts: faster to read, with lower quality.
//!
//! A copy is a GGUF file with the same names, shapes and metadata, and most matrices requantised. One more
//! entry marks it as a copy. Layers that only draft are left out: a draft has none of its own. The place of
//! copies on disk belongs to the model library.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write};
use std::ops::{ControlFlow, Range};
use std::path::Path;

use candle_core::quantized::QTensor;
use candle_core::{Device, Tensor};
use sha2::{Digest, Sha256};

use crate::atomic_file::{self, PART};
use crate::candle_type::CandleType;
use crate::dequantise::dequantise;
use crate::file::ModelFile;
use crate::gguf::{Gguf, TensorInfo, Value, WeightType};
use crate::hex;
use crate::split;
use crate::weights::WeightFile;
use hunch_error::{Error, Result};

/// Metadata that marks a copy: true.
const MARK: &str = "hunch.low_bit_copy";
/// Number of the type of [`MARK`] in GGUF files: bool.
const MARK_TYPE: u32 = 7;
/// Default alignment of tensor data in bytes.
const ALIGNMENT: u32 = 32;
/// Number of weights a thread converts at a time, and number of bytes copied at a time.
const CHUNK: usize = 4 << 20;
/// Number of samples per file in a fingerprint.
const SAMPLES: usize = 64;
/// Size of a sample in bytes.
const SAMPLE_BYTES: usize = 4096;

/// Progress of writing a copy. Receives the bytes of weights done and in total. Breaks to end it.
pub type CopyProgress<'a> = &'a mut dyn FnMut(usize, usize) -> ControlFlow<()>;

/// Progress for callers that neither show it nor end it.
pub fn unwatched(_done: usize, _total: usize) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Writes a low-bit copy of `model` to `to` on `threads` threads.
///
/// An unfinished copy leaves no file at `to`.
///
/// # Errors
/// [`Error::Io`] if the file cannot be written, [`Error::Stopped`] if `progress` breaks, or any error of reading a
/// tensor.
pub fn write_copy(model: &WeightFile, to: &Path, threads: usize, progress: CopyProgress<'_>) -> Result<()> {
    let io = |source| Error::Io { action: "write", path: to.to_path_buf(), source };
    remove_abandoned(to);
    atomic_file::replace(to, |file| {
        // The lock marks the file as being written. File systems without locks ignore it.
        let _ = file.try_lock();
        let mut out = BufWriter::new(file);
        copy(model, &mut out, threads, progress, &io)?;
        out.flush().map_err(io)
    })
}

/// Returns true for the header of a low-bit copy.
pub fn is_copy(gguf: &Gguf) -> bool {
    matches!(gguf.metadata.get(MARK), Some(Value::Bool(true)))
}

/// Returns true if there is a file with the header of a model. Its weights are not read.
pub fn is_written(copy: &Path) -> bool {
    copy.is_file() && WeightFile::open(copy).is_ok()
}

/// Returns the header that the low-bit copy of a model will have, at path `to`. Tensors have no place in the file yet:
/// the ranges have the right lengths only.
pub fn planned(gguf: &Gguf, to: &Path) -> Gguf {
    let in_copy = |(name, info): (&String, &TensorInfo)| {
        let dtype = type_in_copy(name, info);
        let info = TensorInfo { dtype, part: 0, range: 0..size_as(info, dtype), shape: info.shape.clone() };
        (name.clone(), info)
    };
    let tensors: BTreeMap<_, _> = gguf.model_tensors().map(in_copy).collect();
    let mut metadata = gguf.metadata.clone();
    metadata.insert(MARK.into(), Value::Bool(true));
    let weights: usize = tensors.values().map(|info| info.range.len()).sum();
    Gguf {
        path: to.to_path_buf(),
        file_len: gguf.metadata_range.len() + weights,
        split_ranges: Vec::new(),
        metadata,
        tensors,
        ..gguf.clone()
    }
}

/// Computes a fingerprint of the content of a model from its size and samples of its bytes.
///
/// Path and modification time have no influence.
///
/// # Errors
/// If a file of the model cannot be read.
pub fn fingerprint(model: &Path) -> Result<String> {
    let mut digest = Sha256::new();
    for path in split::files(model) {
        let file = ModelFile::open(&path)?;
        digest.update((file.len() as u64).to_le_bytes());
        let last = file.len().saturating_sub(SAMPLE_BYTES);
        for at in (0..SAMPLES).map(|i| last / (SAMPLES - 1) * i).chain([last]) {
            digest.update(file.read(at..file.len().min(at + SAMPLE_BYTES))?);
        }
    }
    Ok(hex(&digest.finalize()[..8]))
}

/// Deletes a copy, and unfinished ones left by killed writers. A missing one is no error.
///
/// # Errors
/// [`Error::Io`] if the copy cannot be deleted.
pub fn remove_copy(copy: &Path) -> Result<()> {
    remove_abandoned(copy);
    match std::fs::remove_file(copy) {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(Error::Io { action: "remove", path: copy.to_path_buf(), source })
        }
        _ => Ok(()),
    }
}

/// Removes unfinished copies left by killed writers of the same copy.
fn remove_abandoned(to: &Path) {
    let (Some(folder), Some(stem)) = (to.parent(), to.file_stem().and_then(|stem| stem.to_str())) else {
        return;
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str());
        let of_this_copy = |name: &str| name.starts_with(&format!("{stem}.")) && name.ends_with(PART);
        if !name.is_some_and(of_this_copy) {
            continue;
        }
        // A writer locks its file before it writes, so an empty file may be about to be locked.
        let Ok(file) = File::options().write(true).open(&path) else { continue };
        if file.metadata().is_ok_and(|meta| meta.len() > 0) && file.try_lock().is_ok() {
            // A leftover file does no harm, so ignore a failure.
            let _ = std::fs::remove_file(&path);
        }
    }
}

fn copy(
    model: &WeightFile,
    out: &mut impl Write,
    threads: usize,
    progress: CopyProgress<'_>,
    io: &dyn Fn(std::io::Error) -> Error,
) -> Result<()> {
    let gguf = model.gguf();
    let tensors: Vec<(&String, &TensorInfo, WeightType)> =
        gguf.model_tensors().map(|(name, info)| (name, info, type_in_copy(name, info))).collect();
    let header = header(model, &tensors)?;
    out.write_all(&header).map_err(io)?;
    let total: usize = tensors.iter().map(|(_, info, _)| info.range.len()).sum();
    let mut done = 0;
    for (_, info, dtype) in tensors {
        let mut step = |of_tensor: usize| match progress(done + of_tensor, total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Stopped),
        };
        let written = if dtype == info.dtype {
            for from in (0..info.range.len()).step_by(CHUNK) {
                let chunk = from..info.range.len().min(from + CHUNK);
                step(chunk.end)?;
                out.write_all(&model.tensor_bytes(info, chunk)?).map_err(io)?;
            }
            info.range.len()
        } else {
            let data = requantise(model, info, dtype, threads, &mut step)?;
            out.write_all(&data).map_err(io)?;
            data.len()
        };
        out.write_all(&vec![0; padding(written, alignment(gguf))]).map_err(io)?;
        done += info.range.len();
    }
    // A model modified in between would yield a copy of two versions.
    model.check_unchanged()
}

/// Chooses the type of a tensor in the copy, never with more bits than before.
///
/// Matrices of layers get Q2_K. The most sensitive ones and the matrices of the vocabulary get
/// Q4_K. Rows that are not a multiple of 256 weights get Q4_0. Routers of experts, weights of
/// convolutions and biases stay as they are.
fn type_in_copy(name: &str, info: &TensorInfo) -> WeightType {
    let ([_, width] | [_, _, width]) = info.shape[..] else {
        return info.dtype;
    };
    let kept = ["ffn_gate_inp", "shortconv.conv.", "ssm_conv1d."].iter().any(|part| name.contains(part));
    if kept || !name.ends_with(".weight") {
        return info.dtype;
    }
    let sensitive = ["attn_v", "attn_qkv", "ffn_down"].iter().any(|part| name.contains(part));
    let wanted = match (name.starts_with("blk."), width % 256, width % 32) {
        (true, 0, _) if !sensitive => WeightType::Q2K,
        (_, 0, _) => WeightType::Q4K,
        (_, _, 0) => WeightType::Q4_0,
        _ => return info.dtype,
    };
    if wanted.bits() < info.dtype.bits() { wanted } else { info.dtype }
}

/// Returns the bytes of a tensor as `dtype`.
fn size_as(info: &TensorInfo, dtype: WeightType) -> usize {
    info.shape.iter().product::<usize>() / dtype.block_size() * dtype.type_size()
}

/// Builds the header of the copy: the metadata of the model and the mark.
///
/// # Errors
/// If the file cannot be read.
fn header(model: &WeightFile, tensors: &[(&String, &TensorInfo, WeightType)]) -> Result<Vec<u8>> {
    let gguf = model.gguf();
    let mut header = Vec::new();
    header.extend(b"GGUF");
    header.extend(3u32.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    let marked = is_copy(gguf);
    header.extend((gguf.metadata.len() as u64 + u64::from(!marked)).to_le_bytes());
    header.extend(model.metadata_bytes()?);
    let text = |header: &mut Vec<u8>, text: &str| {
        header.extend((text.len() as u64).to_le_bytes());
        header.extend(text.as_bytes());
    };
    if !marked {
        text(&mut header, MARK);
        header.extend(MARK_TYPE.to_le_bytes());
        header.push(1);
    }
    let mut offset = 0;
    for (name, info, dtype) in tensors {
        text(&mut header, name);
        header.extend((info.shape.len() as u32).to_le_bytes());
        info.shape.iter().rev().for_each(|&size| header.extend((size as u64).to_le_bytes()));
        header.extend(dtype.number().to_le_bytes());
        header.extend((offset as u64).to_le_bytes());
        let size = size_as(info, *dtype);
        offset += size + padding(size, alignment(gguf));
    }
    header.resize(header.len() + padding(header.len(), alignment(gguf)), 0);
    Ok(header)
}

fn alignment(gguf: &Gguf) -> usize {
    gguf.u32("general.alignment").unwrap_or(ALIGNMENT) as usize
}

fn padding(len: usize, alignment: usize) -> usize {
    len.next_multiple_of(alignment) - len
}

/// Converts a matrix to another type, with its rows split over threads. `step` gets the bytes that are read so far.
fn requantise(
    model: &WeightFile,
    info: &TensorInfo,
    dtype: WeightType,
    threads: usize,
    step: &mut dyn FnMut(usize) -> Result<()>,
) -> Result<Vec<u8>> {
    let width = info.shape.last().copied().unwrap_or(1);
    let rows = info.shape.iter().product::<usize>() / width;
    let row_bytes = info.range.len() / rows;
    let no_writer = || Error::Internal(format!("there is no writer for {dtype}"));
    let candle = dtype.candle().ok_or_else(no_writer)?;
    let convert = |part: Range<usize>| -> Result<Vec<u8>> {
        let bytes = model.tensor_bytes(info, part.start * row_bytes..part.end * row_bytes)?;
        let values = Tensor::from_vec(dequantise(info.dtype, bytes)?, (part.len(), width), &Device::Cpu)?;
        Ok(QTensor::quantize(&values, candle)?.data()?.into_owned())
    };
    let (each, at_once) = ((CHUNK / width).max(1), threads.max(1));
    let mut copy = Vec::with_capacity(rows * width / dtype.block_size() * dtype.type_size());
    for from in (0..rows).step_by(each * at_once) {
        step(rows.min(from + each * at_once) * row_bytes)?;
        let parts = (from..rows).step_by(each).take(at_once).map(|from| from..rows.min(from + each));
        std::thread::scope(|scope| -> Result<()> {
            let running: Vec<_> = parts.map(|part| scope.spawn(|| convert(part))).collect();
            for part in running {
                let failed = |_| Error::Internal("quantising a matrix failed".into());
                copy.extend(part.join().map_err(failed)??);
            }
            Ok(())
        })?;
    }
    Ok(copy)
}
