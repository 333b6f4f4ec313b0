//! SentencePiece BPE (`tokenizer.ggml.model` = `llama`), which merges by score.
//!
//! Neighbouring symbols are merged into the token with the highest score until no merge is possible.
//! Symbols that are not tokens are encoded as bytes. This is the algorithm of SentencePiece's
//! `bpe_model.cc`. Special tokens do not belong here.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::{Entry, TokenType};
use crate::gguf::Gguf;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};

/// Merges between two polls for cancellation.
const MERGES_PER_POLL: usize = 1 << 14;

/// SentencePiece BPE encoder.
pub(super) struct Scored {
    ids: HashMap<String, TokenId>,
    scores: Vec<f32>,
    /// Token of each byte.
    byte_ids: Vec<TokenId>,
    adds_space: bool,
}

impl Scored {
    pub(super) fn new(gguf: &Gguf, entries: &[Entry], unknown: Option<TokenId>) -> Result<Self> {
        let invalid = |reason| Error::InvalidModelFile { path: gguf.path.clone(), reason };
        let scores = gguf.require_f32s("tokenizer.ggml.scores")?;
        if scores.len() != entries.len() {
            return Err(invalid(format!(
                "its vocabulary has {} tokens but {} scores",
                entries.len(),
                scores.len()
            )));
        }
        // Ordinary text must never become a control token.
        let ordinary =
            |(_, entry): &(TokenId, &Entry)| !matches!(entry.kind, TokenType::Control | TokenType::Unknown);
        let ids: HashMap<String, TokenId> =
            (0..).zip(entries).filter(ordinary).map(|(id, entry)| (entry.text.clone(), id)).collect();
        let byte_id = |byte: u8| {
            let own = ids.get(&format!("<0x{byte:02X}>")).copied();
            own.or(unknown).ok_or_else(|| {
                invalid(format!("its vocabulary has no token for the byte {byte} and none for unknown text"))
            })
        };
        let byte_ids = (0..=u8::MAX).map(byte_id).collect::<Result<_>>()?;
        let adds_space = gguf.bool("tokenizer.ggml.add_space_prefix").unwrap_or(true);
        Ok(Self { scores: scores.to_vec(), byte_ids, adds_space, ids })
    }

    /// Encodes ordinary text and appends the ids.
    ///
    /// `first` must be `true` at the start of the text and after a special token, where this tokeniser
    /// inserts a space. Once `cancelled` returns `true`, no more symbols are merged.
    pub(super) fn encode(
        &self,
        text: &str,
        first: bool,
        ids: &mut Vec<TokenId>,
        cancelled: &dyn Fn() -> bool,
    ) {
        let space = if first && self.adds_space { " " } else { "" };
        let escaped = format!("{space}{text}").replace(' ', "\u{2581}");
        for symbol in self.merged(&escaped, cancelled) {
            match self.ids.get(symbol) {
                Some(&id) => ids.push(id),
                None => ids.extend(symbol.bytes().map(|byte| self.byte_ids[usize::from(byte)])),
            }
        }
    }

    fn merged<'a>(&self, text: &'a str, cancelled: &dyn Fn() -> bool) -> Vec<&'a str> {
        let mut symbols = Symbols::new(text);
        let mut queue = BinaryHeap::new();
        for right in 1..symbols.list.len() {
            queue.extend(self.merge(&symbols, right - 1, right));
        }
        let mut merges = 0usize;
        while let Some(Merge { left, right, len, .. }) = queue.pop() {
            merges += 1;
            if merges.is_multiple_of(MERGES_PER_POLL) && cancelled() {
                break;
            }
            // The merge is stale if one of its symbols has changed.
            let (l, r) = (&symbols.list[left], &symbols.list[right]);
            if l.len == 0 || r.len == 0 || l.len + r.len != len {
                continue;
            }
            symbols.join(left, right);
            let Symbol { previous, next, .. } = symbols.list[left];
            queue.extend(previous.and_then(|previous| self.merge(&symbols, previous, left)));
            queue.extend(next.and_then(|next| self.merge(&symbols, left, next)));
        }
        let whole = |s: &Symbol| (s.len > 0).then(|| &text[s.start..s.start + s.len]);
        symbols.list.iter().filter_map(whole).collect()
    }

    fn merge(&self, symbols: &Symbols<'_>, left: usize, right: usize) -> Option<Merge> {
        let (l, r) = (&symbols.list[left], &symbols.list[right]);
        let len = l.len + r.len;
        let id = *self.ids.get(&symbols.text[l.start..l.start + len])?;
        Some(Merge { score: self.scores[id as usize], left, right, len })
    }
}

/// Part of the text. Its length is 0 after it has been joined to its left neighbour.
struct Symbol {
    start: usize,
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

struct Symbols<'a> {
    text: &'a str,
    list: Vec<Symbol>,
}

impl<'a> Symbols<'a> {
    fn new(text: &'a str) -> Self {
        let count = text.chars().count();
        let symbol = |(i, (start, c)): (usize, (usize, char))| Symbol {
            start,
            len: c.len_utf8(),
            previous: i.checked_sub(1),
            next: (i + 1 < count).then_some(i + 1),
        };
        Self { text, list: text.char_indices().enumerate().map(symbol).collect() }
    }

    fn join(&mut self, left: usize, right: usize) {
        let next = self.list[right].next;
        self.list[left].len += self.list[right].len;
        self.list[left].next = next;
        self.list[right].len = 0;
        if let Some(next) = next {
            self.list[next].previous = Some(left);
        }
    }
}

/// Candidate merge. Ordered by score, then from right to left.
struct Merge {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

impl Ord for Merge {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Merge {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Merge {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Merge {}

/// Decodes the text of a token: `<0x41>` is one byte, `▁` is a space.
pub(super) fn bytes(text: &str) -> Vec<u8> {
    let hex = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    if let Some(hex) = hex.filter(|hex| hex.len() == 2)
        && let Ok(byte) = u8::from_str_radix(hex, 16)
    {
        return vec![byte];
    }
    text.replace('\u{2581}', " ").into_bytes()
}
