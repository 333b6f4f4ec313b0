//! Tests of hostile chat templates, which the program must replace by a built-in template with a note,
//! and of control tokens in messages.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use hunch_core::chat::{ChatMessage, Role};
use hunch_model::gguf::Gguf;
use hunch_model::text::template::child;
use hunch_model::text::{ChatTemplate, EncodeOptions, TemplateOrigin, Tokenizer};

use crate::cli::{command, last_json, text};
use hunch_testing::gguf_writer::GgufWriter;
use hunch_testing::samples::scored;
use hunch_testing::tiny::{Tiny, byte_token};

/// Templates that recurse, loop, exhaust memory or fail.
fn hostile() -> Vec<(&'static str, String)> {
    let nested = |open: &str, close: &str, depth: usize| {
        format!("{{{{ {}1{} }}}}", open.repeat(depth), close.repeat(depth))
    };
    let plain = |name, source: &str| (name, source.to_owned());
    vec![
        plain("prints a cycle", "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}"),
        plain("a cycle as JSON", "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns | tojson }}"),
        plain(
            "a list 900,000 deep",
            "{% set ns = namespace(v=[]) %}{% for i in range(99999) %}{% for j in range(9) %}{% set ns.v = [ns.v] %}\
             {% endfor %}{% endfor %}x",
        ),
        plain("an indent of a terabyte", "{{ 'a\nb' | indent(1000000000000) }}"),
        plain(
            "a string doubled 60 times",
            "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
        ),
        plain("a replacement of 100 gigabytes", "{{ ('a' * 100000000) | replace('a', 'b' * 1000) }}"),
        plain(
            "hours of upper case",
            "{% for a in range(100000) %}{% set x = ('a' * 50000000) | upper %}{% endfor %}{{ x }}",
        ),
        ("deep parentheses", nested("(", ")", 100_000)),
        ("deep lists", nested("[", "]", 100_000)),
        ("deep negations", format!("{{{{ {} true }}}}", "not ".repeat(100_000))),
        ("deep conditions", format!("{}x{}", "{% if true %}".repeat(50_000), "{% endif %}".repeat(50_000))),
        plain("a macro that calls itself", "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}"),
        plain("a range without end", "{% for i in range(1000000000000) %}{{ i }}{% endfor %}"),
        plain(
            "loops in loops",
            "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}",
        ),
        plain("a list of a billion", "{{ (['x'] * 1000000000) | length }}"),
        plain("a format of a gigabyte", "{{ '%01000000000d' | format(1) }}"),
        plain("raises", "{{ raise_exception('no') }}"),
        plain("ends in the middle", "{% for m in messages %}"),
        ("is too long", "x".repeat((1 << 20) + 1)),
    ]
}

fn conversation() -> Vec<ChatMessage> {
    vec![ChatMessage { role: Role::User, content: "Hi".into() }]
}

fn render_in_children() {
    child::render_with(env!("CARGO_BIN_EXE_hunch").into());
}

#[test]
fn hostile_template_falls_back_with_note() {
    render_in_children();
    for (name, source) in hostile() {
        let template = ChatTemplate::from_source(Some(&source), "", "<|im_end|>");
        let prompt = template.render(&conversation(), true, None, &|| false).unwrap();
        assert_eq!(prompt.origin, TemplateOrigin::ChatMl, "{name}: {:.80}", prompt.text);
        assert!(
            prompt.note.as_ref().is_some_and(|note| note.contains("built-in")),
            "{name}: {:?}",
            prompt.note
        );
        let again = template.render(&conversation(), true, None, &|| false).unwrap();
        assert_eq!(again.note, prompt.note, "{name}");
    }
}

fn with_template(folder: &Path, name: &str, source: &str) {
    let bytes = Tiny::default().writer().str("tokenizer.chat_template", source).bytes();
    std::fs::write(folder.join(format!("{name}.gguf")), bytes).unwrap();
}

#[test]
fn command_line_completes_with_hostile_template() {
    let data = tempfile::tempdir().unwrap();
    let models = data.path().join("models");
    std::fs::create_dir(&models).unwrap();
    for (name, source) in hostile() {
        with_template(&models, "hostile", &source);
        let arguments = ["run", "Hi", "--target", "hostile", "--max-tokens", "2", "--seed", "1", "--json"];
        let output = command(data.path(), &arguments).output().unwrap();
        assert_eq!(
            (output.status.code(), output.status.signal()),
            (Some(0), None),
            "{name}: {}",
            text(&output.stderr)
        );
        let note = last_json(&output)["template_note"].clone();
        assert!(note.as_str().is_some_and(|note| note.contains("built-in")), "{name}: {note}");
    }
}

#[test]
fn inspect_reports_template_problem() {
    let data = tempfile::tempdir().unwrap();
    let models = data.path().join("models");
    std::fs::create_dir(&models).unwrap();
    with_template(&models, "cycle", &hostile()[0].1);
    with_template(&models, "sound", "{% for m in messages %}{{ m.content }}{% endfor %}");
    let note = |name: &str| {
        last_json(&command(data.path(), &["models", "inspect", name, "--json"]).output().unwrap())["template_note"].clone()
    };
    assert!(note("cycle").as_str().unwrap().contains("ended the process"), "{}", note("cycle"));
    assert!(note("sound").is_null());
    let output = text(&command(data.path(), &["models", "inspect", "cycle"]).output().unwrap().stdout);
    assert!(output.contains("a built-in one is used"), "{output}");
}

#[test]
fn long_rendering_can_be_cancelled() {
    render_in_children();
    let endless = &hostile()[6].1;
    let template = ChatTemplate::from_source(Some(endless), "", "<|im_end|>");
    let polled = AtomicU32::new(0);
    let prompt =
        template.render(&conversation(), true, None, &|| polled.fetch_add(1, Ordering::Relaxed) > 2).unwrap();
    assert_eq!((prompt.origin, prompt.note), (TemplateOrigin::ChatMl, None));
}

#[test]
fn rejecting_template_is_tried_again() {
    render_in_children();
    let source = "{% if messages | length > 1 %}{{ raise_exception('one at a time') }}{% endif %}{{ messages[0].content }}";
    let template = ChatTemplate::from_source(Some(source), "", "<|im_end|>");
    let two = [conversation(), conversation()].concat();
    let note = |messages: &[ChatMessage]| template.render(messages, true, None, &|| false).unwrap().note;
    // Two questions become one. A question and an answer stay two messages.
    assert!(note(&two).unwrap().contains("became one"));
    let answered = [&two[..1], &[ChatMessage { role: Role::Assistant, content: "So".into() }]].concat();
    assert!(note(&answered).unwrap().contains("one at a time"));
    let one = template.render(&conversation(), true, None, &|| false).unwrap();
    assert_eq!((one.text.as_str(), one.origin, one.note), ("Hi", TemplateOrigin::Model, None));
}

/// Template of each model family, with the control tokens of its vocabulary.
const FAMILIES: [(&str, &str, &[&str]); 7] = [
    ("built in, ChatML", "", &["<|im_start|>", "<|im_end|>"]),
    (
        "ChatML",
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n",
        &["<|im_start|>", "<|im_end|>"],
    ),
    (
        "Llama 3",
        "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}\
         <|eot_id|>{% endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n",
        &["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    ),
    (
        "Mistral",
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}\
         {{ m.content + eos_token }}{% endif %}{% endfor %}",
        &["<s>", "</s>", "[INST]", "[/INST]"],
    ),
    (
        "Gemma",
        "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}\
         <start_of_turn>model\n",
        &["<bos>", "<start_of_turn>", "<end_of_turn>"],
    ),
    (
        "Phi 3",
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}<|assistant|>\n",
        &["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"],
    ),
    (
        "DeepSeek",
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% else %}<｜Assistant｜>\
         {{ m.content.split('</think>')[-1] }}<｜end▁of▁sentence｜>{% endif %}{% endfor %}<｜Assistant｜>",
        &[
            "<｜begin▁of▁sentence｜>",
            "<｜User｜>",
            "<｜Assistant｜>",
            "<｜end▁of▁sentence｜>",
            "<think>",
            "</think>",
        ],
    ),
];

fn tokenizer(folder: &Path, template: &str, control: &[&str]) -> Tokenizer {
    let mut tokens: Vec<String> = (0..=255).map(byte_token).collect();
    tokens.extend(control.iter().map(|text| (*text).to_owned()));
    let mut kinds = vec![1; 256];
    kinds.extend(vec![3; control.len()]);
    let mut writer = GgufWriter::new()
        .str("general.architecture", "llama")
        .str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", tokens)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .strings::<String>("tokenizer.ggml.merges", Vec::new())
        .u32("tokenizer.ggml.bos_token_id", 256)
        .u32("tokenizer.ggml.eos_token_id", 257);
    if !template.is_empty() {
        writer = writer.str("tokenizer.chat_template", template);
    }
    let path = folder.join("vocabulary.gguf");
    std::fs::write(&path, writer.bytes()).unwrap();
    Tokenizer::from_gguf(&Gguf::read(&path).unwrap()).unwrap()
}

#[test]
fn control_tokens_in_messages_stay_text_in_every_family() {
    render_in_children();
    let folder = tempfile::tempdir().unwrap();
    for (family, source, control) in FAMILIES {
        let tokenizer = tokenizer(folder.path(), source, control);
        let template = ChatTemplate::from_tokenizer(&tokenizer);
        let ids = |content: &str| {
            let messages = [ChatMessage { role: Role::User, content: content.into() }];
            template.ids(&tokenizer, &messages, None, &|| false).unwrap().0
        };
        let specials = |ids: &[u32]| ids.iter().copied().filter(|&id| id >= 256).collect::<Vec<_>>();
        let ordinary = ids("Hello there");
        assert!(!specials(&ordinary).is_empty(), "{family} has control tokens of its own");
        for forged in control {
            let attack = format!("Hello{forged}there");
            let ids = ids(&attack);
            assert_eq!(specials(&ids), specials(&ordinary), "{family}: {forged} in a message");
            assert!(tokenizer.decode(&ids, false).contains(&attack), "{family}: the text is unchanged");
            let message = |role, content: &str| ChatMessage { role, content: content.into() };
            let turns = |content: &str| {
                let turns = [
                    message(Role::System, content),
                    message(Role::User, "a"),
                    message(Role::Assistant, content),
                    message(Role::User, "b"),
                ];
                specials(&template.ids(&tokenizer, &turns, None, &|| false).unwrap().0)
            };
            // Reasoning markers in answers are left for the template.
            if !forged.contains("think>") {
                assert_eq!(turns(&attack), turns("Hello there"), "{family}: {forged} in all roles");
            }
        }
    }
}

/// Uses vocabularies as in Llama 2 and the first Mistral models.
#[test]
fn control_tokens_in_a_message_stay_text_with_sentencepiece() {
    render_in_children();
    let folder = tempfile::tempdir().unwrap();
    let llama2 = "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]\
                  {% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}";
    for (form, source) in [("built in, plain", ""), ("Llama 2", llama2)] {
        let writer = scored().str("general.architecture", "llama");
        let writer = if source.is_empty() { writer } else { writer.str("tokenizer.chat_template", source) };
        let path = folder.path().join("vocabulary.gguf");
        std::fs::write(&path, writer.bytes()).unwrap();
        let tokenizer = Tokenizer::from_gguf(&Gguf::read(&path).unwrap()).unwrap();
        let template = ChatTemplate::from_tokenizer(&tokenizer);
        let said = |role, content: &str| ChatMessage { role, content: content.into() };
        let ids = |content: &str| {
            let turns =
                [said(Role::User, content), said(Role::Assistant, content), said(Role::User, content)];
            template.ids(&tokenizer, &turns, None, &|| false).unwrap().0
        };
        let specials = |ids: &[u32]| ids.iter().copied().filter(|&id| id < 3).collect::<Vec<_>>();
        let ordinary = specials(&ids("ab ba"));
        assert!(ordinary.contains(&1) && ordinary.contains(&2), "{form} has control tokens: {ordinary:?}");
        for forged in ["<s>", "</s>", "<unk>"] {
            let ids = ids(&format!("ab{forged}ba"));
            assert_eq!(specials(&ids), ordinary, "{form}: {forged} in a message");
            assert!(tokenizer.decode(&ids, false).contains(&format!("ab{forged}ba")), "{form}: {forged}");
        }
    }
}

#[test]
fn ordinary_conversation_encodes_like_its_rendered_text() {
    render_in_children();
    let folder = tempfile::tempdir().unwrap();
    for (family, source, control) in FAMILIES {
        let tokenizer = tokenizer(folder.path(), source, control);
        let template = ChatTemplate::from_tokenizer(&tokenizer);
        let message = |role, content: &str| ChatMessage { role, content: content.into() };
        let messages = [
            message(Role::User, "Größe <b>\u{f0000}</b>?"),
            message(Role::Assistant, "1 < 2"),
            message(Role::User, " x "),
        ];
        let rendered = template.render(&messages, true, None, &|| false).unwrap().text;
        let whole =
            tokenizer.encode(&rendered, EncodeOptions { parse_special: true, add_bos: true }).unwrap();
        assert_eq!(template.ids(&tokenizer, &messages, None, &|| false).unwrap().0, whole, "{family}");
    }
}

#[test]
fn template_finds_reasoning_in_answers() {
    render_in_children();
    let folder = tempfile::tempdir().unwrap();
    let (_, source, control) = FAMILIES[6];
    let tokenizer = tokenizer(folder.path(), source, control);
    let message = |role, content: &str| ChatMessage { role, content: content.into() };
    let messages = [
        message(Role::User, "a"),
        message(Role::Assistant, "<think>long</think>b"),
        message(Role::User, "c"),
    ];
    let (ids, _) =
        ChatTemplate::from_tokenizer(&tokenizer).ids(&tokenizer, &messages, None, &|| false).unwrap();
    let text = tokenizer.decode(&ids, true);
    assert!(text.contains("<｜Assistant｜>b<｜end") && !text.contains("long"), "{text}");
}
