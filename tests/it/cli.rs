//! The command line: the real program, its output and its exit codes.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use candle_core::quantized::GgmlDType;
use hunch_core::method::Method;
use hunch_core::propose::Needs;
use serde_json::Value;

use hunch_testing::gguf_writer::GgufWriter;
use hunch_testing::tiny::{Tiny, WIDTH};

pub(super) fn hunch(data: &Path, arguments: &[&str]) -> Output {
    command(data, arguments).output().unwrap()
}

/// Returns the program with these arguments, not started yet.
pub(super) fn command(data: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hunch"));
    // Folders of other programs must not affect a test.
    for variable in ["HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "OLLAMA_MODELS", "LLAMA_CACHE"] {
        command.env_remove(variable);
    }
    for variable in ["JAN_DATA_FOLDER", "XDG_CACHE_HOME", "XDG_DATA_HOME", "NO_COLOR"] {
        command.env_remove(variable);
    }
    command.args(arguments).env("HUNCH_DATA_DIR", data).env("HOME", data.join("home")).stdin(Stdio::null());
    command
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn data_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    std::fs::create_dir(&models).unwrap();
    let target = Tiny { dtype: GgmlDType::Q8_0, ..Tiny::default() };
    target.write(&models, "target");
    Tiny { layers: 1, ..target }.write(&models, "draft");
    folder
}

pub(super) fn last_json(output: &Output) -> Value {
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}{}", text(&output.stderr));
    serde_json::from_str(out.lines().last().unwrap()).unwrap()
}

#[test]
fn run_prints_one_consistent_json_object() {
    let data = data_folder();
    // The command line makes the low-bit copy itself.
    let loaded = [Needs::DraftModel, Needs::LowBitCopy];
    for method in Method::usable(&loaded).into_iter().map(Method::name) {
        let json = last_json(&hunch(
            data.path(),
            &[
                "run",
                "hello hello hello",
                "--target",
                "target",
                "--draft",
                "draft",
                "--method",
                method,
                "--max-tokens",
                "24",
                "--seed",
                "3",
                "--json",
            ],
        ));
        assert_eq!(json["method"], method);
        let stats = &json["stats"];
        let tokens = json["tokens"].as_array().unwrap();
        let sum: u64 =
            ["accepted", "resampled", "bonus", "plain"].map(|k| stats[k].as_u64().unwrap()).iter().sum();
        assert_eq!(sum, stats["generated_tokens"].as_u64().unwrap());
        assert_eq!(sum as usize, tokens.len());
        let joined: String = tokens.iter().map(|t| t["text"].as_str().unwrap()).collect();
        assert_eq!(json["text"], joined);
        assert_eq!(
            json["prompt_ids"].as_array().unwrap().len() as u64,
            stats["prompt_tokens"].as_u64().unwrap()
        );
        for key in [
            "rounds",
            "drafted",
            "acceptance_rate",
            "mean_acceptance_length",
            "accepted_at_position",
            "ttft_ms",
            "prefill_tok_s",
            "decode_tok_s",
            "wall_ms",
            "propose_ms",
            "target_ms",
            "verify_ms",
            "other_ms",
            "peak_memory_bytes",
            "device",
        ] {
            assert!(!stats[key].is_null(), "stats lack {key}");
        }
        assert!(json["stop"].is_string());
    }
}

#[test]
fn prints_no_colour_codes_to_a_pipe() {
    let data = data_folder();
    let output =
        hunch(data.path(), &["run", "hello", "--target", "target", "--max-tokens", "8", "--seed", "1"]);
    assert!(output.status.success());
    assert!(!text(&output.stdout).contains('\x1b'));
    assert!(text(&output.stdout).contains("tokens per pass"));
}

#[test]
fn warnings_go_to_standard_error_once() {
    let data = data_folder();
    Tiny { architecture: "qwen3", mtp: 1, ..Tiny::default() }.write(&data.path().join("models"), "other");
    let output = hunch(data.path(), &["run", "hello", "--target", "other", "--max-tokens", "2", "--json"]);
    last_json(&output);
    let errors = text(&output.stderr);
    let warnings: Vec<&str> = errors.lines().filter(|line| line.contains("does not draft")).collect();
    assert!(matches!(warnings[..], [line] if line.starts_with("hunch: The MTP layer")), "{errors}");
}

#[test]
fn stored_data_is_deleted_after_a_confirmation() {
    let data = data_folder();
    let copy = data.path().join("low-bit").join("gone.gguf");
    std::fs::create_dir(copy.parent().unwrap()).unwrap();
    std::fs::write(&copy, "copy").unwrap();
    let listed = last_json(&hunch(data.path(), &["models", "storage", "--json"]));
    let id = listed[0]["id"].as_str().unwrap();
    // There is no terminal to ask on.
    let refused = hunch(data.path(), &["models", "storage", "--delete", id]);
    assert_eq!(refused.status.code(), Some(4), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("--yes") && copy.exists(), "{}", text(&refused.stderr));
    let left = last_json(&hunch(data.path(), &["models", "storage", "--delete", id, "--yes", "--json"]));
    assert!(left.as_array().unwrap().is_empty() && !copy.exists(), "{left}");
}

#[test]
fn exit_codes_match_the_documentation() {
    let data = data_folder();
    let broken = data.path().join("broken.gguf");
    std::fs::write(&broken, b"GGUF").unwrap();
    let code = |arguments: &[&str]| {
        let output = hunch(data.path(), arguments);
        let errors = text(&output.stderr);
        assert!(!errors.contains("panicked"), "{errors}");
        (output.status.code().unwrap(), errors)
    };
    assert_eq!(code(&["run", "--nonsense"]).0, 2);
    let (missing, words) = code(&["run", "hi", "--target", "nowhere"]);
    assert_eq!(missing, 3);
    assert!(words.contains("draft, target"), "existing names are listed: {words}");
    assert_eq!(code(&["run", "hi", "--target", broken.to_str().unwrap()]).0, 3);
    // A missing suite is reported before models are looked for.
    let (no_suite, words) = code(&["compare", "--suite", "nowhere.jsonl", "--target", "nowhere"]);
    assert_eq!(no_suite, 4);
    let expected = "There is no suite and no file \"nowhere.jsonl\". Choose one of code, prose, edit";
    assert!(words.contains(expected), "{words}");
    assert_eq!(code(&["compare", "--suite", "code", "--prompts", "0", "--target", "target"]).0, 2);
    assert_eq!(code(&["run", " ", "--target", "target"]).0, 4);
    let (hot, words) = code(&["run", "hi", "--target", "target", "--temperature", "99"]);
    assert_eq!(hot, 4);
    assert!(words.contains("temperature") && words.contains('5'), "{words}");
    assert_eq!(code(&["run", "hi", "--target", "target", "--threads", "0"]).0, 4);
    assert_eq!(code(&["run", &"long ".repeat(300), "--target", "target"]).0, 4);
    assert_eq!(code(&["run", "hi", "--target", "target", "--method", "draft-model"]).0, 4);
    #[cfg(not(target_os = "macos"))]
    assert_eq!(code(&["run", "hi", "--target", "target", "--device", "metal"]).0, 5);
}

#[test]
fn serve_refuses_what_cannot_work_before_it_loads() {
    let data = data_folder();
    let elsewhere = tempfile::tempdir().unwrap();
    Tiny { seed: 5, ..Tiny::default() }.write(elsewhere.path(), "elsewhere");
    let elsewhere = elsewhere.path().join("elsewhere.gguf");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().port().to_string();
    // A broken target would be the error if it were loaded.
    let broken = data.path().join("broken.gguf");
    std::fs::write(&broken, "GGUF").unwrap();
    for (arguments, word) in [
        (["--models", elsewhere.to_str().unwrap()], "no folder that Hunch searches"),
        (["--port", &taken], "Cannot listen"),
        (["--host", "0.0.0.0"], "Set an API key"),
        (["--idle-minutes", "99999999"], "at most a year"),
    ] {
        let output =
            hunch(data.path(), &[&["serve", "--target", broken.to_str().unwrap()][..], &arguments].concat());
        let message = text(&output.stderr);
        assert!(message.contains(word) && output.status.code() != Some(0), "{arguments:?}: {message}");
    }
}

#[test]
fn errors_name_their_reason_once() {
    let data = data_folder();
    let missing = data.path().join("missing.json");
    let output = hunch(data.path(), &["run", "hello", "--schema", missing.to_str().unwrap()]);
    let message = text(&output.stderr);
    assert_eq!(message.matches("os error 2").count(), 1, "{message}");
    assert!(message.starts_with("hunch: Could not read "), "{message}");
}

#[test]
fn lists_and_inspects_models() {
    let data = data_folder();
    let list = last_json(&hunch(data.path(), &["models", "--json"]));
    let names: Vec<&str> = list.as_array().unwrap().iter().map(|m| m["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["draft", "target"]);
    let json = last_json(&hunch(data.path(), &["models", "inspect", "target", "--context", "100", "--json"]));
    assert_eq!(json["spec"]["architecture"], "llama");
    assert!(json["predicted_memory_bytes"].as_u64() > json["weight_bytes"].as_u64());
    let words = text(&hunch(data.path(), &["models", "inspect", "target"]).stdout);
    assert!(words.contains("predicted"), "{words}");
}

#[test]
fn bench_prints_the_documented_object() {
    let data = data_folder();
    let suite = data.path().join("mine.jsonl");
    std::fs::write(&suite, "{\"id\": \"a\", \"prompt\": \"one two one two\"}\n").unwrap();
    let json = last_json(&hunch(
        data.path(),
        &[
            "bench",
            "--target",
            "target",
            "--draft",
            "draft",
            "--suite",
            suite.to_str().unwrap(),
            "--runs",
            "1",
            "--max-tokens",
            "12",
            "--json",
        ],
    ));
    let cost = json["target_cost"].as_object().unwrap();
    for rows in 1..=9 {
        assert!(cost[&rows.to_string()].as_f64().unwrap() > 0.0);
    }
    assert_eq!(cost["1"], 1.0);
    assert!(json["draft_cost"].as_f64().unwrap() > 0.0);
    let methods: Vec<&str> =
        json["methods"].as_array().unwrap().iter().map(|m| m["method"].as_str().unwrap()).collect();
    assert_eq!(methods, Method::usable(&[Needs::DraftModel]).iter().map(|m| m.name()).collect::<Vec<_>>());
    assert_eq!(json["identity"]["differences"].as_array().unwrap().len(), 0);
}

#[test]
fn retrieval_copies_from_the_texts_that_are_named() {
    let data = data_folder();
    let run = |more: &[&str]| {
        let usual = [
            "run",
            "hello hello",
            "--target",
            "target",
            "--max-tokens",
            "16",
            "--temperature",
            "0",
            "--json",
        ];
        hunch(data.path(), &[&usual[..], more].concat())
    };
    let folder = data.path().join("texts");
    std::fs::create_dir(&folder).unwrap();
    let refused = run(&["--method", "retrieval"]);
    assert!(text(&refused.stderr).contains("--texts"), "{}", text(&refused.stderr));
    let named = ["--texts", folder.to_str().unwrap()];
    let refused = run(&named);
    assert!(text(&refused.stderr).contains("There is no text to copy from"), "{}", text(&refused.stderr));
    let plain = last_json(&run(&["--method", "plain"]));
    for (name, content) in [("a.txt", "hello hello"), ("b.txt", plain["text"].as_str().unwrap())] {
        std::fs::write(folder.join(name), content).unwrap();
    }
    for method in ["retrieval", "auto"] {
        let output = run(&[&named[..], &["--method", method]].concat());
        assert_eq!(last_json(&output)["text"], plain["text"], "{method}");
        assert!(
            text(&output.stderr).contains("Drafts are also copied from 2 texts of "),
            "{}",
            text(&output.stderr)
        );
    }
}

#[test]
fn skip_search_saves_its_result() {
    let data = data_folder();
    Tiny { layers: 5, seed: 4, ..Tiny::default() }.write(&data.path().join("models"), "deep");
    let suite = data.path().join("mine.jsonl");
    std::fs::write(&suite, "{\"id\": \"a\", \"prompt\": \"one two one two\"}\n").unwrap();
    let suite = suite.to_str().unwrap();
    let json =
        last_json(&hunch(data.path(), &["skip-search", "--target", "deep", "--suite", suite, "--json"]));
    let skipped = json["best"]["skipped"].as_array().unwrap();
    assert!((1..5).contains(&skipped.len()) && json["layers"] == 5);
    let run = ["run", "one two", "--target", "deep", "--method", "layer-skip", "--max-tokens", "8", "--json"];
    assert_eq!(last_json(&hunch(data.path(), &run))["method"], "layer-skip");
    // The saved layers are used for drafting: other layers give other accepted tokens.
    let accepted = |layers: &[&str]| {
        let greedy = ["--max-draft", "4", "--temperature", "0"];
        let json = last_json(&hunch(data.path(), &[&run[..], &greedy, layers].concat()));
        json["stats"]["accepted"].as_u64().unwrap()
    };
    let found: Vec<String> = skipped.iter().map(|layer| layer.to_string()).collect();
    assert_eq!(accepted(&[]), accepted(&["--skip-layers", &found.join(",")]));
    let usual = |other: &str| accepted(&["--skip-layers", other]);
    let other = ["0", "1", "2", "3", "4", "0,1", "1,2", "2,3", "3,4", "0,1,2,3", "1,2,3,4"]
        .into_iter()
        .find(|other| usual(other) != accepted(&[]))
        .expect("some set drafts differently");
    let folder = data.path().join("skip-sets");
    let file = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let mut saved: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    saved["best"]["skipped"] = serde_json::from_str(&format!("[{other}]")).unwrap();
    std::fs::write(&file, saved.to_string()).unwrap();
    assert_eq!(accepted(&[]), usual(other));
    let wrong = hunch(data.path(), &[&run[..], &["--skip-layers", "7"]].concat());
    assert_eq!(wrong.status.code(), Some(4));
    assert!(text(&wrong.stderr).contains("layers 0 to 4"), "{}", text(&wrong.stderr));
}

// Also when the requested value is the default of a new conversation.
#[test]
fn bench_samples_as_requested() {
    let data = data_folder();
    for (arguments, temperature) in
        [(&[][..], 0.0), (&["--seed", "3"], 0.0), (&["--temperature", "0.7"], 0.7)]
    {
        let json = last_json(&hunch(data.path(), &[&BENCH[..], arguments].concat()));
        let reported = json["methods"][0]["temperature"].as_f64().unwrap();
        assert!((reported - temperature).abs() < 1e-6, "{arguments:?}: {reported}");
    }
    let json = last_json(&hunch(data.path(), &[&BENCH[..], &["--temperatures", "0,0.5"]].concat()));
    let reported: Vec<_> =
        json["methods"].as_array().unwrap().iter().map(|row| row["temperature"].as_f64()).collect();
    assert_eq!(reported, [Some(0.0), Some(0.5)]);
}

#[test]
fn bench_second_turn_measures_new_tokens_only() {
    let data = data_folder();
    let tool = [&["bench", "second-turn"], &WORK[..]].concat();
    let turns = last_json(&hunch(data.path(), &tool));
    let turn = &turns[0];
    assert_eq!((&turn["suite"], &turn["method"]), (&"code".into(), &"plain".into()));
    // The first turn is in the cache.
    assert!(turn["new_tokens"].as_f64().unwrap() < turn["prompt_tokens"].as_f64().unwrap());
}

#[test]
fn bench_passes_times_every_number_of_rows() {
    let data = data_folder();
    let tool = &["bench", "passes", "--target", "target", "--runs", "1", "--json"][..];
    let report = last_json(&hunch(data.path(), tool));
    let engine = &report["engines"][0];
    assert_eq!(engine["engine"], "hunch");
    for rows in ["1", "2", "3", "5", "9", "16"] {
        assert!(engine["pass_ms"][rows].as_f64().unwrap() > 0.0, "{report}");
    }
    assert!(engine["prefill_tok_s"].as_f64().unwrap() > 0.0 && report["memory_gb_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn bench_tools_have_their_own_arguments() {
    let data = data_folder();
    let code = |arguments: &[&str]| hunch(data.path(), &[&["bench"], arguments].concat()).status.code();
    assert_eq!(code(&["passes", "--suite", "code"]), Some(2));
    assert_eq!(code(&["second-turn", "--temperatures", "0,1"]), Some(2));
    assert_eq!(code(&["--external", "x=y"]), Some(2));
    let help = text(&hunch(data.path(), &["bench", "--help"]).stdout);
    for tool in ["passes", "drafts", "second-turn"] {
        assert!(help.contains(tool) && !help.contains(&format!("--{tool}")), "{help}");
    }
}

#[test]
fn help_states_the_default_temperature_of_each_command() {
    let data = data_folder();
    let help = |command: &[&str]| {
        let help = text(&hunch(data.path(), &[command, &["--help"]].concat()).stdout);
        let words = help[help.find("--temperature <T>").unwrap()..].split_whitespace();
        words.take(30).collect::<Vec<_>>().join(" ")
    };
    for command in [&["run"][..], &["serve"], &["lab", "residual"]] {
        assert!(help(command).contains("[default: 0.7]"), "{command:?}: {}", help(command));
    }
    for command in [&["bench"][..], &["bench", "drafts"], &["compare"]] {
        assert!(help(command).contains("[default: 0; 0.7 with"), "{command:?}: {}", help(command));
    }
}

#[test]
fn model_arguments_name_every_form_of_a_model() {
    let data = data_folder();
    let commands = [
        &["run"][..],
        &["drafter", "train"],
        &["models", "fit"],
        &["models", "pairs"],
        &["models", "inspect"],
    ];
    for command in commands {
        let help = text(&hunch(data.path(), &[command, &["--help"]].concat()).stdout);
        assert!(help.contains("MLX folder"), "{command:?}: {help}");
    }
}

#[test]
fn bench_drafts_compares_methods_at_a_fixed_size() {
    let data = data_folder();
    let options = ["--draft", "draft", "--method", "draft-model,draft-tree,lookahead", "--temperature", "1"];
    let drafts = [&["bench", "drafts", "--runs", "1"], &WORK[..], &options].concat();
    let rows = last_json(&hunch(data.path(), &[&drafts[..], &["--max-draft", "1,4"]].concat()));
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 6, "plain drafts nothing");
    let row = |method: &str, size: u64| {
        rows.iter().find(|row| row["method"] == method && row["max_draft"] == size).unwrap()
    };
    let (one, chain, tree) = (row("draft-model", 1), row("draft-model", 4), row("draft-tree", 4));
    assert_eq!((&chain["places"], &chain["drafted"], &chain["depth"]), (&1.into(), &4.0.into(), &4.0.into()));
    // At one position, a chain of one token yields one token more than the overlap of the distributions.
    let overlap = one["acceptance"]["mean"].as_f64().unwrap();
    assert!(overlap > 0.0 && overlap <= 1.0 && chain["acceptance"]["mean"] == one["acceptance"]["mean"]);
    let mean = |row: &Value| row["tokens"]["mean"].as_f64().unwrap();
    assert!(mean(one) > 1.0 && mean(chain) >= mean(one), "both draw the same first token");
    let ahead = tree["ahead"]["mean"].as_f64().unwrap();
    assert!((ahead - (mean(tree) - mean(chain))).abs() < 1e-9 && chain["ahead"].is_null());
    let rows = last_json(&hunch(data.path(), &drafts));
    assert!(rows.as_array().unwrap().iter().all(|row| row["max_draft"] == 4), "the default: {rows}");
}

#[test]
fn bench_drafts_refuses_auto_before_it_loads_a_model() {
    let data = data_folder();
    let refused =
        hunch(data.path(), &["bench", "drafts", "--target", "nonexistent", "--max-draft", "4,auto"]);
    assert_eq!(refused.status.code(), Some(4), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("--max-draft 2,4,8"), "{}", text(&refused.stderr));
}

/// Arguments that all tools accept which generate answers.
const WORK: [&str; 9] =
    ["--target", "target", "--method", "plain", "--prompts", "1", "--max-tokens", "2", "--json"];

/// A short benchmark.
const BENCH: [&str; 12] = [
    "bench",
    "--target",
    "target",
    "--method",
    "plain",
    "--prompts",
    "1",
    "--runs",
    "1",
    "--max-tokens",
    "2",
    "--json",
];

#[test]
fn lab_runs_examples_and_assumed_costs_without_a_model() {
    let data = tempfile::tempdir().unwrap();
    let json = last_json(&hunch(data.path(), &["lab", "residual", "--toy", "--rounds", "500", "--json"]));
    let position = &json["position"];
    assert_eq!(position["source"]["kind"], "toy");
    for token in position["tokens"].as_array().unwrap() {
        let value = |key: &str| token[key].as_f64().unwrap();
        assert!((value("total") - value("p")).abs() < 1e-9, "{token}");
    }
    assert_eq!(json["rounds"]["rounds"], 500);
    let both = ["lab", "unbiased", "--toy", "--temperature", "1", "--top-p", "1", "--min-p", "0", "--json"];
    let json = last_json(&hunch(data.path(), &[&both[..], &["--rounds", "50000"]].concat()));
    let trials = json["trials"].as_array().unwrap();
    assert_eq!((trials.len(), &json["passed"]), (5, &Value::Bool(true)));
    for trial in trials {
        let (name, p_value) = (trial["rule"]["name"].as_str().unwrap(), trial["p_value"].as_f64().unwrap());
        assert_eq!(p_value < 1e-6, name.starts_with("lossy"), "{name}: {p_value}");
    }
    let costs = ["lab", "landscape", "--draft-cost", "0.1", "--row-cost", "0", "--json"];
    let json = last_json(&hunch(data.path(), &costs));
    assert_eq!((&json["measured_rows"], &json["best"][40]), (&Value::Null, &Value::from(6)));
    let words = text(&hunch(data.path(), &costs[..6]).stdout);
    assert!(words.contains("Predicted") && words.contains("pays from") && words.contains("2.47x"), "{words}");
    assert!(words.contains("E[tokens]") && words.contains("operations"), "{words}");
    let tree = last_json(&hunch(data.path(), &[&costs[..], &["--siblings", "0.8"]].concat()));
    let tokens = |json: &Value| json["tokens"][20][11].as_f64().unwrap();
    assert!(tokens(&tree) > 1.1 * tokens(&json), "{} {}", tokens(&tree), tokens(&json));
    let code = |arguments: &[&str]| hunch(data.path(), arguments).status.code();
    assert_eq!(code(&["lab", "landscape", "--draft-cost", "3"]), Some(4));
    let batch = ["lab", "landscape", "--row-cost", "0.5", "--batch", "8", "--json"];
    let json = last_json(&hunch(data.path(), &batch));
    assert_eq!((&json["batch"], &json["best"][25]), (&Value::from(8), &Value::from(0)));
    assert_eq!(code(&["lab", "landscape", "--row-cost", "0.1", "--batch", "0"]), Some(4));
    let json = last_json(&hunch(
        data.path(),
        &["lab", "serving", "--draft-cost", "0.1", "--row-cost", "0.1", "--json"],
    ));
    let loads = json["loads"].as_array().unwrap();
    let speedups =
        |policy: usize| loads.iter().map(move |load| load["served"][policy]["speedup"].as_f64().unwrap());
    assert!(speedups(0).all(|plain| plain == 1.0) && speedups(3).next_back().unwrap() < 1.0);
    assert_eq!(code(&["lab", "serving", "--row-cost", "0.1", "--alpha", "1.5"]), Some(4));
    // Wrong numbers are refused before a model is loaded and measured.
    for (command, option, value, expected) in [
        ("landscape", "--batch", "0", "batch is 0"),
        ("landscape", "--siblings", "1.5", "siblings is 1.5"),
        ("serving", "--alpha", "1.5", "alpha is 1.5"),
        ("serving", "--max-batch", "65", "1 to 64 requests"),
        ("serving", "--tokens", "0", "at least one token"),
    ] {
        let refused = hunch(data.path(), &["lab", command, "--target", "absent.gguf", option, value]);
        assert!(text(&refused.stderr).contains(expected), "{command} {option}: {}", text(&refused.stderr));
    }
    assert_eq!(code(&["lab", "unbiased", "--toy", "--rule", "naive"]), Some(2));
    assert_eq!(code(&["lab", "residual"]), Some(3), "no model");
    assert_eq!(code(&["lab"]), Some(2));
}

#[test]
fn lab_inspects_two_models() {
    let data = data_folder();
    let models = ["--target", "target", "--draft", "draft"];
    let with = |arguments: &[&str]| hunch(data.path(), &[&["lab"], arguments, &models, &["--json"]].concat());
    let json = last_json(&with(&["residual", "--prompt", "one two", "--temperature", "1", "--top-k", "0"]));
    let position = &json["position"];
    assert_eq!((&position["before"], position["target"].is_string()), (&Value::from("one two"), true));
    let acceptance = position["acceptance"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&acceptance) && json["rounds"].is_null());
    let json =
        last_json(&with(&["unbiased", "--prompt", "one two", "--rounds", "2000", "--rule", "coupled"]));
    assert_eq!((json["trials"].as_array().unwrap().len(), &json["passed"]), (1, &Value::Bool(true)));
    let json = last_json(&with(&["landscape"]));
    assert_eq!((&json["measured_rows"], &json["target_cost"][0]), (&Value::from(16), &Value::from(1.0)));
    assert!(json["draft_cost"].as_f64().unwrap() > 0.0);
    let alone = hunch(data.path(), &["lab", "residual", "--target", "target", "--prompt", "one two"]);
    assert_eq!(alone.status.code(), Some(4));
    assert!(text(&alone.stderr).contains("Name a draft model with --draft"), "{}", text(&alone.stderr));
}

#[test]
fn verify_passes_on_a_sound_engine() {
    let data = data_folder();
    // One thread, because another test runs at the same time.
    let common = ["verify", "--target", "target", "--draft", "draft", "--samples", "20", "--threads", "1"];
    let output = hunch(data.path(), &common);
    let out = text(&output.stdout);
    assert!(output.status.success(), "{out}{}", text(&output.stderr));
    assert_eq!(out.lines().last(), Some("PASS"));
    // Also with the low-bit copy, and with options.
    for more in [["--method", "low-bit"], ["--tree", "3x2x1"]] {
        let method: &[&str] = if more[0] == "--tree" { &["--methods", "draft-tree"] } else { &[] };
        let output = hunch(data.path(), &[&common[..], &more, method].concat());
        let out = text(&output.stdout);
        assert!(output.status.success(), "{out}{}", text(&output.stderr));
        assert!(!out.contains("nothing was drafted") || out.contains("K = auto"), "{out}");
    }
}

#[test]
fn verify_fails_for_a_lossy_rule() {
    let data = data_folder();
    let stranger = Tiny { layers: 1, seed: 99, dtype: GgmlDType::Q8_0, ..Tiny::default() };
    stranger.write(&data.path().join("models"), "stranger");
    let models = ["--target", "target", "--draft", "stranger", "--threads", "1"];
    let lossy = ["--method", "draft-model", "--rule", "lossy-lenience:0.05", "--samples", "100"];
    let output = hunch(data.path(), &[&["verify"][..], &models, &lossy].concat());
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{out}{}", text(&output.stderr));
    assert_eq!(out.lines().last(), Some("FAIL"));
    let failed: Vec<&str> = out.lines().filter(|line| line.starts_with("FAIL  ")).collect();
    assert!(
        failed.iter().all(|line| line.contains("token distribution") && line.contains("draft-model")),
        "{failed:?}"
    );
}

#[test]
fn prints_help_and_completions() {
    let data = tempfile::tempdir().unwrap();
    let help = text(&hunch(data.path(), &["--help"]).stdout);
    assert!(help.contains("Exit codes") && help.contains("accepted"), "{help}");
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&hunch(data.path(), &["completions", shell]).stdout);
        assert!(script.contains("max-draft") && script.contains("second-turn"), "{shell}");
    }
}

#[test]
fn doctor_predicts_costs_for_a_known_chip_only() {
    let data = data_folder();
    let common = ["doctor", "--device", "cpu", "--target", "target", "--json"];
    let without = last_json(&hunch(data.path(), &common));
    assert_eq!(
        (&without["device"], &without["gpu"], &without["predicted"]),
        (&"cpu".into(), &Value::Null, &Value::Null)
    );
    assert!(without["memory_bytes"].as_u64() > Some(0));
    // The CPU is measured, also on a machine with a GPU.
    let rows: Vec<_> = without["cpu"]["pass_ms"].as_array().unwrap().iter().map(|point| &point[0]).collect();
    assert_eq!(rows, [1, 5]);
    assert!(without["cpu"]["pass_ms"][1][1].as_f64() > Some(0.0));
    assert!(
        ["scalar", "neon", "avx"]
            .iter()
            .any(|name| without["cpu_kernels"].as_str().unwrap().starts_with(name))
    );
    let predicted = last_json(&hunch(data.path(), &[&common[..], &["--chip", "m4 max"]].concat()));
    assert_eq!(predicted["predicted"]["chip"]["name"], "Apple M4 Max");
    let points = predicted["predicted"]["pass_ms"].as_array().unwrap();
    assert_eq!(points.len(), 16);
    // Ten dispatches a layer, three more, and a wait.
    assert!(points.iter().all(|point| point[1].as_f64() > Some(0.2)), "{points:?}");
    // Text is checked too: with a draft, that of the pair.
    let passed = |report: &Value| {
        let checks = report["checks"]["checks"].as_array().unwrap();
        checks.iter().filter(|check| check["passed"] == true).count() == checks.len() && checks.len() > 16
    };
    assert!(passed(&without) && without["checks"]["draft"].is_null(), "{without}");
    let pair = last_json(&hunch(data.path(), &[&common[..], &["--draft", "draft"]].concat()));
    let name = |check: &Value| check["name"].as_str().unwrap().contains("draft-model");
    assert!(passed(&pair) && pair["checks"]["checks"].as_array().unwrap().iter().any(name), "{pair}");
    let unknown = hunch(data.path(), &[&common[..], &["--chip", "m0"]].concat());
    assert_eq!(unknown.status.code(), Some(4));
    assert!(text(&unknown.stderr).contains("Apple M1 Pro"), "{}", text(&unknown.stderr));
}

#[test]
fn licenses_prints_own_and_third_party_texts() {
    let data = tempfile::tempdir().unwrap();
    let output = hunch(data.path(), &["licenses"]);
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(printed.starts_with("Hunch is licensed under either of"), "{}", &printed[..200]);
    for part in [
        "The Hunch authors",
        "END OF TERMS AND CONDITIONS",
        "candle-core 0.",
        "svelte 5.",
        "Mozilla Public License",
    ] {
        assert!(printed.contains(part), "{part} is missing");
    }
    assert!(printed.chars().all(|c| c == '\n' || !c.is_control()), "only line breaks are allowed");
}

#[test]
fn licenses_ends_quietly_when_the_pager_closes() {
    let data = tempfile::tempdir().unwrap();
    let mut child =
        command(data.path(), &["licenses"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn control_characters_of_a_file_do_not_reach_the_terminal() {
    let data = tempfile::tempdir().unwrap();
    let models = data.path().join("models");
    std::fs::create_dir(&models).unwrap();
    let evil = "\u{1b}[2J\u{9b}31mevil\u{7}";
    let named = |writer: GgufWriter| {
        writer.without_key("general.name").str("general.name", evil).str("general.license", evil)
    };
    std::fs::write(models.join("sound.gguf"), named(Tiny::default().writer()).bytes()).unwrap();
    let strange = Tiny::default().writer().without_key("general.architecture");
    let strange = named(strange).str("general.architecture", evil).bytes();
    std::fs::write(models.join("strange.gguf"), strange).unwrap();
    let sound = models.join("sound.gguf").display().to_string();
    let strange = models.join("strange.gguf").display().to_string();
    for arguments in [
        &["models", "list"][..],
        &["models", "inspect", &sound],
        &["models", "inspect", &strange],
        &["models", "pairs", &sound, "--device", "cpu"],
        &["models", "pairs", &sound, "--device", "cpu", "--context", "1000000"],
    ] {
        let output = hunch(data.path(), arguments);
        let printed = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!printed.is_empty(), "{arguments:?}");
        assert!(!printed.chars().any(|c| c.is_control() && c != '\n'), "{arguments:?}: {printed:?}");
    }
}

#[test]
fn run_reports_a_failing_draft_and_still_answers() {
    let data = tempfile::tempdir().unwrap();
    let models = data.path().join("models");
    std::fs::create_dir(&models).unwrap();
    Tiny::default().write(&models, "target");
    // The values of vectors are checked when a model is loaded, those of matrices show in its scores.
    let matrix = "blk.0.attn_output.weight";
    let broken = Tiny { layers: 1, ..Tiny::default() }.writer().without(matrix);
    let broken = broken.tensor(matrix, &[WIDTH, WIDTH], GgmlDType::F32, &[f32::NAN; WIDTH * WIDTH]);
    std::fs::write(models.join("broken.gguf"), broken.bytes()).unwrap();
    let run = |method: &str, rest: &[&str]| {
        let fixed = ["run", "hello hello", "--target", "target", "--draft", "broken", "--max-draft", "3"];
        let more = ["--max-tokens", "24", "--temperature", "0", "--device", "cpu", "--method", method];
        hunch(data.path(), &[&fixed[..], &more, rest].concat())
    };
    let plain = last_json(&run("plain", &["--json"]));
    for method in ["draft-model", "draft-tree", "cascade"] {
        let answer = last_json(&run(method, &["--json"]));
        assert_eq!(answer["text"], plain["text"], "{method}");
        let dropped = answer["dropped_drafts"].as_array().unwrap();
        assert_eq!(dropped.len(), 1, "{method}: {dropped:?}");
        let failed = if method == "draft-tree" { "draft-tree" } else { "draft-model" };
        assert_eq!(dropped[0]["method"], failed);
        assert!(dropped[0]["error"]["message"].is_string() && dropped[0]["error"]["code"].is_string());
    }
    let words = text(&run("draft-model", &[]).stdout);
    assert!(words.contains("draft-model failed and was disabled for the rest of the answer"), "{words}");
}

#[test]
fn damaged_weights_are_named_as_such() {
    let data = tempfile::tempdir().unwrap();
    let models = data.path().join("models");
    std::fs::create_dir(&models).unwrap();
    let write = |name: &str, tensor: &str, shape: &[usize]| {
        let values = vec![f32::NAN; shape.iter().product()];
        let writer = Tiny::default().writer().without(tensor);
        let bytes = writer.tensor(tensor, shape, GgmlDType::F32, &values).bytes();
        std::fs::write(models.join(format!("{name}.gguf")), bytes).unwrap();
    };
    write("matrix", "blk.0.attn_output.weight", &[WIDTH, WIDTH]);
    write("vector", "output_norm.weight", &[WIDTH]);
    let stderr = |target: &str| text(&hunch(data.path(), &["run", "hello", "--target", target]).stderr);
    let (of_matrix, of_vector) = (stderr("matrix"), stderr("vector"));
    assert!(of_matrix.contains("scores are not numbers"), "{of_matrix}");
    assert!(of_vector.contains("output_norm.weight contains NaN"), "{of_vector}");
    assert!(!of_matrix.contains("defect in Hunch") && !of_vector.contains("defect in Hunch"));
}

#[test]
fn isa_option_limits_the_kernels() {
    let data = tempfile::tempdir().unwrap();
    let models = data.path().join("models");
    std::fs::create_dir(&models).unwrap();
    Tiny::default().write(&models, "target");
    let verify = |isa: &str| {
        hunch(
            data.path(),
            &[
                "verify",
                "--target",
                "target",
                "--method",
                "ngram",
                "--samples",
                "20",
                "--threads",
                "1",
                "--isa",
                isa,
            ],
        )
    };
    let scalar = verify("scalar");
    assert!(scalar.status.success(), "{}", text(&scalar.stderr));
    let unknown = verify("sse9");
    assert_eq!(unknown.status.code(), Some(4));
    assert!(text(&unknown.stderr).contains("--isa sse9 cannot be used here: choose one of scalar"));
}

#[test]
fn recommended_sampling_is_shown_and_applies_on_request() {
    let data = data_folder();
    let recommending = |name: &str, writer: GgufWriter| {
        std::fs::write(data.path().join(format!("models/{name}.gguf")), writer.bytes()).unwrap();
    };
    let tiny = || Tiny::default().writer();
    recommending("greedy", tiny().f32("general.sampling.temp", 0.0).str("general.sampling.top_p", "0.9"));
    let shown = text(&hunch(data.path(), &["models", "inspect", "greedy"]).stdout);
    assert!(shown.contains("recommended: temperature 0"), "{shown}");
    assert!(shown.contains("ignored: general.sampling.top_p: it is not a number."), "{shown}");
    let json = last_json(&hunch(data.path(), &["models", "inspect", "greedy", "--json"]));
    assert_eq!(json["sampling"]["temperature"], 0.0);
    assert_eq!(json["sampling"]["top_k"], Value::Null);
    // An answer above temperature 0 prints its seed.
    let has_seed = |options: &[&str]| {
        let arguments =
            [&["run", "Hello", "--target", "greedy", "--max-tokens", "2", "--method", "plain"], options];
        let output = hunch(data.path(), &arguments.concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).contains("seed ")
    };
    assert!(has_seed(&[]), "nothing is applied silently");
    assert!(!has_seed(&["--sampling", "recommended"]));
    assert!(has_seed(&["--sampling", "recommended", "--temperature", "1"]), "given options win");
    let none = hunch(data.path(), &["run", "Hello", "--target", "target", "--sampling", "recommended"]);
    assert_eq!(none.status.code(), Some(4), "{}", text(&none.stderr));
    assert!(text(&none.stderr).contains("recommends no sampling"), "{}", text(&none.stderr));
}
