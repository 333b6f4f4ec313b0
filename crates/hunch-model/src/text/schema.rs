//! JSON schemas of tools: references, alternatives and types. Calls in tags need them, because their values are not JSON.
//! Checking a value against a schema does not belong here.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::tools::type_of;

/// Longest chain of references and nested schemas.
const MAX_NESTED: usize = 16;
/// Parts of a schema that no value has to follow.
const SILENT: [&str; 9] =
    ["title", "description", "default", "examples", "$comment", "$schema", "$id", "$defs", "definitions"];
/// Most alternatives of a schema.
const MAX_ALTERNATIVES: usize = 64;

/// Schema of the arguments of a tool.
#[derive(Clone, Copy)]
pub(super) struct Parameters<'a> {
    /// The whole schema, to which references lead.
    root: &'a Value,
}

impl<'a> Parameters<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        Self { root }
    }

    /// Returns the object's own schema, with references followed and the parts of an `allOf` joined.
    ///
    /// # Errors
    /// The reason, if the schema has several alternatives, or parts that cannot be joined.
    pub(super) fn object(self) -> Result<Cow<'a, Map<String, Value>>, &'static str> {
        match self.alternatives(self.root)?.pop() {
            Some(Cow::Borrowed(Value::Object(fields))) => Ok(Cow::Borrowed(fields)),
            Some(Cow::Owned(Value::Object(fields))) => Ok(Cow::Owned(fields)),
            // `true` allows everything.
            _ => Ok(Cow::Owned(Map::new())),
        }
    }

    /// Returns the schemas of which a value has to follow one, without references, `anyOf`, `oneOf` and `allOf` at their
    /// top.
    ///
    /// # Errors
    /// The reason, if they are nested too deeply, too many, or the parts of an `allOf` cannot be joined.
    pub(super) fn alternatives(self, schema: &'a Value) -> Result<Vec<Cow<'a, Value>>, &'static str> {
        self.flatten(Cow::Borrowed(schema), 0)
    }

    fn flatten(self, schema: Cow<'a, Value>, nested: usize) -> Result<Vec<Cow<'a, Value>>, &'static str> {
        if nested > MAX_NESTED {
            return Err("too many references or levels");
        }
        let parts = ["$ref", "allOf", "anyOf", "oneOf"];
        let Some(part) = parts.into_iter().find(|name| schema.get(*name).is_some()) else {
            return Ok(vec![schema]);
        };
        let mut rest = schema.into_owned();
        let inner = rest.as_object_mut().and_then(|fields| fields.shift_remove(part)).unwrap_or_default();
        let options: Vec<Value> = match (part, inner) {
            ("$ref", Value::String(place)) => {
                let target = place.strip_prefix('#').and_then(|place| self.root.pointer(place));
                vec![target.ok_or("a reference that leads nowhere")?.clone()]
            }
            ("allOf", Value::Array(all)) => {
                let mut joined = Value::Object(Map::new());
                for one in all {
                    joined = join(joined, one)?;
                }
                vec![joined]
            }
            (_, Value::Array(options)) => options,
            _ => return Err("a malformed part"),
        };
        let mut alternatives = Vec::new();
        for option in options {
            let joined = join(rest.clone(), option)?;
            alternatives.extend(self.flatten(Cow::Owned(joined), nested + 1)?);
            if alternatives.len() > MAX_ALTERNATIVES {
                return Err("too many alternatives");
            }
        }
        Ok(alternatives)
    }

    /// Returns the schema of a parameter, or `None` if the tool names no such one.
    pub(super) fn of(self, name: &str) -> Option<Value> {
        self.object().ok()?.get("properties")?.get(name).cloned()
    }

    /// Returns the types that the schema of a parameter allows, as far as it names them. None for a schema that cannot be
    /// followed.
    pub(super) fn types(self, schema: &Value) -> Vec<&'static str> {
        let mut types = Vec::new();
        for alternative in self.flatten(Cow::Owned(schema.clone()), 0).unwrap_or_default() {
            collect_types(&alternative, &mut types);
        }
        types
    }
}

/// Returns a schema that asks for what two schemas ask for.
///
/// # Errors
/// If both say something different of the same thing.
fn join(one: Value, other: Value) -> Result<Value, &'static str> {
    let (mut one, other) = match (one, other) {
        (Value::Object(one), Value::Object(other)) => (one, other),
        // `true` allows everything.
        (one, Value::Bool(true)) => return Ok(one),
        (Value::Bool(true), other) => return Ok(other),
        _ => return Err("a part that allows nothing"),
    };
    for (name, value) in other {
        match (one.get_mut(&name), value) {
            (None, value) => drop(one.insert(name, value)),
            (Some(known), value) if *known == value => {}
            // They say nothing of a value. References lead to the definitions of the whole schema.
            (Some(_), _) if SILENT.contains(&&name[..]) => {}
            (Some(Value::Object(known)), Value::Object(more)) if name == "properties" => {
                for (name, schema) in more {
                    match known.get(&name) {
                        None => drop(known.insert(name, schema)),
                        Some(same) if *same == schema => {}
                        Some(_) => return Err("an `allOf` with two schemas of one property"),
                    }
                }
            }
            (Some(Value::Array(known)), Value::Array(more)) if name == "required" => known.extend(more),
            (Some(Value::Array(known)), Value::Array(more)) if name == "allOf" => known.extend(more),
            _ => return Err("an `allOf` whose parts differ"),
        }
    }
    Ok(Value::Object(one))
}

/// Adds the types that a schema without alternatives allows, as far as it names them.
pub(super) fn collect_types(schema: &Value, types: &mut Vec<&'static str>) {
    const TYPES: [&str; 7] = ["null", "boolean", "number", "integer", "string", "array", "object"];
    let known = |name: &Value| TYPES.into_iter().find(|known| name.as_str() == Some(known));
    let before = types.len();
    match &schema["type"] {
        Value::Array(several) => types.extend(several.iter().filter_map(known)),
        one => types.extend(known(one)),
    }
    if types.len() == before {
        let values = schema["enum"].as_array().into_iter().flatten().chain(schema.get("const"));
        types.extend(values.map(type_of));
    }
    if types[before..].contains(&"number") {
        types.push("integer");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parameters() -> Value {
        json!({
            "$ref": "#/$defs/arguments",
            "$defs": {
                "arguments": { "type": "object", "properties": {
                    "days": { "anyOf": [{ "$ref": "#/$defs/count" }, { "type": "null" }] },
                    "city": { "allOf": [{ "$ref": "#/$defs/city" }], "description": "A place" },
                    "loop": { "$ref": "#/$defs/loop" },
                } },
                "count": { "type": "integer", "minimum": 1 },
                "city": { "enum": ["Rome", "Paris"] },
                "loop": { "anyOf": [{ "$ref": "#/$defs/loop" }] },
            },
        })
    }

    #[test]
    fn references_are_followed_wherever_they_are() {
        let schema = parameters();
        let parameters = Parameters::new(&schema);
        let types = |name: &str| parameters.types(&parameters.of(name).unwrap());
        assert_eq!(types("days"), ["integer", "null"]);
        assert_eq!(types("city"), ["string", "string"]);
        assert!(types("loop").is_empty());
        assert_eq!(parameters.of("other"), None);
    }

    #[test]
    fn parts_that_contradict_each_other_are_refused() {
        let schema = json!({ "allOf": [{ "minLength": 1 }, { "minLength": 2 }] });
        assert!(Parameters::new(&schema).alternatives(&schema).is_err());
        let schema = json!({ "allOf": [{ "type": "string" }, { "maxLength": 2 }], "title": "T" });
        let all = Parameters::new(&schema).alternatives(&schema).unwrap();
        assert_eq!(*all[0], json!({ "title": "T", "type": "string", "maxLength": 2 }));
    }
}
