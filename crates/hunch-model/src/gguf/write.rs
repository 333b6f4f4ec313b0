//! Encodes metadata as a GGUF file has them, for models that come from other formats.

use std::collections::BTreeMap;

use super::{Array, Value};

/// Encodes metadata entries, in the order of their keys.
pub(crate) fn metadata(entries: &BTreeMap<String, Value>) -> Vec<u8> {
    let mut out = Vec::new();
    for (key, value) in entries {
        text(&mut out, key);
        match value {
            Value::U8(v) => number(&mut out, 0, &v.to_le_bytes()),
            Value::I8(v) => number(&mut out, 1, &v.to_le_bytes()),
            Value::U16(v) => number(&mut out, 2, &v.to_le_bytes()),
            Value::I16(v) => number(&mut out, 3, &v.to_le_bytes()),
            Value::U32(v) => number(&mut out, 4, &v.to_le_bytes()),
            Value::I32(v) => number(&mut out, 5, &v.to_le_bytes()),
            Value::F32(v) => number(&mut out, 6, &v.to_le_bytes()),
            Value::Bool(v) => number(&mut out, 7, &[u8::from(*v)]),
            Value::String(v) => {
                out.extend(8u32.to_le_bytes());
                text(&mut out, v);
            }
            Value::Array(v) => {
                out.extend(9u32.to_le_bytes());
                array(&mut out, v);
            }
            Value::U64(v) => number(&mut out, 10, &v.to_le_bytes()),
            Value::I64(v) => number(&mut out, 11, &v.to_le_bytes()),
            Value::F64(v) => number(&mut out, 12, &v.to_le_bytes()),
        }
    }
    out
}

fn number(out: &mut Vec<u8>, kind: u32, bytes: &[u8]) {
    out.extend(kind.to_le_bytes());
    out.extend(bytes);
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn array(out: &mut Vec<u8>, array_of: &Array) {
    match array_of {
        Array::U8(v) => elements(out, 0, v, |out, v| out.push(*v)),
        Array::I8(v) => elements(out, 1, v, |out, v| out.extend(v.to_le_bytes())),
        Array::U16(v) => elements(out, 2, v, |out, v| out.extend(v.to_le_bytes())),
        Array::I16(v) => elements(out, 3, v, |out, v| out.extend(v.to_le_bytes())),
        Array::U32(v) => elements(out, 4, v, |out, v| out.extend(v.to_le_bytes())),
        Array::I32(v) => elements(out, 5, v, |out, v| out.extend(v.to_le_bytes())),
        Array::F32(v) => elements(out, 6, v, |out, v| out.extend(v.to_le_bytes())),
        Array::Bool(v) => elements(out, 7, v, |out, v| out.push(u8::from(*v))),
        Array::String(v) => elements(out, 8, v, |out, v| text(out, v)),
        Array::Array(v) => elements(out, 9, v, array),
        Array::U64(v) => elements(out, 10, v, |out, v| out.extend(v.to_le_bytes())),
        Array::I64(v) => elements(out, 11, v, |out, v| out.extend(v.to_le_bytes())),
        Array::F64(v) => elements(out, 12, v, |out, v| out.extend(v.to_le_bytes())),
    }
}

fn elements<T>(out: &mut Vec<u8>, kind: u32, values: &[T], write: impl Fn(&mut Vec<u8>, &T)) {
    out.extend(kind.to_le_bytes());
    out.extend((values.len() as u64).to_le_bytes());
    values.iter().for_each(|value| write(out, value));
}
