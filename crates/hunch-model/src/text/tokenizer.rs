//! Tokeniser of a model, built from its GGUF metadata.
//!
//! This module knows the vocabulary: end tokens, special tokens, and the bytes of each token.
//! Encoding belongs to the modules below: `byte_level` for `gpt2` vocabularies, `scored` for `llama`
//! vocabularies, and `special` for splitting at special tokens first.
//!
//! llama.cpp is the reference: the same text yields the same ids.

pub(crate) mod byte_level;
mod channels;
mod compare;
mod literals;
mod scored;
mod special;
mod translation;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

pub use compare::{Vocabulary, VocabularyVerdict, check_vocabularies};
pub use translation::Translation;

use crate::gguf::Gguf;
use byte_level::ByteLevel;
pub(super) use channels::{HarmonyTokens, ThoughtTokens};
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use literals::Literals;
use scored::SentencePieceEncoder;
use special::{SpecialTokens, SplitPart};

/// Type of a vocabulary entry (`tokenizer.ggml.token_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenType {
    fn from_number(number: i32) -> Self {
        match number {
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => TokenType::Normal,
        }
    }
}

#[derive(Debug)]
struct VocabularyEntry {
    text: String,
    kind: TokenType,
}

/// Spelling of bytes in the texts of a vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    /// A printable character for each byte, as in GPT-2.
    ByteLevel,
    /// `▁` for a space and `<0x0A>` for a single byte, as in SentencePiece.
    Scored,
}

impl Spelling {
    /// Returns the decoded bytes of an entry. Special tokens have the bytes of their text.
    fn bytes(self, entry: &VocabularyEntry) -> Vec<u8> {
        match (entry.kind, self) {
            (TokenType::Normal, Self::ByteLevel) => byte_level::bytes(&entry.text),
            (TokenType::Normal | TokenType::Byte, Self::Scored) => scored::bytes(&entry.text),
            _ => entry.text.as_bytes().to_vec(),
        }
    }
}

enum Encoder {
    ByteLevel(Box<ByteLevel>),
    Scored(SentencePieceEncoder),
}

/// Options for encoding text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Converts control tokens in the text, such as `<|im_start|>`, to their ids.
    ///
    /// `true` for rendered chat templates, `false` for untrusted raw text.
    pub parse_special: bool,
    /// Adds the beginning-of-text token if the model file requires it and the text does not begin
    /// with it.
    pub add_bos: bool,
}

/// Tokeniser of a model.
pub struct Tokenizer {
    entries: Vec<VocabularyEntry>,
    encoder: Encoder,
    special: SpecialTokens,
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    eot: Option<TokenId>,
    end_tokens: BTreeSet<TokenId>,
    adds_bos: bool,
    chat_template: Option<String>,
    harmony: Option<HarmonyTokens>,
    thoughts: Option<ThoughtTokens>,
}

/// Texts of tokens that end a turn, most likely first.
///
/// Files do not name all of them. llama.cpp has the same lists (`special_eot_id`, `special_eog_ids`), without the tokens
/// of Llama 4, `<|eot|>` and `<|eom|>`.
const END_OF_TURN_TEXTS: [&str; 9] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eot|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "<EOT>",
    "<｜end▁of▁sentence｜>",
    "<|endoftext|>",
];

/// Texts of tokens that end a text or a message, and fill-in-the-middle tokens of code models.
const OTHER_END_TEXTS: [&str; 7] = [
    "<|end_of_text|>",
    "<|eom_id|>",
    "<|eom|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<|tool_response>",
];

impl Tokenizer {
    /// Builds the tokeniser described by a model file.
    ///
    /// # Errors
    /// [`Error::UnsupportedModel`] for an unsupported tokeniser or pre-tokeniser,
    /// [`Error::InvalidModelFile`] if the metadata is missing or inconsistent.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let mut entries = entries(gguf)?;
        let id = |key: &str| -> Option<TokenId> { gguf.u32(key).filter(|&id| (id as usize) < entries.len()) };
        let bos = id("tokenizer.ggml.bos_token_id");
        let eos = id("tokenizer.ggml.eos_token_id");
        let named_eot = id("tokenizer.ggml.eot_token_id");
        let named_eom = id("tokenizer.ggml.eom_token_id");
        let unknown = id("tokenizer.ggml.unknown_token_id");

        let name = gguf.require_str("tokenizer.ggml.model")?;
        let is_gemma4 = name == "gemma4";
        if is_gemma4 {
            mark_controls_of_gemma4(&mut entries);
        }
        let thoughts = ThoughtTokens::find(entries.iter().map(|entry| entry.text.as_str()));
        let harmony = HarmonyTokens::find(entries.iter().map(|entry| entry.text.as_str()));
        let ends = mark_end_texts(&mut entries);
        let eot =
            named_eot.or_else(|| ends.first().filter(|end| end.0 < END_OF_TURN_TEXTS.len()).map(|end| end.1));
        let mut end_tokens: BTreeSet<TokenId> = ends.into_iter().map(|end| end.1).collect();
        end_tokens.extend([eos, eot, named_eom].into_iter().flatten());
        if let Some(HarmonyTokens { end, turn_end, call, .. }) = harmony {
            end_tokens.extend([turn_end].into_iter().chain(call));
            // This token ends only one message of a turn.
            end_tokens.remove(&end);
        }

        let special = SpecialTokens::new(&entries).map_err(|error| Error::InvalidModelFile {
            path: gguf.path.clone(),
            reason: format!("its special tokens are not supported: {error}"),
        })?;
        let (encoder, adds_bos) = match name {
            "gpt2" => {
                let (encoder, adds_bos) = ByteLevel::new(gguf, &entries)?;
                (Encoder::ByteLevel(Box::new(encoder)), adds_bos)
            }
            "llama" => (Encoder::Scored(SentencePieceEncoder::new(gguf, &entries, unknown)?), true),
            "gemma4" => (Encoder::Scored(SentencePieceEncoder::ranked(gguf, &entries, unknown)?), true),
            other => {
                return Err(Error::UnsupportedModel {
                    path: gguf.path.clone(),
                    reason: format!(
                        "its tokeniser is \"{other}\", and only gpt2, llama and gemma4 are supported"
                    ),
                });
            }
        };
        Ok(Self {
            entries,
            encoder,
            special,
            bos,
            eos,
            eot,
            end_tokens,
            // Some files of Gemma 4 switch off the token that the model needs.
            adds_bos: gguf.bool("tokenizer.ggml.add_bos_token").unwrap_or(adds_bos) || is_gemma4,
            chat_template: gguf.str("tokenizer.chat_template").map(str::to_owned),
            harmony,
            thoughts,
        })
    }

    /// Encodes text. User-defined tokens are always parsed, control tokens only with
    /// [`EncodeOptions::parse_special`].
    ///
    /// # Errors
    /// [`Error::Internal`] if the tokeniser library fails.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<TokenId>> {
        self.encode_pieces(text, options, None, &|| false)
    }

    /// Finds the control tokens in the text of the messages of a conversation.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if no placeholder characters are left.
    pub(super) fn literals<'t>(
        &self,
        contents: impl Iterator<Item = &'t str> + Clone,
    ) -> Result<Literals<'_>> {
        Literals::find(&self.special, contents)
    }

    /// Encodes a rendered chat template, with literals as ordinary text.
    ///
    /// `cancelled` is polled at least once per MiB of text. Once it returns `true`, the rest is left out.
    ///
    /// # Errors
    /// See [`Tokenizer::encode`].
    pub(super) fn encode_with_literals(
        &self,
        text: &str,
        options: EncodeOptions,
        literals: &Literals<'_>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<TokenId>> {
        self.encode_pieces(text, options, Some(literals).filter(|literals| !literals.is_empty()), cancelled)
    }

    fn encode_pieces(
        &self,
        text: &str,
        options: EncodeOptions,
        literals: Option<&Literals<'_>>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Vec<TokenId>> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        let mut after_special = true;
        for piece in self.special.split(text, options.parse_special) {
            match piece {
                SplitPart::Special(id) => ids.push(id),
                SplitPart::Text(text) => {
                    let text =
                        literals.map_or(Cow::Borrowed(text), |literals| Cow::Owned(literals.unmask(text)));
                    match &self.encoder {
                        Encoder::ByteLevel(encoder) => encoder.encode(&text, &mut ids, cancelled)?,
                        Encoder::Scored(encoder) => encoder.encode(&text, after_special, &mut ids, cancelled),
                    }
                }
            }
            after_special = matches!(piece, SplitPart::Special(_));
            // After a piece, not before it: a prompt without tokens would be refused as empty.
            if cancelled() {
                break;
            }
        }
        if let Some(bos) = self.bos
            && options.add_bos
            && self.adds_bos
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// Returns the raw text of a vocabulary entry, with byte-level characters and `▁` not decoded.
    ///
    /// Empty for an id outside the vocabulary.
    pub fn token_text(&self, id: TokenId) -> &str {
        self.entries.get(id as usize).map_or("", |entry| &entry.text)
    }

    /// Returns the decoded bytes of a token, possibly part of a character.
    ///
    /// Special tokens have the bytes of their text. Empty for an id outside the vocabulary.
    pub fn token_bytes(&self, id: TokenId) -> Vec<u8> {
        self.entries.get(id as usize).map_or_else(Vec::new, |entry| self.spelling().bytes(entry))
    }

    fn spelling(&self) -> Spelling {
        match self.encoder {
            Encoder::ByteLevel(_) => Spelling::ByteLevel,
            Encoder::Scored(_) => Spelling::Scored,
        }
    }

    /// Encodes text without special tokens and without a space before it, and appends the ids.
    fn encode_inner_text(&self, text: &str, ids: &mut Vec<TokenId>) -> Result<()> {
        match &self.encoder {
            Encoder::ByteLevel(encoder) => encoder.encode(text, ids, &|| false)?,
            Encoder::Scored(encoder) => encoder.encode(text, false, ids, &|| false),
        }
        Ok(())
    }

    /// Decodes a token sequence, with invalid bytes as U+FFFD.
    ///
    /// Special tokens are left out unless `show_special`.
    pub fn decode(&self, ids: &[TokenId], show_special: bool) -> String {
        let shown = ids.iter().filter(|&&id| show_special || !self.is_special(id));
        let bytes: Vec<u8> = shown.flat_map(|&id| self.token_bytes(id)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns the number of vocabulary entries. The output head may have more rows (padding).
    pub fn vocab_size(&self) -> usize {
        self.entries.len()
    }

    /// Returns the beginning-of-text token, if the file defines one.
    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// Returns the end-of-text token, if the file defines one.
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// Returns the end-of-turn token, defined by the file or recognised by its text.
    pub fn eot(&self) -> Option<TokenId> {
        self.eot
    }

    /// Returns `true` if raw text starts with [`Tokenizer::bos`] for this model.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos && self.bos.is_some()
    }

    /// Returns all tokens that end a generation: end of text, turn and message, and similar ones.
    pub fn end_tokens(&self) -> &BTreeSet<TokenId> {
        &self.end_tokens
    }

    /// Returns `true` for control tokens and the unknown token, which have no text to show.
    pub fn is_special(&self, id: TokenId) -> bool {
        let kind = self.entries.get(id as usize).map(|entry| entry.kind);
        matches!(kind, Some(TokenType::Control | TokenType::Unknown))
    }

    /// Returns the control tokens of the harmony format, if the vocabulary has them.
    pub(super) fn harmony(&self) -> Option<HarmonyTokens> {
        self.harmony
    }

    /// Returns the control tokens around reasoning, if the vocabulary has them.
    pub(super) fn thoughts(&self) -> Option<ThoughtTokens> {
        self.thoughts
    }

    /// Returns `true` if reasoning is in a channel between control tokens. Chat templates do not search for it in earlier
    /// answers then.
    pub(super) fn has_channels(&self) -> bool {
        self.harmony.is_some() || self.thoughts.is_some()
    }

    /// Returns the source of the chat template, if the file has one.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.entries.len())
            .field("bos", &self.bos)
            .field("eos", &self.eos)
            .field("end_tokens", &self.end_tokens)
            .finish_non_exhaustive()
    }
}

fn entries(gguf: &Gguf) -> Result<Vec<VocabularyEntry>> {
    let invalid = |reason| Err(Error::InvalidModelFile { path: gguf.path.clone(), reason });
    let texts = gguf.require_strings("tokenizer.ggml.tokens")?;
    if texts.is_empty() || TokenId::try_from(texts.len()).is_err() {
        return invalid(format!("its vocabulary has {} tokens", texts.len()));
    }
    let kinds = match gguf.metadata.contains_key("tokenizer.ggml.token_type") {
        true => gguf.require_i32s("tokenizer.ggml.token_type")?,
        false => &[],
    };
    if !kinds.is_empty() && kinds.len() != texts.len() {
        return invalid(format!("its vocabulary has {} tokens but {} token types", texts.len(), kinds.len()));
    }
    let kind = |i: usize| kinds.get(i).map_or(TokenType::Normal, |&number| TokenType::from_number(number));
    let entry = |(i, text): (usize, &String)| VocabularyEntry { text: text.clone(), kind: kind(i) };
    Ok(texts.iter().enumerate().map(entry).collect())
}

/// Texts of control tokens that files of Gemma 4 mark as text, so that llama.cpp shows them.
const CONTROLS_OF_GEMMA4: [&str; 7] = [
    "<|channel>",
    "<channel|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    "<|\"|>",
];

/// Marks the tokens of [`CONTROLS_OF_GEMMA4`] as control tokens. Else they would be parsed in the text of a user.
fn mark_controls_of_gemma4(entries: &mut [VocabularyEntry]) {
    let controls = entries.iter_mut().filter(|entry| CONTROLS_OF_GEMMA4.contains(&entry.text.as_str()));
    controls.for_each(|entry| entry.kind = TokenType::Control);
}

/// Finds the tokens of [`END_OF_TURN_TEXTS`] and [`OTHER_END_TEXTS`] and marks them as control tokens.
///
/// Some files do not mark them. Returns the rank in the lists and the id of each, sorted by rank.
fn mark_end_texts(entries: &mut [VocabularyEntry]) -> Vec<(usize, TokenId)> {
    let mut ends = Vec::new();
    for (id, entry) in entries.iter_mut().enumerate() {
        let known = END_OF_TURN_TEXTS.iter().chain(&OTHER_END_TEXTS).position(|text| entry.text == *text);
        if let Some(rank) = known {
            entry.kind = TokenType::Control;
            ends.push((rank, id as TokenId));
        }
    }
    ends.sort_unstable();
    ends
}
