//! Comparison of the methods' tokens with plain's, answer by answer.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use crate::bench::MethodConfig;
use crate::bench::turns::{MeasuredAnswer, Turn};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::token::{TokenId, shared_len};

/// Comparison of greedy answers, token for token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct IdentityReport {
    /// Number of answers compared with plain's.
    pub compared: u32,
    /// Answers that differ.
    pub differences: Vec<Difference>,
}

/// An answer that differs from plain's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct Difference {
    /// Name of the suite.
    pub suite: String,
    /// Id of the prompt.
    pub prompt: String,
    /// The method.
    pub method: Method,
    /// Most tokens drafted a round; 0 for plain.
    pub max_draft: MaxDraft,
    /// Number of the run, from 0.
    pub run: u32,
    /// Number of the lane in a comparison. Absent in benchmarks and old comparisons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[ts(optional)]
    pub lane: Option<u32>,
    /// Index of the first token that differs, or the shorter length when one answer is a prefix of the other.
    pub position: u32,
}

impl IdentityReport {
    /// Adds another comparison.
    pub(super) fn extend(&mut self, other: Self) {
        self.compared += other.compared;
        self.differences.extend(other.differences);
    }
}

/// The plain answer that other answers are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reference {
    /// The first one to the prompt. Plain's answers of later runs are compared too.
    FirstRun,
    /// The one of the same turn.
    SameTurn,
}

/// Compares answers with plain's, token for token. `name` gives the suite and id of a prompt.
pub(super) fn identity<A: AsRef<MeasuredAnswer>>(
    configs: &[MethodConfig],
    turns: &[Turn<A>],
    reference: Reference,
    name: impl Fn(usize) -> (String, String),
) -> IdentityReport {
    let mut report = IdentityReport::default();
    let mut first: BTreeMap<usize, &[TokenId]> = BTreeMap::new();
    for turn in turns {
        let plain = &turn.answers[0].as_ref().ids[..];
        let (plain, skipped) = match reference {
            Reference::SameTurn => (plain, 1),
            Reference::FirstRun => {
                let skipped = usize::from(!first.contains_key(&turn.prompt));
                (*first.entry(turn.prompt).or_insert(plain), skipped)
            }
        };
        for (config, answer) in configs.iter().zip(&turn.answers).skip(skipped) {
            report.compared += 1;
            let ids = &answer.as_ref().ids;
            if ids != plain {
                let (suite, prompt) = name(turn.prompt);
                report.differences.push(Difference {
                    suite,
                    prompt,
                    method: config.method,
                    max_draft: config.drafts(),
                    run: turn.run as u32,
                    lane: None,
                    position: shared_len(ids, plain) as u32,
                });
            }
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::turns::tests::turn;

    #[test]
    fn answers_are_compared_with_the_chosen_reference() {
        let configs = [Method::Plain, Method::Ngram]
            .map(|method| MethodConfig { method, max_draft: MaxDraft::Fixed(4) });
        let turns = [turn(0, 0, 20.0, &[1, 2, 3, 4]), turn(0, 1, 20.0, &[1, 2, 9, 4])];
        let name = |prompt: usize| ("mine".to_owned(), format!("p{prompt}"));
        let same = identity(&configs, &turns, Reference::SameTurn, name);
        assert_eq!((same.compared, same.differences.len()), (2, 0));
        let first = identity(&configs, &turns, Reference::FirstRun, name);
        let found: Vec<_> =
            first.differences.iter().map(|d| (d.method, d.max_draft, d.run, d.position)).collect();
        assert_eq!(first.compared, 3);
        assert_eq!(
            found,
            [(Method::Plain, MaxDraft::Fixed(0), 1, 2), (Method::Ngram, MaxDraft::Fixed(4), 1, 2)]
        );
    }
}
