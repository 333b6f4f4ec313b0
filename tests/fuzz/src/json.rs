//! Changes JSON without breaking its syntax: random bytes would be refused by the parser nearly always.

use serde_json::{Map, Number, Value, json};

/// Strings that mean something somewhere.
const TEXTS: [&str; 14] = [
    "",
    "\0",
    "\u{202e}",
    "../../x.gguf",
    "m-00002-of-00002.gguf",
    "m-99999-of-99999.gguf",
    "user",
    "system",
    "assistant",
    "streaming",
    "plain",
    "auto",
    "round",
    "\u{fffd}\u{65e5}",
];

/// A small random generator (xorshift); the same seed gives the same mutation.
struct Choices(u64);

impl Choices {
    fn new(seed: u32) -> Self {
        Self((u64::from(seed) << 1 | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// A number below `end`, which is not 0.
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % end
    }
}

/// Changes one value of the document in `data[..size]`, or lets `otherwise` mutate bytes. Returns the new size.
pub fn mutate(
    data: &mut [u8],
    size: usize,
    max_size: usize,
    seed: u32,
    otherwise: impl FnOnce(&mut [u8], usize, usize) -> usize,
) -> usize {
    let mut choices = Choices::new(seed);
    let document = serde_json::from_slice::<Value>(&data[..size]).ok().filter(|_| choices.below(4) > 0);
    let Some(mut document) = document else { return otherwise(data, size, max_size) };
    for _ in 0..=choices.below(3) {
        let donor = nth(&mut document, choices.below(1 << 16)).clone();
        let at = choices.below(1 << 16);
        change(nth(&mut document, at), donor, &mut choices);
    }
    let text = document.to_string();
    if text.len() > max_size {
        return otherwise(data, size, max_size);
    }
    data[..text.len()].copy_from_slice(text.as_bytes());
    text.len()
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

/// A value of the document by its number, in order of appearance.
fn nth(document: &mut Value, number: usize) -> &mut Value {
    let number = number % count(document);
    find(document, number)
}

fn find(value: &mut Value, mut number: usize) -> &mut Value {
    if number == 0 {
        return value;
    }
    number -= 1;
    let inner: Vec<&mut Value> = match value {
        Value::Array(items) => items.iter_mut().collect(),
        Value::Object(fields) => fields.values_mut().collect(),
        _ => unreachable!("a scalar is one value"),
    };
    for child in inner {
        let within = count(child);
        if number < within {
            return find(child, number);
        }
        number -= within;
    }
    unreachable!("the number is below the count")
}

fn change(value: &mut Value, donor: Value, choices: &mut Choices) {
    match (choices.below(8), value) {
        (0, value) => *value = donor,
        (1, value) => *value = Value::Null,
        (2, value) => *value = json!(TEXTS[choices.below(TEXTS.len())]),
        (3, value) => *value = number(choices),
        (_, Value::Array(items)) => change_list(items, donor, choices),
        (_, Value::Object(fields)) => change_fields(fields, donor, choices),
        (4, value) => *value = json!([donor]),
        (_, Value::String(text)) => {
            let at = (0..=text.len())
                .filter(|&at| text.is_char_boundary(at))
                .nth(choices.below(text.chars().count() + 1));
            text.insert_str(at.unwrap_or(0), TEXTS[choices.below(TEXTS.len())]);
        }
        (_, value) => *value = number(choices),
    }
}

fn change_list(items: &mut Vec<Value>, donor: Value, choices: &mut Choices) {
    let at = choices.below(items.len() + 1);
    match choices.below(4) {
        0 if at < items.len() => drop(items.remove(at)),
        1 if at < items.len() => items.insert(at, items[at].clone()),
        2 if at < items.len() => {
            let other = choices.below(items.len());
            items.swap(at, other);
        }
        _ => items.insert(at, donor),
    }
}

fn change_fields(fields: &mut Map<String, Value>, donor: Value, choices: &mut Choices) {
    let key = fields.keys().nth(choices.below(fields.len() + 1)).cloned();
    match key {
        Some(key) if choices.below(2) == 0 => drop(fields.remove(&key)),
        Some(key) => drop(fields.insert(key, donor)),
        None => drop(fields.insert("id".into(), donor)),
    }
}

/// Numbers at the edges of what fields can hold.
fn number(choices: &mut Choices) -> Value {
    let edges = [0, 1, -1, 7, 1 << 16, i64::from(i32::MAX), i64::from(u32::MAX), i64::MIN, i64::MAX];
    match choices.below(6) {
        0 => json!(u64::MAX),
        1 => json!([1e39, -1e39, 1e308, 5e-324, 0.1, -0.0, 1e-46][choices.below(7)]),
        2 => Number::from_f64(choices.below(1 << 20) as f64 / 1024.0).map_or(Value::Null, Value::Number),
        _ => json!(edges[choices.below(edges.len())]),
    }
}
