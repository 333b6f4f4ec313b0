//! A draft model that reads and scores the tokens of a target with another tokeniser.
//!
//! Its distribution is limited to the tokens that both vocabularies have, and renormalised by the sampler (token-level
//! intersection, Timor et al., arXiv 2502.05202, algorithm 4). The usual acceptance rules then keep the target's
//! distribution. Which tokens correspond is the matter of [`Translation`].

use std::ops::Range;
use std::sync::Arc;

use hunch_core::error::{Error, Result};
use hunch_core::model::{
    ExpertUse, LanguageModel, LogitRows, ModelInfo, ModelMemory, PassInput, PassOutput, RowLayout, Rows,
    VocabSubset,
};
use hunch_core::token::TokenId;

use crate::text::Translation;

/// Largest share of the draft's vocabulary whose logits are worth computing apart from the rest.
const MOST_SCORED: f64 = 0.75;

/// A draft model that reads and scores the tokens of a target with another tokeniser.
///
/// Each token of the target takes one or more rows of the draft's cache. Lengths and rows that a caller sees are those
/// of the target.
pub struct Translated {
    draft: Box<dyn LanguageModel>,
    translation: Arc<Translation>,
    info: ModelInfo,
    /// End of the draft's rows of each token in the cache.
    ends: Vec<usize>,
    scored: ScoredTokens,
}

/// Tokens to score, in both vocabularies.
struct ScoredTokens {
    /// Tokens of the target that were asked for. `None` is all.
    of_target: Option<VocabSubset>,
    /// Tokens whose logits the draft computes. `None` is all.
    of_draft: Option<VocabSubset>,
    /// Shared tokens among them, as `(draft, target)`.
    shared: Vec<(TokenId, TokenId)>,
}

impl ScoredTokens {
    fn new(translation: &Translation, of_target: Option<&VocabSubset>, n_draft: usize) -> Self {
        // The model may have fewer rows than its tokeniser has tokens.
        let exist = translation.shared().iter().copied().filter(|(id, _)| (*id as usize) < n_draft);
        let all = Self { of_target: of_target.cloned(), of_draft: None, shared: exist.collect() };
        let Some(of_target) = of_target else { return all };
        let listed = all.shared.iter().copied().filter(|(_, token)| of_target.contains(*token));
        let listed: Vec<_> = listed.collect();
        let mut of_draft = VocabSubset::default();
        listed.iter().for_each(|(id, _)| of_draft.insert(*id));
        // Tokens that cost nothing are scored too. A list without a shared token would leave nothing to draft.
        if listed.is_empty() || of_draft.share_of(n_draft) > MOST_SCORED {
            return all;
        }
        Self { of_draft: Some(of_draft), shared: listed, ..all }
    }
}

impl Translated {
    /// Wraps a draft model with an empty cache.
    pub fn new(draft: Box<dyn LanguageModel>, translation: Arc<Translation>) -> Self {
        let info = ModelInfo { n_vocab: translation.n_vocab(), ..draft.info().clone() };
        let scored = ScoredTokens::new(&translation, None, draft.info().n_vocab);
        Self { draft, translation, info, ends: Vec::new(), scored }
    }

    /// Returns the draft's rows before token `at` of the cache.
    fn start(&self, at: usize) -> usize {
        at.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// Returns the draft's tokens for tokens that follow the cache, and the end of the rows of each.
    fn expand(&self, tokens: &[TokenId]) -> Result<(Vec<TokenId>, Vec<usize>)> {
        let base = self.start(self.ends.len());
        let (mut pieces, mut ends) = (Vec::with_capacity(2 * tokens.len()), Vec::with_capacity(tokens.len()));
        for (i, &token) in tokens.iter().enumerate() {
            let own = self.translation.pieces(token);
            if own.is_empty() {
                let n_vocab = self.info.n_vocab;
                return Err(Error::invalid(format!(
                    "Token {token} is outside this model's vocabulary of {n_vocab} tokens."
                )));
            }
            if self.ends.is_empty() && i == 0 {
                pieces.extend(self.translation.bos_before(token));
            }
            pieces.extend_from_slice(own);
            ends.push(base + pieces.len());
        }
        Ok((pieces, ends))
    }

    /// Returns the draft's rows that the rows of a pass see. `None` for a chain. `ends` are those of the pass.
    fn mask(&self, layout: RowLayout<'_>, ends: &[usize]) -> Result<Option<Mask>> {
        let invalid = || Error::Internal("the layout of a translated pass does not fit its rows".into());
        let (since, depths, visible) = match layout {
            RowLayout::Chain => return Ok(None),
            RowLayout::Custom { since, depths, visible } => (since, depths.to_vec(), visible.to_vec()),
            RowLayout::Tree { parents } => {
                let mut visible: Vec<u64> = Vec::with_capacity(parents.len());
                for (row, parent) in parents.iter().enumerate() {
                    let of_parent = match *parent {
                        Some(parent) => visible.get(parent).ok_or_else(invalid)?,
                        None => &0,
                    };
                    visible.push(of_parent | 1u64.checked_shl(row as u32).ok_or_else(invalid)?);
                }
                let depths = visible.iter().map(|seen| seen.count_ones() as usize - 1).collect();
                (self.ends.len(), depths, visible)
            }
        };
        let unsettled = self.ends.get(since..).ok_or_else(invalid)?;
        if depths.len() != ends.len() || visible.len() != ends.len() || unsettled.len() + ends.len() > 64 {
            return Err(invalid());
        }
        let base = self.start(since);
        // Rows of the draft of each slot, counted from `base`.
        let mut slots: Vec<Range<usize>> = Vec::with_capacity(unsettled.len() + ends.len());
        for end in unsettled.iter().chain(ends) {
            slots.push(slots.last().map_or(0, |slot| slot.end)..end - base);
        }
        if slots.last().is_some_and(|slot| slot.end > 64) {
            return Err(Error::Internal("a tree takes more than 64 rows of the draft".into()));
        }
        let mut mask = Mask { since: base, depths: Vec::new(), visible: Vec::new() };
        for (row, own) in slots.iter().enumerate().skip(unsettled.len()) {
            let (depth, seen) = (depths[row - unsettled.len()], visible[row - unsettled.len()]);
            let others: Vec<_> = (0..row).filter(|slot| seen >> slot & 1 == 1).collect();
            let seen =
                others.iter().flat_map(|&slot| slots[slot].clone()).fold(0u64, |bits, at| bits | 1 << at);
            // A token that takes several rows moves those after it.
            let depth = depth + seen.count_ones() as usize - others.len();
            for (piece, at) in own.clone().enumerate() {
                let earlier = (own.start..=at).fold(seen, |bits, at| bits | 1 << at);
                mask.visible.push(earlier);
                mask.depths.push(depth + piece);
            }
        }
        Ok(Some(mask))
    }

    /// Runs the draft's tokens and returns the logits after the last row of each token, `[tokens, n_vocab]`.
    fn run(
        &mut self,
        step: PassInput<'_>,
        pieces: &[TokenId],
        lasts: &[usize],
        mask: Option<&Mask>,
    ) -> Result<Vec<f32>> {
        let Self { draft, info, scored, .. } = self;
        let layout = mask.map_or(RowLayout::Chain, |mask| RowLayout::Custom {
            since: mask.since,
            depths: &mask.depths,
            visible: &mask.visible,
        });
        // A long chain is split, so that no pass has more rows than a prefill.
        let most = if mask.is_none() { draft.prefill_rows().max(1) } else { pieces.len() };
        let (mut logits, mut done) = (Vec::new(), 0);
        for tokens in pieces.chunks(most) {
            let rows = done..done + tokens.len();
            done = rows.end;
            let wanted = match step.logits {
                LogitRows::Last if done < pieces.len() => LogitRows::None,
                wanted => wanted,
            };
            let vocab_subset = scored.of_draft.as_ref();
            let output = draft.forward(PassInput { tokens, layout, logits: wanted, vocab_subset, ..step })?;
            let first = match wanted {
                LogitRows::None => continue,
                LogitRows::Last => done - 1,
                LogitRows::All => rows.start,
            };
            for last in lasts.iter().filter(|last| (first..done).contains(last)) {
                let (of_draft, start) = (output.logits.row(last - first), logits.len());
                logits.resize(start + info.n_vocab, f32::NEG_INFINITY);
                for &(id, token) in &scored.shared {
                    logits[start + token as usize] = of_draft[id as usize];
                }
            }
        }
        Ok(logits)
    }
}

/// Visible rows of a pass of the draft, as in [`RowLayout::Custom`].
struct Mask {
    since: usize,
    depths: Vec<usize>,
    visible: Vec<u64>,
}

impl LanguageModel for Translated {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn cache_len(&self) -> usize {
        self.ends.len()
    }

    fn fork(&self) -> Box<dyn LanguageModel> {
        Box::new(Self::new(self.draft.fork(), self.translation.clone()))
    }

    fn memory(&self) -> ModelMemory {
        // A subset of the target's vocabulary does not say how much of the draft's head is read.
        ModelMemory { head: 0, head_weights: 0, ..self.draft.memory() }
    }

    fn expert_use(&self) -> Option<ExpertUse> {
        self.draft.expert_use()
    }

    fn rows_of(&self, text: &[TokenId]) -> usize {
        let bos = text.first().and_then(|&first| self.translation.bos_before(first));
        let pieces = |&token: &TokenId| self.translation.pieces(token).len().max(1);
        usize::from(bos.is_some()) + text.iter().map(pieces).sum::<usize>()
    }

    fn prefill_rows(&self) -> usize {
        self.draft.prefill_rows()
    }

    fn forward(&mut self, step: PassInput<'_>) -> Result<PassOutput> {
        if !step.taps.is_empty() || step.tokens.is_empty() {
            return Err(Error::Internal("a translated pass needs a token and has no taps".into()));
        }
        let base = self.start(self.ends.len());
        let (pieces, ends) = self.expand(step.tokens)?;
        let mask = self.mask(step.layout, &ends)?;
        if self.scored.of_target.as_ref() != step.vocab_subset {
            self.scored = ScoredTokens::new(&self.translation, step.vocab_subset, self.draft.info().n_vocab);
        }
        let lasts: Vec<usize> = ends.iter().map(|end| end - base - 1).collect();
        match self.run(step, &pieces, &lasts, mask.as_ref()) {
            Ok(logits) => {
                self.ends.extend(ends);
                Ok(PassOutput { logits: Rows::new(self.info.n_vocab, logits), taps: Vec::new() })
            }
            Err(error) => {
                // A failed pass leaves the cache as it was. If that fails too, the first error is the one to report.
                let _ = self.draft.truncate(base);
                Err(error)
            }
        }
    }

    fn truncate(&mut self, len: usize) -> Result<()> {
        if len < self.ends.len() {
            self.draft.truncate(self.start(len))?;
            self.ends.truncate(len);
        }
        Ok(())
    }

    fn keep_rows(&mut self, base: usize, rows: &[usize]) -> Result<()> {
        if base > self.ends.len() || rows.iter().any(|row| base + row >= self.ends.len()) {
            return Err(Error::Internal("a row to keep does not exist".into()));
        }
        let start = self.start(base);
        let of_draft = |&row: &usize| self.start(base + row) - start..self.ends[base + row] - start;
        let kept: Vec<Range<usize>> = rows.iter().map(of_draft).collect();
        self.draft.keep_rows(start, &kept.iter().cloned().flatten().collect::<Vec<_>>())?;
        self.ends.truncate(base);
        for rows in kept {
            self.ends.push(self.start(self.ends.len()) + rows.len());
        }
        Ok(())
    }
}
