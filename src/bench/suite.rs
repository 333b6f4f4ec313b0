//! Suites: the prompts of a benchmark or comparison. Three are built in; others are read from files, in JSON Lines or
//! with a prompt a line.

use std::collections::HashMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use hunch_core::chat::{ChatMessage, Role};
use hunch_error::{Error, Refusal, Result};
use hunch_model::input_file;

/// Built-in suites by name.
///
/// `code` writes, explains and repairs programs. `prose` has stories, explanations, letters and summaries. `edit`
/// asks for a small change to a text in the prompt, so most of the answer can be looked up there.
const BUILT_IN: [(&str, &str); 3] = [
    ("code", include_str!("suites/code.jsonl")),
    ("prose", include_str!("suites/prose.jsonl")),
    ("edit", include_str!("suites/edit.jsonl")),
];

/// Name of a hidden suite for short measurements of a pair of models: one prompt of `code` and one of `prose`.
pub(crate) const PAIR: &str = "pair";
const PAIR_PROMPTS: &str = include_str!("suites/pair.jsonl");

/// Largest suite file, in bytes. A file is read into memory as a whole.
const MAX_FILE_BYTES: u64 = 8_000_000;
/// Most prompts of a suite file. Their answers would take days.
const MAX_FILE_PROMPTS: usize = 10_000;

/// A prompt of a suite: one line of its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuitePrompt {
    /// Id, unique in the suite.
    pub id: String,
    /// The system message, if any.
    #[serde(default)]
    pub system: Option<String>,
    /// The user's message.
    pub prompt: String,
}

impl SuitePrompt {
    /// Returns the messages that begin the conversation.
    pub fn messages(&self) -> Vec<ChatMessage> {
        let system = self.system.iter().map(|text| ChatMessage { role: Role::System, content: text.clone() });
        system.chain([ChatMessage { role: Role::User, content: self.prompt.clone() }]).collect()
    }
}

/// A named list of prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suite {
    /// Built-in name, or file name without extension.
    pub name: String,
    /// Prompts in file order, at least one.
    pub prompts: Vec<SuitePrompt>,
}

impl Suite {
    /// Returns the names of the built-in suites.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|&(name, _)| name)
    }

    /// Returns whether there is a built-in suite of this name.
    pub fn is_built_in(name: &str) -> bool {
        Self::names().any(|built_in| built_in == name)
    }

    /// Returns the built-in suite of this name, or loads the file at this path.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when there is neither. Otherwise as [`Suite::load`].
    pub fn named_or_file(name: &str) -> Result<Self> {
        let path = Path::new(name);
        if Self::is_built_in(name) {
            return Self::named(name);
        }
        if !path.exists() {
            let names = Self::names().collect::<Vec<_>>().join(", ");
            return Err(Error::invalid(format!(
                "There is no suite and no file \"{name}\". Choose one of {names}, or give the path of a .jsonl or .txt file."
            )));
        }
        Self::load(path)
    }

    /// Returns the built-in suite of this name.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when there is none.
    pub fn named(name: &str) -> Result<Self> {
        let known = BUILT_IN.iter().chain(&[(PAIR, PAIR_PROMPTS)]);
        let Some((name, text)) = known.copied().find(|(built_in, _)| *built_in == name) else {
            let names = Self::names().collect::<Vec<_>>().join(", ");
            return Err(Error::invalid(format!("There is no suite \"{name}\". Choose one of {names}.")));
        };
        Self::parse(name, text)
    }

    /// Loads a suite from a file.
    ///
    /// In a `.txt` file each line is a prompt. Other files are JSON Lines: each line is
    /// `{"id": "...", "system": null, "prompt": "..."}`, with `system` optional. Empty lines are ignored.
    ///
    /// # Errors
    /// [`Error::Io`] when the file cannot be read. Refusals when it is too large, has too many prompts, is not UTF-8, or
    /// is not a suite. The last have the line number.
    pub fn load(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { action: "read", path: path.to_owned(), source };
        let name = || path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some(bytes) = input_file::read(path, MAX_FILE_BYTES).map_err(io)? else {
            return Err(Refusal::SuiteTooLarge { name: name(), most: MAX_FILE_BYTES }.into());
        };
        let text = String::from_utf8(bytes).map_err(|_| Refusal::SuiteNotText { name: name() })?;
        let is_plain = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("txt"));
        let suite = Self::name_of(path);
        if is_plain { Self::of_lines(&suite, &text) } else { Self::parse(&suite, &text) }
    }

    /// Returns the name of a file's suite.
    pub fn name_of(path: &Path) -> String {
        path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
    }

    /// Makes a suite of a text with a prompt in each line. The ids are the numbers of the lines.
    ///
    /// # Errors
    /// [`Refusal::EmptySuite`] when all lines are empty.
    fn of_lines(name: &str, text: &str) -> Result<Self> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
        let prompt = |(number, line): (usize, &str)| SuitePrompt {
            id: format!("line {number}"),
            system: None,
            prompt: line.trim().to_owned(),
        };
        Self::of(name, lines.map(prompt).take(MAX_FILE_PROMPTS + 1).collect())
    }

    /// Makes a suite of prompts.
    fn of(name: &str, prompts: Vec<SuitePrompt>) -> Result<Self> {
        if prompts.len() > MAX_FILE_PROMPTS {
            return Err(Refusal::SuiteTooLong { suite: name.to_owned(), limit: MAX_FILE_PROMPTS }.into());
        }
        if prompts.is_empty() {
            return Err(Refusal::EmptySuite { suite: name.to_owned() }.into());
        }
        Ok(Self { name: name.to_owned(), prompts })
    }

    /// Parses a suite called `name` from the text of its file.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when a line is not a prompt, repeats an id, or has an empty id or prompt, and when
    /// there are no prompts.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let mut prompts = Vec::new();
        let mut lines: HashMap<String, usize> = HashMap::new();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (number, line) in (1..).zip(text.lines()) {
            if line.trim().is_empty() {
                continue;
            }
            let suite = || name.to_owned();
            let prompt: SuitePrompt = serde_json::from_str(line).map_err(|e| Refusal::NotAPrompt {
                suite: suite(),
                line: number,
                detail: reason(&e),
            })?;
            if prompt.id.trim().is_empty() {
                return Err(Refusal::EmptyPromptId { suite: suite(), line: number }.into());
            }
            if prompt.prompt.trim().is_empty() {
                return Err(Refusal::EmptySuitePrompt { suite: suite(), line: number }.into());
            }
            if let Some(first) = lines.insert(prompt.id.clone(), number) {
                let id = prompt.id;
                return Err(Refusal::RepeatedPromptId { suite: suite(), line: number, id, first }.into());
            }
            prompts.push(prompt);
            if prompts.len() > MAX_FILE_PROMPTS {
                break;
            }
        }
        Self::of(name, prompts)
    }
}

/// Returns serde_json's message without its line number, which is always 1.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&position) {
        Some(reason) => format!("{reason} (column {})", error.column()),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn refusal(text: &str) -> String {
        Suite::parse("mine", text).expect_err("not a suite").to_string()
    }

    #[test]
    fn built_in_suites_have_a_dozen_different_prompts() {
        for name in Suite::names() {
            let suite = Suite::named_or_file(name).unwrap();
            assert_eq!(suite.name, name);
            assert!(suite.prompts.len() >= 12, "{name}: {}", suite.prompts.len());
            let mut texts: Vec<_> = suite.prompts.iter().map(|p| p.prompt.as_str()).collect();
            texts.sort_unstable();
            texts.dedup();
            assert_eq!(texts.len(), suite.prompts.len(), "{name} repeats a prompt");
        }
        assert_eq!(Suite::names().collect::<Vec<_>>(), ["code", "prose", "edit"]);
    }

    #[test]
    fn edit_prompts_contain_the_text_to_change() {
        for prompt in Suite::named_or_file("edit").unwrap().prompts {
            let parts: Vec<_> = prompt.prompt.split("```").collect();
            assert_eq!(parts.len(), 3, "{}", prompt.id);
            assert!(parts[0].len() > 40, "{} asks for nothing", prompt.id);
            // The first line of the part names the language.
            let lines = parts[1].lines().count() - 1;
            assert!((20..=60).contains(&lines), "{} has {lines} lines", prompt.id);
        }
    }

    #[test]
    fn parses_suite_with_optional_system_message() {
        let text = "\u{feff}{\"id\": \"a\", \"prompt\": \"one\"}\n\n{\"id\": \"b\", \"system\": \"S\", \"prompt\": \"two\"}\r\n";
        let suite = Suite::parse("mine", text).unwrap();
        assert_eq!(suite.prompts.len(), 2);
        assert_eq!(suite.prompts[0].system, None);
        assert_eq!(suite.prompts[1].system.as_deref(), Some("S"));
        assert_eq!(suite.prompts[1].prompt, "two");
    }

    #[test]
    fn errors_name_the_line() {
        let good = "{\"id\": \"a\", \"prompt\": \"one\"}\n";
        let broken = refusal(&format!("{good}\n{{\"id\": \"b\""));
        assert!(broken.starts_with("Line 3 of the suite \"mine\" is not a prompt:"), "{broken}");
        assert!(
            broken.contains("EOF") && broken.contains("column") && !broken.contains("line 1"),
            "{broken}"
        );
        let unknown = refusal(&format!("{good}{{\"id\": \"b\", \"text\": \"x\"}}"));
        assert!(unknown.contains("Line 2") && unknown.contains("`text`"), "{unknown}");
        assert!(
            refusal(&format!("{good}{{\"id\": \"b\", \"prompt\": \" \"}}"))
                .contains("Line 2 of the suite \"mine\" has an empty prompt")
        );
        assert!(
            refusal("{\"id\": \"\", \"prompt\": \"x\"}")
                .contains("Line 1 of the suite \"mine\" has an empty id")
        );
        assert!(
            refusal(&format!("{good}\n{good}"))
                .contains("Line 3 of the suite \"mine\" has the id \"a\" of line 1")
        );
        assert!(refusal("\n \n").contains("has no prompts"));
    }

    #[test]
    fn text_file_has_a_prompt_in_each_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("Questions.TXT");
        fs::write(&path, "\u{feff}Why is the sky blue?\r\n\n  {\"id\": 1}\n").unwrap();
        let suite = Suite::load(&path).unwrap();
        let found: Vec<_> = suite.prompts.iter().map(|prompt| (&*prompt.id, &*prompt.prompt)).collect();
        assert_eq!(suite.name, "Questions");
        assert_eq!(found, [("line 1", "Why is the sky blue?"), ("line 3", "{\"id\": 1}")]);
        fs::write(&path, " \n\n").unwrap();
        assert!(Suite::load(&path).unwrap_err().to_string().contains("\"Questions\" has no prompts"));
    }

    #[test]
    fn refuses_large_file_without_reading_all_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("huge.jsonl");
        // A sparse file of a terabyte.
        std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let refused = Suite::load(&path).unwrap_err().to_string();
        assert!(refused.contains("huge.jsonl is larger than 8 MB"), "{refused}");
    }

    #[test]
    fn refuses_more_prompts_than_the_limit() {
        let lines = |count: usize| "x\n".repeat(count);
        assert_eq!(Suite::of_lines("mine", &lines(10_000)).unwrap().prompts.len(), 10_000);
        let refused = Suite::of_lines("mine", &lines(10_001)).unwrap_err().to_string();
        assert!(refused.contains("\"mine\" has more than 10000 prompts"), "{refused}");
        let json: String =
            (0..10_001).map(|id| format!("{{\"id\": \"{id}\", \"prompt\": \"x\"}}\n")).collect();
        assert!(refusal(&json).contains("more than 10000 prompts"));
    }

    #[test]
    fn loads_file_and_explains_missing_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.jsonl");
        fs::write(&path, "{\"id\": \"a\", \"prompt\": \"one\"}\n").unwrap();
        let suite = Suite::named_or_file(path.to_str().unwrap()).unwrap();
        assert_eq!((suite.name.as_str(), suite.prompts.len()), ("mine", 1));
        let missing = Suite::named_or_file("poetry").expect_err("no such suite").to_string();
        assert!(missing.contains("\"poetry\"") && missing.contains("code, prose, edit"), "{missing}");
        fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
        assert!(Suite::load(&path).unwrap_err().to_string().contains("mine.jsonl is not UTF-8 text"));
        assert!(matches!(Suite::load(folder.path()), Err(Error::Io { .. })));
    }
}
