//! Validates names from users, the network and files. Covers repositories, paths in them, and local file
//! names. Paths that leave a folder are refused. Invalid names are never repaired.

use std::path::Path;

use hunch_error::{Error, Refusal, Result};
use hunch_model::heads::PICKLES;
use hunch_model::model_folder::{SETTINGS_FILES, is_safetensors};
use hunch_model::split::PartName;

use crate::types::DownloadRequest;

/// Limit of a path in a repository, in bytes.
const MAX_PATH_BYTES: usize = 1024;
/// Limit of a file name, in bytes. Every file system accepts it, with room for a suffix.
const MAX_NAME_BYTES: usize = 200;
/// The Hub's limit of each part of a repository name, in characters.
const MAX_REPOSITORY_PART_CHARS: usize = 96;

/// Hosts whose page addresses name repositories.
const HOSTS: [&str; 2] = ["huggingface.co", "hf.co"];

/// Normalises "owner/name" or the address of a repository's page to "owner/name".
///
/// # Errors
/// [`Error::InvalidRequest`] if it is not a repository.
pub fn repository(text: &str) -> Result<String> {
    repository_at(text, "")
}

/// Like [`repository`], also accepting page addresses of the Hub at `endpoint`. Addresses of other hosts
/// are refused, because this Hub may have other content under the same name.
pub(super) fn repository_at(text: &str, endpoint: &str) -> Result<String> {
    parse(text, endpoint).map(|(repository, _)| repository)
}

/// Returns the part after the colon of a repository name. Ollama and llama.cpp write "owner/name:Q8_0" or
/// "owner/name:file.gguf".
///
/// # Errors
/// As [`repository`].
pub(super) fn selector_at(text: &str, endpoint: &str) -> Result<Option<String>> {
    parse(text, endpoint).map(|(_, selector)| selector)
}

/// Splits a repository and the part after its colon.
fn parse(text: &str, endpoint: &str) -> Result<(String, Option<String>)> {
    let refused = || Error::from(Refusal::NotARepository);
    let without_scheme = |text: &str| {
        ["http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme)).map(str::to_owned)
    };
    let own = without_scheme(endpoint).map(|host| host.trim_end_matches('/').to_owned());
    let text = text.trim();
    let address = without_scheme(text);
    let rest = address.as_deref().unwrap_or(text);
    let below = |host: &str| {
        let (start, path) = rest.split_at_checked(host.len())?;
        start.eq_ignore_ascii_case(host).then(|| path.strip_prefix('/')).flatten()
    };
    let path = match HOSTS.into_iter().chain(own.as_deref()).find_map(below) {
        Some(path) => path,
        None if address.is_some() => return Err(refused()),
        None => text,
    };
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let mut parts: Vec<&str> = path.trim_end_matches('/').split('/').collect();
    // Addresses of folders, files and discussions start with the repository.
    if parts.len() > 2 && ["tree", "blob", "resolve", "discussions"].contains(&parts[2]) {
        parts.truncate(2);
    }
    let mut selector = None;
    if let [_, name] = &mut parts[..]
        && let Some((before, after)) = name.split_once(':')
    {
        *name = before;
        // Ollama's "latest" means that nothing was chosen.
        selector = Some(after.to_owned()).filter(|after| !["", "latest"].contains(&after.as_str()));
    }
    // Read again, such a name would be an address and mean another repository.
    let is_host =
        |part: &str| HOSTS.into_iter().chain(own.as_deref()).any(|host| part.eq_ignore_ascii_case(host));
    let owned_by_host = parts.len() == 2 && is_host(parts[0]);
    if parts.len() > 2 || owned_by_host || !parts.iter().all(|part| is_repository_part(part)) {
        return Err(refused());
    }
    Ok((parts.join("/"), selector))
}

/// Checks one part of a repository name by the Hub's rules.
fn is_repository_part(part: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let edge = |c: char| c == '-' || c == '.';
    (1..=MAX_REPOSITORY_PART_CHARS).contains(&part.len())
        && part.chars().all(allowed)
        && !part.starts_with(edge)
        && !part.ends_with(edge)
        && !part.contains("..")
        && !part.contains("--")
}

/// Checks that a path stays in its repository and is that of a model. It is a GGUF file with a valid local name, or the
/// first weight file of a [folder](is_folder).
///
/// # Errors
/// [`Error::InvalidRequest`] if it is not.
pub fn check_path(path: &str) -> Result<()> {
    // Not quoted, because it may contain control characters.
    let is_model = is_gguf(path) || is_weight_file(path) || is_pickle(path);
    if is_model { Ok(()) } else { Err(Refusal::NotAModelPath.into()) }
}

/// Checks that a path stays in its repository and is that of a file of a model: also a folder's settings.
///
/// # Errors
/// [`Error::InvalidRequest`] if it is not.
pub(crate) fn check_part(path: &str) -> Result<()> {
    if SETTINGS_FILES.contains(&path) { Ok(()) } else { check_path(path) }
}

/// Checks that a path stays in its repository and ends in a valid local name of a GGUF file.
pub(super) fn is_gguf(path: &str) -> bool {
    let is_safe = path.len() <= MAX_PATH_BYTES && path.split('/').all(is_file_part);
    let is_gguf = Path::new(path).extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    is_safe && is_gguf && file_name(path).len() <= MAX_NAME_BYTES
}

/// Checks that a path is a weight file of a folder, and not in a folder of the repository.
pub(super) fn is_weight_file(path: &str) -> bool {
    path.len() <= MAX_NAME_BYTES
        && !path.contains('/')
        && is_file_part(path)
        && is_safetensors(Path::new(path))
}

/// Checks that a path is the weight file of a head in Python's pickle format. Only its tensors are read.
pub(super) fn is_pickle(path: &str) -> bool {
    PICKLES.contains(&path)
}

/// Returns `true` if the path of a model is that of a folder in the layout of Hugging Face: its first weight file.
pub fn is_folder(path: &str) -> bool {
    is_safetensors(Path::new(path)) || is_pickle(path)
}

/// Returns the local name of a downloaded model: of its file, or of a folder's repository.
pub(crate) fn model_name(request: &DownloadRequest) -> &str {
    if is_folder(&request.file) { file_name(&request.repository) } else { short_name(&request.file) }
}

/// Checks one segment of a path: no separators, parent folders, hidden names or reserved characters.
fn is_file_part(part: &str) -> bool {
    let trimmed = part.trim_matches(|c: char| c.is_whitespace() || c == '.');
    !trimmed.is_empty()
        && !part.starts_with('.')
        && !part.ends_with(['.', ' '])
        && !part.chars().any(|c| c.is_control() || is_direction_mark(c) || "\\:*?\"<>|".contains(c))
}

/// Checks for characters that change the text direction and can disguise a name.
pub(super) fn is_direction_mark(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Parses the part number in a path.
fn part_name(path: &str) -> Option<PartName> {
    PartName::of(Path::new(file_name(path)))
}

/// Returns the last segment of a path.
pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns the local name of a model: its file name without extension and part number.
pub fn short_name(path: &str) -> &str {
    let name = file_name(path);
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    part_name(path).map_or(stem, |part| &stem[..part.model.len()])
}

/// Returns the number and count of a split model's part: "…-00001-of-00003.gguf" is 1 of 3.
pub fn part_number(path: &str) -> Option<(u32, u32)> {
    part_name(path).map(|part| (part.number as u32, part.count as u32))
}

/// Returns the local name of a file: part `part` (from 0) of the model `stem`.
pub fn local_file(stem: &str, part: usize, parts: usize) -> String {
    match parts {
        1 => format!("{stem}.gguf"),
        _ => format!("{stem}-{:05}-of-{parts:05}.gguf", part + 1),
    }
}

/// Returns the quantisation in a file name, such as "Q4_K_M", or an empty string.
pub fn quantisation(path: &str) -> String {
    let stem = short_name(path).to_ascii_uppercase();
    let starts = stem.char_indices().filter(|&(at, c)| {
        c.is_ascii_alphanumeric()
            && !stem[..at].chars().next_back().is_some_and(|before| before.is_ascii_alphanumeric())
    });
    // The last one counts: "f16-to-q4_0" is Q4_0.
    let mut found = String::new();
    for (at, _) in starts {
        let word =
            stem[at..].split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default();
        if is_quantisation(word) {
            found = word.to_owned();
        }
    }
    found
}

fn is_quantisation(word: &str) -> bool {
    if ["F16", "BF16", "F32", "FP16", "FP32", "MXFP4", "MXFP4_MOE", "NVFP4"].contains(&word) {
        return true;
    }
    let digits = ["IQ", "TQ", "Q"].iter().find_map(|kind| word.strip_prefix(kind));
    digits.is_some_and(|rest| {
        let mut parts = rest.split('_');
        let bits = parts.next().unwrap_or_default();
        bits.len() == 1
            && bits.starts_with(|c: char| c.is_ascii_digit())
            && parts.all(|p| (1..=4).contains(&p.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_repository_names_and_page_addresses() {
        for text in [
            "Qwen/Qwen3-8B-GGUF",
            " Qwen/Qwen3-8B-GGUF ",
            "https://huggingface.co/Qwen/Qwen3-8B-GGUF",
            "https://huggingface.co/Qwen/Qwen3-8B-GGUF/tree/main?show=1#files",
            "hf.co/Qwen/Qwen3-8B-GGUF/",
            "hf.co/Qwen/Qwen3-8B-GGUF:Q4_K_M",
        ] {
            assert_eq!(repository(text).unwrap(), "Qwen/Qwen3-8B-GGUF", "{text}");
        }
        assert_eq!(repository("gpt2").unwrap(), "gpt2");
        for text in
            ["https://Mirror.example:8080/hf/a/b/", "mirror.example:8080/hf/a/b", "https://hf.co/a/b", "a/b"]
        {
            assert_eq!(repository_at(text, "http://mirror.example:8080/hf/").unwrap(), "a/b", "{text}");
        }
        for text in [
            "https://mirror.example:8080/hf/a/b",
            "https://github.com/a/b",
            "https://huggingface.co.example/a/b",
            "https://me@huggingface.co/a/b",
            "https://huggingface.co",
            "github.com:443/a/b",
            "https://huggingface.co/HF.co/a",
            "huggingface.co/huggingface.co/a",
        ] {
            assert!(repository_at(text, "https://huggingface.co").is_err(), "{text:?}");
        }
        for text in
            ["", "/", "a/b/c", "../b", "a/..", "a//b", "a b/c", "ftp://x/a/b", "a/b\0", ".a/b", "a/b-", "ä/b"]
        {
            assert!(repository(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn reads_the_part_after_the_colon() {
        let selector = |text: &str| selector_at(text, "http://mirror.example:8080/hf/").unwrap();
        for (text, expected) in [
            ("hf.co/Qwen/Qwen3-8B-GGUF:Q8_0", Some("Q8_0")),
            ("https://huggingface.co/a/b:q4_k_m?show=1", Some("q4_k_m")),
            ("mirror.example:8080/hf/a/b:m-Q8_0.gguf", Some("m-Q8_0.gguf")),
            ("mirror.example:8080/hf/a/b", None),
            ("a/b", None),
            ("a/b:", None),
            ("hf.co/a/b:latest", None),
            ("hf.co/a/b/blob/main/m:x.gguf", None),
        ] {
            assert_eq!(selector(text).as_deref(), expected, "{text}");
        }
        assert!(selector_at("a:Q8_0", "").is_err(), "an owner is required");
    }

    #[test]
    fn refuses_paths_that_could_leave_the_folder() {
        for path in ["m.gguf", "q4/m-Q4_K_M.GGUF", "Modell für alle 日本.gguf"] {
            assert!(check_path(path).is_ok(), "{path}");
        }
        let long = format!("{}.gguf", "a".repeat(MAX_NAME_BYTES));
        for path in [
            "",
            ".gguf",
            "m.bin",
            "/m.gguf",
            "../m.gguf",
            "a/../m.gguf",
            "a//m.gguf",
            "a/./m.gguf",
            "C:\\m.gguf",
            "C:m.gguf",
            "a\\m.gguf",
            "m\0.gguf",
            ".hidden/m.gguf",
            "m\u{202e}fugg.gguf",
            "a/ /m.gguf",
            "m\n.gguf",
            &long,
        ] {
            assert!(check_path(path).is_err(), "{path:?}");
        }
        // Folders have their files at the top of the repository, under known names.
        for path in ["model.safetensors", "model-00001-of-00002.safetensors"] {
            assert!(check_path(path).is_ok() && check_part(path).is_ok() && is_folder(path), "{path}");
        }
        assert!(check_part("config.json").is_ok() && check_path("config.json").is_err());
        for path in
            ["a/model.safetensors", "../model.safetensors", ".safetensors", "other.json", "a/config.json"]
        {
            assert!(check_part(path).is_err(), "{path}");
        }
    }

    #[test]
    fn parses_part_numbers_and_quantisations() {
        assert_eq!(part_number("a/big-Q8_0-00002-of-00003.gguf"), Some((2, 3)));
        for path in [
            "big-00004-of-00003.gguf",
            "big-00000-of-00003.gguf",
            "-00001-of-00003.gguf",
            "00001-of-3.gguf",
            "whole-00001-of-00001.gguf",
            "big-00001-of-99999.gguf",
            "ü.gguf",
        ] {
            assert_eq!(part_number(path), None, "{path}");
        }
        assert_eq!(short_name("a/big-Q8_0-00002-of-00003.gguf"), "big-Q8_0");
        assert_eq!(short_name("a/small.q4_0.gguf"), "small.q4_0");
        assert_eq!(local_file("big", 1, 3), "big-00002-of-00003.gguf");
        for (path, expected) in [
            ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
            ("smollm2-135m-instruct-q4_1.gguf", "Q4_1"),
            ("model.IQ2_XXS.gguf", "IQ2_XXS"),
            ("model-TQ1_0.gguf", "TQ1_0"),
            ("gpt-oss-20b-mxfp4_moe.gguf", "MXFP4_MOE"),
            ("model-nvfp4.gguf", "NVFP4"),
            ("gemma-UD-Q4_K_XL-00001-of-00002.gguf", "Q4_K_XL"),
            ("a_q8_0.gguf", "Q8_0"),
            ("x-bf16.gguf", "BF16"),
            ("f16-to-q4_0.gguf", "Q4_0"),
            ("Qwen3-8B.gguf", ""),
        ] {
            assert_eq!(quantisation(path), expected, "{path}");
        }
    }
}
