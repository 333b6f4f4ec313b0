//! Reading of text files that the user attaches to a question.

use std::path::Path;

use super::App;
use super::load_state::ReadyModels;
use crate::api::{Attachment, MAX_FILE_BYTES, ReadAttachment};
use hunch_error::{Error, Refusal, Result};
use hunch_model::input_file;
use hunch_model::text::EncodeOptions;

impl App {
    /// Reads a text file to attach it to a question. With `count`, it counts its tokens if a model is loaded. A server that
    /// answers has a context of its own.
    ///
    /// # Errors
    /// When the file cannot be read, is no UTF-8 text, or is larger than [`MAX_FILE_BYTES`]. Also when it has more counted
    /// tokens than the context of the loaded target.
    pub fn read_attachment(&self, path: &Path, count: bool) -> Result<ReadAttachment> {
        let attachment = read_text(path)?;
        let Some(models) = self.shared.models.ready().ok().filter(|_| count) else {
            return Ok(ReadAttachment { attachment, tokens: None });
        };
        let tokens = tokens_of(&models, &attachment.text)?;
        let context = models.loaded.context as usize;
        if tokens >= context {
            return Err(Error::FileOverContext { name: attachment.name, tokens, context });
        }
        Ok(ReadAttachment { attachment, tokens: u32::try_from(tokens).ok() })
    }

    /// Counts the tokens of an attached text. Control tokens in it count as text, because the model reads them so.
    ///
    /// # Errors
    /// When no model is loaded, or the tokeniser fails.
    pub fn attachment_tokens(&self, text: &str) -> Result<usize> {
        let models = self.shared.models.ready()?;
        tokens_of(&models, text)
    }
}

fn tokens_of(models: &ReadyModels, text: &str) -> Result<usize> {
    let options = EncodeOptions { parse_special: false, add_bos: false };
    Ok(models.details.tokenizer.encode(text, options)?.len())
}

/// Reads a regular file of UTF-8 text, without a byte order mark.
fn read_text(path: &Path) -> Result<Attachment> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let io = |source| Error::Io { action: "read", path: path.into(), source };
    // Checked before opening, because opening a pipe waits for a writer.
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(Error::NotText { name });
    }
    let Some(bytes) = input_file::read(path, MAX_FILE_BYTES).map_err(io)? else {
        let length = std::fs::metadata(path).map_err(io)?.len();
        return Err(Error::FileTooLarge { name, bytes: length, most: MAX_FILE_BYTES });
    };
    let Some(text) = input_file::text(bytes) else { return Err(Error::NotText { name }) };
    let text = text.strip_prefix('\u{feff}').map_or_else(|| text.clone(), str::to_owned);
    if text.trim().is_empty() {
        return Err(Refusal::EmptyFile { name }.into());
    }
    Ok(Attachment { name, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_text_without_byte_order_mark_and_refuses_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            read_text(&path)
        };
        let kept = read("größe.txt", "\u{feff}Äpfel\r\nund Birnen".as_bytes()).unwrap();
        assert_eq!((kept.name.as_str(), kept.text.as_str()), ("größe.txt", "Äpfel\r\nund Birnen"));
        for binary in [&b"PNG\0\x01"[..], b"caf\xe9", b"\xff\xfea\0"] {
            let refused = read("picture.png", binary).unwrap_err();
            assert!(refused.to_string().contains("“picture.png” is not UTF-8 text"), "{refused}");
        }
        assert!(read("empty.txt", b" \n").unwrap_err().to_string().contains("is empty"));
        assert!(matches!(read_text(folder.path()), Err(Error::NotText { .. })), "a folder");
        assert!(matches!(read_text(&folder.path().join("gone")), Err(Error::Io { .. })));
    }

    #[test]
    fn refuses_large_file_without_reading_all_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.txt");
        std::fs::write(&path, vec![b'a'; MAX_FILE_BYTES as usize]).unwrap();
        assert_eq!(read_text(&path).unwrap().text.len() as u64, MAX_FILE_BYTES);
        // A sparse file of a terabyte.
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        let Err(Error::FileTooLarge { bytes, most, .. }) = read_text(&path) else {
            panic!("expected a refusal")
        };
        assert_eq!((bytes, most), (1 << 40, MAX_FILE_BYTES));
    }
}
