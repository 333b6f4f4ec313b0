//! Text files that are attached to a question, and the form in which the model reads them.

use serde::{Deserialize, Serialize};
use ts_rs::TS;

use hunch_error::{Error, Refusal, Result};

/// Maximum size of an attached file, in bytes: about 250,000 tokens.
pub const MAX_FILE_BYTES: u64 = 1_000_000;

/// Maximum number of files of a question.
pub const MAX_FILES: usize = 16;

/// A text file of a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct Attachment {
    /// File name, after the folders that distinguish it from files of the same name.
    pub name: String,
    /// The whole text.
    pub text: String,
}

/// A text file that was read to be attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, TS)]
pub struct ReadAttachment {
    /// The file.
    pub attachment: Attachment,
    /// Its tokens in the vocabulary of the loaded target; `None` without a model.
    pub tokens: Option<u32>,
}

/// Returns a question as the model reads it: every file under its name in a Markdown code block, then the text.
///
/// A block's fence is longer than any run of backticks in its file, so that no file can end its block.
pub fn with_attachments(text: &str, attachments: &[Attachment]) -> String {
    let mut whole: String = attachments.iter().map(fenced).collect();
    whole.push_str(text);
    whole
}

/// Checks the number and sizes of the files of a question.
///
/// # Errors
/// [`Error::FileTooLarge`] or [`Error::InvalidRequest`].
pub fn check_attachments(attachments: &[Attachment]) -> Result<()> {
    if attachments.len() > MAX_FILES {
        return Err(Refusal::TooManyFiles { limit: MAX_FILES, found: attachments.len() }.into());
    }
    match attachments.iter().find(|file| file.text.len() as u64 > MAX_FILE_BYTES) {
        Some(Attachment { name, text }) => {
            Err(Error::FileTooLarge { name: name.clone(), bytes: text.len() as u64, most: MAX_FILE_BYTES })
        }
        None => Ok(()),
    }
}

fn fenced(Attachment { name, text }: &Attachment) -> String {
    let longest_run = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(3.max(longest_run + 1));
    // A name with a line break could look like text of the question.
    let name: String = name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let language = language(&name);
    let end = if text.ends_with('\n') { "" } else { "\n" };
    format!("File: {name}\n\n{fence}{language}\n{text}{end}{fence}\n\n")
}

/// Returns the language tag of a code block: the extension of the file, if it looks like one.
fn language(name: &str) -> &str {
    let extension = name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()).map_or("", |(_, end)| end);
    let is_tag = extension.len() <= 12 && extension.chars().all(|c| c.is_ascii_alphanumeric());
    if is_tag { extension } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> Attachment {
        Attachment { name: name.into(), text: text.into() }
    }

    #[test]
    fn model_reads_files_in_code_blocks_before_the_question() {
        assert_eq!(with_attachments("Why?", &[]), "Why?");
        let files = [file("main.rs", "fn main() {}\n"), file("notes", "two\nlines")];
        assert_eq!(
            with_attachments("Why?", &files),
            "File: main.rs\n\n```rs\nfn main() {}\n```\n\nFile: notes\n\n```\ntwo\nlines\n```\n\nWhy?"
        );
    }

    #[test]
    fn no_file_can_end_its_block_or_imitate_the_question() {
        let fenced = with_attachments("?", &[file("a.md", "```\nx\n````\ny")]);
        assert_eq!(fenced, "File: a.md\n\n`````md\n```\nx\n````\ny\n`````\n\n?");
        let named = with_attachments("?", &[file("a\n\nObey.txt", "x")]);
        assert_eq!(named, "File: a  Obey.txt\n\n```txt\nx\n```\n\n?");
        for name in [".gitignore", "v1.2 draft", "x.`````", "Makefile"] {
            assert!(with_attachments("", &[file(name, "x")]).contains("\n\n```\nx\n```"), "{name}");
        }
    }

    #[test]
    fn refuses_too_many_and_too_large_files() {
        let small = file("a.txt", "a");
        assert!(check_attachments(&vec![small.clone(); MAX_FILES]).is_ok());
        let many = check_attachments(&vec![small.clone(); MAX_FILES + 1]).unwrap_err();
        assert!(many.to_string().contains("16 files, and this one has 17"), "{many}");
        let large = file("b.txt", &"b".repeat(MAX_FILE_BYTES as usize));
        assert!(check_attachments(&[small.clone(), large.clone()]).is_ok());
        let larger = file("b.txt", &(large.text + "b"));
        let refused = check_attachments(&[small, larger]).unwrap_err();
        assert!(matches!(refused, Error::FileTooLarge { ref name, .. } if name == "b.txt"), "{refused}");
    }
}
