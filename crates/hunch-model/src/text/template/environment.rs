//! Template environment compatible with Hugging Face transformers (`chat_template_utils.py`).
//!
//! Block trimming, loop controls, Python string methods, `raise_exception` and `tojson`. Conversations
//! do not belong here.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::json;

/// Creates an environment with one template.
pub(super) fn environment(name: &'static str, source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_unknown_method_callback(unknown_method_callback);
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("tojson", json::tojson);
    environment.add_template_owned(name, replace_generation_tags(source))?;
    Ok(environment)
}

fn raise_exception(message: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// Replaces `{% generation %}` tags by a condition that is always true.
///
/// transformers uses the tag to mark the text of the model for training. It adds nothing to the text.
fn replace_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        result.push_str(before);
        let Some(end) = tag.find("%}") else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(end + 2);
        let inside = &tag[2..tag.len() - 2];
        result.push_str(&match inside.trim_matches(['-', '+']).trim() {
            "generation" => tag.replace("generation", "if true"),
            "endgeneration" => tag.replace("endgeneration", "endif"),
            _ => tag.to_owned(),
        });
        rest = after;
    }
    result + rest
}
