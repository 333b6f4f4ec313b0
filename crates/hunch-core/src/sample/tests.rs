//! Tests of the sampler against a slow, fully sorted reference in f64.

use proptest::prelude::*;

use super::vectors::exp_by;
use super::*;
use crate::limits::MAX_SEED;

fn sampler(params: SamplingParams) -> Sampler {
    Sampler::new(params).unwrap()
}

/// All stages in f64 with a full sort: the definition that the fast path must match.
fn reference(params: &SamplingParams, logits: &[f32]) -> Vec<f64> {
    let clean = |l: f32| if l.is_nan() { f64::NEG_INFINITY } else { f64::from(l) };
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| clean(logits[b]).total_cmp(&clean(logits[a])).then(a.cmp(&b)));
    let max = clean(logits[order[0]]);
    if params.top_k > 0 {
        order.truncate(params.top_k as usize);
    }
    let weight = |i: usize| (clean(logits[i]) - max).exp();
    let total: f64 = order.iter().map(|&i| weight(i)).sum();
    if params.top_p < 1.0 {
        let mut reached = 0.0;
        let mut keep = 0;
        while keep < order.len() && (keep == 0 || reached < f64::from(params.top_p) * total) {
            reached += weight(order[keep]);
            keep += 1;
        }
        order.truncate(keep);
    }
    order.retain(|&i| weight(i) >= f64::from(params.min_p));
    let mut distribution = vec![0.0; logits.len()];
    for &i in &order {
        distribution[i] = ((clean(logits[i]) - max) / f64::from(params.temperature)).exp();
    }
    let total: f64 = distribution.iter().sum();
    distribution.iter().map(|w| w / total).collect()
}

#[test]
fn exp_is_accurate_to_two_units_in_the_last_place() {
    let mut worst: f64 = 0.0;
    for i in 0..=873_000 {
        let x = -(i as f32) * 1e-4;
        let exact = f64::from(x).exp();
        let ulp = f64::from(f32::from_bits((exact as f32).to_bits() + 1) - exact as f32);
        // The fused variant is used where the CPU has FMA. Both must be accurate.
        for found in [exp_nonpositive(x), exp_by::<true>(x)] {
            worst = worst.max((f64::from(found) - exact).abs() / ulp);
        }
    }
    assert!(worst <= 2.0, "{worst} ulp");
    assert_eq!(exp_nonpositive(0.0), 1.0);
    assert_eq!(exp_nonpositive(f32::INFINITY), 1.0);
    for x in [f32::NEG_INFINITY, f32::NAN, -88.0, f32::MIN] {
        assert_eq!(exp_nonpositive(x), 0.0);
    }
}

#[test]
fn greedy_picks_lowest_of_equal_maxima() {
    let distribution =
        sampler(SamplingParams::greedy()).distribution(&[1.0, f32::NAN, 3.0, 3.0], &[]).unwrap();
    assert_eq!(distribution, [0.0, 0.0, 1.0, 0.0]);
    assert_eq!(argmax(&[1.0, f32::NAN, 3.0, 3.0]), 2);
}

#[test]
fn rejects_row_without_usable_logit() {
    for params in [SamplingParams::greedy(), SamplingParams::default()] {
        let error = sampler(params).distribution(&[f32::NAN, f32::NEG_INFINITY], &[]).unwrap_err();
        assert!(matches!(error, Error::UnusableScores));
    }
}

#[test]
fn infinite_logits_share_probability() {
    let distribution = sampler(SamplingParams::unfiltered())
        .distribution(&[f32::INFINITY, 0.0, f32::INFINITY, f32::NEG_INFINITY], &[])
        .unwrap();
    assert_eq!(distribution, [0.5, 0.0, 0.5, 0.0]);
}

#[test]
fn filters_break_ties_towards_lower_token() {
    let logits = vec![0.0; 300];
    let top_k = SamplingParams { top_k: 3, ..SamplingParams::unfiltered() };
    let distribution = sampler(top_k).distribution(&logits, &[]).unwrap();
    let kept: Vec<usize> = (0..300).filter(|&i| distribution[i] > 0.0).collect();
    assert_eq!(kept, [0, 1, 2]);
    let top_p = SamplingParams { top_p: 0.25, ..SamplingParams::unfiltered() };
    let distribution = sampler(top_p).distribution(&logits, &[]).unwrap();
    assert!((0..300).all(|i| (distribution[i] > 0.0) == (i < 75)));
}

#[test]
fn zero_top_p_keeps_most_likely_token() {
    for top_k in [0, 2] {
        let params = SamplingParams { top_p: 0.0, top_k, ..SamplingParams::unfiltered() };
        assert_eq!(sampler(params).distribution(&[0.5, 2.0, 1.0], &[]).unwrap(), [0.0, 1.0, 0.0]);
    }
}

#[test]
fn applies_penalties_to_recent_tokens() {
    let params = SamplingParams {
        repeat_penalty: 2.0,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        penalty_last_n: 3,
        ..SamplingParams::unfiltered()
    };
    let sampler = sampler(params);
    // Token 3 is outside the window; token 9 is outside the vocabulary.
    let adjusted = sampler.adjusted(&[4.0, -2.0, 1.0, 1.0], &[3, 9, 0, 1, 0]).unwrap();
    assert_eq!(adjusted.unwrap(), [4.0 / 2.0 - 0.5 - 0.5, -2.0 * 2.0 - 0.5 - 0.25, 1.0, 1.0]);
    assert_eq!(sampler.window(), 3);
    assert_eq!(Sampler::new(SamplingParams::default()).unwrap().window(), 0);
}

#[test]
fn logit_bias_shifts_logit_and_rejects_unknown_token() {
    let mut params = SamplingParams::greedy();
    params.logit_bias.insert(0, 5.0);
    assert_eq!(sampler(params.clone()).distribution(&[0.0, 4.0], &[]).unwrap(), [1.0, 0.0]);
    params.logit_bias.insert(2, 1.0);
    let error = sampler(params).distribution(&[0.0, 4.0], &[]).unwrap_err();
    assert!(error.to_string().contains("token 2"), "{error}");
}

#[test]
fn rejects_out_of_range_settings_with_range() {
    type Change = fn(&mut SamplingParams);
    let cases: [(&str, Change); 8] = [
        ("temperature is NaN; choose a number from 0 to 5.", |p| p.temperature = f32::NAN),
        ("temperature is -1; choose a number from 0 to 5.", |p| p.temperature = -1.0),
        ("top_p is 1.1; choose a number from 0 to 1.", |p| p.top_p = 1.1),
        ("min_p is inf; choose a number from 0 to 1.", |p| p.min_p = f32::INFINITY),
        ("repeat_penalty is 0; choose a number from 0.5 to 4.", |p| p.repeat_penalty = 0.0),
        ("presence_penalty is 3; choose a number from -2 to 2.", |p| p.presence_penalty = 3.0),
        ("from 0 to 9007199254740991.", |p| p.seed = Some(MAX_SEED + 1)),
        ("logit_bias of token 7 is NaN", |p| {
            p.logit_bias.insert(7, f32::NAN);
        }),
    ];
    for (text, change) in cases {
        let mut params = SamplingParams::default();
        change(&mut params);
        let message = params.validate().unwrap_err().to_string();
        assert!(message.contains(text), "{message}");
    }
    for range in SamplingParams::ranges() {
        assert!(range.min < range.max);
    }
    let largest = SamplingParams { seed: Some(MAX_SEED), ..SamplingParams::default() };
    largest.validate().unwrap();
}

#[test]
fn params_round_trip_json_with_defaults() {
    let mut params = SamplingParams { seed: Some(7), ..SamplingParams::default() };
    params.logit_bias.insert(12, -1.5);
    let json = serde_json::to_string(&params).unwrap();
    assert_eq!(serde_json::from_str::<SamplingParams>(&json).unwrap(), params);
    let partial: SamplingParams = serde_json::from_str(r#"{"temperature": 0}"#).unwrap();
    assert_eq!(partial, SamplingParams { temperature: 0.0, ..SamplingParams::default() });
}

#[test]
fn draw_inverts_the_cumulative_sum() {
    let distribution = [0.0, 0.25, 0.0, 0.5, 0.25, 0.0];
    assert_eq!([0.0, 0.24, 0.25, 0.74, 0.75, 0.999_999].map(|u| draw(&distribution, u)), [1, 1, 3, 3, 4, 4]);
    let mut long = vec![0.0; 1000];
    long[300] = 1.0;
    long[900] = 3.0;
    assert_eq!([0.0, 0.2499, 0.25, 0.99].map(|u| draw(&long, u)), [300, 300, 900, 900]);
}

#[test]
fn logprobs_match_plain_softmax() {
    let logits = [1.0f32, 2.0, f32::NAN, -1.0, f32::NEG_INFINITY];
    let total: f64 = [1.0f64, 2.0, -1.0].iter().map(|l| l.exp()).sum();
    let share = |logit: f64| logit.exp() / total;
    let entropy: f64 = [1.0, 2.0, -1.0].iter().map(|&l| -share(l) * share(l).ln()).sum();
    for (token, logit) in [(0, 1.0f64), (1, 2.0), (3, -1.0)] {
        let seen = LogitRow::new(&logits).logprobs(token, 2);
        assert!((f64::from(seen.confidence) - share(logit)).abs() < 1e-7);
        assert!((f64::from(seen.entropy) - entropy).abs() < 1e-6);
        assert_eq!(seen.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [1, 0]);
        assert!((f64::from(seen.top[1].1) - share(1.0)).abs() < 1e-7);
    }
    assert_eq!(LogitRow::new(&logits).logprobs(2, 9).confidence, 0.0);
    assert_eq!(LogitRow::new(&logits).logprobs(2, 9).top.len(), 3, "impossible tokens are excluded");
    assert_eq!(LogitRow::new(&[f32::NAN]).logprobs(0, 5), TokenLogprobs::default());
    let flat = LogitRow::new(&[0.5; 5000]).logprobs(3, 1);
    assert!((flat.entropy - 5000f32.ln()).abs() < 1e-4 && flat.top == [(0, flat.confidence)]);
    assert_eq!(top_tokens(&[0.25, 0.0, 0.5, 0.25], 9), [(2, 0.5), (0, 0.25), (3, 0.25)]);
    assert_eq!(top_tokens(&[0.25, 0.0, 0.5, 0.25], 1), [(2, 0.5)]);
    let mut sparse = vec![0.0; 5000];
    (sparse[17], sparse[4000]) = (0.25, 0.75);
    assert_eq!(top_tokens(&sparse, 3), [(4000, 0.75), (17, 0.25)]);
}

fn logit() -> impl Strategy<Value = f32> {
    // Few distinct values produce ties; NaN and infinity come up often.
    prop_oneof![
        8 => (-40i32..40).prop_map(|i| i as f32 * 0.25),
        8 => -12.0f32..12.0,
        1 => Just(f32::NAN),
        1 => Just(f32::NEG_INFINITY),
    ]
}

fn params() -> impl Strategy<Value = SamplingParams> {
    (prop_oneof![1 => Just(1e-40f32), 9 => 0.2f32..3.0], 0u32..60, 0.0f32..1.2, 0.0f32..0.6).prop_map(
        |(temperature, top_k, top_p, min_p)| SamplingParams {
            temperature,
            top_k: if top_k > 40 { 0 } else { top_k },
            top_p: top_p.min(1.0),
            min_p: (min_p - 0.2).max(0.0),
            ..SamplingParams::default()
        },
    )
}

proptest! {
    #[test]
    fn distribution_matches_sorted_reference(
        logits in prop::collection::vec(logit(), 1..400),
        params in params(),
    ) {
        prop_assume!(logits.iter().any(|l| l.is_finite()));
        let distribution = sampler(params.clone()).distribution(&logits, &[]).unwrap();
        let exact = reference(&params, &logits);
        // A threshold within rounding error of a token's mass may keep or drop that token.
        let differing = distribution.iter().zip(&exact).filter(|(a, b)| (f64::from(**a) - **b).abs() > 2e-6).count();
        if differing > 0 {
            let nudge = |by: f32| {
                let moved = SamplingParams {
                    top_p: (params.top_p * (1.0 + by)).min(1.0),
                    min_p: params.min_p * (1.0 + by),
                    ..params.clone()
                };
                reference(&moved, &logits)
            };
            let near = [nudge(1e-6), nudge(-1e-6)].into_iter().any(|near| {
                distribution.iter().zip(&near).all(|(a, b)| (f64::from(*a) - b).abs() <= 2e-6)
            });
            prop_assert!(near, "{distribution:?}\n{exact:?}");
        }
        prop_assert!((sum(&distribution) - 1.0).abs() < 1e-5);
    }

    #[test]
    fn draw_never_returns_zero_weight_token(
        weights in prop::collection::vec(prop_oneof![Just(0.0f32), 0.0f32..1.0, Just(1e-30)], 1..600),
        u in 0.0f64..1.0,
    ) {
        prop_assume!(weights.iter().any(|&w| w > 0.0));
        for u in [u, 0.0, 1.0 - f64::EPSILON / 2.0] {
            prop_assert!(weights[draw(&weights, u) as usize] > 0.0);
        }
    }

    #[test]
    fn handles_arbitrary_logits_without_panic(
        bits in prop::collection::vec(any::<u32>(), 1..200),
        params in params(),
        context in prop::collection::vec(0u32..300, 0..30),
    ) {
        let logits: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        let params = SamplingParams { repeat_penalty: 1.3, frequency_penalty: 0.5, ..params };
        if let Ok(distribution) = sampler(params).distribution(&logits, &context) {
            prop_assert!((sum(&distribution) - 1.0).abs() < 1e-5);
            prop_assert!(distribution.iter().all(|&p| p >= 0.0));
            // The order of reads does not change the cached statistics.
            let row = LogitRow::new(&logits);
            let unfiltered = sampler(SamplingParams::unfiltered());
            prop_assert!(unfiltered.distribution_of(&row, &[]).unwrap() == unfiltered.distribution(&logits, &[]).unwrap());
            prop_assert!(row.logprobs(0, 3) == LogitRow::new(&logits).logprobs(0, 3));
        }
    }
}
