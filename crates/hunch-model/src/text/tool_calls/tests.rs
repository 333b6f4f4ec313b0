//! Tests on answers as models write them, in pieces of every size.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::text::tools::{HARMONY_CALL, without_signs};

const WEATHER: &str = r#"{"name": "weather", "arguments": {"city": "Rome", "days": 2}}"#;

/// All forms.
const FORMS: [ToolForm; 9] = [
    ToolForm::Hermes,
    ToolForm::Granite,
    ToolForm::Llama,
    ToolForm::Mistral,
    ToolForm::MistralArgs,
    ToolForm::Phi,
    ToolForm::QwenCoder,
    ToolForm::Glm,
    ToolForm::Harmony,
];

fn tools() -> [Tool; 2] {
    let weather = json!({ "properties": {
        "city": { "type": "string" },
        "days": { "type": "integer" },
        "wind": { "anyOf": [{ "type": "boolean" }, { "type": "null" }] },
        "note": { "type": ["string", "number"] },
        "tags": { "type": "array" },
    } });
    [("weather", weather), ("time", json!({}))].map(|(name, parameters)| Tool {
        name: name.into(),
        description: None,
        parameters,
    })
}

fn parser(form: ToolForm) -> ToolCallParser {
    ToolCallParser::new(form, &tools(), usize::MAX)
}

/// Joins neighbouring parts of the same kind.
fn joined(parts: Vec<ToolPart>) -> Vec<ToolPart> {
    let mut all: Vec<ToolPart> = Vec::new();
    for part in parts {
        match (all.last_mut(), part) {
            (Some(ToolPart::Text(before)), ToolPart::Text(text)) => before.push_str(&text),
            (Some(ToolPart::Arguments(before)), ToolPart::Arguments(text)) => before.push_str(&text),
            (_, part) => all.push(part),
        }
    }
    all
}

fn in_pieces(mut parser: ToolCallParser, text: &str, size: usize) -> Vec<ToolPart> {
    let chars: Vec<char> = text.chars().collect();
    let mut parts = Vec::new();
    for piece in chars.chunks(size) {
        parts.extend(parser.push(&piece.iter().collect::<String>()));
    }
    parts.extend(parser.finish());
    joined(parts)
}

/// Reads a text in pieces of every size and returns its parts, which have to be the same.
fn parts(form: ToolForm, text: &str) -> Vec<ToolPart> {
    let whole = in_pieces(parser(form), text, text.len().max(1));
    for size in 1..8 {
        assert_eq!(in_pieces(parser(form), text, size), whole, "{size} of {text}");
    }
    whole
}

fn text(text: &str) -> ToolPart {
    ToolPart::Text(text.into())
}

fn call(name: &str, arguments: &str) -> Vec<ToolPart> {
    vec![ToolPart::Begin(name.into()), ToolPart::Arguments(arguments.into()), ToolPart::End { broken: None }]
}

fn weather() -> Vec<ToolPart> {
    call("weather", r#"{"city": "Rome", "days": 2}"#)
}

#[test]
fn reads_one_and_several_calls_of_every_form() {
    let llama = WEATHER.replace("arguments", "parameters");
    for (form, answer, calls) in [
        (ToolForm::Hermes, format!("<tool_call>\n{WEATHER}\n</tool_call>"), 1),
        (
            ToolForm::Hermes,
            format!("<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>\n{WEATHER}\n</tool_call>"),
            2,
        ),
        (ToolForm::Hermes, format!("<tool_call>{WEATHER}\n{WEATHER}</tool_call>\n"), 2),
        (ToolForm::Hermes, format!("<tool_call>\n{WEATHER}"), 1),
        (ToolForm::Hermes, WEATHER.to_owned(), 1),
        (ToolForm::Hermes, format!("```json\n{WEATHER}\n```"), 1),
        (ToolForm::Llama, format!("```\n{llama}\n```\n"), 1),
        (ToolForm::Hermes, format!("<tool_call>\n{{{WEATHER}}}\n</tool_call>"), 1),
        (ToolForm::Granite, format!("<|tool_call|>[{WEATHER}]"), 1),
        (ToolForm::Phi, format!("<|tool_call|>{WEATHER}<|/tool_call|>"), 1),
        (ToolForm::Phi, format!("<|tool_call|>[{WEATHER}]<|/tool_call|>\n"), 1),
        (
            ToolForm::Phi,
            format!("<|tool_call|>{WEATHER}<|/tool_call|><|tool_call|>{WEATHER}<|/tool_call|>"),
            2,
        ),
        (ToolForm::Harmony, harmony("weather"), 1),
        (ToolForm::Granite, format!("<|tool_call|>[{WEATHER}, {WEATHER}]"), 2),
        (ToolForm::Llama, llama.clone(), 1),
        (ToolForm::Llama, format!("\n{llama}; {llama}"), 2),
        (ToolForm::Mistral, format!("[TOOL_CALLS][{WEATHER}]"), 1),
        (ToolForm::Mistral, format!("[TOOL_CALLS] [{WEATHER}, {WEATHER}]"), 2),
        (ToolForm::MistralArgs, "[TOOL_CALLS]weather[ARGS]{\"city\": \"Rome\", \"days\": 2}".repeat(2), 2),
        (
            ToolForm::MistralArgs,
            "[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{\"city\": \"Rome\", \"days\": 2}".into(),
            1,
        ),
    ] {
        assert_eq!(parts(form, &answer), vec![weather(); calls].concat(), "{answer}");
    }
}

#[test]
fn text_around_calls_is_text_without_the_space_before_them() {
    let answer = format!("Let me look.\n\n<tool_call>\n{WEATHER}\n</tool_call>\nDone. ");
    let expected = [vec![text("Let me look.")], weather(), vec![text("\nDone.")]].concat();
    assert_eq!(parts(ToolForm::Hermes, &answer), expected);
}

#[test]
fn fields_may_come_in_any_order_and_form() {
    for answer in [
        r#"{"arguments": {"city": "Rome", "days": 2}, "name": "weather"}"#,
        r#"{"type": "function", "id": 7, "name": "weather", "arguments": {"city": "Rome", "days": 2}}"#,
        r#"{"type": "function", "function": "weather", "parameters": {"city": "Rome", "days": 2}}"#,
        r#"{"name": "weather", "arguments": "{\"city\": \"Rome\", \"days\": 2}"}"#,
    ] {
        let answer = format!("<tool_call>{answer}</tool_call>");
        assert_eq!(parts(ToolForm::Hermes, &answer), weather(), "{answer}");
    }
    let none = r#"<tool_call>{"name": "time"}</tool_call><tool_call>{"name": "time", "arguments": null}</tool_call>"#;
    assert_eq!(parts(ToolForm::Hermes, none), [call("time", "{}"), call("time", "{}")].concat());
}

#[test]
fn brackets_and_markers_in_strings_do_not_end_arguments() {
    let arguments = r#"{"code": "}</tool_call>\"{\\", "list": [[1], {"a": "]"}]}"#;
    let answer = format!("<tool_call>\n{{\"name\": \"time\", \"arguments\": {arguments}}}\n</tool_call>");
    assert_eq!(parts(ToolForm::Hermes, &answer), call("time", arguments));
}

#[test]
fn text_that_is_no_call_stays_text() {
    for answer in [
        "",
        " \n",
        "Hello <tool_call",
        "A <tool_call> marks a call.",
        "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>",
        "<tool_call>{\"name\": \"weather\"",
        "<tool_call>{\"name\": 3, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"weather\", \"arguments\": [1]}</tool_call>",
        "{\"name\": \"weather\"}",
        "{\"city\": \"Rome\", \"name\": \"unknown\"} is JSON.\n",
        "{\"a\": }",
        "{'name': 'weather', 'arguments': {}}",
        "<think>I could write <tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call>.</think>\n\nHi",
        "<thin",
        "```json\n{\"a\": 1}\n```",
        "```python\nprint()\n```",
        "``",
        "{{\"a\": 1}}",
        "[TOOL_CALLS]",
    ] {
        for form in FORMS {
            let found = parts(form, answer);
            let expected = if answer.is_empty() { Vec::new() } else { vec![text(answer)] };
            assert_eq!(found, expected, "{answer}");
        }
    }
}

/// Calls as the chat templates of Qwen3-Coder and GLM-4.5 write them.
#[test]
fn tags_become_the_values_of_the_schema() {
    let coder = |parameters: &[(&str, &str)]| {
        let parameter = |(key, value): &(&str, &str)| format!("<parameter={key}>\n{value}\n</parameter>\n");
        let parameters: String = parameters.iter().map(parameter).collect();
        format!("<tool_call>\n<function=weather>\n{parameters}</function>\n</tool_call>")
    };
    let glm = |arguments: &[(&str, &str)]| {
        let argument = |(key, value): &(&str, &str)| {
            format!("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")
        };
        let arguments: String = arguments.iter().map(argument).collect();
        format!("<tool_call>weather\n{arguments}</tool_call>")
    };
    for (arguments, expected) in [
        (&[("city", "Rome"), ("days", "2")][..], r#"{"city":"Rome", "days":2}"#),
        (&[], "{}"),
        (&[("city", "7"), ("wind", "True")], r#"{"city":"7", "wind":true}"#),
        (&[("wind", "None"), ("note", "2.5")], r#"{"wind":null, "note":2.5}"#),
        (&[("note", "[1]"), ("tags", "[1, \"a\"]")], r#"{"note":"[1]", "tags":[1,"a"]}"#),
        (&[("days", "many"), ("other", "3")], r#"{"days":"many", "other":"3"}"#),
        (&[("city", "a < b\n</par> \"é\"")], r#"{"city":"a < b\n</par> \"é\""}"#),
    ] {
        let calls = call("weather", expected);
        assert_eq!(parts(ToolForm::QwenCoder, &coder(arguments)), calls, "{arguments:?}");
        assert_eq!(parts(ToolForm::Glm, &glm(arguments)), calls, "{arguments:?}");
        let two = format!("Both. {}\n{}", coder(arguments), coder(arguments));
        let expected = [vec![text("Both.")], calls.clone(), calls.clone()].concat();
        assert_eq!(parts(ToolForm::QwenCoder, &two), expected);
        let two = format!("Both. {}\n{}\n", glm(arguments), glm(arguments));
        assert_eq!(parts(ToolForm::Glm, &two), expected);
    }
    assert_eq!(parts(ToolForm::Glm, "<tool_call>time</tool_call>"), call("time", "{}"));
}

#[test]
fn tags_that_are_no_call_stay_text_and_cut_ones_are_broken() {
    for (form, answer) in [
        (ToolForm::QwenCoder, "<tool_call>\n<function=unknown>\n</function>\n</tool_call>"),
        (ToolForm::QwenCoder, "<tool_call>weather</tool_call>"),
        (ToolForm::Glm, "<tool_call>unknown\n</tool_call>"),
        (ToolForm::Glm, "<tool_call>"),
    ] {
        assert_eq!(parts(form, answer), [text(answer)]);
    }
    let cut = "<tool_call>\n<function=weather>\n<parameter=city>\nRo";
    let broken = ToolPart::End { broken: Some(cut.into()) };
    assert_eq!(parts(ToolForm::QwenCoder, cut), [ToolPart::Begin("weather".into()), broken]);
    let twice =
        "<tool_call>weather\n<arg_key>city</arg_key><arg_value>Rome</arg_value><arg_key>city</arg_key>";
    assert_eq!(parts(ToolForm::Glm, twice).last(), Some(&ToolPart::End { broken: Some(twice.into()) }));
}

#[test]
fn a_call_after_a_false_start_is_found() {
    let answer = format!("<tool_call> <tool_call>\n{WEATHER}\n</tool_call>");
    assert_eq!(parts(ToolForm::Hermes, &answer), [vec![text("<tool_call>")], weather()].concat());
    let thought = format!("<think>Rome?</think>\n\n<tool_call>\n{WEATHER}\n</tool_call>");
    assert_eq!(parts(ToolForm::Hermes, &thought), [vec![text("<think>Rome?</think>")], weather()].concat());
}

#[test]
fn a_call_that_ends_early_is_broken() {
    let cut = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Ro";
    let expected = vec![
        ToolPart::Begin("weather".into()),
        ToolPart::Arguments("{\"city\": \"Ro".into()),
        ToolPart::End { broken: Some(cut.into()) },
    ];
    assert_eq!(parts(ToolForm::Hermes, cut), expected);
    let invalid = "<tool_call>{\"name\": \"weather\", \"arguments\": {city: 1}}</tool_call>";
    let found = parts(ToolForm::Hermes, invalid);
    let raw = invalid.strip_suffix("</tool_call>").unwrap().to_owned();
    assert_eq!(found.last(), Some(&ToolPart::End { broken: Some(raw) }));
}

#[test]
fn a_broken_call_does_not_count_as_the_last_one() {
    let broken = "<tool_call>{\"name\": \"time\", \"arguments\": {utc: 1}}</tool_call>";
    let mut one = ToolCallParser::new(ToolForm::Hermes, &tools(), 1);
    one.push(broken);
    assert_eq!((one.calls(), one.has_called(), one.is_done()), (1, false, false));
    let found = joined(one.push(&format!("<tool_call>{WEATHER} more")));
    assert_eq!(found, weather());
    assert_eq!((one.calls(), one.has_called(), one.is_done()), (2, true, true));
    assert!(one.finish().is_empty());
}

#[test]
fn calls_in_a_thought_that_the_prompt_opened_are_text() {
    let call = format!("<tool_call>{WEATHER}</tool_call>");
    let after = |prompt: &str, begun: &str| {
        in_pieces(
            parser(ToolForm::Hermes).after(&ThoughtSplitter::after(prompt, begun)),
            &format!("So {call}</think>\n{call}"),
            5,
        )
    };
    let thought = text(&format!("So {call}</think>"));
    for (prompt, begun) in
        [("assistant\n<think>\n", ""), ("<think>", "Rome?"), ("assistant\n", "<think>Rome?")]
    {
        assert_eq!(after(prompt, begun), [vec![thought.clone()], weather()].concat(), "{prompt} {begun}");
    }
    for (prompt, begun) in
        [("<think>\n\n</think>\n\n", ""), ("", "<think>Rome?</think>"), ("<think>", "</think>")]
    {
        assert_eq!(after(prompt, begun)[1..4], weather(), "{prompt} {begun}");
    }
}

/// Returns the text of a call that gpt-oss has written with its control tokens.
fn harmony(name: &str) -> String {
    format!("{HARMONY_CALL}{name}<|message|>{{\"city\": \"Rome\", \"days\": 2}}")
}

#[test]
fn quoted_control_tokens_of_gpt_oss_are_text() {
    let call = harmony("weather");
    let quoted = without_signs(&call).into_owned();
    assert_eq!(parts(ToolForm::Harmony, &quoted), [text(&quoted)]);
    assert_eq!(parts(ToolForm::Harmony, &call)[0], ToolPart::Begin("weather".into()));
    // A call of another tool is text too, as the model wrote it.
    let other = harmony("other");
    assert_eq!(parts(ToolForm::Harmony, &other), [text(&without_signs(&other))]);
}

#[test]
fn a_json_answer_is_not_held_back_to_its_end() {
    for form in FORMS {
        let found = parser(form).push("{\"id\": 1, \"city\": \"Rome");
        assert_eq!(found, [text("{\"id\": 1, \"city\": \"Rome")], "{form:?}");
    }
}

#[test]
fn the_rest_is_left_out_after_the_last_call_allowed() {
    let one = ToolCallParser::new(ToolForm::Hermes, &tools()[..1], 1);
    let answer = format!("<tool_call>{WEATHER}</tool_call> and <tool_call>{WEATHER}</tool_call>");
    assert_eq!(in_pieces(one, &answer, 3), weather());
}

#[test]
fn a_call_with_deep_nesting_is_read_to_its_broken_end() {
    let deep = format!("<tool_call>{{\"name\": \"time\", \"arguments\": {{\"a\": {}", "[".repeat(100_000));
    let found = in_pieces(parser(ToolForm::Hermes), &deep, 50_000);
    assert!(matches!(&found[2], ToolPart::End { broken: Some(_) }), "{:?}", found.len());
}

/// Text made of pieces of calls.
fn noise() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "<tool_call>",
        "</tool_call>",
        "<|tool_call|>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<think>",
        "</think>",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\\",
        ",",
        ":",
        ";",
        " ",
        "\n",
        "name",
        "\"name\"",
        "\"arguments\"",
        "\"weather\"",
        "weather",
        "{}",
        "null",
        "1",
        "é",
        WEATHER,
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn noise_is_read_alike_in_pieces_and_loses_no_text(answer in noise(), size in 1usize..6) {
        for form in FORMS {
            let whole = in_pieces(parser(form), &answer, answer.len().max(1));
            prop_assert_eq!(&in_pieces(parser(form), &answer, size), &whole);
            let is_text = |part: &ToolPart| matches!(part, ToolPart::Text(_));
            if whole.iter().all(is_text) {
                let said: String = whole.iter().map(|part| match part {
                    ToolPart::Text(text) => text.as_str(),
                    _ => "",
                }).collect();
                prop_assert_eq!(said, answer.as_str());
            }
        }
    }
}
