//! SentencePiece BPE (`tokenizer.ggml.model` = `llama`): neighbours are merged into the token of the
//! highest score until none is left; what is no token is written as bytes. This is the algorithm of
//! SentencePiece's `bpe_model.cc`, which merges by score and has no list of merges.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::{Entry, Kind};
use crate::gguf::Gguf;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};

/// Merges between two looks at whether somebody has stopped it.
const MERGES_A_LOOK: usize = 1 << 14;

/// A SentencePiece BPE encoder.
pub(super) struct Scored {
    ids: HashMap<String, TokenId>,
    scores: Vec<f32>,
    /// The token of each byte.
    byte_ids: Vec<TokenId>,
    adds_space: bool,
}

impl Scored {
    pub(super) fn new(gguf: &Gguf, entries: &[Entry], unknown: Option<TokenId>) -> Result<Self> {
        let invalid = |reason| Error::InvalidModelFile { path: gguf.path.clone(), reason };
        let scores = gguf.require_f32s("tokenizer.ggml.scores")?;
        if scores.len() != entries.len() {
            return Err(invalid(format!(
                "its vocabulary has {} tokens and {} scores",
                entries.len(),
                scores.len()
            )));
        }
        // Letters that spell a control token are not one.
        let spelled = |(_, entry): &(TokenId, &Entry)| !matches!(entry.kind, Kind::Control | Kind::Unknown);
        let ids: HashMap<String, TokenId> =
            (0..).zip(entries).filter(spelled).map(|(id, entry)| (entry.text.clone(), id)).collect();
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

    /// Appends the tokens of ordinary text; `first` when it starts the text or follows a special
    /// token, where this kind of tokeniser puts a space before it. Once `stopped`, it merges no further.
    pub(super) fn encode(&self, text: &str, first: bool, ids: &mut Vec<TokenId>, stopped: &dyn Fn() -> bool) {
        let space = if first && self.adds_space { " " } else { "" };
        let escaped = format!("{space}{text}").replace(' ', "\u{2581}");
        for symbol in self.merged(&escaped, stopped) {
            match self.ids.get(symbol) {
                Some(&id) => ids.push(id),
                None => ids.extend(symbol.bytes().map(|byte| self.byte_ids[usize::from(byte)])),
            }
        }
    }

    fn merged<'a>(&self, text: &'a str, stopped: &dyn Fn() -> bool) -> Vec<&'a str> {
        let mut symbols = Symbols::new(text);
        let mut queue = BinaryHeap::new();
        for right in 1..symbols.list.len() {
            queue.extend(self.merge(&symbols, right - 1, right));
        }
        let mut merges = 0usize;
        while let Some(Merge { left, right, len, .. }) = queue.pop() {
            merges += 1;
            if merges.is_multiple_of(MERGES_A_LOOK) && stopped() {
                break;
            }
            // A symbol that has changed since makes the merge stale.
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

/// A stretch of the text; of length 0 once it was joined to its left neighbour.
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

/// A possible merge; the greatest is the one of the highest score, then the leftmost.
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

/// The bytes a token's text stands for: `<0x41>` for one byte, `▁` for a space.
pub(super) fn bytes(text: &str) -> Vec<u8> {
    let hex = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    if let Some(hex) = hex.filter(|hex| hex.len() == 2)
        && let Ok(byte) = u8::from_str_radix(hex, 16)
    {
        return vec![byte];
    }
    text.replace('\u{2581}', " ").into_bytes()
}
