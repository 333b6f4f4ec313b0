//! Models in several files: `name-00001-of-00003.gguf` and so on, as llama.cpp's `gguf-split` writes them.
//! How the parts are called, and how their headers become the header of one model. The first part has the
//! metadata, every part has tensors; `split.no`, `split.count` and `split.tensors.count` say what belongs
//! together. Nothing here knows what a model is.

use std::path::{Path, PathBuf};

use crate::gguf::Gguf;
use hunch_error::{Error, Result};

/// More parts than this no model has; a name that claims more is not believed.
pub const MAX_PARTS: usize = 1024;
/// Most bytes of the headers of all parts but the first: what they hold is kept together.
const MOST_HEADERS: usize = 64 << 20;
/// What a part's name ends in, digits as zeros.
const SUFFIX: &[u8] = b"-00000-of-00000";

/// What the name of a part tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartName {
    /// The name without the suffix, as "Qwen3-8B-Q8_0".
    pub model: String,
    /// Which part it is, from 1.
    pub number: usize,
    /// How many there are; at least 2.
    pub count: usize,
}

impl PartName {
    /// Reads the name of a file; `None` when it is not that of a part.
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

    /// The files of all parts, in order, beside `path`, whether they are there or not.
    pub fn files(&self, path: &Path) -> Vec<PathBuf> {
        let file =
            |number| path.with_file_name(format!("{}-{number:05}-of-{:05}.gguf", self.model, self.count));
        // The extension may be written in capitals: the file that is known to be there keeps its name.
        (1..=self.count).map(|n| if n == self.number { path.to_path_buf() } else { file(n) }).collect()
    }
}

/// A file's name without its extension; a part's without its suffix.
pub fn stem(path: &Path) -> String {
    match PartName::of(path) {
        Some(part) => part.model,
        None => path.file_stem().map_or_else(|| "model".into(), |stem| stem.to_string_lossy().into_owned()),
    }
}

/// The files that a model consists of, given any of them: several only for a split one.
pub fn files(path: &Path) -> Vec<PathBuf> {
    PartName::of(path).map_or_else(|| vec![path.to_path_buf()], |part| part.files(path))
}

/// Opens a model, given any of its files, with `one` for each. The header is that of the whole: every
/// tensor with the number of its part, and no word of splitting.
///
/// # Errors
/// As `one`; [`Error::InvalidModelFile`] when a part is missing or does not belong to the others.
pub fn open<T>(path: &Path, mut one: impl FnMut(&Path) -> Result<(T, Gguf)>) -> Result<(Vec<T>, Gguf)> {
    let Some(name) = PartName::of(path) else {
        let (file, gguf) = one(path)?;
        return match gguf.u32("split.count") {
            None | Some(0 | 1) => {
                let mut whole = gguf;
                whole.forget_split();
                Ok((vec![file], whole))
            }
            Some(count) => Err(Error::InvalidModelFile {
                path: path.to_path_buf(),
                reason: format!(
                    "it is one of {count} parts of a model, and its name does not say which; the parts \
                     have to lie in one folder and be called NAME-00001-of-{count:05}.gguf and so on"
                ),
            }),
        };
    };
    let paths = name.files(path);
    check_there(&paths)?;
    let (first, mut whole) = one(&paths[0])?;
    check(&whole, 0, name.count)?;
    let expected = whole.u32("split.tensors.count");
    let mut files = vec![first];
    let mut headers = 0usize;
    for (number, path) in paths.iter().enumerate().skip(1) {
        let (file, part) = one(path)?;
        check(&part, number, name.count)?;
        headers = headers.saturating_add(part.data_offset);
        if headers > MOST_HEADERS {
            return Err(Error::InvalidModelFile {
                path: part.path,
                reason: format!("the headers of its parts are longer than {} MiB", MOST_HEADERS >> 20),
            });
        }
        join(&mut whole, part, number)?;
        files.push(file);
    }
    if let Some(expected) = expected
        && expected as usize != whole.tensors.len()
    {
        return Err(Error::InvalidModelFile {
            path: whole.path,
            reason: format!("its parts hold {} of {expected} tensors", whole.tensors.len()),
        });
    }
    whole.forget_split();
    Ok((files, whole))
}

/// The header of a model, given any of its files.
///
/// # Errors
/// As [`open`] and [`Gguf::read`].
pub fn read(path: &Path) -> Result<Gguf> {
    open(path, |path| Ok(((), Gguf::read(path)?))).map(|(_, gguf)| gguf)
}

fn check_there(paths: &[PathBuf]) -> Result<()> {
    let missing = |path: &&PathBuf| !path.is_file();
    let Some(first) = paths.iter().find(missing) else { return Ok(()) };
    let names = paths.iter().filter(missing).filter_map(|path| path.file_name());
    let count = paths.iter().filter(missing).count();
    let named: Vec<_> = names.take(3).map(|name| name.to_string_lossy().into_owned()).collect();
    let rest = if count > 3 { format!(" and {} more", count - 3) } else { String::new() };
    // Named after a part that is there, which is what the person can see.
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

/// That a file is the part its name says.
fn check(part: &Gguf, number: usize, count: usize) -> Result<()> {
    let says = |key: &str| part.u32(key).map(|value| value as usize);
    let reason = match (says("split.no"), says("split.count")) {
        (Some(no), Some(of)) if no == number && of == count => return Ok(()),
        (Some(no), Some(of)) => {
            format!("its name says part {} of {count}, and the file says part {} of {of}", number + 1, no + 1)
        }
        _ => {
            format!("its name says part {} of {count}, and the file does not say that it is one", number + 1)
        }
    };
    Err(Error::InvalidModelFile { path: part.path.clone(), reason })
}

/// Adds the tensors of a part.
fn join(whole: &mut Gguf, part: Gguf, number: usize) -> Result<()> {
    for (name, mut tensor) in part.tensors {
        if whole.tensors.contains_key(&name) {
            let reason = format!("the tensor {name} is in an earlier part as well");
            return Err(Error::InvalidModelFile { path: part.path, reason });
        }
        tensor.part = number;
        whole.tensors.insert(name, tensor);
    }
    whole.file_len = whole.file_len.saturating_add(part.file_len);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str) -> Option<(String, usize, usize)> {
        PartName::of(Path::new(name)).map(|p| (p.model, p.number, p.count))
    }

    #[test]
    fn names_of_parts_are_read() {
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
    fn all_files_are_named_from_any() {
        let files = files(Path::new("x/Big-00002-of-00003.gguf"));
        let names = ["x/Big-00001-of-00003.gguf", "x/Big-00002-of-00003.gguf", "x/Big-00003-of-00003.gguf"];
        assert_eq!(files, names.map(PathBuf::from));
    }
}
