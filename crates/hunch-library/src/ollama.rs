//! Ollama's store: one manifest per name and tag, which names blobs by digest. Manifests are untrusted:
//! only a well-formed digest becomes a file name, so nothing outside the blob folder can be read.

use std::path::Path;

use serde::Deserialize;

use super::text_file;
use super::walk::{FileMeta, walk};

/// Media type of the GGUF layer.
const MODEL: &str = "application/vnd.ollama.image.model";
/// Media type of an adapter layer.
const ADAPTER: &str = "application/vnd.ollama.image.adapter";
/// Registry omitted from displayed names.
const REGISTRY: &str = "registry.ollama.ai";
/// Owner omitted from displayed names.
const OWNER: &str = "library";
/// Tag omitted from displayed names.
pub(super) const LATEST: &str = ":latest";

#[derive(Deserialize)]
struct Manifest {
    layers: Vec<ManifestLayer>,
}

#[derive(Deserialize)]
struct ManifestLayer {
    #[serde(rename = "mediaType")]
    media_type: String,
    digest: String,
}

/// Models found in the store.
#[derive(Debug, Default)]
pub(super) struct OllamaStore {
    /// Each model's file, by its name in Ollama.
    pub(super) models: Vec<(String, FileMeta)>,
    /// Reason for a skipped manifest, if there is one.
    pub(super) problem: Option<String>,
}

/// Reads every manifest below `root`.
pub(super) fn read(root: &Path) -> OllamaStore {
    let manifests = root.join("manifests");
    let walked = walk(&manifests, |_| true);
    let mut store = OllamaStore { problem: walked.problem, ..OllamaStore::default() };
    for manifest in walked.files {
        let Some(name) = name(&manifest.path, &manifests) else { continue };
        // Models without a GGUF layer, such as cloud models, are skipped silently.
        let Some(digest) = text_file::read(&manifest.path).and_then(|text| model_digest(&text)) else {
            continue;
        };
        let Some(hex) = hexadecimal(&digest) else {
            let path = manifest.path.display();
            store.problem.get_or_insert_with(|| format!("{path} names no valid blob. It was skipped."));
            continue;
        };
        // Versions up to 0.1.30 wrote a colon.
        let blob = ["sha256-", "sha256:"]
            .iter()
            .find_map(|prefix| FileMeta::of(&root.join("blobs").join(format!("{prefix}{hex}"))));
        match blob {
            Some(blob) => store.models.push((name, blob)),
            None => {
                store.problem.get_or_insert_with(|| format!("The file of {name} is missing."));
            }
        }
    }
    store
}

/// Returns the name as users write it: "llama3.2:3b", "owner/model:tag", "hf.co/owner/model:tag".
fn name(manifest: &Path, manifests: &Path) -> Option<String> {
    let parts: Option<Vec<&str>> =
        manifest.strip_prefix(manifests).ok()?.iter().map(|part| part.to_str()).collect();
    let [registry, owner, model, tag] = parts?[..] else { return None };
    Some(match (registry, owner) {
        (REGISTRY, OWNER) => format!("{model}:{tag}"),
        (REGISTRY, _) => format!("{owner}/{model}:{tag}"),
        _ => format!("{registry}/{owner}/{model}:{tag}"),
    })
}

/// Returns the digest of the model's layer. Models with an adapter are skipped: without it, the weights are
/// a different model.
fn model_digest(manifest: &str) -> Option<String> {
    let manifest: Manifest = serde_json::from_str(manifest).ok()?;
    if manifest.layers.iter().any(|layer| layer.media_type == ADAPTER) {
        return None;
    }
    manifest.layers.into_iter().find(|layer| layer.media_type == MODEL).map(|layer| layer.digest)
}

/// Returns the 64 hexadecimal digits of a "sha256:" digest. No other text becomes a file name.
fn hexadecimal(digest: &str) -> Option<&str> {
    let hex = digest.strip_prefix("sha256:")?;
    let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (hex.len() == 64 && hex.bytes().all(digit)).then_some(hex)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn write(root: &Path, manifest: &str, digest: &str) {
        let path = root.join("manifests").join(manifest);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let layers = serde_json::json!([
            { "mediaType": "application/vnd.ollama.image.license", "digest": "sha256:00", "size": 1 },
            { "mediaType": MODEL, "digest": digest, "size": 3 },
        ]);
        let manifest = serde_json::json!({ "schemaVersion": 2, "config": {}, "layers": layers });
        std::fs::write(path, manifest.to_string()).unwrap();
    }

    #[test]
    fn models_have_their_ollama_names() {
        let root = tempfile::tempdir().unwrap();
        let digest = |n: u8| format!("sha256:{}", format!("{n:02x}").repeat(32));
        std::fs::create_dir(root.path().join("blobs")).unwrap();
        for n in 1..=3 {
            std::fs::write(root.path().join("blobs").join(digest(n).replace(':', "-")), "abc").unwrap();
        }
        write(root.path(), "registry.ollama.ai/library/llama3.2/3b", &digest(1));
        write(root.path(), "registry.ollama.ai/someone/own/latest", &digest(2));
        write(root.path(), "hf.co/org/repo/Q4_K_M", &digest(3));
        write(root.path(), "registry.ollama.ai/library/gone/1b", &digest(4));
        write(root.path(), "too/short", &digest(1));
        std::fs::write(root.path().join("manifests/registry.ollama.ai/library/llama3.2/bad"), "{").unwrap();
        let store = read(root.path());
        let names: Vec<&str> = store.models.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["hf.co/org/repo:Q4_K_M", "llama3.2:3b", "someone/own:latest"]);
        assert!(store.problem.unwrap().contains("gone:1b"));
    }

    #[test]
    fn digest_that_is_a_path_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let store = root.path().join("store");
        std::fs::write(root.path().join("secret"), "abc").unwrap();
        for (i, digest) in
            ["sha256:../../secret", "../../secret", "sha256:", "/etc/passwd"].iter().enumerate()
        {
            write(&store, &format!("registry.ollama.ai/library/m/{i}"), digest);
        }
        let read = read(&store);
        assert!(read.models.is_empty() && read.problem.is_some());
    }

    proptest! {
        #[test]
        fn accepts_only_well_formed_digests(text in "(sha256:)?[0-9a-fA-F./\\\\:-]{0,70}|\\PC{0,80}|sha256:[0-9a-f]{64}") {
            if let Some(hex) = hexadecimal(&text) {
                prop_assert_eq!(&text, &format!("sha256:{hex}"));
                prop_assert!(hex.len() == 64 && !hex.contains(['/', '.', '\\']));
            }
        }

        #[test]
        fn arbitrary_manifests_do_not_panic(text in "\\PC{0,200}", media in "\\PC{0,20}", digest in "\\PC{0,80}") {
            let _ = model_digest(&text);
            let layer = serde_json::json!({ "layers": [{ "mediaType": media, "digest": digest }] });
            let _ = model_digest(&layer.to_string());
        }
    }
}
