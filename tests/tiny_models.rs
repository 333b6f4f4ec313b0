//! Writes the tiny models of the architecture tests to a folder, for `scripts/oracle`.
//!
//! `tiny-models FOLDER` prints a line for each model: architecture, variant, file, context, the number of tokens to
//! continue with, and the tokens to read.
//! `tiny-models FOLDER heads` writes the tiny heads and their target, for `scripts/published-heads.py`.
//! `tiny-models FOLDER mtp` writes the tiny models with a layer that drafts, for `scripts/mtp-reference.py`.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::ExitCode;

use hunch_testing::{tiny, tiny_heads};

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("usage: tiny-models FOLDER [heads|mtp]");
        return ExitCode::from(2);
    };
    if std::env::args().nth(2).is_some_and(|what| what == "heads") {
        tiny_heads::target().write(Path::new(&folder), "target");
        tiny_heads::FORMATS.into_iter().for_each(|format| drop(format.write(Path::new(&folder))));
        return ExitCode::SUCCESS;
    }
    if std::env::args().nth(2).is_some_and(|what| what == "mtp") {
        for of in tiny::WITH_MTP {
            tiny::with_mtp(of).write(Path::new(&folder), &format!("{}-{:?}", of.0, of.1));
        }
        return ExitCode::SUCCESS;
    }
    for of in tiny::FURTHER {
        let (architecture, variant, _) = of;
        let model = tiny::further(of);
        let path = model.write(Path::new(&folder), &format!("{architecture}-{variant:?}"));
        let ids: Vec<String> = tiny::tokens(tiny::ORACLE_TOKENS, 5).iter().map(u32::to_string).collect();
        println!("{architecture} {variant:?} {} {} 0 {}", path.display(), model.context, ids.join(" "));
    }
    let (architecture, variant, _) = tiny::CHUNKED;
    let path = tiny::long().write(Path::new(&folder), "long");
    let ids: Vec<String> = tiny::tokens(tiny::LONG.0, 5).iter().map(u32::to_string).collect();
    let (context, count) = (tiny::long().context, tiny::LONG.1);
    println!("{architecture} {variant:?} {} {context} {count} {}", path.display(), ids.join(" "));
    ExitCode::SUCCESS
}
