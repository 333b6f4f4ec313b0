//! Writes the tiny models of the architecture tests to a folder, for `scripts/oracle`.
//!
//! `tiny-models FOLDER` prints a line for each model: architecture, variant, file and the tokens to read.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::ExitCode;

#[allow(dead_code)]
#[path = "it/support/gguf_writer.rs"]
mod gguf_writer;
#[allow(dead_code)]
#[path = "it/support/tiny.rs"]
mod tiny;

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("usage: tiny-models FOLDER");
        return ExitCode::from(2);
    };
    for of in tiny::FURTHER {
        let (architecture, variant, _) = of;
        let model = tiny::further(of);
        let path = model.write(Path::new(&folder), &format!("{architecture}-{variant:?}"));
        let ids: Vec<String> = tiny::tokens(tiny::ORACLE_TOKENS, 5).iter().map(u32::to_string).collect();
        println!("{architecture} {variant:?} {} {} {}", path.display(), model.context, ids.join(" "));
    }
    ExitCode::SUCCESS
}
