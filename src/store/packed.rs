//! Records as JSON and as compressed JSON.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use serde::Serialize;
use serde::de::DeserializeOwned;

use hunch_error::{Error, Result};

/// Maximum size of an unpacked record, in bytes. The longest answer, a million tokens with their events, is smaller.
const MOST_BYTES: u64 = 4 << 30;

pub(super) fn json<T: Serialize + ?Sized>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::Internal(e.to_string()))
}

pub(super) fn read_json<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(damaged)
}

fn damaged(error: impl std::fmt::Display) -> Error {
    Error::Store(format!("a record cannot be read ({error}); the text of the answers is intact"))
}

pub(super) fn pack<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>> {
    let mut encoder = encoder();
    encoder.write_all(json(value)?.as_bytes()).map_err(internal)?;
    encoder.finish().map_err(internal)
}

/// Compresses a list of records one by one.
pub(super) struct Packer {
    encoder: DeflateEncoder<Vec<u8>>,
    items: usize,
}

impl Default for Packer {
    fn default() -> Self {
        Self { encoder: encoder(), items: 0 }
    }
}

impl Packer {
    /// Appends a record, given as JSON.
    pub(super) fn add(&mut self, json: &str) -> Result<()> {
        let before: &[u8] = if self.items == 0 { b"[" } else { b"," };
        self.items += 1;
        self.encoder
            .write_all(before)
            .and_then(|()| self.encoder.write_all(json.as_bytes()))
            .map_err(internal)
    }

    /// Returns the list in the format of [`pack`].
    pub(super) fn finish(mut self) -> Result<Vec<u8>> {
        let end: &[u8] = if self.items == 0 { b"[]" } else { b"]" };
        self.encoder.write_all(end).map_err(internal)?;
        self.encoder.finish().map_err(internal)
    }
}

fn encoder() -> DeflateEncoder<Vec<u8>> {
    DeflateEncoder::new(Vec::new(), Compression::default())
}

fn internal(error: std::io::Error) -> Error {
    Error::Internal(error.to_string())
}

pub(super) fn unpack<T: DeserializeOwned>(packed: &[u8]) -> Result<T> {
    let mut text = String::new();
    DeflateDecoder::new(packed).take(MOST_BYTES).read_to_string(&mut text).map_err(damaged)?;
    read_json(&text)
}
