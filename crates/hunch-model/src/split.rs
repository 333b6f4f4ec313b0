//! Models split into several files (`name-00001-of-00003.gguf`), as written by llama.cpp's `gguf-split`.
//!
//! File names of parts, and merging their headers into one. The first part has the metadata, every part
//! has tensors. `split.no`, `split.count` and `split.tensors.count` identify the parts. The meaning of
//! other metadata does not belong here.

use std::path::{Path, PathBuf};

use crate::gguf::Gguf;
use crate::model_folder;
use hunch_error::{Error, Result};

/// Maximum number of parts. File names with a higher count are not treated as parts.
const MAX_PARTS: usize = 1024;
/// Maximum total size in bytes of the headers after the first, which are held in memory together.
const MAX_HEADER_BYTES: usize = 64 << 20;
/// Suffix of the name of a part, with zeros for digits.
const SUFFIX: &[u8] = b"-00000-of-00000";

/// Parsed file name of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartName {
    /// Name without the suffix, for example "Qwen3-8B-Q8_0".
    pub model: String,
    /// Number of the part, from 1.
    pub number: usize,
    /// Number of parts, at least 2.
    pub count: usize,
}

impl PartName {
    /// Parses the file name of a path. Returns `None` if it is not the name of a part.
    pub fn of(path: &Path) -> Option<Self> {
        let stem = path.file_stem()?.to_str()?;
        if !path.extension()?.eq_ignore_ascii_case("gguf") {
            return None;
        }
        let at = stem.len().checked_sub(SUFFIX.len()).filter(|&at| at > 0)?;
        let (model, suffix) = (stem.get(..at)?, stem.get(at..)?);
        let fits =
            |(have, want): (u8, &u8)| if *want == b'0' { have.is_ascii_digit() } else { have == *want };
        if !suffix.bytes().zip(SUFFIX).all(fits) {
            return None;
        }
        let (number, count) = (suffix[1..6].parse().ok()?, suffix[10..].parse().ok()?);
        let sound = (2..=MAX_PARTS).contains(&count) && (1..=count).contains(&number);
        sound.then(|| Self { model: model.to_owned(), number, count })
    }

    /// Returns the paths of all parts in the folder of `path`, in order. They may not exist.
    pub fn files(&self, path: &Path) -> Vec<PathBuf> {
        let file =
            |number| path.with_file_name(format!("{}-{number:05}-of-{:05}.gguf", self.model, self.count));
        // `path` itself stays unchanged, because its extension may be in capitals.
        (1..=self.count).map(|n| if n == self.number { path.to_path_buf() } else { file(n) }).collect()
    }
}

/// Returns a file name without its extension, and without the suffix of a part.
pub fn stem(path: &Path) -> String {
    if let Some(name) = model_folder::name(path) {
        return name;
    }
    match PartName::of(path) {
        Some(part) => part.model,
        None => path.file_stem().map_or_else(|| "model".into(), |stem| stem.to_string_lossy().into_owned()),
    }
}

/// Returns all files of a model, given any of them.
pub fn files(path: &Path) -> Vec<PathBuf> {
    if let Some(files) = model_folder::weight_files(path) {
        return files;
    }
    PartName::of(path).map_or_else(|| vec![path.to_path_buf()], |part| part.files(path))
}

/// Opens a model, given any of its files, and merges the headers.
///
/// `open_file` is called for each file. In the merged header, tensors have the number of their part,
/// and there is no metadata about splitting.
///
/// # Errors
/// Any error of `open_file`. [`Error::InvalidModelFile`] if a part is missing or does not match.
pub fn open<T>(path: &Path, mut open_file: impl FnMut(&Path) -> Result<(T, Gguf)>) -> Result<(Vec<T>, Gguf)> {
    let Some(name) = PartName::of(path) else {
        let (file, gguf) = open_file(path)?;
        return match gguf.u32("split.count") {
            None | Some(0 | 1) => {
                let mut merged = gguf;
                merged.remove_split_metadata();
                Ok((vec![file], merged))
            }
            Some(count) => Err(Error::InvalidModelFile {
                path: path.to_path_buf(),
                reason: format!(
                    "it is one of {count} parts of a model, but its name does not say which. Keep all parts \
                     in one folder, named NAME-00001-of-{count:05}.gguf and so on"
                ),
            }),
        };
    };
    let paths = name.files(path);
    check_all_exist(&paths)?;
    let (first, mut merged) = open_file(&paths[0])?;
    check_part(&merged, 0, name.count)?;
    let expected = merged.u32("split.tensors.count");
    let mut files = vec![first];
    let mut headers = 0usize;
    for (number, path) in paths.iter().enumerate().skip(1) {
        let (file, part) = open_file(path)?;
        check_part(&part, number, name.count)?;
        headers = headers.saturating_add(part.data_offset);
        if headers > MAX_HEADER_BYTES {
            return Err(Error::InvalidModelFile {
                path: part.path,
                reason: format!("the headers of its parts are longer than {} MiB", MAX_HEADER_BYTES >> 20),
            });
        }
        merge(&mut merged, part, number)?;
        files.push(file);
    }
    if let Some(expected) = expected
        && expected as usize != merged.tensors.len()
    {
        return Err(Error::InvalidModelFile {
            path: merged.path,
            reason: format!("its parts contain {} of {expected} tensors", merged.tensors.len()),
        });
    }
    merged.remove_split_metadata();
    Ok((files, merged))
}

/// Reads the header of a model, given any of its files.
///
/// # Errors
/// See [`open`], [`Gguf::read`] and [`model_folder`].
pub fn read(path: &Path) -> Result<Gguf> {
    if model_folder::is_part(path) {
        return model_folder::open(path).map(|(_, gguf)| gguf);
    }
    open(path, |path| Ok(((), Gguf::read(path)?))).map(|(_, gguf)| gguf)
}

fn check_all_exist(paths: &[PathBuf]) -> Result<()> {
    let missing = |path: &&PathBuf| !path.is_file();
    let Some(first) = paths.iter().find(missing) else { return Ok(()) };
    let names = paths.iter().filter(missing).filter_map(|path| path.file_name());
    let count = paths.iter().filter(missing).count();
    let named: Vec<_> = names.take(3).map(|name| name.to_string_lossy().into_owned()).collect();
    let rest = if count > 3 { format!(" and {} more", count - 3) } else { String::new() };
    // Report a part that exists, because that is the file the user can see.
    let here = paths.iter().find(|path| path.is_file()).unwrap_or(first);
    Err(Error::InvalidModelFile {
        path: here.clone(),
        reason: format!(
            "the model is split into {} files, of which {}{rest} {} missing",
            paths.len(),
            named.join(", "),
            if count == 1 { "is" } else { "are" }
        ),
    })
}

/// Checks that the metadata of a part matches its file name.
fn check_part(part: &Gguf, number: usize, count: usize) -> Result<()> {
    let number_of = |key: &str| part.u32(key).map(|value| value as usize);
    let reason = match (number_of("split.no"), number_of("split.count")) {
        (Some(no), Some(of)) if no == number && of == count => return Ok(()),
        (Some(no), Some(of)) => {
            format!("its name says part {} of {count}, but the file says part {} of {of}", number + 1, no + 1)
        }
        _ => {
            format!("its name says part {} of {count}, but the file does not say that it is one", number + 1)
        }
    };
    Err(Error::InvalidModelFile { path: part.path.clone(), reason })
}

/// Adds the tensors of a part to the merged header.
fn merge(merged: &mut Gguf, part: Gguf, number: usize) -> Result<()> {
    for (name, mut tensor) in part.tensors {
        if merged.tensors.contains_key(&name) {
            let reason = format!("the tensor {name} is in an earlier part as well");
            return Err(Error::InvalidModelFile { path: part.path, reason });
        }
        tensor.part = number;
        merged.tensors.insert(name, tensor);
    }
    merged.file_len = merged.file_len.saturating_add(part.file_len);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str) -> Option<(String, usize, usize)> {
        PartName::of(Path::new(name)).map(|p| (p.model, p.number, p.count))
    }

    #[test]
    fn parses_part_names() {
        assert_eq!(part("a/b/Big-Q8_0-00002-of-00003.gguf"), Some(("Big-Q8_0".into(), 2, 3)));
        assert_eq!(part("Big-00001-of-00002.GGUF"), Some(("Big".into(), 1, 2)));
        for other in [
            "Big.gguf",
            "-00001-of-00002.gguf",
            "Big-00003-of-00002.gguf",
            "Big-00000-of-00002.gguf",
            "Big-00001-of-00001.gguf",
            "Big-00001-of-99999.gguf",
            "Big-00001-of-00002.bin",
            "Big-0000é-of-00002.gguf",
            "é-00001-of-0000x.gguf",
            "00001-of-00002.gguf",
        ] {
            assert_eq!(part(other), None, "{other}");
        }
        assert_eq!(stem(Path::new("x/Big-00001-of-00002.gguf")), "Big");
        assert_eq!(stem(Path::new("x/Big.v1.gguf")), "Big.v1");
    }

    #[test]
    fn lists_all_files_from_any_part() {
        let files = files(Path::new("x/Big-00002-of-00003.gguf"));
        let names = ["x/Big-00001-of-00003.gguf", "x/Big-00002-of-00003.gguf", "x/Big-00003-of-00003.gguf"];
        assert_eq!(files, names.map(PathBuf::from));
    }
}
