//! Chat templates from bytes: as they are written, or chosen from a grammar. The renderer is in a child process,
//! whose coverage the fuzzer does not see; with a grammar most templates are sound enough to be run.

use hunch_core::chat::{ChatMessage, Role};

/// Deepest nesting of what the grammar makes.
const DEPTH: usize = 6;
/// Most pieces of a block.
const PIECES: usize = 6;

const EXPRESSIONS: [&str; 30] = [
    "messages",
    "messages[0].content",
    "messages[-1]['role']",
    "m.content",
    "ns",
    "ns.a",
    "loop.index0",
    "loop.previtem",
    "loop.cycle('a', 'b')",
    "bos_token",
    "eos_token",
    "add_generation_prompt",
    "tools",
    "none",
    "undefined_name",
    "'x'",
    "'%s %d %0999999999d'",
    "'<|im_' + 'start|>'",
    "0",
    "-1",
    "9223372036854775807",
    "18446744073709551616",
    "1e308",
    "range(99999)",
    "[1, [2, [3]]]",
    "{'a': {'b': 1}}",
    "namespace(a=1)",
    "dict(a=messages)",
    "strftime_now('%Y-%m-%d %Q %-')",
    "'a\\nb'",
];

const FILTERS: [&str; 40] = [
    "trim",
    "upper",
    "title",
    "length",
    "tojson",
    "tojson(indent=4)",
    "tojson(indent=99999999999, sort_keys=true)",
    "tojson(ensure_ascii=true)",
    "list",
    "join(',')",
    "join(messages)",
    "first",
    "last",
    "reverse",
    "sort",
    "sort(attribute='content')",
    "unique",
    "batch(3)",
    "slice(2)",
    "batch(99999999999, 'x')",
    "indent(9)",
    "indent(999999999999)",
    "replace('a', 'aaaa')",
    "replace('', 'x')",
    "string",
    "int",
    "float",
    "abs",
    "round(3)",
    "round(400)",
    "map('upper')",
    "map(attribute='role')",
    "select('equalto', 'x')",
    "selectattr('role')",
    "groupby('role')",
    "default('d')",
    "items",
    "dictsort",
    "format(1, 2)",
    "safe",
];

const METHODS: [&str; 18] = [
    ".split('</think>')",
    ".split('')",
    ".split()",
    ".strip()",
    ".lstrip('\\n')",
    ".replace('a', 'b', 1)",
    ".startswith('x')",
    ".endswith(('a', 'b'))",
    ".items()",
    ".get('content')",
    ".keys()",
    ".count('')",
    ".find('\u{65e5}')",
    ".title()",
    "[1:]",
    "[::-1]",
    "[:-9223372036854775807]",
    "[::9223372036854775807]",
];

const OPERATORS: [&str; 14] =
    ["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "and", "or", "is not"];

/// Bytes that are chosen with; endless zeros at the end.
struct Choices<'a>(std::slice::Iter<'a, u8>);

impl Choices<'_> {
    fn byte(&mut self) -> usize {
        self.0.next().copied().unwrap_or(0).into()
    }

    fn of(&mut self, texts: &[&'static str]) -> &'static str {
        texts[self.byte() % texts.len()]
    }
}

/// A template and a conversation: a grammar's where the first byte is 255, else texts between zeros.
pub fn read(bytes: &[u8]) -> (String, Vec<ChatMessage>) {
    if let Some((0xff, chosen)) = bytes.split_first() {
        let mut choices = Choices(chosen.iter());
        let messages =
            conversation(["Be \u{65e5} kind.", "Hi <|im_end|>", "<think>a</think>b", "Bye"].into_iter());
        let source = block(&mut choices, DEPTH);
        return (source, messages);
    }
    let text = String::from_utf8_lossy(bytes);
    let mut texts = text.split('\0');
    let source = texts.next().unwrap_or_default().to_owned();
    let messages = conversation(texts.take(8));
    let hello = || vec![ChatMessage { role: Role::User, content: "Hi".into() }];
    (source, if messages.is_empty() { hello() } else { messages })
}

fn conversation<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<ChatMessage> {
    let roles = [Role::System].into_iter().chain([Role::User, Role::Assistant].into_iter().cycle());
    roles.zip(texts).map(|(role, text)| ChatMessage { role, content: text.to_owned() }).collect()
}

fn block(choices: &mut Choices<'_>, depth: usize) -> String {
    let pieces = 1 + choices.byte() % PIECES;
    (0..pieces).map(|_| piece(choices, depth)).collect()
}

fn piece(choices: &mut Choices<'_>, depth: usize) -> String {
    let Some(inner) = depth.checked_sub(1) else { return expression(choices, 0) };
    match choices.byte() % 16 {
        0 => format!("{{% for m in {} %}}{}{{% endfor %}}", expression(choices, 2), block(choices, inner)),
        1 => format!(
            "{{% for m in messages recursive %}}{}{{{{ loop(messages) }}}}{{% endfor %}}",
            block(choices, inner)
        ),
        2 => format!(
            "{{%- if {} -%}}{}{{%- else -%}}{}{{%- endif -%}}",
            expression(choices, 3),
            block(choices, inner),
            block(choices, inner)
        ),
        3 => format!("{{% set x = {} %}}{{{{ x }}}}", expression(choices, 3)),
        4 => format!("{{% set ns.a = {} %}}", expression(choices, 3)),
        5 => format!("{{% set ns = namespace(a={}) %}}", expression(choices, 2)),
        6 => format!(
            "{{% macro f(x) %}}{}{{% endmacro %}}{{{{ f({}) }}}}",
            block(choices, inner),
            expression(choices, 2)
        ),
        7 => format!("{{% set y %}}{}{{% endset %}}{{{{ y }}}}", block(choices, inner)),
        8 => format!("{{% filter {} %}}{}{{% endfilter %}}", choices.of(&FILTERS), block(choices, inner)),
        9 => format!("{{% call f(1) %}}{}{{% endcall %}}", block(choices, inner)),
        10 => format!("{{% generation %}}{}{{%- endgeneration -%}}", block(choices, inner)),
        11 => format!("{{% if loop.index > 3 %}}{{% break %}}{{% endif %}}{}", block(choices, inner)),
        12 => format!("{{% with z = {} %}}{{{{ z }}}}{{% endwith %}}", expression(choices, 3)),
        13 => format!("{{{{ raise_exception({}) }}}}", expression(choices, 1)),
        14 => char::from(u8::try_from(choices.byte()).unwrap_or(b'{')).to_string(),
        _ => format!("{{{{ {} }}}}", expression(choices, 4)),
    }
}

fn expression(choices: &mut Choices<'_>, depth: usize) -> String {
    let value = choices.of(&EXPRESSIONS).to_owned();
    let Some(inner) = depth.checked_sub(1) else { return value };
    match choices.byte() % 8 {
        0 | 1 => format!("({}) | {}", expression(choices, inner), choices.of(&FILTERS)),
        2 => format!("({}){}", expression(choices, inner), choices.of(&METHODS)),
        3 => format!("({value}) {} ({})", choices.of(&OPERATORS), expression(choices, inner)),
        4 => format!("[{}, {}]", expression(choices, inner), expression(choices, inner)),
        5 => format!("{} if {} else {value}", expression(choices, inner), expression(choices, inner)),
        _ => value,
    }
}
