//! Texts of the user that drafts are copied from: files, folders and the conversations of the window. Finds and reads
//! them, and makes them tokens of a model. Matching belongs to [`TextIndex`]. Nothing of them is stored.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use hunch_core::propose::retrieval::TextIndex;
use hunch_core::token::TokenId;
use hunch_error::{Error, Refusal, Result};
use hunch_model::input_file;
use hunch_model::text::{EncodeOptions, Tokenizer};
use ignore::WalkBuilder;

use crate::api::StoredMessage;
use crate::store::Store;

/// Most bytes of all texts. Their index takes about twice as much.
pub const MAX_BYTES: u64 = 32_000_000;
/// Most bytes of a file in a folder. Larger ones are rarely written by hand.
const MAX_FILE_BYTES: u64 = 2_000_000;

/// Origin of texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextSource {
    /// All conversations of the window: `my-conversations`.
    MyConversations,
    /// A file, or a folder of them.
    Path(PathBuf),
}

impl FromStr for TextSource {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text == "my-conversations" { Self::MyConversations } else { Self::Path(text.into()) })
    }
}

/// Texts that were read.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Texts {
    texts: Vec<String>,
    bytes: u64,
    /// True if there were more than [`MAX_BYTES`].
    cut: bool,
}

impl Texts {
    /// Reads texts. `conversations` is the file of conversations.
    ///
    /// In folders, hidden files and those that `.gitignore` and `.ignore` name are skipped. So are files that are not UTF-8
    /// text or larger than 2 MB. Links are not followed. Texts beyond [`MAX_BYTES`] are left out.
    ///
    /// # Errors
    /// If a named file or folder cannot be read, a named file is too large or not text, or there is no text at all.
    /// [`Error::Stopped`] if `stopped` returns true between two files.
    pub fn read(sources: &[TextSource], conversations: &Path, stopped: &dyn Fn() -> bool) -> Result<Self> {
        let mut all = Self::default();
        for source in sources {
            match source {
                TextSource::MyConversations => all.add_conversations(conversations)?,
                TextSource::Path(path) if path.is_dir() => all.add_folder(path, stopped)?,
                TextSource::Path(path) => {
                    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    let bytes = input_file::regular(path)?.len();
                    if bytes > MAX_BYTES {
                        return Err(Error::FileTooLarge { name, bytes, most: MAX_BYTES });
                    }
                    all.add(text_of(path, MAX_BYTES)?.ok_or(Error::NotText { name })?);
                }
            }
        }
        if all.texts.is_empty() { Err(Refusal::NoTexts.into()) } else { Ok(all) }
    }

    fn add(&mut self, text: String) {
        let bytes = self.bytes + text.len() as u64;
        if bytes > MAX_BYTES {
            self.cut = true;
        } else if !text.trim().is_empty() {
            self.bytes = bytes;
            self.texts.push(text);
        }
    }

    fn add_conversations(&mut self, file: &Path) -> Result<()> {
        conversation_messages(file)?.into_iter().for_each(|message| self.add(message.content));
        Ok(())
    }

    /// Adds the texts of a folder, in the order of their paths.
    fn add_folder(&mut self, folder: &Path, stopped: &dyn Fn() -> bool) -> Result<()> {
        let io = |source| Error::Io { action: "read", path: folder.into(), source };
        std::fs::read_dir(folder).map_err(io)?;
        let entries = WalkBuilder::new(folder).require_git(false).sort_by_file_path(Path::cmp).build();
        let files = entries.flatten().filter(|entry| entry.file_type().is_some_and(|kind| kind.is_file()));
        for entry in files {
            if stopped() {
                return Err(Error::Stopped);
            }
            if self.cut {
                break;
            }
            // Files that cannot be read are skipped, as those that are not text.
            if let Ok(Some(text)) = text_of(entry.path(), MAX_FILE_BYTES) {
                self.add(text);
            }
        }
        Ok(())
    }

    /// Makes the texts tokens of a model and indexes them.
    ///
    /// # Errors
    /// If the tokeniser fails. [`Error::Stopped`] if `stopped` returns true between two texts.
    pub fn index(&self, tokenizer: &Tokenizer, stopped: &dyn Fn() -> bool) -> Result<TextIndex> {
        let options = EncodeOptions { parse_special: false, add_bos: false };
        let tokens = self
            .texts
            .iter()
            .map(|text| if stopped() { Err(Error::Stopped) } else { Ok(tokenizer.encode(text, options)?) });
        Ok(TextIndex::new(tokens.collect::<Result<Vec<Vec<TokenId>>>>()?))
    }

    /// Returns the number of texts.
    pub fn count(&self) -> usize {
        self.texts.len()
    }

    /// Returns their bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether texts were left out, because there are more than [`MAX_BYTES`].
    pub fn is_cut(&self) -> bool {
        self.cut
    }
}

/// Returns all messages of the conversations in a file. There are none if it does not exist.
///
/// # Errors
/// If the file cannot be read.
pub fn conversation_messages(file: &Path) -> Result<Vec<StoredMessage>> {
    let mut all = Vec::new();
    if file.exists() {
        let store = Store::open_read_only(file)?;
        for entry in store.conversations()? {
            all.extend(store.conversation(entry.id)?.messages);
        }
    }
    Ok(all)
}

/// Reads a file. `None` if it is not UTF-8 text or has more than `most` bytes.
fn text_of(path: &Path, most: u64) -> Result<Option<String>> {
    let io = |source| Error::Io { action: "read", path: path.into(), source };
    Ok(input_file::read(path, most).map_err(io)?.and_then(input_file::text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_files_and_folders_without_what_is_no_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(path("src/.git")).unwrap();
        std::fs::create_dir_all(path("src/target")).unwrap();
        for (name, bytes) in [
            ("src/b.rs", &b"fn b() {}"[..]),
            ("src/a.rs", b"fn a() {}"),
            ("src/picture.png", b"PNG\0\x01"),
            ("src/latin.txt", b"caf\xe9"),
            ("src/.gitignore", b"target\n"),
            ("src/target/out.rs", b"fn c() {}"),
            ("src/.hidden", b"secret"),
            ("src/empty.rs", b" \n"),
        ] {
            std::fs::write(path(name), bytes).unwrap();
        }
        let read = |names: &[&str]| {
            let sources: Vec<TextSource> = names.iter().map(|name| TextSource::Path(path(name))).collect();
            Texts::read(&sources, &path("none"), &|| false)
        };
        let all = read(&["src", "src/target/out.rs"]).unwrap();
        assert_eq!(all.texts, ["fn a() {}", "fn b() {}", "fn c() {}"]);
        assert_eq!((all.count(), all.bytes(), all.is_cut()), (3, 27, false));
        assert!(matches!(read(&["src/picture.png"]), Err(Error::NotText { .. })));
        assert!(matches!(read(&["missing"]), Err(Error::Io { .. })));
        std::fs::create_dir(path("nothing")).unwrap();
        assert!(matches!(read(&["nothing"]), Err(Error::Refused(Refusal::NoTexts))));
        let conversations = Texts::read(&[TextSource::MyConversations], &path("none"), &|| false);
        assert!(matches!(conversations, Err(Error::Refused(Refusal::NoTexts))));
    }

    #[test]
    fn stops_at_the_limit() {
        let mut texts = Texts::default();
        texts.add("a".repeat(MAX_BYTES as usize - 1));
        texts.add("bc".into());
        assert!(texts.is_cut() && texts.count() == 1);
    }
}
