//! Reasoning before an answer: what a request asks for, whether the model's chat template can do it, and its separation
//! from the text.

use hunch_core::chat::Thinking;
use hunch_model::text::{AnswerText, ThoughtSplitter};

use super::AnsweringServer;
use super::errors::Failure;

/// Reads text of an answer and returns its thoughts and the rest, as far as they are certain. With `last`, all that is
/// held back too.
pub(super) fn split(splitter: &mut ThoughtSplitter, text: &str, last: bool) -> (String, String) {
    let mut pieces = splitter.push(text);
    if last {
        pieces.extend(splitter.finish());
    }
    let (mut thought, mut said) = (String::new(), String::new());
    for piece in pieces {
        match piece {
            AnswerText::Thought(text) => thought.push_str(&text),
            AnswerText::Said(text) => said.push_str(&text),
        }
    }
    (thought, said)
}

/// Splits a whole answer into its thoughts and the rest. Without a splitter, all of it is the rest.
pub(super) fn split_whole(splitter: Option<ThoughtSplitter>, text: String) -> (String, String) {
    match splitter {
        Some(mut splitter) => split(&mut splitter, &text, true),
        None => (String::new(), text),
    }
}

/// Returns the effort of a name, as requests write it. `None` for an unknown one.
pub(super) fn effort(name: &str) -> Option<Thinking> {
    Some(match name {
        "none" => Thinking::Off,
        "minimal" | "low" => Thinking::Low,
        "medium" => Thinking::Medium,
        "high" | "xhigh" | "max" => Thinking::High,
        _ => return None,
    })
}

/// Returns what a parameter asks for, if the model's chat template can do it. Without levels, all of them turn thinking
/// on.
///
/// # Errors
/// If the template has no switch for it, or the model always thinks.
pub(super) fn supported(
    server: &AnsweringServer,
    wanted: Option<Thinking>,
    param: &str,
) -> Result<Option<Thinking>, Failure> {
    let has = server.model.encoder.thinking_switches();
    let refuse = |message: &str| Err(Failure::of_param(param, message));
    match wanted {
        Some(Thinking::Off) if server.model.encoder.always_thinks() => refuse(&match has.effort {
            true => "This model always thinks. Choose a low effort.".to_owned(),
            false => format!(
                "This model always thinks, and its chat template cannot switch that off. Remove `{param}`."
            ),
        }),
        // A model without a switch does not think, as far as its template knows.
        None | Some(Thinking::Off) => Ok(wanted),
        _ if has.switch || has.effort => Ok(wanted),
        _ => {
            refuse(&format!("The chat template of this model has no switch for thinking. Remove `{param}`."))
        }
    }
}
