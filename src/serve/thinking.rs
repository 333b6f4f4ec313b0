//! Reasoning before an answer: what a request asks for, and whether the model's chat template can do it.

use hunch_core::chat::Thinking;

use super::Served;
use super::errors::Failure;

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
    server: &Served,
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
