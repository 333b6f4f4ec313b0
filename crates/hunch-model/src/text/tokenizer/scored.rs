//! SentencePiece BPE, which merges by score (`tokenizer.ggml.model` = `llama`) or by a list of merges (`gemma4`).
//!
//! Neighbouring symbols are merged into the token with the highest score, or by the earliest merge of the list, until no
//! merge is possible. Symbols that are not tokens are encoded as bytes. This is the algorithm of SentencePiece's
//! `bpe_model.cc`. Special tokens do not belong here.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap, HashSet};

use super::{TokenType, VocabularyEntry};
use crate::gguf::Gguf;
use hunch_core::token::TokenId;
use hunch_error::{Error, Result};

/// Merges between two polls for cancellation.
const MERGES_PER_POLL: usize = 1 << 14;

/// SentencePiece BPE encoder.
pub(super) struct SentencePieceEncoder {
    ids: HashMap<String, TokenId>,
    order: Order,
    /// Token of each byte.
    byte_ids: Vec<TokenId>,
    adds_space: bool,
}

/// Order of merges.
enum Order {
    /// Score of each token that a merge may yield.
    Scores(Vec<f32>),
    /// Place of each merge of two tokens in the list of the file. Lines are encoded by themselves.
    Ranks(HashMap<(TokenId, TokenId), u32>),
}

impl SentencePieceEncoder {
    /// Builds the encoder of a file with scores.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] if scores or tokens of bytes are missing.
    pub(super) fn new(gguf: &Gguf, entries: &[VocabularyEntry], unknown: Option<TokenId>) -> Result<Self> {
        let scores = gguf.require_f32s("tokenizer.ggml.scores")?;
        if scores.len() != entries.len() {
            let reason = format!("its vocabulary has {} tokens but {} scores", entries.len(), scores.len());
            return Err(Error::InvalidModelFile { path: gguf.path.clone(), reason });
        }
        let adds_space = gguf.bool("tokenizer.ggml.add_space_prefix").unwrap_or(true);
        Self::with_order(gguf, entries, unknown, (Order::Scores(scores.to_vec()), adds_space))
    }

    /// Builds the encoder of a file with a list of merges.
    ///
    /// # Errors
    /// [`Error::InvalidModelFile`] if the list is invalid or tokens of bytes are missing.
    pub(super) fn ranked(gguf: &Gguf, entries: &[VocabularyEntry], unknown: Option<TokenId>) -> Result<Self> {
        let none = Order::Ranks(HashMap::new());
        let mut encoder = Self::with_order(gguf, entries, unknown, (none, false))?;
        let invalid = |reason| Error::InvalidModelFile { path: gguf.path.clone(), reason };
        let every: HashSet<&str> = entries.iter().map(|entry| entry.text.as_str()).collect();
        let mut ranks = HashMap::new();
        for (rank, line) in (0..).zip(gguf.require_strings("tokenizer.ggml.merges")?) {
            // The first part may be a space.
            let at = line.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| at);
            let Some((left, right)) = at.map(|at| (&line[..at], &line[at + 1..])) else {
                return Err(invalid(format!("the merge \"{line}\" does not have two parts")));
            };
            let whole = [left, right].concat();
            if let Some(part) = [left, right, &whole].into_iter().find(|part| !every.contains(part)) {
                let reason = format!("the merge \"{line}\" needs \"{part}\", which is not in the vocabulary");
                return Err(invalid(reason));
            }
            let id = |text: &str| encoder.ids.get(text).copied();
            if let (Some(left), Some(right), Some(_)) = (id(left), id(right), id(&whole)) {
                ranks.entry((left, right)).or_insert(rank);
            }
        }
        encoder.order = Order::Ranks(ranks);
        Ok(encoder)
    }

    fn with_order(
        gguf: &Gguf,
        entries: &[VocabularyEntry],
        unknown: Option<TokenId>,
        (order, adds_space): (Order, bool),
    ) -> Result<Self> {
        let invalid = |reason| Error::InvalidModelFile { path: gguf.path.clone(), reason };
        // Ordinary text must never become a control token.
        let ordinary = |(_, entry): &(TokenId, &VocabularyEntry)| {
            !matches!(entry.kind, TokenType::Control | TokenType::Unknown)
        };
        let ids: HashMap<String, TokenId> =
            (0..).zip(entries).filter(ordinary).map(|(id, entry)| (entry.text.clone(), id)).collect();
        let byte_id = |byte: u8| {
            let own = ids.get(&format!("<0x{byte:02X}>")).copied();
            own.or(unknown).ok_or_else(|| {
                invalid(format!("its vocabulary has no token for the byte {byte} and none for unknown text"))
            })
        };
        let byte_ids = (0..=u8::MAX).map(byte_id).collect::<Result<_>>()?;
        Ok(Self { order, byte_ids, adds_space, ids })
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
        for part in self.parts(&escaped) {
            for symbol in self.merged(part, cancelled) {
                match self.ids.get(symbol) {
                    Some(&id) => ids.push(id),
                    None => ids.extend(symbol.bytes().map(|byte| self.byte_ids[usize::from(byte)])),
                }
            }
        }
    }

    /// Splits a text where no merges cross: around line breaks if merges are listed.
    fn parts<'a>(&self, text: &'a str) -> Vec<&'a str> {
        match &self.order {
            Order::Scores(_) => vec![text],
            Order::Ranks(_) => {
                let breaks = |byte: &u8| *byte == b'\n';
                let runs = text.as_bytes().chunk_by(|a, b| breaks(a) == breaks(b));
                let mut at = 0;
                runs.map(|run| {
                    at += run.len();
                    &text[at - run.len()..at]
                })
                .collect()
            }
        }
    }

    fn merged<'a>(&self, text: &'a str, cancelled: &dyn Fn() -> bool) -> Vec<&'a str> {
        // Line breaks that are one token need no merges.
        if matches!(self.order, Order::Ranks(_)) && text.starts_with('\n') && self.ids.contains_key(text) {
            return vec![text];
        }
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
        let id = |start: usize, len: usize| self.ids.get(&symbols.text[start..start + len]).copied();
        let score = match &self.order {
            Order::Scores(scores) => scores[id(l.start, len)? as usize],
            Order::Ranks(ranks) => -(*ranks.get(&(id(l.start, l.len)?, id(r.start, r.len)?))? as f32),
        };
        Some(Merge { score, left, right, len })
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;
    use tokenizers::models::bpe::{BPE, Vocab};

    use super::*;
    use crate::gguf::{Array, Value};

    /// Letters that the vocabulary has.
    const LETTERS: [&str; 6] = ["a", "b", "c", "\u{2581}", "\n", "\u{e9}"];

    /// Returns texts of tokens and merges. `picks` are pairs of earlier tokens.
    fn vocabulary(picks: &[(usize, usize)]) -> (Vec<String>, Vec<(String, String)>) {
        let mut texts: Vec<String> = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")).collect();
        texts.extend(LETTERS.map(String::from));
        let mut merges = Vec::new();
        for (left, right) in picks {
            let made = &texts[256..];
            let (left, right) = (made[left % made.len()].clone(), made[right % made.len()].clone());
            let whole = [&left[..], &right].concat();
            // No merge of the model crosses a line break.
            if whole.chars().count() > 6 || whole.contains('\n') && !whole.chars().all(|c| c == '\n') {
                continue;
            }
            if !texts.contains(&whole) {
                texts.push(whole);
            }
            if !merges.contains(&(left.clone(), right.clone())) {
                merges.push((left, right));
            }
        }
        (texts, merges)
    }

    fn encoder(texts: &[String], merges: &[(String, String)]) -> SentencePieceEncoder {
        let empty = [&b"GGUF"[..], &3u32.to_le_bytes(), &[0; 16], &[0; 40]].concat();
        let mut gguf = Gguf::parse(Path::new("ranked.gguf"), &empty).unwrap();
        let lines = merges.iter().map(|(left, right)| format!("{left} {right}")).collect();
        gguf.metadata.insert("tokenizer.ggml.merges".into(), Value::Array(Array::String(lines)));
        let entry = |text: &String| VocabularyEntry { text: text.clone(), kind: TokenType::Normal };
        SentencePieceEncoder::ranked(&gguf, &texts.iter().map(entry).collect::<Vec<_>>(), None).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn listed_merges_match_the_tokenizers_crate(
            picks in prop::collection::vec((0usize..1000, 0usize..1000), 0..60),
            text in "[abc \u{e9}\u{65e5}]{0,24}",
        ) {
            let (texts, merges) = vocabulary(&picks);
            let vocab: Vocab = (0..).zip(&texts).map(|(id, text)| (text.clone(), id)).collect();
            let bpe = BPE::builder().vocab_and_merges(vocab, merges.clone());
            let theirs = tokenizers::Tokenizer::new(bpe.byte_fallback(true).build().unwrap());
            let expected = theirs.encode(text.replace(' ', "\u{2581}"), false).unwrap();
            let mut ids = Vec::new();
            encoder(&texts, &merges).encode(&text, true, &mut ids, &|| false);
            prop_assert_eq!(ids, expected.get_ids());
        }
    }

    #[test]
    fn line_breaks_are_split_off_and_joined_to_one_token() {
        let texts = vocabulary(&[]).0.into_iter().chain(["\n\n".into(), "a\n".into()]).collect::<Vec<_>>();
        let encoder = encoder(&texts, &[("a".into(), "\n".into())]);
        let text_of = |text: &str| {
            let mut ids = Vec::new();
            encoder.encode(text, false, &mut ids, &|| false);
            ids.into_iter().map(|id| texts[id as usize].as_str()).collect::<Vec<_>>()
        };
        assert_eq!(text_of("a\nb"), ["a", "\n", "b"]);
        assert_eq!(text_of("a\n\nb c"), ["a", "\n\n", "b", "\u{2581}", "c"]);
        assert_eq!(text_of("\n\n\n"), ["\n", "\n", "\n"]);
    }
}
