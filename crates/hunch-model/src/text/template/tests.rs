//! Tests of rendering, with templates structured like those of common models.

use super::*;

const QWEN: &str = "{%- if messages[0]['role'] == 'system' %}\n    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n{%- else %}\n    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}\n{%- endif %}\n{%- for message in messages %}\n    {%- if (message.role == \"user\") or (message.role == \"system\" and not loop.first) or (message.role == \"assistant\" and not message.tool_calls) %}\n        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n";

const LLAMA3: &str = "{{- bos_token }}\n{%- if not date_string is defined %}\n    {%- if strftime_now is defined %}\n        {%- set date_string = strftime_now(\"%d %b %Y\") %}\n    {%- else %}\n        {%- set date_string = \"26 Jul 2024\" %}\n    {%- endif %}\n{%- endif %}\n{%- if messages[0]['role'] == 'system' %}\n    {%- set system_message = messages[0]['content']|trim %}\n    {%- set messages = messages[1:] %}\n{%- else %}\n    {%- set system_message = \"\" %}\n{%- endif %}\n{{- \"<|start_header_id|>system<|end_header_id|>\\n\\n\" }}\n{{- \"Today Date: \" + date_string + \"\\n\\n\" }}\n{{- system_message }}\n{{- \"<|eot_id|>\" }}\n{%- for message in messages %}\n    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}\n";

const MISTRAL: &str = "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}";

fn conversation(parts: &[(Role, &str)]) -> Vec<ChatMessage> {
    let message = |&(role, content): &(Role, &str)| ChatMessage { role, content: content.into() };
    parts.iter().map(message).collect()
}

fn rendered(source: &str, parts: &[(Role, &str)]) -> RenderedPrompt {
    ChatTemplate::from_source(Some(source), "<s>", "</s>")
        .render(&conversation(parts), true, None, &|| false)
        .unwrap()
}

fn text(source: &str) -> String {
    let rendered = rendered(source, &[(Role::User, "Hi")]);
    assert_eq!((rendered.origin, rendered.note), (TemplateOrigin::Model, None));
    rendered.text
}

#[test]
fn qwen_adds_default_system_prompt_only_without_one() {
    let plain = rendered(QWEN, &[(Role::User, "Hi")]);
    assert_eq!(
        plain.text,
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
    let parts = [(Role::System, "Be brief"), (Role::User, "a"), (Role::Assistant, "b"), (Role::User, "c")];
    assert_eq!(
        rendered(QWEN, &parts).text,
        "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn llama_3_uses_given_date_or_its_default() {
    let mut template = ChatTemplate::from_source(Some(LLAMA3), "<|begin_of_text|>", "<|eot_id|>");
    let parts = conversation(&[(Role::System, " S "), (Role::User, "Hi\n")]);
    let expected = |date| {
        format!(
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nToday Date: {date}\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        )
    };
    assert_eq!(template.render(&parts, true, None, &|| false).unwrap().text, expected("26 Jul 2024"));
    template.set_time(1_800_000_000);
    assert_eq!(template.render(&parts, true, None, &|| false).unwrap().text, expected("15 Jan 2027"));
    assert!(!template.render(&parts, false, None, &|| false).unwrap().text.contains("assistant"));
}

#[test]
fn mistral_moves_system_message_into_first_turn() {
    let parts = [(Role::System, "Rhyme."), (Role::User, "Hi"), (Role::Assistant, "Ho"), (Role::User, "x")];
    let prompt = rendered(MISTRAL, &parts);
    assert_eq!(prompt.text, "<s>[INST] Rhyme.\n\nHi [/INST]Ho</s>[INST] x [/INST]");
    assert_eq!(prompt.origin, TemplateOrigin::Model);
    assert!(prompt.note.unwrap().contains("does not support system messages"));
}

#[test]
fn neighbours_of_one_role_are_joined_for_a_template_that_rejects_them() {
    let prompt = rendered(MISTRAL, &[(Role::User, "a"), (Role::User, "b")]);
    assert_eq!((prompt.origin, prompt.text.as_str()), (TemplateOrigin::Model, "<s>[INST] a\n\nb [/INST]"));
    assert!(prompt.note.unwrap().starts_with("The roles of the model have to alternate"));
    // System messages anywhere become one, which the first question takes in.
    let parts = [
        (Role::User, "a"),
        (Role::System, "S"),
        (Role::Assistant, "x"),
        (Role::Assistant, "y"),
        (Role::System, "T"),
        (Role::User, "b"),
    ];
    let prompt = rendered(MISTRAL, &parts);
    assert_eq!(prompt.text, "<s>[INST] S\n\nT\n\na [/INST]x\n\ny</s>[INST] b [/INST]");
    let note = prompt.note.unwrap();
    assert!(
        note.contains("does not support system messages") && note.contains("have to alternate"),
        "{note}"
    );
    // A template that takes them gets them as they are.
    let prompt = rendered(QWEN, &[(Role::User, "a"), (Role::User, "b")]);
    assert!(prompt.text.contains("user\na<|im_end|>\n<|im_start|>user\nb<|im_end|>"), "{}", prompt.text);
    assert_eq!(prompt.note, None);
}

#[test]
fn falls_back_when_template_raises_and_notes_its_message() {
    let prompt = rendered(MISTRAL, &[(Role::Assistant, "a"), (Role::User, "b")]);
    assert_eq!(prompt.origin, TemplateOrigin::Plain);
    assert_eq!(prompt.text, "Assistant: a</s>\n\nUser: b\n\nAssistant:");
    assert!(prompt.note.unwrap().contains("roles must alternate"));
}

#[test]
fn built_in_template_depends_on_end_token() {
    let parts = conversation(&[(Role::System, "S"), (Role::User, "u"), (Role::Assistant, "a")]);
    let chat_ml = ChatTemplate::from_source(None, "", "<|im_end|>");
    let prompt = chat_ml.render(&parts, true, None, &|| false).unwrap();
    assert_eq!(prompt.origin, TemplateOrigin::ChatMl);
    assert_eq!(
        prompt.text,
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>assistant\n"
    );
    let plain = ChatTemplate::from_source(Some(" "), "<s>", "</s>");
    assert_eq!(
        plain.render(&parts, false, None, &|| false).unwrap().text,
        "S\n\nUser: u\n\nAssistant: a</s>\n\n"
    );
}

#[test]
fn falls_back_when_template_does_not_parse() {
    let template = ChatTemplate::from_source(Some("{% for m in %}"), "", "");
    let prompt = template.render(&conversation(&[(Role::User, "Hi")]), true, None, &|| false).unwrap();
    assert_eq!(prompt.origin, TemplateOrigin::Plain);
    assert!(prompt.note.unwrap().contains("cannot be parsed"));
    assert!(template.trial().unwrap().contains("cannot be parsed"));
}

#[test]
fn rejects_empty_conversation() {
    assert!(ChatTemplate::from_source(None, "", "").render(&[], true, None, &|| false).is_err());
}

#[test]
fn trims_blocks_like_transformers() {
    assert_eq!(text("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
    assert_eq!(text("{%- generation %}x{% endgeneration -%} y"), "xy");
    assert_eq!(
        text("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"),
        "Hi"
    );
}

#[test]
fn supports_python_methods_namespaces_and_loop_controls() {
    assert_eq!(text("{{ ' a b '.strip().split(' ') | join('-') }}"), "a-b");
    assert_eq!(
        text("{{ 'abc'.startswith('ab') }}|{{ 'a'.upper() }}|{{ 'a</t>b'.split('</t>')[-1].lstrip('\\n') }}"),
        "True|A|b"
    );
    assert_eq!(
        text(
            "{% set ns = namespace(n=0) %}{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}"
        ),
        "3"
    );
    assert_eq!(text("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{% endfor %}"), "a1b2");
    assert_eq!(text("{% if tools is none and not x and messages[0].content is string %}ok{% endif %}"), "ok");
    assert_eq!(
        text(
            "{% macro f(m) %}<{{ m.role }}>{% endmacro %}{% for m in messages[::-1] %}{{ f(m) }}{% endfor %}"
        ),
        "<user>"
    );
}

#[test]
fn tojson_matches_python() {
    assert_eq!(
        text("{{ {'b': [1, 2.5, true, none], 'a': 'é\"<\\n'} | tojson }}"),
        "{\"b\": [1, 2.5, true, null], \"a\": \"é\\\"<\\n\"}"
    );
    assert_eq!(
        text("{{ {'b': [1], 'c': {}, 'a': []} | tojson(indent=2, sort_keys=true) }}"),
        "{\n  \"a\": [],\n  \"b\": [\n    1\n  ],\n  \"c\": {}\n}"
    );
    assert_eq!(text("{{ 'é😀' | tojson(ensure_ascii=true) }}"), "\"\\u00e9\\ud83d\\ude00\"");
}

#[test]
fn tojson_keeps_private_use_characters() {
    assert_eq!(text("{{ 'é\u{f0000}' | tojson(ensure_ascii=true) }}"), "\"\\u00e9\u{f0000}\"");
}

#[test]
fn stops_endless_template() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}";
    let prompt = rendered(endless, &[(Role::User, "Hi")]);
    assert_eq!(prompt.origin, TemplateOrigin::Plain);
}

#[test]
fn rejects_template_over_one_mebibyte() {
    let template = ChatTemplate::from_source(Some(&"x".repeat((1 << 20) + 1)), "", "");
    assert!(template.trial().unwrap().contains("1048577 bytes"));
}

#[test]
fn rejects_json_of_cyclic_value() {
    let cycle = "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns | tojson }}";
    let prompt = rendered(cycle, &[(Role::User, "Hi")]);
    assert_eq!(prompt.origin, TemplateOrigin::Plain);
    assert!(prompt.note.unwrap().contains("128 levels"));
}

#[test]
fn rejects_oversized_output() {
    let long = "{% for i in range(3000) %}{{ 'a' * 1000 }}{% endfor %}";
    let prompt = rendered(long, &[(Role::User, "Hi")]);
    assert_eq!(prompt.origin, TemplateOrigin::Plain);
}

#[test]
fn thinking_sets_the_variables_that_templates_read() {
    use hunch_core::chat::Thinking;
    let source = "{% if enable_thinking is defined and not enable_thinking %}no{% else %}yes{% endif %}\
                  {{ ' ' ~ reasoning_effort if reasoning_effort is defined else '' }}";
    let template = ChatTemplate::from_source(Some(source), "", "");
    let parts = conversation(&[(Role::User, "Hi")]);
    let text = |thinking| template.render(&parts, true, thinking, &|| false).unwrap().text;
    assert_eq!(text(None), "yes");
    assert_eq!(text(Some(Thinking::On)), "yes");
    assert_eq!(text(Some(Thinking::Off)), "no low");
    assert_eq!(text(Some(Thinking::High)), "yes high");
    assert_eq!(template.thinking_switches().unwrap(), ThinkingSwitches { switch: true, effort: true });
    let seed = "{% if thinking_budget is not defined %}{% set thinking_budget = -1 %}{% endif %}{{ thinking_budget }}";
    let seed = ChatTemplate::from_source(Some(seed), "", "");
    assert_eq!(seed.thinking_switches().unwrap(), ThinkingSwitches { switch: true, effort: false });
    let of_seed = |thinking| seed.render(&parts, true, thinking, &|| false).unwrap().text;
    assert_eq!((of_seed(Some(Thinking::Off)), of_seed(Some(Thinking::On))), ("0".into(), "-1".into()));
    let of = |source| ChatTemplate::from_source(source, "", "").thinking_switches().unwrap();
    let granite = ThinkingSwitches { switch: true, effort: false };
    assert_eq!(of(Some("{% if thinking %}x{% endif %}")), granite);
    for source in [None, Some("{{ messages[0].content }}"), Some("enable_thinking"), Some("{% if %}")] {
        assert_eq!(of(source), ThinkingSwitches::default(), "{source:?}");
    }
}
