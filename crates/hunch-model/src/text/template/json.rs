//! The `tojson` filter for chat templates, compatible with Python's `json.dumps(ensure_ascii=False)`.
//!
//! The filter of Jinja would escape for HTML. Only serialisation of template values lives here.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Maximum nesting depth. A value may contain itself.
const MAX_DEPTH: usize = 128;

/// Output options.
struct Style {
    indent: Option<usize>,
    ascii: bool,
    sorted: bool,
}

/// Serialises a value as JSON. Supports `indent`, `ensure_ascii` and `sort_keys`.
pub(super) fn tojson(value: Value, indent: Option<usize>, options: Kwargs) -> Result<String, Error> {
    let named: Option<usize> = options.get("indent")?;
    let style = Style {
        indent: indent.or(named),
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let mut text = String::new();
    write(&mut text, &value, &style, 0)?;
    Ok(text)
}

fn write(text: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        let message = format!("a value with more than {MAX_DEPTH} levels cannot be written as JSON");
        return Err(Error::new(ErrorKind::BadSerialization, message));
    }
    match value.kind() {
        ValueKind::None => text.push_str("null"),
        ValueKind::Bool => text.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => text.push_str(&value.to_string()),
        ValueKind::String => write_text(text, value.as_str().unwrap_or_default(), style),
        ValueKind::Seq | ValueKind::Iterable => {
            let items = value.try_iter()?.collect::<Vec<_>>();
            write_list(text, ['[', ']'], &items, style, depth, |text, item| {
                write(text, item, style, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let mut keys = value.try_iter()?.collect::<Vec<_>>();
            if style.sorted {
                keys.sort_by_key(Value::to_string);
            }
            write_list(text, ['{', '}'], &keys, style, depth, |text, key| {
                write_text(text, &key.to_string(), style);
                text.push_str(": ");
                write(text, &value.get_item(key)?, style, depth + 1)
            })?;
        }
        kind => {
            let message = format!("a value of type {kind} cannot be written as JSON");
            return Err(Error::new(ErrorKind::BadSerialization, message));
        }
    }
    Ok(())
}

fn write_list(
    text: &mut String,
    [open, close]: [char; 2],
    items: &[Value],
    style: &Style,
    depth: usize,
    mut write: impl FnMut(&mut String, &Value) -> Result<(), Error>,
) -> Result<(), Error> {
    let line = |text: &mut String, depth: usize| {
        if let Some(indent) = style.indent.filter(|_| !items.is_empty()) {
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', indent.saturating_mul(depth).min(1 << 10)));
        }
    };
    text.push(open);
    for (i, item) in items.iter().enumerate() {
        if i > 0 {
            text.push_str(if style.indent.is_some() { "," } else { ", " });
        }
        line(text, depth + 1);
        write(text, item)?;
    }
    line(text, depth);
    text.push(close);
    Ok(())
}

fn write_text(text: &mut String, value: &str, style: &Style) {
    text.push('"');
    for c in value.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\u{8}' => text.push_str("\\b"),
            '\u{c}' => text.push_str("\\f"),
            // Private-use characters may be placeholders for control tokens in messages.
            c if c < ' ' || (style.ascii && !c.is_ascii() && c < '\u{f0000}') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    text.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => text.push(c),
        }
    }
    text.push('"');
}
