//! Files that the tests of the program share with these: tiny models.

#![allow(dead_code, reason = "the program's tests use more of them")]

#[path = "../../../../tests/it/support/gguf_writer.rs"]
pub(crate) mod gguf_writer;
#[path = "../../../../tests/it/support/tiny.rs"]
pub(crate) mod tiny;
