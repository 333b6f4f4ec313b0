//! Models of a repository: its GGUF files, with the parts of split models joined. The repository itself is one if it is
//! the folder of a model or of a head.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::client::{Hub, RequestFailure};
use super::names;
use crate::types::{HubFile, HubRepository};
use hunch_error::{Error, Refusal};
use hunch_model::model_folder::{self, SETTINGS_FILES};

/// A file on the Hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RemoteFile {
    /// Path in the repository, accepted by [`names::check_part`].
    pub(crate) path: String,
    pub(crate) size: u64,
    /// Lowercase. Large files have one.
    pub(crate) sha256: Option<String>,
}

/// A repository and the files of its models.
#[derive(Clone, Debug)]
pub(crate) struct Listing {
    pub(crate) repository: HubRepository,
    /// Files of each model, by the path of its first part.
    models: BTreeMap<String, Vec<RemoteFile>>,
}

#[derive(Deserialize)]
struct RepoResponse {
    sha: String,
    #[serde(default)]
    gated: Value,
    #[serde(default, rename = "cardData")]
    card: Value,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    config: Value,
    #[serde(default)]
    siblings: Vec<RepoFile>,
}

#[derive(Deserialize)]
struct RepoFile {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<LfsInfo>,
}

#[derive(Deserialize)]
struct LfsInfo {
    size: Option<u64>,
    sha256: Option<String>,
}

impl Hub {
    /// Lists a repository. One request returns the sizes and checksums of all files.
    pub(crate) async fn listing(&self, repository: &str) -> Result<Listing, RequestFailure> {
        let mut url = self.url(["api", "models"].into_iter().chain(repository.split('/')));
        url.set_query(Some("blobs=true"));
        let body = self.read(url, repository).await?;
        Listing::parse(repository, &body).map_err(|why| self.transient(why, None))
    }
}

/// Parses the Hub's response to `GET /api/models/{repository}?blobs=true`.
///
/// Lists complete models only, smallest first. Files with a path that [`check_path`](names::check_path) refuses are
/// skipped.
///
/// # Errors
/// The reason, as a phrase, if the response is not JSON of that form or names no revision.
pub fn parse_listing(repository: &str, body: &[u8]) -> Result<HubRepository, &'static str> {
    Listing::parse(repository, body).map(|listing| listing.repository)
}

/// Reads `gated`: false, or how access is granted.
pub(super) fn is_gated(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Bool(false))
}

/// Checks a commit id, which becomes part of addresses.
fn is_revision(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric())
}

impl Listing {
    fn parse(repository: &str, body: &[u8]) -> Result<Self, &'static str> {
        // A captive portal's login page, for example, is not JSON.
        let response: RepoResponse =
            serde_json::from_slice(body).map_err(|_| "the response is not a Hub's")?;
        match is_revision(&response.sha) {
            true => Ok(Self::new(repository, response)),
            false => Err("the response names no revision"),
        }
    }

    fn new(repository: &str, response: RepoResponse) -> Self {
        let licence_tag = || response.tags.iter().find_map(|tag| tag.strip_prefix("license:"));
        let licence =
            response.card.get("license").and_then(Value::as_str).or_else(licence_tag).map(str::to_owned);
        let files: Vec<RemoteFile> = response.siblings.into_iter().filter_map(remote_file).collect();
        let tags: Vec<&str> = response.tags.iter().map(String::as_str).collect();
        let bits = bits(&json!({ "config": response.config }), &tags);
        // Models with a tokeniser of their own may have such names too, as those of images do.
        let has_tokeniser = files.iter().any(|file| file.path == TOKENISER);
        let is_head = !has_tokeniser && is_head(repository, &response.config);
        let folder = folder(&files, is_head);
        let mut models = models(files.into_iter().filter(|file| is_model_path(&file.path)));
        models.extend(folder.map(|parts| (parts[0].path.clone(), parts)));
        let mut files: Vec<HubFile> = models.values().map(|parts| hub_file(parts, &bits, is_head)).collect();
        files.sort_by(|a, b| (a.size_bytes, &a.path).cmp(&(b.size_bytes, &b.path)));
        let gated = is_gated(&response.gated);
        let repository = HubRepository {
            repository: repository.to_owned(),
            revision: response.sha,
            gated,
            licence,
            files,
        };
        Self { repository, models }
    }

    /// Returns the files of a model, in order. A head is one folder: any name of a weight file stands for it, even one
    /// that it lacks.
    pub(crate) fn parts(&self, path: &str) -> Result<&[RemoteFile], Error> {
        let is_head = |file: &&HubFile| file.is_head && names::is_folder(path);
        let head = || self.models.get(&self.repository.files.iter().find(is_head)?.path);
        self.models
            .get(path)
            .or_else(head)
            .map(Vec::as_slice)
            .ok_or_else(|| Refusal::NoSuchHubFile { repository: self.repository.repository.clone() }.into())
    }
}

/// Quantisation chosen by default: a common compromise of size and quality.
const DEFAULT_QUANTISATION: &str = "Q4_K_M";

/// Chooses a model of a repository by path, name, suffix or quantisation. Without any, the only model or
/// the default quantisation.
///
/// # Errors
/// [`Error::HubNotFound`] with the choices.
pub fn choose_file<'a>(repository: &'a HubRepository, selector: Option<&str>) -> Result<&'a HubFile, Error> {
    let files = &repository.files;
    let of_type = |file: &HubFile, selector: &str| file.quantisation.eq_ignore_ascii_case(selector);
    let is_match = |file: &&HubFile| match selector {
        Some(selector) => of_type(file, selector) || is_named(file, selector),
        None => files.len() == 1 || of_type(file, DEFAULT_QUANTISATION),
    };
    let mut found = files.iter().filter(is_match);
    match (found.next(), found.next()) {
        (Some(file), None) => Ok(file),
        (first, _) => {
            let name = &repository.repository;
            Err(Error::HubNotFound {
                what: match (first, selector) {
                    _ if files.is_empty() => format!("a model in {name}"),
                    (_, None) => format!("a default model in {name}"),
                    (Some(_), Some(selector)) => {
                        format!("a single model matching {selector:?} in {name}")
                    }
                    (None, Some(selector)) => format!("{selector:?} in {name}"),
                },
                remedy: choices(files),
            })
        }
    }
}

/// Checks whether a path, file name or suffix names this file. Suffixes distinguish "UD-Q4_K_XL" from "Q4_K_XL".
fn is_named(file: &HubFile, selector: &str) -> bool {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    let stem = names::short_name(name);
    let ends = || {
        let (before, end) = stem.split_at_checked(stem.len().checked_sub(selector.len())?)?;
        Some(before.ends_with(['-', '.']) && end.eq_ignore_ascii_case(selector))
    };
    [&*file.path, name, stem].contains(&selector) || ends().unwrap_or(false)
}

/// Lists the quantisations and files to choose from.
fn choices(files: &[HubFile]) -> String {
    if files.is_empty() {
        return "Choose a repository of GGUF files, whose name often ends in -GGUF, a folder of MLX, or a head."
            .into();
    }
    let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let paths = format!("Choose one of its files: {}.", paths.join(", "));
    let types = files.iter().map(|file| file.quantisation.as_str()).filter(|name| !name.is_empty());
    let types: Vec<&str> = types.collect::<BTreeSet<_>>().into_iter().collect();
    if types.is_empty() { paths } else { format!("Its quantisations are {}. {paths}", types.join(", ")) }
}

/// Checks that a path can be that of a model. Multimodal projectors and importance matrices are not models.
pub(super) fn is_model_path(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    names::is_gguf(path) && !name.starts_with("mmproj") && !name.starts_with("imatrix")
}

/// Returns the quantisation that a path names. The folder may name it: "Q8_0/model-00001-of-00002.gguf".
pub(super) fn quantisation_of(path: &str) -> String {
    let folder = || {
        path.rsplit_once('/')
            .map_or(String::new(), |(folder, _)| names::quantisation(&format!("{folder}.gguf")))
    };
    Some(names::quantisation(path)).filter(|found| !found.is_empty()).unwrap_or_else(folder)
}

/// Returns the bits of an MLX folder, from its configuration or its tags, such as "4-bit".
pub(super) fn bits(value: &Value, tags: &[&str]) -> Vec<String> {
    let stated = ["quantization", "quantization_config"].iter().find_map(|key| {
        value.get("config")?.get(key)?.get("bits")?.as_u64().filter(|bits| (1..=16).contains(bits))
    });
    let tagged = tags.iter().find_map(|tag| {
        let bits = tag.strip_suffix("-bit")?.parse::<u64>().ok()?;
        (1..=16).contains(&bits).then_some(bits)
    });
    stated.or(tagged).map(|bits| format!("{bits}-bit")).into_iter().collect()
}

/// Converts a listed file that can be one of a model. Unsafe names are skipped.
fn remote_file(response: RepoFile) -> Option<RemoteFile> {
    if !is_model_path(&response.rfilename)
        && (names::is_gguf(&response.rfilename) || names::check_part(&response.rfilename).is_err())
    {
        return None;
    }
    let (lfs_size, sha256) = response.lfs.map_or((None, None), |lfs| (lfs.size, lfs.sha256));
    let is_hash = |text: &String| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    Some(RemoteFile {
        path: response.rfilename,
        size: lfs_size.or(response.size)?,
        sha256: sha256.map(|text| text.to_ascii_lowercase()).filter(is_hash),
    })
}

/// Groups files into models. Incomplete split models are skipped. If names repeat, the first counts.
fn models(files: impl Iterator<Item = RemoteFile>) -> BTreeMap<String, Vec<RemoteFile>> {
    // By name and part count, then by part number.
    let mut groups: BTreeMap<(String, u32), BTreeMap<u32, RemoteFile>> = BTreeMap::new();
    for file in files {
        let (key, number) = match names::part_number(&file.path) {
            Some((number, count)) => {
                let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
                ((format!("{folder}/{}", names::short_name(&file.path)), count), number)
            }
            None => ((file.path.clone(), 1), 1),
        };
        groups.entry(key).or_default().entry(number).or_insert(file);
    }
    let whole = |((_, count), parts): ((String, u32), BTreeMap<u32, RemoteFile>)| {
        parts.keys().copied().eq(1..=count).then(|| {
            let parts: Vec<RemoteFile> = parts.into_values().collect();
            (parts[0].path.clone(), parts)
        })
    };
    groups.into_iter().filter_map(whole).collect()
}

/// File that models have, and most heads lack.
pub(crate) const TOKENISER: &str = SETTINGS_FILES[1];

/// Words in the names of heads and of their architectures.
const HEAD_WORDS: [&str; 6] = ["eagle", "medusa", "speculator", "accelerator", "dflash", "dspark"];

/// Returns `true` if the name of a repository, or the architecture in its configuration, is that of a head.
fn is_head(repository: &str, config: &Value) -> bool {
    let architectures = config.get("architectures").and_then(Value::as_array).into_iter().flatten();
    architectures.filter_map(Value::as_str).chain([names::file_name(repository)]).any(is_head_name)
}

/// Returns `true` if a name of a repository or an architecture is that of a head.
pub(crate) fn is_head_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    HEAD_WORDS.iter().any(|word| name.contains(word))
}

/// Returns the files of the repository as a folder, weights first. `None` if it lacks the weights, the configuration or
/// the tokeniser. Heads use the tokeniser of their model.
fn folder(files: &[RemoteFile], is_head: bool) -> Option<Vec<RemoteFile>> {
    let named = |name: &str| files.iter().find(|file| file.path == name);
    let needed = if is_head { &SETTINGS_FILES[..1] } else { &SETTINGS_FILES[..2] };
    needed.iter().all(|name| named(name).is_some()).then_some(())?;
    let mut weights: Vec<&RemoteFile> =
        files.iter().filter(|file| names::is_weight_file(&file.path)).collect();
    if is_head && weights.is_empty() {
        weights.extend(files.iter().find(|file| names::is_pickle(&file.path)));
    }
    // Files with other names, such as "consolidated.safetensors", are copies for other programs.
    if weights.iter().any(|file| file.path.starts_with("model")) {
        weights.retain(|file| file.path.starts_with("model"));
    }
    // Some file systems take names in upper and lower case for the same.
    weights.sort_by_key(|file| (file.path.to_ascii_lowercase(), &file.path));
    weights.dedup_by(|a, b| a.path.eq_ignore_ascii_case(&b.path));
    let whole = named("model.safetensors").filter(|_| named("model.safetensors.index.json").is_none());
    let weights = whole.map_or(weights, |file| vec![file]);
    let settings: Vec<&RemoteFile> = SETTINGS_FILES.iter().filter_map(|name| named(name)).collect();
    let readable = settings.iter().all(|file| file.size <= model_folder::most_bytes(&file.path));
    (!weights.is_empty() && readable).then(|| weights.into_iter().chain(settings).cloned().collect())
}

/// Describes a model. `bits` are those of the repository as a folder, and `is_head` says whether that is a head.
fn hub_file(parts: &[RemoteFile], bits: &[String], is_head: bool) -> HubFile {
    let path = parts[0].path.clone();
    HubFile {
        parts: parts.len() as u32,
        size_bytes: parts.iter().fold(0, |sum, part| part.size.saturating_add(sum)),
        sha256: if parts.len() == 1 { parts[0].sha256.clone() } else { None },
        quantisation: match names::is_folder(&path) {
            true => bits.first().cloned().unwrap_or_default(),
            false => quantisation_of(&path),
        },
        is_head: is_head && names::is_folder(&path),
        path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_complete_models_smallest_first() {
        let lfs = |name: &str, size: u64| serde_json::json!({"rfilename": name, "size": size, "lfs": {"sha256": "AB".repeat(32), "size": size}});
        let response = serde_json::json!({
            "sha": "abc123", "gated": "manual", "tags": ["gguf", "license:mit"],
            "siblings": [
                lfs("big-Q8_0-00001-of-00002.gguf", 50), lfs("big-Q8_0-00002-of-00002.gguf", 30),
                lfs("half-00001-of-00002.gguf", 1), lfs("small-Q4_0.gguf", 10),
                lfs("../../evil.gguf", 1), lfs("mmproj-f16.gguf", 1),
                {"rfilename": "README.md", "size": 5}, {"rfilename": "unknown.gguf"},
            ],
        });
        let listing = Listing::new("a/b", serde_json::from_value(response).unwrap());
        let repository = &listing.repository;
        assert!(repository.gated);
        assert_eq!(repository.licence.as_deref(), Some("mit"));
        let names: Vec<&str> = repository.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(names, ["small-Q4_0.gguf", "big-Q8_0-00001-of-00002.gguf"]);
        assert_eq!((repository.files[1].parts, repository.files[1].size_bytes), (2, 80));
        assert_eq!(repository.files[0].sha256, Some("ab".repeat(32)));
        assert_eq!(listing.parts("big-Q8_0-00001-of-00002.gguf").unwrap().len(), 2);
        assert!(listing.parts("half-00001-of-00002.gguf").is_err());
    }

    #[test]
    fn lists_repository_of_safetensors_files_as_one_folder() {
        let list = |names: &[&str]| {
            let file =
                |name: &&str| json!({"rfilename": name, "size": 10, "lfs": {"sha256": "ab".repeat(32)}});
            let siblings: Vec<Value> = names.iter().map(file).collect();
            let config = json!({"quantization_config": {"bits": 4}});
            let response = json!({"sha": "abc", "siblings": siblings, "config": config});
            Listing::new("a/b", serde_json::from_value(response).unwrap())
        };
        let settings = ["config.json", "tokenizer.json"];
        let paths = |names: &[&str]| -> Vec<String> {
            let listing = list(&[&settings[..], names].concat());
            let [file] = &listing.repository.files[..] else { panic!("{:?}", listing.repository.files) };
            let parts = listing.parts(&file.path).unwrap();
            assert_eq!((file.parts as usize, file.size_bytes), (parts.len(), 10 * parts.len() as u64));
            assert_eq!((&file.quantisation[..], &file.sha256), ("4-bit", &None));
            assert_eq!(choose_file(&listing.repository, None).unwrap(), file);
            parts.iter().map(|part| part.path.clone()).collect()
        };
        let with_settings =
            |weights: &[&'static str]| -> Vec<&'static str> { [weights, &settings[..]].concat() };
        assert_eq!(paths(&["model.safetensors", "README.md"]), with_settings(&["model.safetensors"]));
        let two = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        let index = "model.safetensors.index.json";
        assert_eq!(
            paths(&[
                two[1],
                "adapters.safetensors",
                index,
                two[0],
                "../x.safetensors",
                "sub/model.safetensors"
            ]),
            [&with_settings(&two)[..], &[index]].concat()
        );
        assert_eq!(paths(&["weights.safetensors"]), with_settings(&["weights.safetensors"]));
        assert_eq!(paths(&["model.safetensors", "model-fp32.safetensors"])[0], "model.safetensors");
        for incomplete in
            [&["config.json", "model.safetensors"][..], &settings, &["tokenizer.json", "m.safetensors"]]
        {
            assert!(list(incomplete).repository.files.is_empty(), "{incomplete:?}");
        }
        // Both kinds in one repository.
        let both = list(&[&settings[..], &["model.safetensors", "m-Q8_0.gguf"]].concat()).repository;
        let names: Vec<&str> = both.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(names, ["m-Q8_0.gguf", "model.safetensors"]);
        assert_eq!(choose_file(&both, Some("4-bit")).unwrap().path, "model.safetensors");
    }

    /// Published heads have no tokeniser, and some are pickles.
    #[test]
    fn lists_the_folder_of_a_head_by_its_name_or_architecture() {
        let list = |repository: &str, architecture: &str, names: &[&str]| {
            let file = |name: &&str| json!({"rfilename": name, "size": 10});
            let siblings: Vec<Value> = names.iter().map(file).collect();
            let config = json!({"architectures": [architecture]});
            let response = json!({"sha": "abc", "siblings": siblings, "config": config});
            let listing = Listing::new(repository, serde_json::from_value(response).unwrap());
            let parts = |file: &HubFile| -> Vec<String> {
                assert!(file.is_head);
                assert_eq!(listing.parts("model.safetensors").unwrap(), listing.parts(&file.path).unwrap());
                assert!(listing.parts("model.gguf").is_err());
                listing.parts(&file.path).unwrap().iter().map(|part| part.path.clone()).collect()
            };
            listing.repository.files.first().map(parts)
        };
        let (safetensors, pickle) =
            (["config.json", "model.safetensors"], ["config.json", "pytorch_model.bin"]);
        let reversed = |names: [&str; 2]| Some(vec![names[1].to_owned(), names[0].to_owned()]);
        assert_eq!(list("a/Qwen3-8B_eagle3", "LlamaForCausalLM", &safetensors), reversed(safetensors));
        assert_eq!(list("a/b", "Eagle3Speculator", &pickle), reversed(pickle));
        let both = ["config.json", "model.safetensors", "pytorch_model.bin", "README.md"];
        assert_eq!(list("a/b-medusa", "", &both), reversed(safetensors));
        let image_model = json!({"sha": "abc", "config": {"architectures": ["Eagle2ForConditionalGeneration"]},
            "siblings": [{"rfilename": "config.json", "size": 1}, {"rfilename": "tokenizer.json", "size": 1},
                {"rfilename": "model.safetensors", "size": 1}]});
        let listing = Listing::new("a/Eagle2-9B", serde_json::from_value(image_model).unwrap());
        assert!(!listing.repository.files[0].is_head);
        assert_eq!(list("a/b", "LlamaForCausalLM", &safetensors), None, "a model without its tokeniser");
        assert_eq!(list("a/b", "LlamaForCausalLM", &pickle), None);
        assert_eq!(list("a/eagle", "", &["pytorch_model.bin"]), None, "no configuration");
    }

    #[test]
    fn duplicate_names_do_not_complete_a_model() {
        let file = |path: &str, size| RemoteFile { path: path.into(), size, sha256: None };
        let listed = models(
            [
                file("whole.gguf", 1),
                file("whole.gguf", 2),
                file("half-00001-of-00002.gguf", 1),
                file("half-00001-of-00002.gguf", 1),
                file("case-00002-of-00002.gguf", 1),
                file("case-00002-of-00002.GGUF", 1),
                file("both-00002-of-00002.gguf", 2),
                file("both-00001-of-00002.gguf", 1),
                file("both-00002-of-00002.gguf", 3),
            ]
            .into_iter(),
        );
        let sizes: Vec<(&str, Vec<u64>)> = listed
            .iter()
            .map(|(path, parts)| (path.as_str(), parts.iter().map(|part| part.size).collect()))
            .collect();
        assert_eq!(sizes, [("both-00001-of-00002.gguf", vec![1, 2]), ("whole.gguf", vec![1])]);
    }

    #[test]
    fn chooses_model_by_name_or_quantisation() {
        let sibling = |name: &str| serde_json::json!({"rfilename": name, "size": 1});
        let list = |names: &[&str]| {
            let siblings: Vec<Value> = names.iter().map(|name| sibling(name)).collect();
            let response = serde_json::json!({"sha": "abc", "siblings": siblings});
            Listing::new("a/b", serde_json::from_value(response).unwrap()).repository
        };
        let several = list(&["x-Q8_0.gguf", "q4/x-Q4_K_M.gguf", "y-Q8_0.gguf"]);
        let path = |selector| choose_file(&several, selector).map(|file| file.path.as_str());
        assert_eq!(path(None).unwrap(), "q4/x-Q4_K_M.gguf");
        assert_eq!(path(Some("q4_k_m")).unwrap(), "q4/x-Q4_K_M.gguf");
        assert_eq!(path(Some("y-Q8_0.gguf")).unwrap(), "y-Q8_0.gguf");
        let error = path(Some("Q8_0")).unwrap_err().to_string();
        assert!(error.contains("y-Q8_0.gguf"), "{error}");
        let error = path(Some("Q5_K_M")).unwrap_err().to_string();
        assert!(error.contains("Not found on the Hub: \"Q5_K_M\" in a/b"), "{error}");
        assert!(error.contains("quantisations are Q4_K_M, Q8_0."), "{error}");
        assert!(path(Some("z")).is_err() && path(Some("")).is_err() && path(Some("é")).is_err());
        // A prefix of the type distinguishes two files of one quantisation.
        let dynamic = list(&["x-Q4_K_XL.gguf", "x-UD-Q4_K_XL.gguf"]);
        assert_eq!(choose_file(&dynamic, Some("ud-q4_k_xl")).unwrap().path, "x-UD-Q4_K_XL.gguf");
        assert!(choose_file(&dynamic, Some("Q4_K_XL")).is_err());
        assert_eq!(choose_file(&list(&["only.gguf"]), None).unwrap().path, "only.gguf");
        assert!(choose_file(&list(&[]), None).is_err());
    }

    /// Hunch would not read it, and checking it needs as much memory.
    #[test]
    fn folder_with_an_enormous_settings_file_is_not_offered() {
        let files = |tokenizer: u64| {
            let sizes = [("config.json", 10), ("tokenizer.json", tokenizer), ("model.safetensors", 1 << 40)];
            let siblings: Vec<Value> =
                sizes.iter().map(|(name, size)| json!({ "rfilename": name, "size": size })).collect();
            let response = json!({ "sha": "abc", "siblings": siblings });
            Listing::new("a/b", serde_json::from_value(response).unwrap()).repository.files.len()
        };
        let most = model_folder::most_bytes("tokenizer.json");
        assert_eq!((files(most), files(most + 1)), (1, 0));
    }

    #[test]
    fn revision_is_alphanumeric() {
        assert!(is_revision("0123456789abcdef") && !is_revision("") && !is_revision("../x"));
    }
}
