//! `hunch models catalogue`: models that are known to run well, and their drafts and heads.

use std::io::Write;

use anyhow::Result;
use hunch_library::types::{CatalogueHead, CatalogueModel, CheckSource, MemoryClass};
use hunch_library::{catalogue, machine};
use hunch_model::device::{Compute, DeviceChoice};

use super::pairs::catalogue_head_row;
use crate::cli::render;

pub(super) fn run(json: bool) -> Result<()> {
    let compute = Compute::open(DeviceChoice::Auto, None)?;
    let catalogue = catalogue::catalogue(machine::memory(0, &compute));
    let mut out = std::io::stdout().lock();
    if json {
        return Ok(writeln!(out, "{}", serde_json::to_string(&catalogue)?)?);
    }
    let rows: Vec<Vec<String>> = catalogue.models.iter().map(row).collect();
    let header = ["id", "for", "size", "licence", "draft", "repository", "file", "checked"];
    writeln!(out, "{}\n", render::table(&header, &rows))?;
    let head_row = |head: &CatalogueHead| {
        let checked = format!("{} {}", head.checked.month, source(head.checked.source));
        catalogue_head_row(head).into_iter().chain([checked]).collect()
    };
    let heads: Vec<Vec<String>> = catalogue.heads.iter().map(head_row).collect();
    let header = ["head", "kind", "trained for", "size", "licence", "checked"];
    writeln!(out, "{}\n", render::table(&header, &heads))?;
    Ok(writeln!(
        out,
        "Version {} of {}. \"for\" is the smallest memory on which a model runs well with its draft. This machine \
         has {}. \"checked\" is the month and what an entry was checked against: figures as published, public documents \
         that agree, or the names of repository and file only.",
        catalogue.version,
        catalogue.reviewed,
        class(catalogue.machine)
    )?)
}

fn class(class: MemoryClass) -> &'static str {
    match class {
        MemoryClass::Gb8 => "8 GB",
        MemoryClass::Gb16 => "16 GB",
        MemoryClass::Gb24To36 => "24 to 36 GB",
        MemoryClass::Gb48 => "48 to 64 GB",
        MemoryClass::Gb96 => "96 GB or more",
    }
}

/// Names the sources of a check.
fn source(source: CheckSource) -> &'static str {
    match source {
        CheckSource::Published => "published",
        CheckSource::PublicSources => "sources",
        CheckSource::NameOnly => "name only",
    }
}

fn row(model: &CatalogueModel) -> Vec<String> {
    vec![
        model.id.clone(),
        class(model.memory_class).into(),
        model.size_bytes.map_or_else(|| "-".into(), render::bytes),
        model.licence.clone(),
        model.draft.clone().unwrap_or_else(|| "-".into()),
        model.repository.clone(),
        model.file.clone(),
        format!("{} {}", model.checked.month, source(model.checked.source)),
    ]
}
