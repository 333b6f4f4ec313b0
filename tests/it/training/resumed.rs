//! Fits that were stopped or paused, in the same process.

use super::*;

#[test]
fn interrupted_fit_ends_with_the_same_weights() {
    const TOKENS: usize = 700;
    let place = TrainingFixture::deep();
    let recipe = |kind| {
        let epochs = if kind == HeadKind::Mlp { 4 } else { 2 };
        Recipe { epochs, held_out: 150, evaluations: 2, ..small_of(kind) }
    };
    // All kinds train on the same data.
    place.collect_all("whole", &recipe(HeadKind::Mlp), TOKENS);
    copy_files(&place.path("whole"), &place.path("stopped"));
    for kind in HeadKind::ALL {
        check_interrupted(&place, &TrainPlan { recipe: recipe(kind), ..plan(TOKENS) }, TOKENS);
    }
}

/// Checks fits of the data in the folders `whole` and `stopped`.
fn check_interrupted(place: &TrainingFixture, whole: &TrainPlan, tokens: usize) {
    let kind = whole.recipe.kind;
    let [head, stopped_head] = ["head", "stopped-head"].map(|name| format!("{kind}-{name}"));
    place.train_to(&head, "whole", whole);
    let expected = bytes_of(&place.path(&head));

    // Stopped after each of these numbers of steps, with the last checkpoint some steps behind.
    let store = place.store("stopped");
    let (mut steps, mut total) = (0, 1);
    for (every, count) in [(3_600, 3), (0, 5), (3_600, 2), (0, 4)] {
        let recipe = Recipe { checkpoint_every: Duration::from_secs(every), ..whole.recipe.clone() };
        let mut fit =
            FitRun::open(&place.target, &store, store.training_set(tokens), &recipe, 3, &|| false).unwrap();
        assert_eq!(fit.position().0, steps, "it continues at the last checkpoint");
        for _ in 0..count {
            fit.step(&store, &|| false).unwrap().expect("a step");
        }
        steps += if every == 0 { count } else { 0 };
        total = fit.position().1;
    }
    assert!(steps < total, "{steps} of {total}");
    drop(store);
    let report = place.train_to(&stopped_head, "stopped", whole);
    assert_eq!((report.steps, report.collected_now), (total, 0));
    assert!(bytes_of(&place.path(&stopped_head)) == expected);

    // A finished run has nothing left to do.
    let report = place.train_to(&stopped_head, "stopped", whole);
    assert_eq!((report.trained_now, report.collected_now), (0, 0));
    assert!(bytes_of(&place.path(&stopped_head)) == expected);
}

/// Pauses once it was asked a number of times.
pub(crate) struct PausingWatch {
    pub(crate) asked: std::cell::Cell<usize>,
    pub(crate) limit: usize,
}

impl TrainWatch for PausingWatch {
    fn progress(&mut self, _: TrainProgress) {}

    fn interrupt(&self) -> Option<Interrupt> {
        self.asked.set(self.asked.get() + 1);
        (self.asked.get() > self.limit).then_some(Interrupt::Pause)
    }
}

/// Pauses fall into the regression, between steps, and into measurements of acceptance. None waits for their end.
#[test]
fn paused_run_ends_with_the_same_weights_wherever_it_was_paused() {
    let place = TrainingFixture::new();
    let whole = plan(1_000);
    place.collect_all("paused", &small(), 1_000);
    copy_files(&place.path("paused"), &place.path("whole"));
    let mut report = place.train("whole", &whole);
    let expected = std::fs::read(place.path("head.gguf")).unwrap();
    let (out, folder) = (place.path("paused.gguf"), place.path("paused"));
    let mut pauses = 0;
    // Each run gets further than the regression alone, which begins again.
    for limit in (1..).step_by(7) {
        let mut watch = PausingWatch { asked: 0.into(), limit };
        match train::train(&place.target, &folder, &whole, &out, &mut watch) {
            Ok(last) => {
                report.collected_now = last.collected_now;
                break;
            }
            Err(Error::Stopped) => pauses += 1,
            Err(error) => panic!("{error}"),
        }
        // The regression asks once more why it ended.
        assert!(watch.asked.get() <= limit + 2, "it ends at once");
    }
    assert!(pauses > 5, "{pauses}");
    assert_eq!(report.collected_now, 0);
    assert!(std::fs::read(&out).unwrap() == expected);
}
