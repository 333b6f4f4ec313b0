//! Heads in pickles of PyTorch: `medusa_lm_head.pt` and `pytorch_model.bin`.
//!
//! Archive and pickle are bounded first ([`pickle_check`]). candle's reader then builds tensors from the pickle and runs
//! none of its code. Each tensor is unpacked when it is loaded.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::pickle::PthTensors;
use candle_core::{DType, Tensor};
use hunch_error::{Error, Result};

use super::pickle_check;
use crate::file::ModelFile;
use crate::gguf::{TensorInfo, WeightType};
use crate::tensor_files::{NumberType, Numbers, TensorFiles};

/// Names of the files.
pub const PICKLES: [&str; 2] = ["medusa_lm_head.pt", "pytorch_model.bin"];

/// Returns the path of the pickle: `path` itself, or a file with a known name in the folder `path`.
pub(super) fn file_at(path: &Path) -> Option<PathBuf> {
    let has_name = |path: &Path| PICKLES.iter().any(|name| path.file_name().is_some_and(|own| own == *name));
    if path.is_file() {
        return has_name(path).then(|| path.to_path_buf());
    }
    PICKLES.iter().map(|name| path.join(name)).find(|path| path.is_file())
}

/// Opens a pickle and checks its tensors.
///
/// # Errors
/// [`Error::InvalidModelFile`] if the file is damaged or not a pickle of tensors, or if a tensor's type or layout is
/// unsupported.
pub(super) fn open(path: &Path) -> Result<TensorFiles> {
    let invalid = |reason: String| Error::InvalidModelFile { path: path.to_path_buf(), reason };
    let unreadable =
        |error: candle_core::Error| invalid(format!("it is no pickle of tensors ({})", first_line(&error)));
    let file = ModelFile::open(path)?;
    let size = file.len();
    pickle_check::check(path, &file).map_err(invalid)?;
    // The reader takes the number of arguments in the pickle for granted.
    let read = std::panic::catch_unwind(|| PthTensors::new(path, None));
    let damaged = |_| invalid("it is no pickle of tensors".into());
    let opened = Arc::new(read.map_err(damaged)?.map_err(unreadable)?);
    let (mut files, mut tensors, mut numbers) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    let mut infos: Vec<_> = opened.tensor_infos().values().collect();
    infos.sort_by(|a, b| a.name.cmp(&b.name));
    if infos.is_empty() {
        return Err(invalid("it has no tensors".into()));
    }
    for info in infos {
        let name = info.name.clone();
        let shape = info.layout.dims().to_vec();
        let elements = shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size));
        let len = elements.filter(|&count| count > 0).and_then(|n| n.checked_mul(info.dtype.size_in_bytes()));
        // PyTorch does not compress tensors.
        let Some(len) = len.filter(|len| info.layout.is_contiguous() && *len <= size) else {
            return Err(invalid(format!("the tensor {name} is empty, transposed or larger than the file")));
        };
        let part = files.len();
        let (source, range) = (opened.clone(), 0..len);
        let unpack = {
            let name = name.clone();
            move || unpack(&source, &name, len)
        };
        files.push(Arc::new(ModelFile::unpacked(path, len, Box::new(unpack))));
        match weight_type(info.dtype) {
            Some(dtype) => drop(tensors.insert(name, TensorInfo { shape, dtype, part, range })),
            None => {
                let dtype = number_type(info.dtype);
                numbers.insert(name, Numbers { dtype, file: part, range });
            }
        }
    }
    Ok(TensorFiles::new(path, files, tensors, numbers))
}

fn weight_type(dtype: DType) -> Option<WeightType> {
    match dtype {
        DType::F32 => Some(WeightType::F32),
        DType::F16 => Some(WeightType::F16),
        DType::BF16 => Some(WeightType::BF16),
        _ => None,
    }
}

fn number_type(dtype: DType) -> NumberType {
    match dtype {
        DType::I64 => NumberType::I64,
        DType::I32 => NumberType::I32,
        _ => NumberType::Other,
    }
}

/// Reads the bytes of a tensor.
fn unpack(opened: &PthTensors, name: &str, len: usize) -> std::io::Result<Vec<u8>> {
    let damaged = |reason: String| std::io::Error::new(std::io::ErrorKind::InvalidData, reason);
    let tensor = opened.get(name).map_err(|error| damaged(format!("{name}: {}", first_line(&error))))?;
    let tensor = tensor.ok_or_else(|| damaged(format!("{name} is missing")))?;
    let bytes = bytes_of(&tensor).map_err(|error| damaged(format!("{name}: {}", first_line(&error))))?;
    if bytes.len() == len {
        Ok(bytes)
    } else {
        Err(damaged(format!("{name} has {} of {len} bytes", bytes.len())))
    }
}

/// Returns the elements in little endian.
fn bytes_of(tensor: &Tensor) -> candle_core::Result<Vec<u8>> {
    let flat = tensor.flatten_all()?;
    Ok(match flat.dtype() {
        DType::F32 => flat.to_vec1::<f32>()?.into_iter().flat_map(f32::to_le_bytes).collect(),
        DType::F16 => flat.to_vec1::<half::f16>()?.into_iter().flat_map(half::f16::to_le_bytes).collect(),
        DType::BF16 => flat.to_vec1::<half::bf16>()?.into_iter().flat_map(half::bf16::to_le_bytes).collect(),
        DType::I64 => flat.to_vec1::<i64>()?.into_iter().flat_map(i64::to_le_bytes).collect(),
        DType::I32 => flat.to_vec1::<i32>()?.into_iter().flat_map(i32::to_le_bytes).collect(),
        other => candle_core::bail!("elements of the type {other:?}"),
    })
}

/// Returns the first line of an error. candle's errors may include a backtrace.
fn first_line(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().chars().take(200).collect()
}
