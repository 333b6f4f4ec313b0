//! The tokeniser of a model, built from its GGUF metadata. Which token ends an answer, which are
//! special and what bytes a token stands for is decided here; how text is cut lives in the modules
//! below: `byte_level` for `gpt2` vocabularies, `scored` for `llama` ones, `special` for the
//! tokens that are found in text before either.
//!
//! The reference is llama.cpp: the same text gives the same ids.

mod byte_level;
mod compare;
mod literals;
mod scored;
mod special;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

pub use compare::{Vocabulary, VocabularyMatch, VocabularyVerdict, compare_vocabularies};
pub use literals::Literals;

use crate::gguf::Gguf;
use byte_level::ByteLevel;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};
use scored::Scored;
use special::{Piece, SpecialTokens};

/// What a vocabulary entry is, as `tokenizer.ggml.token_type` numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl Kind {
    fn of(number: i32) -> Self {
        match number {
            2 => Kind::Unknown,
            3 => Kind::Control,
            4 => Kind::UserDefined,
            5 => Kind::Unused,
            6 => Kind::Byte,
            _ => Kind::Normal,
        }
    }
}

#[derive(Debug)]
struct Entry {
    text: String,
    kind: Kind,
}

enum Encoder {
    ByteLevel(Box<ByteLevel>),
    Scored(Scored),
}

/// How text is turned into tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Whether control tokens written out in the text (as `<|im_start|>`) become that token. True
    /// for a rendered chat template; false for raw text, whose author may not be trusted with them.
    pub parse_special: bool,
    /// Whether to begin with the beginning-of-text token, where the model's file asks for one and
    /// the text does not begin with it already.
    pub add_bos: bool,
}

/// A model's tokeniser.
pub struct Tokenizer {
    entries: Vec<Entry>,
    encoder: Encoder,
    special: SpecialTokens,
    bos: Option<TokenId>,
    eos: Option<TokenId>,
    eot: Option<TokenId>,
    end_tokens: BTreeSet<TokenId>,
    adds_bos: bool,
    chat_template: Option<String>,
}

/// Tokens that end a turn, by their text, the likeliest first. llama.cpp keeps the same lists
/// (`special_eot_id`, `special_eog_ids`), because files do not name them all.
const END_OF_TURN_TEXTS: [&str; 7] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<EOT>",
    "<｜end▁of▁sentence｜>",
    "<|endoftext|>",
];

/// Tokens that end a text or a message, and those of fill-in-the-middle training that a code model
/// may end on.
const OTHER_END_TEXTS: [&str; 5] =
    ["<|end_of_text|>", "<|eom_id|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"];

impl Tokenizer {
    /// Builds the tokeniser that a model file describes.
    ///
    /// # Errors
    /// [`Error::UnsupportedModel`] for a kind of tokeniser or pre-tokeniser Hunch does not have,
    /// [`Error::InvalidModelFile`] when the metadata is missing or contradicts itself.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let mut entries = entries(gguf)?;
        let id = |key: &str| -> Option<TokenId> { gguf.u32(key).filter(|&id| (id as usize) < entries.len()) };
        let bos = id("tokenizer.ggml.bos_token_id");
        let eos = id("tokenizer.ggml.eos_token_id");
        let named_eot = id("tokenizer.ggml.eot_token_id");
        let named_eom = id("tokenizer.ggml.eom_token_id");
        let unknown = id("tokenizer.ggml.unknown_token_id");

        let ends = mark_end_texts(&mut entries);
        let eot =
            named_eot.or_else(|| ends.first().filter(|end| end.0 < END_OF_TURN_TEXTS.len()).map(|end| end.1));
        let mut end_tokens: BTreeSet<TokenId> = ends.into_iter().map(|end| end.1).collect();
        end_tokens.extend([eos, eot, named_eom].into_iter().flatten());

        let special = SpecialTokens::new(&entries).map_err(|error| Error::InvalidModelFile {
            path: gguf.path.clone(),
            reason: format!("its special tokens cannot be used: {error}"),
        })?;
        let (encoder, adds_bos) = match gguf.require_str("tokenizer.ggml.model")? {
            "gpt2" => {
                let (encoder, adds_bos) = ByteLevel::new(gguf, &entries)?;
                (Encoder::ByteLevel(Box::new(encoder)), adds_bos)
            }
            "llama" => (Encoder::Scored(Scored::new(gguf, &entries, unknown)?), true),
            other => {
                return Err(Error::UnsupportedModel {
                    path: gguf.path.clone(),
                    reason: format!("its tokeniser is of the kind \"{other}\", not gpt2 or llama"),
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
            adds_bos: gguf.bool("tokenizer.ggml.add_bos_token").unwrap_or(adds_bos),
            chat_template: gguf.str("tokenizer.chat_template").map(str::to_owned),
        })
    }

    /// Turns text into tokens. User-defined tokens are always found in the text, control tokens
    /// only with [`EncodeOptions::parse_special`].
    ///
    /// # Errors
    /// [`Error::Internal`] when the tokeniser library fails.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Result<Vec<TokenId>> {
        self.encode_pieces(text, options, None, &|| false)
    }

    /// Finds the control tokens that are written out in the messages of a conversation.
    ///
    /// # Errors
    /// As [`Literals`]'s making.
    pub fn literals<'t>(&self, contents: impl Iterator<Item = &'t str> + Clone) -> Result<Literals<'_>> {
        Literals::of(&self.special, contents)
    }

    /// Turns a rendered chat template into tokens: what the literals stand for is ordinary text. When `stopped`,
    /// which is asked every MiB of text or less, the rest of the text is left out.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_with_literals(
        &self,
        text: &str,
        options: EncodeOptions,
        literals: &Literals<'_>,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Vec<TokenId>> {
        self.encode_pieces(text, options, Some(literals).filter(|literals| !literals.is_empty()), stopped)
    }

    fn encode_pieces(
        &self,
        text: &str,
        options: EncodeOptions,
        literals: Option<&Literals<'_>>,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Vec<TokenId>> {
        let mut ids = Vec::with_capacity(text.len() / 3 + 2);
        let mut after_special = true;
        for piece in self.special.split(text, options.parse_special) {
            match piece {
                Piece::Special(id) => ids.push(id),
                Piece::Text(text) => {
                    let text =
                        literals.map_or(Cow::Borrowed(text), |literals| Cow::Owned(literals.unmask(text)));
                    match &self.encoder {
                        Encoder::ByteLevel(encoder) => encoder.encode(&text, &mut ids, stopped)?,
                        Encoder::Scored(encoder) => encoder.encode(&text, after_special, &mut ids, stopped),
                    }
                }
            }
            after_special = matches!(piece, Piece::Special(_));
            // After a piece, not before it: a prompt without tokens would be refused as empty.
            if stopped() {
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

    /// The text of the vocabulary entry as the file has it (byte-level and `▁` not undone). Empty
    /// for an id outside the vocabulary.
    pub fn token_text(&self, id: TokenId) -> &str {
        self.entries.get(id as usize).map_or("", |entry| &entry.text)
    }

    /// The bytes the token stands for; part of a character is possible. A special token stands for
    /// its text. Empty for an id outside the vocabulary.
    pub fn token_bytes(&self, id: TokenId) -> Vec<u8> {
        let Some(entry) = self.entries.get(id as usize) else { return Vec::new() };
        match (entry.kind, &self.encoder) {
            (Kind::Normal, Encoder::ByteLevel(_)) => byte_level::bytes(&entry.text),
            (Kind::Normal | Kind::Byte, Encoder::Scored(_)) => scored::bytes(&entry.text),
            _ => entry.text.as_bytes().to_vec(),
        }
    }

    /// The text of a sequence in one go, invalid bytes as U+FFFD. Special tokens are left out
    /// unless `show_special`.
    pub fn decode(&self, ids: &[TokenId], show_special: bool) -> String {
        let shown = ids.iter().filter(|&&id| show_special || !self.is_special(id));
        let bytes: Vec<u8> = shown.flat_map(|&id| self.token_bytes(id)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Number of entries in the file's vocabulary. The output head may have more rows (padding).
    pub fn vocab_size(&self) -> usize {
        self.entries.len()
    }

    /// The token that begins a text, if the file names one.
    pub fn bos(&self) -> Option<TokenId> {
        self.bos
    }

    /// The token that ends a text, if the file names one.
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// The token that ends a turn: named by the file, or known by its text.
    pub fn eot(&self) -> Option<TokenId> {
        self.eot
    }

    /// Whether raw text begins with [`Tokenizer::bos`] for this model.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos && self.bos.is_some()
    }

    /// Every token after which a generation is over: end of text, of turn, of message, and the
    /// known ones of other names.
    pub fn end_tokens(&self) -> &BTreeSet<TokenId> {
        &self.end_tokens
    }

    /// Whether the token is a control token or the unknown token: it has no text of its own to show.
    pub fn is_special(&self, id: TokenId) -> bool {
        let kind = self.entries.get(id as usize).map(|entry| entry.kind);
        matches!(kind, Some(Kind::Control | Kind::Unknown))
    }

    /// The source of the chat template, if the file has one.
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

fn entries(gguf: &Gguf) -> Result<Vec<Entry>> {
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
        return invalid(format!(
            "its vocabulary has {} tokens and the types of {}",
            texts.len(),
            kinds.len()
        ));
    }
    let kind = |i: usize| kinds.get(i).map_or(Kind::Normal, |&number| Kind::of(number));
    let entry = |(i, text): (usize, &String)| Entry { text: text.clone(), kind: kind(i) };
    Ok(texts.iter().enumerate().map(entry).collect())
}

/// Finds the tokens of [`END_OF_TURN_TEXTS`] and [`OTHER_END_TEXTS`], in that order, and makes them
/// control tokens, which some files forget. Gives the rank in the lists and the id of each.
fn mark_end_texts(entries: &mut [Entry]) -> Vec<(usize, TokenId)> {
    let mut ends = Vec::new();
    for (id, entry) in entries.iter_mut().enumerate() {
        let known = END_OF_TURN_TEXTS.iter().chain(&OTHER_END_TEXTS).position(|text| entry.text == *text);
        if let Some(rank) = known {
            entry.kind = Kind::Control;
            ends.push((rank, id as TokenId));
        }
    }
    ends.sort_unstable();
    ends
}
