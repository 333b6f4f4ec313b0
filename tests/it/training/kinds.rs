//! Medusa and EAGLE heads: training, files, drafts, killed runs, and bad input.

use hunch::services::train as service;
use hunch_library::HEADS_FOLDER;
use hunch_model::heads;

use super::*;

/// Runs a head of a kind through training, files, loading, and the round loop.
fn check_kind(kind: HeadKind, methods: &[Method]) {
    let place = TrainingFixture::deep();
    let out = place.path("head");
    let recipe = Recipe { ridge: UNTRAINED, learning_rate: 3e-3, epochs: 6, ..small_of(kind) };
    let plan = TrainPlan { recipe: recipe.clone(), ..plan(2_000) };
    let report = place.train_to("head", "data", &plan);
    let TrainReport { start, trained, .. } = &report;
    assert!(start.first.mean() < 0.25 && trained.first.mean() > 0.5, "{start:?} {trained:?}");
    assert!(trained.tokens_a_pass() > start.tokens_a_pass() + 0.5, "{start:?} {trained:?}");
    assert_eq!(trained.later.len(), 2);
    assert!(trained.later[1].sampled_positions > 10, "{trained:?}");

    // The head that decoding loads computes what was trained, but for the rounding to 8 bits.
    let store = place.store("data");
    let fit = FitRun::open(&place.target, &store, store.training_set(2_000), &recipe, 3, &|| false).unwrap();
    let network = fit.best_acceptance();
    for (own, loaded) in [(&network.first, &trained.first), (&network.later[0], &trained.later[0])] {
        assert!((own.sampled - loaded.sampled).abs() < 0.01, "{network:?} {trained:?}");
        assert!((own.greedy - loaded.greedy).abs() < 0.04, "{network:?} {trained:?}");
    }
    drop((fit, store));
    let again =
        train::evaluate(&place.target, &place.path("data"), &plan, &out, &mut |_: TrainProgress| {}).unwrap();
    assert_eq!(&again, trained);
    // Heads of all kinds are compared at the same depths.
    let other = TrainPlan { recipe: small().comparable(), ..plan };
    let again = train::evaluate(&place.target, &place.path("data"), &other, &out, &mut |_: TrainProgress| {})
        .unwrap();
    assert_eq!(&again, trained);

    let load = LoadPlan { head: Some(out), ..LoadPlan::of(&place.target.path) };
    let mut models = Models::load_by(&load, &cpu()).unwrap();
    for &method in methods {
        let mut counts = (0, 0);
        for seed in [1, 2] {
            let prompt = models.prompt_ids(&Prompt::Raw(format!("prompt {seed}"))).unwrap();
            let run = |models: &mut Models, method| {
                let plan = GenerationPlan {
                    method,
                    max_draft: MaxDraft::Fixed(3),
                    max_tokens: 60,
                    sampling: SamplingParams::greedy(),
                    ..GenerationPlan::default()
                };
                answer_ids(models, &prompt, &plan, &WallClock::start()).unwrap()
            };
            let (plain, _) = run(&mut models, Method::Plain);
            let (with_head, stats) = run(&mut models, method);
            assert_eq!(with_head, plain, "{method:?}");
            counts = (counts.0 + stats.drafted, counts.1 + stats.accepted);
        }
        assert!(counts.0 > 60 && counts.1 > 0, "{method:?}: {counts:?}");
    }
}

#[test]
fn medusa_head_is_trained_and_drafts_chains_and_trees() {
    check_kind(HeadKind::Medusa, &[Method::Head, Method::HeadTree]);
}

#[test]
fn eagle_head_is_trained_and_drafts_chains_and_trees() {
    check_kind(HeadKind::Eagle, &[Method::Head, Method::HeadTree]);
}

#[test]
fn kinds_share_data_and_nothing_else() {
    let place = TrainingFixture::deep();
    let train = |kind| {
        let plan = TrainPlan { recipe: Recipe { epochs: 1, ..small_of(kind) }, ..plan(500) };
        place.train_to(kind.name(), "data", &plan)
    };
    assert!(train(HeadKind::Mlp).collected_now > 0);
    for kind in [HeadKind::Medusa, HeadKind::Eagle] {
        assert_eq!(train(kind).collected_now, 0, "{kind}");
    }
    // Each has a checkpoint of its own, so there is nothing left to do.
    for kind in HeadKind::ALL {
        assert_eq!(train(kind).trained_now, 0, "{kind}");
    }
}

#[test]
fn eagle_head_is_installed_as_a_folder_and_drafts_from_the_next_load_on() {
    let place = TrainingFixture::deep();
    let (data, folder) = (place.path("data"), place.path(HEADS_FOLDER));
    let train = |kind| {
        let plan = TrainPlan { recipe: Recipe { epochs: 1, ..small_of(kind) }, ..plan(500) };
        service::train(
            &place.target,
            service::TrainFolders { run: &data, heads: &folder },
            &plan,
            None,
            &mut |_: TrainProgress| {},
        )
        .unwrap()
    };
    let load = LoadPlan { heads: Some(folder.clone()), ..LoadPlan::of(&place.target.path) };
    let has_head = || Models::load_by(&load, &cpu()).unwrap().usable_methods().contains(&Method::Head);
    assert!(!has_head());
    let head = folder.join("tiny-eagle");
    let trained = train(HeadKind::Eagle);
    assert_eq!(trained.place, head);
    assert!(trained.installed && trained.in_use.is_none() && has_head());
    assert!(train(HeadKind::Mlp).in_use.is_some(), "it is compared with the EAGLE head");
    let _ = std::fs::remove_file(folder.join("tiny.gguf"));
    let places = Places { data: Some(place.folder.path().into()), ..Places::only(place.path("models")) };
    assert_eq!(hunch_library::resolve_head(Path::new("tiny-eagle"), &places).unwrap(), head);

    // A kill between the files leaves one, which is no head, and is completed.
    let weights = head.join("model.safetensors");
    std::fs::remove_file(&weights).unwrap();
    assert!(!has_head());
    assert!(train(HeadKind::Eagle).installed && has_head());
    // A newer file in the folder does not make it a newer head.
    let newest =
        || heads::in_folder(&folder, &WeightFile::open(&place.target.path).unwrap()).unwrap().remove(0);
    std::fs::copy(place.path("data").join("head.gguf"), folder.join("tiny.gguf")).unwrap();
    std::fs::write(head.join(".DS_Store"), "").unwrap();
    assert_eq!(newest(), folder.join("tiny.gguf"));
    // Files of others are not replaced, and the run says so before any work.
    std::fs::write(head.join("notes.txt"), "of someone").unwrap();
    let plan = TrainPlan { recipe: small_of(HeadKind::Eagle), ..plan(700) };
    let refused = service::train(
        &place.target,
        service::TrainFolders { run: &data, heads: &folder },
        &plan,
        None,
        &mut |_: TrainProgress| {},
    );
    assert!(refused.is_err_and(|error| error.to_string().contains("not of a head of Hunch")));
    assert!(head.join("notes.txt").exists());

    let other = Tiny { layers: 4, seed: 9, ..tiny() }.write(place.folder.path(), "other");
    let open = |head: &Path| TrainingTarget::open(&other, &cpu()).unwrap().load_head(head).map(drop);
    for path in [&head, &weights] {
        let error = open(path).unwrap_err().to_string();
        assert!(error.contains("was trained for"), "{error}");
        let error = heads::outlook(path, &WeightFile::open(&other).unwrap(), &cpu()).unwrap_err().to_string();
        assert!(error.contains("was trained for"), "{error}");
    }
    let outlook = heads::outlook(&head, &WeightFile::open(&place.target.path).unwrap(), &cpu()).unwrap();
    assert!(outlook.acceptance.is_some_and(|share| share > 0.0 && share <= 1.0), "{:?}", outlook.acceptance);
}

#[test]
fn places_and_models_that_do_not_fit_an_eagle_head_are_refused_before_any_work() {
    let refused = |place: &TrainingFixture, out: &Path| {
        let plan = TrainPlan { recipe: small_of(HeadKind::Eagle), ..plan(200) };
        let data = place.path("data");
        let error = train::train(&place.target, &data, &plan, out, &mut |_: TrainProgress| {})
            .unwrap_err()
            .to_string();
        assert!(!data.exists(), "{error}");
        error
    };
    let shallow = TrainingFixture::new();
    let error = refused(&shallow, &shallow.path("head"));
    assert!(error.contains("reads 3 layers"), "{error}");
    let place = TrainingFixture::deep();
    let error = refused(&place, &place.target.path);
    assert!(error.contains("is a file"), "{error}");
    let error = refused(&place, place.folder.path());
    assert!(error.contains("not of a head of Hunch"), "{error}");
}

#[test]
fn killed_run_of_every_kind_ends_with_the_same_head_and_drafts() {
    let data = || {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("models")).unwrap();
        learnable().write(&folder.path().join("models"), "target");
        folder
    };
    let (whole, killed) = (data(), data());
    let train = train("300", "400");
    for (kind, checkpoint, method) in [
        ("medusa", "medusa-checkpoint.safetensors", "head-tree"),
        ("eagle", "eagle-checkpoint.safetensors", "head"),
    ] {
        let run = |data: &Path| {
            let out = data.join(kind);
            let options = ["--kind", kind, "--depth", "2", "--out", out.to_str().unwrap()];
            let report = last_json(&hunch(data, &[&train[..], &options].concat()));
            assert_eq!(report["head"], out.to_str().unwrap());
            (out, report)
        };
        let (expected, _) = run(whole.path());
        let out = killed.path().join(kind);
        let options = ["--kind", kind, "--depth", "2", "--out", out.to_str().unwrap()];
        kill_once(killed.path(), &[&train[..], &options].concat(), Some(checkpoint));
        // A kill while the head is written leaves such files.
        let unfinished = out.join("model.Xk3f9A.part");
        if kind == "eagle" {
            std::fs::create_dir_all(&out).unwrap();
            std::fs::write(&unfinished, "half").unwrap();
        }
        let (out, _) = run(killed.path());
        assert!(!unfinished.exists());
        assert!(bytes_of(&out) == bytes_of(&expected), "the weights of {kind} differ");

        let out = out.to_str().unwrap();
        let verify = ["verify", "--target", "target", "--head", out, "--method", method];
        let verified = hunch(killed.path(), &[&verify[..], &["--samples", "20", "--threads", "1"]].concat());
        assert!(verified.status.success(), "{}{}", text(&verified.stdout), text(&verified.stderr));
        let inspected = hunch(killed.path(), &["models", "inspect", out]);
        assert!(text(&inspected.stdout).to_lowercase().contains(kind), "{}", text(&inspected.stdout));
        let eval = ["drafter", "eval", "--target", "target", "--head", out, "--held-out", "400", "--json"];
        let judged: DraftAcceptance =
            serde_json::from_value(last_json(&hunch(killed.path(), &eval))).unwrap();
        assert!(judged.first.sampled > 0.0 && !judged.later.is_empty(), "{judged:?}");
    }
    for option in
        ["--depth=0", "--depth=9", "--minutes=-1", "--disk=-1", "--parallel=0", "--tokens=0", "--held-out=0"]
    {
        let refused = hunch(killed.path(), &["drafter", "train", "--target", "target", option]);
        let (name, error) = (option.split('=').next().unwrap(), text(&refused.stderr));
        assert!(!refused.status.success() && error.contains(name), "{option}: {error}");
    }
    let none = ["drafter", "eval", "--target", "target", "--head", "x", "--held-out=0"];
    let error = text(&hunch(killed.path(), &none).stderr);
    assert!(error.contains("--held-out") && error.contains("not in 1.."), "{error}");
    let unknown = hunch(killed.path(), &[&TRAIN[..], &["--kind", "hydra"]].concat());
    assert!(text(&unknown.stderr).contains("mlp, medusa, eagle"), "{}", text(&unknown.stderr));
}
