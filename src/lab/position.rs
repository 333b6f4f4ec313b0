//! One position of a text: both models' scores, their distributions, and the split into accepted and resampled mass.
//!
//! The caller provides the scores. Example scores are here for when no pair of models is loaded.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::lab::report::{LabPosition, LabRest, LabSource, LabToken};
use hunch_core::method::Method;
use hunch_core::sample::{LogitRow, Sampler, SamplingParams};
use hunch_core::theory;
use hunch_core::token::TokenId;
use hunch_error::Result;

/// Most tokens listed for a position.
pub const LISTED: usize = 24;

/// Logits of two models at a position.
#[derive(Clone, Debug, PartialEq)]
pub struct LogitPair {
    /// Logits of the target, one per token of its vocabulary.
    pub target: Vec<f32>,
    /// Logits of the draft model, whose vocabulary may be shorter or longer.
    pub draft: Vec<f32>,
    /// Tokens before the position, for penalties.
    pub context: Vec<TokenId>,
}

/// Both distributions at a position, over the target's vocabulary.
#[derive(Clone, Debug)]
pub struct Distributions {
    scores: Arc<LogitPair>,
    sampling: SamplingParams,
    p: Vec<f32>,
    q: Vec<f32>,
    listed: Vec<TokenId>,
}

/// Description of a position.
#[derive(Clone, Debug, PartialEq)]
pub struct PositionInfo {
    /// Id of the distributions for later requests.
    pub id: u32,
    /// Source of the position.
    pub source: LabSource,
    /// Name of the target. `None` for example distributions.
    pub target: Option<String>,
    /// Name of the draft model.
    pub draft: Option<String>,
    /// Drafter that computed q. `None` for example distributions.
    pub drafter: Option<Method>,
    /// End of the text before the position.
    pub before: String,
    /// Token at the position, if the answer continues.
    pub drawn: Option<TokenId>,
}

impl Distributions {
    /// Computes the distributions of the next token with these sampling parameters.
    ///
    /// p and q come from the same function, as in a generation. The draft's logits are cut or padded to the target's
    /// vocabulary, like [`propose`](hunch_core::propose) does: a token of only one vocabulary has no probability.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`](hunch_error::Error::InvalidRequest) for parameters out of range.
    /// [`Error::Internal`](hunch_error::Error::Internal) when the logits are unusable.
    pub fn new(scores: impl Into<Arc<LogitPair>>, sampling: SamplingParams) -> Result<Self> {
        let scores = scores.into();
        let sampler = Sampler::new(sampling)?;
        let p = sampler.distribution(&scores.target, &scores.context)?;
        let mut draft = scores.draft.clone();
        draft.resize(scores.target.len(), f32::NEG_INFINITY);
        let q = sampler.distribution(&draft, &scores.context)?;
        let listed = most_likely(&p, &q);
        Ok(Self { scores, sampling: sampler.params().clone(), p, q, listed })
    }

    /// Computes the distributions at another temperature.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn at_temperature(&self, temperature: f32) -> Result<Self> {
        Self::new(self.scores.clone(), SamplingParams { temperature, ..self.sampling.clone() })
    }

    /// Returns the target's distribution.
    pub fn p(&self) -> &[f32] {
        &self.p
    }

    /// Returns the draft model's distribution.
    pub fn q(&self) -> &[f32] {
        &self.q
    }

    /// Returns p(token) / max p of the target at temperature 1, without filters. `None` unless sampling is greedy.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn greedy_ratio(&self, token: TokenId) -> Result<Option<f64>> {
        let sampler = Sampler::new(self.sampling.clone())?;
        if !sampler.is_greedy() {
            return Ok(None);
        }
        let row = LogitRow::new(&self.scores.target);
        Ok(Some(sampler.relative_likelihood(&row, &self.scores.context, token)?))
    }

    /// Returns the listed tokens: the [`LISTED`] most likely by max(p, q). Ties go to the lower id.
    pub fn listed(&self) -> &[TokenId] {
        &self.listed
    }

    /// Returns the position for display. `text_of` gives the text of a token.
    pub fn position(&self, info: PositionInfo, text_of: &dyn Fn(TokenId) -> String) -> LabPosition {
        let rejection = theory::residual_mass(&self.p, &self.q);
        let tokens: Vec<LabToken> =
            self.listed.iter().map(|&id| self.token(id, rejection, text_of(id))).collect();
        LabPosition {
            id: info.id,
            source: info.source,
            target: info.target,
            draft: info.draft,
            drafter: info.drafter,
            sampling: self.sampling.clone(),
            before: info.before,
            drawn: info.drawn,
            rest: self.rest(rejection),
            tokens,
            acceptance: theory::acceptance(&self.p, &self.q),
            rejection,
        }
    }

    fn token(&self, id: TokenId, rejection: f64, text: String) -> LabToken {
        let (p, q) = (f64::from(self.p[id as usize]), f64::from(self.q[id as usize]));
        let (overlap, residual) = (p.min(q), share((p - q).max(0.0), rejection));
        LabToken { id, text, p, q, overlap, residual, total: overlap + rejection * residual }
    }

    /// Sums over all tokens that are not listed.
    fn rest(&self, rejection: f64) -> LabRest {
        let mut rest = LabRest::default();
        let mut listed = self.listed.clone();
        listed.sort_unstable();
        for (id, (&p, &q)) in self.p.iter().zip(&self.q).enumerate() {
            if (p > 0.0 || q > 0.0) && listed.binary_search(&(id as TokenId)).is_err() {
                let (p, q) = (f64::from(p), f64::from(q));
                rest.tokens += 1;
                rest.p += p;
                rest.q += q;
                rest.overlap += p.min(q);
                rest.residual += share((p - q).max(0.0), rejection);
            }
        }
        rest
    }
}

/// Returns `part / whole`, or 0 if `whole` is 0.
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Returns the tokens to list.
fn most_likely(p: &[f32], q: &[f32]) -> Vec<TokenId> {
    let larger = |id: TokenId| p[id as usize].max(q[id as usize]);
    let mut tokens: Vec<TokenId> = (0..p.len() as TokenId).filter(|&id| larger(id) > 0.0).collect();
    let by_size = |a: &TokenId, b: &TokenId| -> Ordering { larger(*b).total_cmp(&larger(*a)).then(a.cmp(b)) };
    if tokens.len() > LISTED {
        tokens.select_nth_unstable_by(LISTED - 1, by_size);
        tokens.truncate(LISTED);
    }
    tokens.sort_unstable_by(by_size);
    tokens
}

/// Text before the example position.
pub const TOY_BEFORE: &str = "The keeper climbed the stairs and lit";

/// Example vocabulary with p and q at temperature 1, in percent.
///
/// The draft favours common words more than the target does. One has more than twice the target's probability, so
/// that a lenient rule has something to reject.
const TOY: [(&str, f32, f32); 10] = [
    (" the", 30.0, 40.0),
    (" a", 18.0, 28.0),
    (" his", 16.0, 5.0),
    (" her", 10.0, 3.0),
    (" one", 8.0, 4.0),
    (" it", 6.0, 8.0),
    (" every", 5.0, 2.0),
    (" two", 3.0, 7.0),
    (" lamps", 2.5, 2.0),
    (" up", 1.5, 1.0),
];

/// Returns example scores after [`TOY_BEFORE`], in which target and draft differ visibly.
pub fn toy() -> LogitPair {
    LogitPair {
        target: TOY.iter().map(|(_, p, _)| p.ln()).collect(),
        draft: TOY.iter().map(|(_, _, q)| q.ln()).collect(),
        context: Vec::new(),
    }
}

/// Returns the text of a token of the example vocabulary. Empty for an unknown id.
pub fn toy_text(id: TokenId) -> String {
    TOY.get(id as usize).map_or_else(String::new, |(text, _, _)| (*text).to_owned())
}

/// Returns the description of the example position.
pub fn toy_info(id: u32) -> PositionInfo {
    PositionInfo {
        id,
        source: LabSource::Toy,
        target: None,
        draft: None,
        drafter: None,
        before: TOY_BEFORE.to_owned(),
        drawn: None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Generates scores of a target and a draft with vocabularies of different length.
    pub(in crate::lab) fn any_scores() -> impl Strategy<Value = LogitPair> {
        let logits = |len| prop::collection::vec(-6.0f32..6.0, len);
        (logits(1..80), logits(1..80)).prop_map(|(target, draft)| LogitPair {
            target,
            draft,
            context: Vec::new(),
        })
    }

    /// Generates sampling parameters, with and without filters.
    pub(in crate::lab) fn any_sampling() -> impl Strategy<Value = SamplingParams> {
        (0.2f32..2.0, 0u32..40, 0.5f32..=1.0, prop_oneof![Just(0.0f32), Just(0.05)]).prop_map(
            |(temperature, top_k, top_p, min_p)| SamplingParams {
                temperature,
                top_k,
                top_p,
                min_p,
                ..SamplingParams::unfiltered()
            },
        )
    }

    fn shown(distributions: &Distributions) -> LabPosition {
        distributions.position(toy_info(1), &toy_text)
    }

    proptest! {
        #[test]
        fn accepted_and_residual_mass_add_up_to_p(scores in any_scores(), sampling in any_sampling()) {
            let distributions = Distributions::new(scores, sampling).unwrap();
            let shown = shown(&distributions);
            prop_assert!(shown.tokens.len() <= LISTED);
            for token in &shown.tokens {
                prop_assert!((token.total - token.p).abs() < 1e-12, "{token:?}");
            }
            prop_assert!((shown.rest.overlap + shown.rejection * shown.rest.residual - shown.rest.p).abs() < 1e-12);
            let sum = |value: fn(&LabToken) -> f64| shown.tokens.iter().map(value).sum::<f64>();
            prop_assert!((sum(|t| t.p) + shown.rest.p - 1.0).abs() < 1e-5);
            prop_assert!((sum(|t| t.q) + shown.rest.q - 1.0).abs() < 1e-5);
            prop_assert!((sum(|t| t.overlap) + shown.rest.overlap - shown.acceptance).abs() < 1e-9);
            if shown.rejection > 0.0 {
                prop_assert!((sum(|t| t.residual) + shown.rest.residual - 1.0).abs() < 1e-9);
            }
            prop_assert!((shown.acceptance + shown.rejection - 1.0).abs() < 1e-5);
            let distance = theory::total_variation(distributions.p(), distributions.q());
            prop_assert!((shown.acceptance - (1.0 - distance)).abs() < 1e-5);
            let listed = shown.tokens.iter().map(|t| t.p.max(t.q));
            prop_assert!(listed.is_sorted_by(|a, b| a >= b));
        }
    }

    #[test]
    fn draft_is_fitted_to_the_target_vocabulary() {
        let draft = vec![0.0, 0.0, 5.0];
        let longer = LogitPair { target: vec![0.0; 2], draft: draft.clone(), context: Vec::new() };
        let distributions = Distributions::new(longer, SamplingParams::unfiltered()).unwrap();
        assert_eq!(distributions.q(), [0.5, 0.5]);
        let shorter = LogitPair { target: vec![0.0; 4], draft, context: Vec::new() };
        let distributions = Distributions::new(shorter, SamplingParams::unfiltered()).unwrap();
        assert_eq!((distributions.q().len(), distributions.q()[3]), (4, 0.0));
    }

    #[test]
    fn penalties_apply_to_the_context() {
        let sampling = SamplingParams { presence_penalty: 2.0, ..SamplingParams::greedy() };
        let scores = LogitPair { target: vec![1.0, 0.5], draft: vec![1.0, 0.5], context: vec![0] };
        assert_eq!(Distributions::new(scores, sampling).unwrap().p(), [0.0, 1.0]);
        let hot = SamplingParams { temperature: 9.0, ..SamplingParams::default() };
        assert!(Distributions::new(toy(), hot).is_err());
    }

    #[test]
    fn equal_distributions_reject_nothing() {
        let scores = LogitPair { draft: toy().target, ..toy() };
        let shown = shown(&Distributions::new(scores, SamplingParams::unfiltered()).unwrap());
        assert_eq!(shown.rejection, 0.0);
        assert!(shown.tokens.iter().all(|t| t.residual == 0.0 && t.total == t.p));
    }

    #[test]
    fn example_distributions_differ() {
        let distributions = Distributions::new(toy(), SamplingParams::unfiltered()).unwrap();
        let shown = shown(&distributions);
        assert_eq!((shown.tokens.len(), shown.rest), (TOY.len(), LabRest::default()));
        assert_eq!((shown.tokens[0].id, shown.tokens[0].text.as_str()), (0, " the"));
        assert!((shown.tokens[0].p - 0.3).abs() < 1e-6 && (shown.tokens[0].q - 0.4).abs() < 1e-6);
        assert!((0.5..0.85).contains(&shown.acceptance), "{}", shown.acceptance);
        assert_eq!(toy_text(99), "");
    }

    #[test]
    fn unlisted_tokens_are_counted() {
        let target: Vec<f32> = (0..60).map(|i| -0.1 * i as f32).collect();
        let scores = LogitPair { draft: target.clone(), target, context: Vec::new() };
        let shown = shown(&Distributions::new(scores, SamplingParams::unfiltered()).unwrap());
        assert_eq!((shown.tokens.len(), shown.rest.tokens), (LISTED, 60 - LISTED as u32));
        assert_eq!(shown.tokens.iter().map(|t| t.id).collect::<Vec<_>>(), (0..24).collect::<Vec<_>>());
    }
}
