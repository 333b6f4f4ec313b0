//! Records as JSON, and as JSON compressed.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

/// Records that unpack to more than this are damaged.
const MOST_BYTES: u64 = 256 << 20;

pub(super) fn json<T: Serialize + ?Sized>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::Internal(e.to_string()))
}

pub(super) fn read_json<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(damaged)
}

fn damaged(error: impl std::fmt::Display) -> Error {
    Error::Store(format!("a record cannot be read ({error}); the text of answers is there"))
}

pub(super) fn pack<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    let internal = |e: std::io::Error| Error::Internal(e.to_string());
    encoder.write_all(json(value)?.as_bytes()).map_err(internal)?;
    encoder.finish().map_err(internal)
}

pub(super) fn unpack<T: DeserializeOwned>(packed: &[u8]) -> Result<T> {
    let mut text = String::new();
    DeflateDecoder::new(packed).take(MOST_BYTES).read_to_string(&mut text).map_err(damaged)?;
    read_json(&text)
}
