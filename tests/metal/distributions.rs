//! The distribution of every method's answers on the simulated GPU, by chi-square tests of stated power.
//!
//! An answer has three tokens, each one of three. The exact distributions of its neighbouring tokens follow from the
//! target's logits, and sampled answers have to follow them. With a rule that accepts every draft, they must not.

use std::time::Duration;

use hunch::event::GenerationEvent;
use hunch::generate::{GenerationContext, GenerationPlan, Prompt, generate};
use hunch_core::depth::MaxDraft;
use hunch_core::method::Method;
use hunch_core::model::{LogitRows, PassInput};
use hunch_core::rule::AcceptanceRule;
use hunch_core::sample::{Sampler, SamplingParams};
use hunch_core::stats::Stopwatch;
use hunch_core::theory::{ChiSquare, chi_square_tail, goodness_of_fit};
use hunch_core::token::TokenId;

use crate::methods::{Loaded, target};
use hunch_testing::tiny_heads::HeadFormat;

/// Answers of a method: enough to find [`BIAS`] with probability [`POWER`], which a test checks.
const ANSWERS: u64 = 300;
/// P-value below which a distribution counts as wrong. Seeds are fixed, so a test passes always or never.
const SIGNIFICANCE: f64 = 1e-3;
/// Total variation that a test finds, in the joint distribution of two neighbouring tokens.
const BIAS: f64 = 0.2;
/// Total variation that it finds if the choices of a token depend on the one before.
const DRAWN_BIAS: f64 = 0.25;
/// Probability that it finds one.
const POWER: f64 = 0.99;
/// Tokens of an answer. Two are drafted in its first round: fewer than a tree would need to hold all choices.
const LENGTH: usize = 3;
/// Tokens that are possible at each position.
const CHOICES: usize = 3;
/// Outcomes of two neighbouring tokens are at most these, less one.
const DEGREES: usize = CHOICES * CHOICES - 1;
/// Letters that continue [`PROMPT`], so that lookup drafts possible tokens.
const LETTERS: [&str; CHOICES] = ["a", "b", "c"];
const PROMPT: &str = "abcabcabcab";
/// Answer and acceptance rate of the method that drafts from a script.
const SCRIPT: (&str, f64) = ("cab", 0.7);

/// Accepts every drafted token that the target may emit.
const NAIVE: AcceptanceRule = AcceptanceRule::LossyTypical { epsilon: 1e-9, delta: 1e-9 };

/// Methods whose drafts the GPU draws. Without biases, only the first two share likely tokens with the target. The others
/// test the tokens that replace rejected ones.
const DRAWN: [Method; 5] =
    [Method::DraftModel, Method::DraftTree, Method::LayerSkip, Method::EarlyExit, Method::LowBit];

/// Clock that makes runs repeatable: no pass is faster than another.
struct NoClock;

impl Stopwatch for NoClock {
    fn elapsed(&self) -> Duration {
        Duration::ZERO
    }
}

/// Returns the probability that a chi-square test finds a bias whose statistic is larger by `shift` on average.
///
/// A noncentral chi-square variable is a central one with a Poisson number of further pairs of degrees.
fn power(shift: f64, degrees: usize) -> f64 {
    let (mut low, mut critical) = (0.0, 1e3);
    for _ in 0..80 {
        let middle = (low + critical) / 2.0;
        if chi_square_tail(middle, degrees) > SIGNIFICANCE { low = middle } else { critical = middle }
    }
    let mut weight = (-shift / 2.0).exp();
    let mut power = 0.0;
    for pairs in 0..400 {
        power += weight * chi_square_tail(critical, degrees + 2 * pairs);
        weight *= shift / 2.0 / (pairs + 1) as f64;
    }
    power
}

/// Returns the answers that find any bias of this total variation with probability [`POWER`].
///
/// The statistic of a bias grows by the sum of its squares over the probabilities with each answer. That is at least 4
/// times the square of its total variation, by Cauchy's inequality.
fn answers_for(bias: f64, degrees: usize) -> u64 {
    (1..).find(|answers| power(*answers as f64 * 4.0 * bias * bias, degrees) >= POWER).unwrap()
}

#[test]
fn number_of_answers_has_the_stated_power() {
    // Chi-square is 26.1 at 8 degrees and p = 0.001.
    assert!((chi_square_tail(26.124, DEGREES) - SIGNIFICANCE).abs() < 1e-5);
    assert!((power(0.0, DEGREES) - SIGNIFICANCE).abs() < 1e-6, "without a bias");
    let answers = answers_for(BIAS, DEGREES);
    println!("{answers} answers find a total variation of {BIAS}, {} one of 0.1", answers_for(0.1, DEGREES));
    assert!(answers <= ANSWERS, "{answers}");
    // Choices that depend on the tokens before have up to three times as many outcomes.
    let answers = answers_for(DRAWN_BIAS, 3 * DEGREES);
    println!(
        "{answers} answers find a total variation of {DRAWN_BIAS} in as many as {} degrees",
        3 * DEGREES
    );
    assert!(answers <= ANSWERS, "{answers}");
}

/// Exact distributions of the tokens of an answer.
struct Exact {
    /// Possible answers with their probabilities.
    answers: Vec<([TokenId; LENGTH], f64)>,
}

impl Exact {
    fn of(loaded: &mut Loaded, prompt: &[TokenId], params: &SamplingParams) -> Self {
        let sampler = Sampler::new(params.clone()).unwrap();
        let target = loaded.models.target();
        let known = prompt.len() - 1;
        target.truncate(0).unwrap();
        target.forward(PassInput::chain(&prompt[..known], LogitRows::None)).unwrap();
        let mut after = |tokens: &[TokenId]| -> Vec<(TokenId, f64)> {
            target.truncate(known).unwrap();
            let logits = target.forward(PassInput::chain(&tokens[known..], LogitRows::Last)).unwrap().logits;
            let all = sampler.distribution(logits.row(0), tokens).unwrap();
            (0..)
                .zip(all.iter())
                .filter(|(_, p)| **p > 0.0)
                .map(|(token, p)| (token, f64::from(*p)))
                .collect()
        };
        let mut begun: Vec<(Vec<TokenId>, f64)> = vec![(Vec::new(), 1.0)];
        for _ in 0..LENGTH {
            let longer = begun.iter().flat_map(|(tokens, p)| {
                let next = after(&[prompt, tokens].concat());
                assert_eq!(next.len(), CHOICES);
                next.into_iter()
                    .map(move |(token, q)| ([&tokens[..], &[token]].concat(), p * q))
                    .collect::<Vec<_>>()
            });
            begun = longer.collect();
        }
        Self { answers: begun.into_iter().map(|(tokens, p)| (tokens.try_into().unwrap(), p)).collect() }
    }

    /// Tests the two pairs of neighbouring tokens of answers that were counted. Returns the worse fit.
    fn fit(&self, counts: &[u64]) -> ChiSquare {
        let fits = (1..LENGTH).map(|second| {
            let pair = |tokens: &[TokenId; LENGTH]| [tokens[second - 1], tokens[second]];
            let mut pairs: Vec<_> = self.answers.iter().map(|(tokens, _)| pair(tokens)).collect();
            pairs.sort_unstable();
            pairs.dedup();
            let (mut seen, mut exact) = (vec![0; pairs.len()], vec![0.0; pairs.len()]);
            for ((tokens, p), count) in self.answers.iter().zip(counts) {
                let at = pairs.binary_search(&pair(tokens)).unwrap();
                seen[at] += count;
                exact[at] += p;
            }
            goodness_of_fit(&seen, &exact)
        });
        fits.min_by(|a, b| a.p_value.total_cmp(&b.p_value)).unwrap()
    }
}

/// Counts of answers, with figures of their drafts.
struct Sampled {
    counts: Vec<u64>,
    drafted: u32,
    accepted: u32,
    resampled: u32,
}

impl Sampled {
    fn none(exact: &Exact) -> Self {
        Self { counts: vec![0; exact.answers.len()], drafted: 0, accepted: 0, resampled: 0 }
    }

    /// Adds an answer.
    fn add(&mut self, loaded: &mut Loaded, prompt: &[TokenId], exact: &Exact, plan: &GenerationPlan) {
        let mut tokens = Vec::new();
        let mut sink = |event: GenerationEvent| tokens.extend(event.tokens().iter().map(|token| token.id));
        let context = GenerationContext::measured(&NoClock);
        let finished = generate(&mut loaded.models, prompt, plan, &context, &mut sink).unwrap();
        tokens.extend(finished.held.iter().map(|token| token.id));
        let at = exact.answers.iter().position(|(answer, _)| tokens == answer);
        self.counts[at.unwrap_or_else(|| panic!("{}: {tokens:?} is impossible", plan.method))] += 1;
        self.drafted += finished.stats.drafted;
        self.accepted += finished.stats.accepted;
        self.resampled += finished.stats.resampled;
    }
}

fn plan(method: Method, rule: AcceptanceRule, params: &SamplingParams, seed: u64) -> GenerationPlan {
    GenerationPlan {
        method,
        rule,
        max_draft: MaxDraft::Fixed(2),
        max_tokens: LENGTH,
        sampling: SamplingParams { seed: Some(seed + 1_000_003 * method as u64), ..params.clone() },
        ..GenerationPlan::default()
    }
}

/// Checks the answers of a method. Returns `true` if some drafts were accepted and some rejected.
fn assert_follows(
    loaded: &mut Loaded,
    prompt: &[TokenId],
    exact: &Exact,
    method: Method,
    params: &SamplingParams,
) -> bool {
    let mut sampled = Sampled::none(exact);
    for seed in 0..ANSWERS {
        sampled.add(loaded, prompt, exact, &plan(method, AcceptanceRule::Lossless, params, seed));
    }
    let (fit, Sampled { drafted, accepted, resampled, .. }) = (exact.fit(&sampled.counts), sampled);
    println!(
        "{method}: {accepted} of {drafted} accepted, {resampled} resampled, chi-square {:.1} of {}, p = {:.4}",
        fit.statistic, fit.degrees, fit.p_value
    );
    assert!(fit.p_value > SIGNIFICANCE, "{method}: {fit:?}");
    // Pooled outcomes leave fewer degrees, with which fewer answers find the same bias.
    assert!((3..=3 * DEGREES).contains(&fit.degrees), "{method}: {fit:?}");
    assert_eq!(drafted > 0, method != Method::Plain, "{method}");
    accepted > 5 && resampled > 5
}

/// Checks that answers with a rule that accepts every draft are found to be wrong.
fn assert_naive_is_found(
    loaded: &mut Loaded,
    prompt: &[TokenId],
    exact: &Exact,
    method: Method,
    params: &SamplingParams,
) {
    let mut sampled = Sampled::none(exact);
    let mut p_value = 1.0;
    for seed in 0..ANSWERS {
        sampled.add(loaded, prompt, exact, &plan(method, NAIVE, params, seed));
        if seed % 20 == 19 {
            p_value = exact.fit(&sampled.counts).p_value;
        }
        if p_value < SIGNIFICANCE {
            println!("{method}: naive acceptance is found after {} answers", seed + 1);
            return;
        }
    }
    panic!("{method}: naive acceptance is not found, p = {p_value:.4}");
}

/// Settings with few choices, at a temperature at which drafts are accepted and rejected.
fn few_choices() -> SamplingParams {
    SamplingParams { temperature: 5.0, top_k: CHOICES as u32, ..SamplingParams::unfiltered() }
}

/// Loads a target with drafts of all kinds. Returns the prompt too.
fn load() -> (Loaded, Vec<TokenId>) {
    let mut loaded = Loaded::with_close_drafts(target(2), HeadFormat::Medusa);
    let ids = |text: &str| loaded.models.prompt_ids(&Prompt::Raw(text.into())).unwrap();
    let (prompt, script) = (ids(PROMPT), ids(SCRIPT.0));
    loaded.models.set_synthetic_script(script, SCRIPT.1).unwrap();
    loaded.copy_from(&prompt);
    (loaded, prompt)
}

/// Biases of logits leave the same letters to the target and to every draft. They are missing from the GPU's guesses.
#[test]
fn answers_of_every_method_follow_the_target_and_naive_ones_do_not() {
    let (mut loaded, prompt) = load();
    let id = |letter: &str| *loaded.models.prompt_ids(&Prompt::Raw(letter.into())).unwrap().last().unwrap();
    let letters = LETTERS.map(|letter| (id(letter), 100.0));
    let biased = SamplingParams { logit_bias: letters.into(), ..few_choices() };
    // Some layers of the target are so close to all of them that only a lower temperature shows a difference.
    let sharp = SamplingParams { temperature: 1.5, ..biased.clone() };
    let [of_biased, of_sharp] = [&biased, &sharp].map(|params| Exact::of(&mut loaded, &prompt, params));
    for method in Method::REGISTERED {
        let of_layers = matches!(method, Method::LayerSkip | Method::EarlyExit);
        let (params, exact) = if of_layers { (&sharp, &of_sharp) } else { (&biased, &of_biased) };
        let is_mixed = assert_follows(&mut loaded, &prompt, exact, method, params);
        assert_eq!(is_mixed, method != Method::Plain, "{method}");
        if method != Method::Plain {
            assert_naive_is_found(&mut loaded, &prompt, exact, method, params);
        }
    }
}

/// Without biases the GPU draws all tokens of a draft.
#[test]
fn answers_with_drafts_that_the_gpu_draws_follow_the_target() {
    let (mut loaded, prompt) = load();
    let few = few_choices();
    let exact = Exact::of(&mut loaded, &prompt, &few);
    for method in DRAWN {
        let is_mixed = assert_follows(&mut loaded, &prompt, &exact, method, &few);
        assert!(is_mixed || !DRAWN[..2].contains(&method), "{method}");
    }
}
