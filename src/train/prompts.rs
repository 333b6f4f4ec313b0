//! Given prompts: reads them from JSON Lines, and identifies them.

use std::collections::HashSet;
use std::path::Path;

use hunch_core::chat::{ChatMessage, Role};
use hunch_error::{Error, Result};
use hunch_model::input_file;
use serde::Deserialize;

/// Largest file of prompts. It is read into memory as a whole.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// A line of a file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Line {
    Prompt { prompt: String },
    Conversation { messages: Vec<ChatMessage> },
}

/// Reads prompts from a file in JSON Lines. A line is `{"prompt": "..."}`, or `{"messages": [{"role": "user",
/// "content": "..."}]}`, of which each message of the user is a prompt. Other fields and empty lines are ignored.
///
/// # Errors
/// If the file cannot be read or is larger than 64 MiB. [`Error::InvalidRequest`] with the number of a line that is neither,
/// or if there is no prompt.
pub fn read(path: &Path) -> Result<Vec<String>> {
    let io = |source| Error::Io { action: "read", path: path.into(), source };
    let invalid = |reason: String| Error::invalid(format!("{}: {reason}", path.display()));
    input_file::regular(path)?;
    let bytes = input_file::read(path, MAX_FILE_BYTES).map_err(io)?;
    let bytes = bytes
        .ok_or_else(|| invalid("the file is larger than 64 MiB, the limit for prompts. Split it.".into()))?;
    let text = input_file::text(bytes)
        .ok_or_else(|| invalid("it is not text in UTF-8. Nothing was collected.".into()))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let mut prompts = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        match serde_json::from_str(line) {
            _ if line.trim().is_empty() => {}
            Ok(Line::Prompt { prompt }) => prompts.push(prompt),
            Ok(Line::Conversation { messages }) => prompts.extend(of_user(messages)),
            Err(_) => {
                return Err(invalid(format!(
                    "line {number} is neither {{\"prompt\": \"...\"}} nor {{\"messages\": [...]}}. Nothing was collected."
                )));
            }
        }
    }
    usable(prompts).ok_or_else(|| invalid("it has no prompt. Nothing was collected.".into()))
}

/// Returns the user's messages of a conversation.
pub fn of_user(messages: impl IntoIterator<Item = ChatMessage>) -> impl Iterator<Item = String> {
    messages.into_iter().filter(|message| message.role == Role::User).map(|message| message.content)
}

/// Returns prompts without repeated and empty ones, in order; `None` if none is left.
pub fn usable(prompts: Vec<String>) -> Option<Vec<String>> {
    let mut seen = HashSet::new();
    let trimmed = prompts.into_iter().map(|prompt| prompt.trim().to_owned());
    let prompts: Vec<String> =
        trimmed.filter(|prompt| !prompt.is_empty() && seen.insert(prompt.clone())).collect();
    (!prompts.is_empty()).then_some(prompts)
}

/// Returns the FNV-1a hash of a text, which is the same on every machine.
pub fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Returns a number that identifies prompts and their order.
pub fn fingerprint(prompts: &[String]) -> u64 {
    prompts.iter().fold(0, |all, prompt| hash(&format!("{all:x} {prompt}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<String>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path())
    }

    #[test]
    fn prompts_and_conversations_are_read_once_each() {
        let text = r#"{"prompt": " Why? ", "id": 3}

{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How?"},
 {"role": "assistant", "content": "So."}, {"role": "user", "content": "Why?"}]}
{"prompt": ""}"#
            .replace("\n {", " {");
        assert_eq!(read_text(&text).unwrap(), ["Why?", "How?"]);
    }

    #[test]
    fn unusable_files_are_refused_with_the_line() {
        for (text, reason) in [
            ("{\"prompt\": \"a\"}\nnonsense", "line 2 is neither"),
            ("{\"question\": \"a\"}", "line 1 is neither"),
            ("{\"prompt\": 5}", "line 1 is neither"),
            ("{\"prompt\": \"a\0\"}", "not text"),
            ("", "no prompt"),
            ("{\"prompt\": \"  \"}", "no prompt"),
        ] {
            let error = read_text(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert!(matches!(read(Path::new("/nowhere/at/all")), Err(Error::Io { .. })));
        assert!(read(Path::new("/")).is_err());
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_line() {
        assert_eq!(read_text("\u{feff}{\"prompt\": \"a\"}").unwrap(), ["a"]);
    }

    #[test]
    fn fingerprint_depends_on_texts_and_their_order() {
        let of = |prompts: &[&str]| fingerprint(&prompts.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&["a", "b"]), of(&["a", "b"]));
        assert_ne!(of(&["a", "b"]), of(&["b", "a"]));
        assert_ne!(of(&["a", "b"]), of(&["ab"]));
    }
}
