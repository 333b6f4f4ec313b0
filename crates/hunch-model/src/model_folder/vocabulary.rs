//! Translates `tokenizer.json` to the metadata of GGUF: byte-level BPE as `gpt2`, SentencePiece BPE as `llama`.
//! Encoding belongs to `text::tokenizer`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use serde_json::Value as Json;

use crate::gguf::{Array, Value};
use crate::text::tokenizer::byte_level::{DEFAULT_PATTERN, family};

/// Most tokens of a vocabulary.
const MAX_TOKENS: usize = 1 << 22;
/// Score of tokens that no merge makes.
const NO_MERGE: f32 = -1e9;

/// Numbers of token types (`tokenizer.ggml.token_type`).
mod kind {
    pub(super) const NORMAL: i32 = 1;
    pub(super) const UNKNOWN: i32 = 2;
    pub(super) const CONTROL: i32 = 3;
    pub(super) const USER_DEFINED: i32 = 4;
    pub(super) const UNUSED: i32 = 5;
    pub(super) const BYTE: i32 = 6;
}

/// Files that describe a tokeniser.
pub(super) struct TokenizerFiles<'a> {
    /// Named in errors.
    pub(super) path: &'a Path,
    /// `tokenizer.json`.
    pub(super) tokenizer: &'a Json,
    /// `tokenizer_config.json`, or null.
    pub(super) settings: &'a Json,
    /// `eos_token_id` of the generation and of the model: a number or a list.
    pub(super) ends: [Option<&'a Json>; 2],
    /// Rows of the embedding table. The vocabulary is filled up to it.
    pub(super) rows: usize,
}

impl TokenizerFiles<'_> {
    fn invalid(&self, reason: String) -> Error {
        Error::InvalidModelFile { path: self.path.to_path_buf(), reason }
    }

    fn unsupported(&self, reason: String) -> Error {
        Error::UnsupportedModel { path: self.path.to_path_buf(), reason }
    }

    /// Returns the metadata of the tokeniser, and the chat template: `template` or the one in the settings.
    ///
    /// # Errors
    /// [`Error::UnsupportedModel`] for other tokenisers, [`Error::InvalidModelFile`] for damaged ones.
    pub(super) fn metadata(&self, template: Option<String>) -> Result<BTreeMap<String, Value>> {
        let model = &self.tokenizer["model"];
        match model["type"].as_str() {
            Some("BPE") | None => {}
            Some(other) => {
                let other: String = other.chars().take(40).collect();
                return Err(
                    self.unsupported(format!("its tokeniser is \"{other}\", and only BPE is supported"))
                );
            }
        }
        let (texts, mut kinds) = self.tokens()?;
        let ids: HashMap<&str, usize> =
            texts.iter().enumerate().map(|(id, text)| (text.as_str(), id)).collect();
        let merges = self.merges()?;
        let mut out = BTreeMap::new();
        let mut put = |key: &str, value| out.insert(format!("tokenizer.{key}"), value);
        if model["byte_fallback"].as_bool() == Some(true) {
            self.mark_bytes(&texts, &mut kinds);
            put("ggml.model", Value::String("llama".into()));
            put("ggml.scores", Value::Array(Array::F32(scores(&merges, &ids, texts.len()))));
            put("ggml.add_space_prefix", Value::Bool(self.adds_space()));
        } else {
            put("ggml.model", Value::String("gpt2".into()));
            put("ggml.pre", Value::String(self.pre_tokenizer()?.into()));
            let lines = merges.iter().map(|[left, right]| format!("{left} {right}")).collect();
            put("ggml.merges", Value::Array(Array::String(lines)));
        }
        let bos = self.token("bos_token").and_then(|text| ids.get(text).copied());
        let eos = self.token("eos_token").and_then(|text| ids.get(text).copied());
        put("ggml.add_bos_token", Value::Bool(self.adds_bos()));
        let special = [
            ("ggml.bos_token_id", bos),
            ("ggml.eos_token_id", eos),
            ("ggml.unknown_token_id", model["unk_token"].as_str().and_then(|text| ids.get(text).copied())),
        ];
        // The file names up to three tokens that end an answer.
        let mut others = self.end_ids().into_iter().filter(|id| Some(*id) != eos && *id < texts.len());
        let ends = [("ggml.eot_token_id", others.next()), ("ggml.eom_token_id", others.next())];
        for (key, id) in special.into_iter().chain(ends) {
            if let Some(id) = id.and_then(|id| TokenId::try_from(id).ok()) {
                put(key, Value::U32(id));
            }
        }
        if let Some(template) = template.or_else(|| self.template()) {
            put("chat_template", Value::String(template));
        }
        put("ggml.tokens", Value::Array(Array::String(texts)));
        put("ggml.token_type", Value::Array(Array::I32(kinds)));
        Ok(out)
    }

    /// Returns the text and type of every token. Unused numbers are padding.
    fn tokens(&self) -> Result<(Vec<String>, Vec<i32>)> {
        let model = &self.tokenizer["model"];
        let vocab = model["vocab"]
            .as_object()
            .ok_or_else(|| self.invalid("tokenizer.json has no vocabulary".into()))?;
        let normal = vocab.iter().map(|(text, id)| (id.as_u64(), text.as_str(), kind::NORMAL));
        let added =
            self.tokenizer["added_tokens"].as_array().map_or(&[][..], |added| added).iter().map(|token| {
                let kind =
                    if token["special"].as_bool() == Some(true) { kind::CONTROL } else { kind::USER_DEFINED };
                (token["id"].as_u64(), token["content"].as_str().unwrap_or_default(), kind)
            });
        let mut found: BTreeMap<usize, (&str, i32)> = BTreeMap::new();
        for (id, text, kind) in normal.chain(added) {
            let id = id.and_then(|id| usize::try_from(id).ok()).filter(|&id| id < MAX_TOKENS);
            let id = id
                .ok_or_else(|| self.invalid(format!("the token {text:?} in tokenizer.json has no number")))?;
            found.insert(id, (text, kind));
        }
        if let Some(unknown) = model["unk_token"].as_str() {
            found.values_mut().filter(|token| token.0 == unknown).for_each(|token| token.1 = kind::UNKNOWN);
        }
        let count = found.keys().next_back().map_or(0, |last| last + 1).max(self.rows.min(MAX_TOKENS));
        let token = |id: usize| match found.get(&id) {
            Some((text, kind)) => ((*text).to_owned(), *kind),
            None => (format!("[PAD{id}]"), kind::UNUSED),
        };
        Ok((0..count).map(token).unzip())
    }

    /// Marks the tokens of single bytes, `<0x00>` to `<0xFF>`.
    fn mark_bytes(&self, texts: &[String], kinds: &mut [i32]) {
        let bytes: BTreeSet<String> = (0..=255u8).map(|byte| format!("<0x{byte:02X}>")).collect();
        for (text, kind) in texts.iter().zip(kinds) {
            if *kind == kind::NORMAL && bytes.contains(text) {
                *kind = kind::BYTE;
            }
        }
    }

    /// Returns the two parts of each merge, which older files join by a space.
    fn merges(&self) -> Result<Vec<[String; 2]>> {
        let merges = self.tokenizer["model"]["merges"].as_array();
        let merges = merges.ok_or_else(|| self.invalid("tokenizer.json has no merges".into()))?;
        let parts = |merge: &'_ Json| match merge {
            Json::String(line) => line.split_once(' ').is_some(),
            Json::Array(parts) => parts.len() == 2 && parts.iter().all(Json::is_string),
            _ => false,
        };
        if let Some(wrong) = merges.iter().position(|merge| !parts(merge)) {
            return Err(self.invalid(format!("merge {wrong} in tokenizer.json does not have two parts")));
        }
        let both = |merge: &'_ Json| match merge {
            Json::String(line) => {
                line.split_once(' ').map(|(left, right)| [left.to_owned(), right.to_owned()])
            }
            other => Some([other[0].as_str()?.to_owned(), other[1].as_str()?.to_owned()]),
        };
        Ok(merges.iter().filter_map(both).collect())
    }

    /// Returns the name of the pre-tokeniser with the patterns of the file.
    fn pre_tokenizer(&self) -> Result<&'static str> {
        let mut patterns = Vec::new();
        let known = collect_patterns(&self.tokenizer["pre_tokenizer"], &mut patterns);
        let ignore_merges = self.tokenizer["model"]["ignore_merges"].as_bool().unwrap_or(false);
        let name = known.then(|| family(&patterns, ignore_merges)).flatten();
        name.ok_or_else(|| {
            self.unsupported("its pre-tokeniser splits text by patterns that Hunch does not know".into())
        })
    }

    /// Returns `true` if SentencePiece puts a space before the text.
    fn adds_space(&self) -> bool {
        let prepends = |part: &Json| match part["type"].as_str() {
            Some("Prepend") => true,
            Some("Metaspace") => match part["prepend_scheme"].as_str() {
                Some(scheme) => scheme != "never",
                None => part["add_prefix_space"].as_bool().unwrap_or(true),
            },
            _ => false,
        };
        let any = |part: &Json, list: &str| {
            prepends(part) || part[list].as_array().is_some_and(|parts| parts.iter().any(prepends))
        };
        any(&self.tokenizer["normalizer"], "normalizers")
            || any(&self.tokenizer["pre_tokenizer"], "pretokenizers")
    }

    /// Returns `true` if a text begins with the token for its beginning.
    fn adds_bos(&self) -> bool {
        if let Some(adds) = self.settings["add_bos_token"].as_bool() {
            return adds && self.token("bos_token").is_some();
        }
        let Some(bos) = self.token("bos_token") else { return false };
        let begins = |part: &Json| part["single"][0]["SpecialToken"]["id"].as_str() == Some(bos);
        let processor = &self.tokenizer["post_processor"];
        begins(processor) || processor["processors"].as_array().is_some_and(|parts| parts.iter().any(begins))
    }

    /// Returns the text of a special token of the settings.
    fn token(&self, key: &str) -> Option<&str> {
        let token = &self.settings[key];
        token.as_str().or_else(|| token["content"].as_str())
    }

    fn end_ids(&self) -> BTreeSet<usize> {
        let numbers = |ids: &Json| -> Vec<u64> {
            match ids {
                Json::Array(all) => all.iter().filter_map(Json::as_u64).collect(),
                one => one.as_u64().into_iter().collect(),
            }
        };
        let all = self.ends.iter().flatten().flat_map(|ids| numbers(ids));
        all.filter_map(|id| usize::try_from(id).ok()).collect()
    }

    /// Returns the chat template of the settings: the only one, or the one named "default".
    fn template(&self) -> Option<String> {
        let template = &self.settings["chat_template"];
        let named = || {
            let all = template.as_array()?.iter();
            all.filter(|one| one["name"] == "default").find_map(|one| one["template"].as_str())
        };
        template.as_str().or_else(named).map(str::to_owned)
    }
}

/// Appends the patterns of a pre-tokeniser. Returns `false` if it does anything else.
fn collect_patterns(part: &Json, patterns: &mut Vec<String>) -> bool {
    match part["type"].as_str() {
        Some("Sequence") => {
            let parts = part["pretokenizers"].as_array();
            parts.is_some_and(|parts| parts.iter().all(|part| collect_patterns(part, patterns)))
        }
        Some("Split") => {
            let pattern = part["pattern"]["Regex"].as_str();
            patterns.extend(pattern.map(str::to_owned));
            // Patterns match the whole text, so removing what is between the matches keeps all of it.
            let inverted = part["invert"].as_bool().unwrap_or(false);
            let isolated = part["behavior"] == "Isolated" && !inverted;
            pattern.is_some() && (isolated || part["behavior"] == "Removed" && inverted)
        }
        Some("Digits") => {
            patterns.push(r"\p{N}".into());
            part["individual_digits"].as_bool() == Some(true)
        }
        Some("ByteLevel") => {
            if part["use_regex"].as_bool().unwrap_or(true) {
                patterns.push(DEFAULT_PATTERN.into());
            }
            part["add_prefix_space"].as_bool() != Some(true)
        }
        _ => false,
    }
}

/// Returns scores for SentencePiece's algorithm: the earlier a merge, the higher the score of its token.
fn scores(merges: &[[String; 2]], ids: &HashMap<&str, usize>, count: usize) -> Vec<f32> {
    let mut scores = vec![NO_MERGE; count];
    let mut whole = String::new();
    for (rank, [left, right]) in merges.iter().enumerate().rev() {
        whole.clear();
        whole.push_str(left);
        whole.push_str(right);
        if let Some(&id) = ids.get(whole.as_str()) {
            scores[id] = -(rank as f32);
        }
    }
    scores
}
