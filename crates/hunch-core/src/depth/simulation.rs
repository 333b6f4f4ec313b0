//! The controller played through hundreds of conversations on a made-up machine: what becomes of drafts that pay, and
//! of drafts that do not. Texts, times and luck come from seeds; there is no model and no clock.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

/// t(M) in passes of one row, as measured for a model of 1.5 billion weights on two cores.
const PASS: [f64; MAX_ROWS + 1] =
    [0.0, 1.0, 1.07, 1.19, 1.27, 1.35, 1.4, 1.48, 1.5, 1.52, 1.59, 1.69, 1.78, 1.87, 2.02, 2.14, 2.24];
/// Milliseconds of a pass of one row.
const ONE: f64 = 50.0;
/// A drafted token, and one that the draft model reads, in passes of one row.
const DRAFT: f64 = 0.27;
const READ: f64 = 0.04;
/// Tokens of a prompt and of an answer, answers of a conversation that all begin anew, conversations.
const PROMPT: usize = 60;
const ANSWER: usize = 112;
const ANSWERS: usize = 4;
const CONVERSATIONS: u64 = 200;
/// By how much times go up and down, and how many take half as long again.
const NOISE: f64 = 0.05;
const HELD_UP: (f64, f64) = (0.02, 1.5);
/// How often something else begins to use the machine, for how many rounds, and by how much all is slower meanwhile.
const SHARED: (f64, u32, f64) = (0.0125, 6, 1.6);
/// Tokens that an answer begins with, and how much less of them is accepted where the beginning is hard to guess.
const BEGINNING: usize = 16;
const HARD: f64 = 0.55;
/// How often the kind of place changes from a token to the next.
const CHANGES: f64 = 0.4;

/// A kind of place in a text.
#[derive(Clone, Copy)]
struct Place {
    /// How common it is.
    share: f64,
    /// The draft's confidence there, from and to.
    confidence: (f32, f32),
    /// The probability that what was drafted is accepted.
    accepted: f64,
}

const fn place(share: f64, confidence: (f32, f32), accepted: f64) -> Place {
    Place { share, confidence, accepted }
}

const CODE: [Place; 3] =
    [place(0.65, (0.9, 1.0), 0.97), place(0.2, (0.4, 0.9), 0.8), place(0.15, (0.02, 0.4), 0.55)];
const PROSE: [Place; 3] =
    [place(0.35, (0.9, 1.0), 0.95), place(0.35, (0.4, 0.9), 0.75), place(0.3, (0.02, 0.4), 0.5)];
/// A draft that knows nothing, and one that is sure of itself and wrong.
const CLUELESS: [Place; 1] = [place(1.0, (0.0, 0.2), 0.03)];
const DECEIVING: [Place; 1] = [place(1.0, (0.9, 1.0), 0.05)];

/// What became of an answer.
struct Played {
    /// Over plain decoding.
    speedup: f64,
    /// Whether drafting rested most of the time.
    rested: bool,
}

/// A conversation of answers about what begins anew, drafted as deep as the controller says or always `fixed`.
fn play(seed: u64, places: &[Place], beginning: f64, fixed: Option<usize>) -> Vec<Played> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut controller = DepthController::new();
    controller.expect_cost(Some(0.3));
    let mut machine = Machine::default();
    (0..ANSWERS)
        .map(|_| answer(&mut rng, &mut machine, &mut controller, (places, beginning), fixed))
        .collect()
}

fn answer(
    rng: &mut ChaCha8Rng,
    machine: &mut Machine,
    controller: &mut DepthController,
    (places, beginning): (&[Place], f64),
    fixed: Option<usize>,
) -> Played {
    let mut text = text(rng, places, ANSWER + MAX_DRAFT);
    text[..BEGINNING].iter_mut().for_each(|place| place.accepted *= beginning);
    controller.begin(true);
    let (mut got, mut ms, mut rounds, mut resting, mut unread) = (1, 0.0, 0, 0, PROMPT);
    while got < ANSWER {
        let chosen = controller.plan(MAX_DRAFT, unread, 0);
        let mut plan = match fixed {
            // As in a session: the first token does not wait until the draft model has read the prompt.
            _ if rounds == 0 => DraftPlan::fixed(0),
            Some(depth) => DraftPlan::fixed(depth),
            None => chosen,
        };
        let mut drafted = 0;
        while drafted < plan.max_draft {
            drafted += 1;
            if !plan.goes_on(text[got + drafted - 1].confidence.0) {
                break;
            }
        }
        let draft = &text[got..got + drafted];
        let accepted = draft.iter().take_while(|place| rng.random::<f64>() < place.accepted).count();
        let tested = drafted.min(accepted + 1);
        let read = if drafted > 0 && unread > FEW { unread } else { 0 };
        let slow = machine.next_round(rng);
        let propose_ms = slow * ONE * (DRAFT * drafted as f64 + READ * read as f64) * noise(rng);
        let target_ms = slow * ONE * PASS[drafted + 1] * noise(rng);
        controller.observe(&Observation {
            drafted,
            passes: drafted,
            read,
            propose_ms,
            acted: drafted > 0,
            height: drafted,
            rows: drafted + 1,
            target_ms,
            round_ms: propose_ms + target_ms,
            emitted: 1 + accepted,
            tested: (0..tested).map(|position| position < accepted).collect(),
            confidence: draft[..tested].iter().map(|place| Some(place.confidence.0)).collect(),
        });
        unread = if drafted > 0 { 1 } else { unread + 1 };
        got += 1 + accepted;
        // Plain decoding would have been as slow meanwhile.
        ms += (propose_ms + target_ms) / slow;
        rounds += 1;
        resting += usize::from(controller.state().parked);
    }
    Played { speedup: (got - 1) as f64 * ONE / ms, rested: 2 * resting > rounds }
}

/// Places in a row, each with the draft's confidence in its token.
fn text(rng: &mut ChaCha8Rng, places: &[Place], tokens: usize) -> Vec<Place> {
    let mut kind = 0;
    let mut next = || {
        if rng.random::<f64>() < CHANGES {
            let (at, mut sum) = (rng.random::<f64>(), 0.0);
            kind = places
                .iter()
                .position(|place| {
                    sum += place.share;
                    at < sum
                })
                .unwrap_or(kind);
        }
        let Place { confidence: (from, to), .. } = places[kind];
        let confidence = from + (to - from) * rng.random::<f32>();
        Place { confidence: (confidence, confidence), ..places[kind] }
    };
    (0..tokens).map(|_| next()).collect()
}

/// A machine that others use too, now and then.
#[derive(Default)]
struct Machine {
    /// Rounds until it is ours again.
    shared: u32,
}

impl Machine {
    /// How many times longer than alone all takes in the next round.
    fn next_round(&mut self, rng: &mut ChaCha8Rng) -> f64 {
        let (begins, rounds, slow) = SHARED;
        let goes_on = self.shared.saturating_sub(1);
        self.shared = if rng.random::<f64>() < begins { rounds } else { goes_on };
        if self.shared > 0 { slow } else { 1.0 }
    }
}

fn noise(rng: &mut ChaCha8Rng) -> f64 {
    let held_up = if rng.random::<f64>() < HELD_UP.0 { HELD_UP.1 } else { 1.0 };
    (1.0 + NOISE * rng.random_range(-1.7..1.7)) * held_up
}

/// All answers of all conversations.
fn played(places: &[Place], beginning: f64, fixed: Option<usize>) -> Vec<Vec<Played>> {
    (0..CONVERSATIONS).map(|seed| play(seed, places, beginning, fixed)).collect()
}

fn mean_speedup(conversations: &[Vec<Played>]) -> f64 {
    let speedups = conversations.iter().flatten().map(|answer| answer.speedup);
    speedups.sum::<f64>() / (conversations.len() * ANSWERS) as f64
}

#[test]
fn what_pays_is_seldom_given_up_and_no_fixed_depth_is_better() {
    for (name, places, beginning) in
        [("code", CODE, 1.0), ("hard code", CODE, HARD), ("prose", PROSE, 1.0), ("hard prose", PROSE, HARD)]
    {
        let auto = played(&places, beginning, None);
        let rested = auto.iter().flatten().filter(|answer| answer.rested).count();
        let rested = rested as f64 / (auto.len() * ANSWERS) as f64;
        assert!(rested < 0.04, "{name}: rests in {rested} of all answers");
        let best = [1, 2, 3, 4, 6, 8, 12].map(|depth| mean_speedup(&played(&places, beginning, Some(depth))));
        let best = best.into_iter().fold(0.0, f64::max);
        assert!(
            mean_speedup(&auto) > best,
            "{name}: {} where a fixed depth gives {best}",
            mean_speedup(&auto)
        );
    }
}

#[test]
fn what_does_not_pay_costs_little() {
    for (name, places) in [("clueless", CLUELESS), ("deceiving", DECEIVING)] {
        let auto = played(&places, 1.0, None);
        assert!(mean_speedup(&auto) > 0.965, "{name}: {} in the mean", mean_speedup(&auto));
        let later = auto.iter().map(|answers| {
            let mut speedups: Vec<f64> = answers[1..].iter().map(|answer| answer.speedup).collect();
            speedups.sort_by(f64::total_cmp);
            speedups[speedups.len() / 2]
        });
        let under = later.filter(|&speedup| speedup < 0.97).count();
        assert!(under < 5, "{name}: under 0.97 in {under} of {CONVERSATIONS} conversations");
    }
}
