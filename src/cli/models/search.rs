//! `hunch models search`: models on the Hub, by name.

use std::io::Write;

use anyhow::Result;
use clap::{Args, ValueEnum};
use hunch_library::types::{HubFormat, HubResult, HubSearch, HubSearchPage, HubSort, HubSupport};

use super::hub::open;
use crate::cli::render;

/// Order of the results on the command line.
#[derive(Clone, Copy, ValueEnum)]
enum SortArg {
    Downloads,
    Likes,
}

/// Format of the models on the command line.
#[derive(Clone, Copy, ValueEnum)]
enum FormatArg {
    Gguf,
    Mlx,
}

/// Words, order and page of a search.
#[derive(Args)]
pub(crate) struct SearchArgs {
    /// Words of the name: "qwen3 8b"
    #[arg(required = true, num_args = 1..)]
    query: Vec<String>,
    /// Order of the results
    #[arg(long, value_enum, default_value = "downloads")]
    sort: SortArg,
    /// GGUF files, or folders of safetensors files for MLX
    #[arg(long, value_enum, default_value = "gguf")]
    format: FormatArg,
    /// Cursor of a further page, as the last line of a page prints it
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
}

pub(super) fn run(args: &SearchArgs, json: bool) -> Result<()> {
    let search = HubSearch {
        query: args.query.join(" "),
        sort: match args.sort {
            SortArg::Downloads => HubSort::Downloads,
            SortArg::Likes => HubSort::Likes,
        },
        format: match args.format {
            FormatArg::Gguf => HubFormat::Gguf,
            FormatArg::Mlx => HubFormat::Mlx,
        },
        cursor: args.after.clone(),
    };
    let page = open()?.search(&search)?;
    let mut out = std::io::stdout().lock();
    if json {
        return Ok(writeln!(out, "{}", serde_json::to_string(&page)?)?);
    }
    show(&mut out, &search, &page)
}

fn show(out: &mut impl Write, search: &HubSearch, page: &HubSearchPage) -> Result<()> {
    if page.results.is_empty() {
        return Ok(writeln!(
            out,
            "No {} models whose name has these words. Try fewer words, or part of one.",
            format_name(search.format)
        )?);
    }
    let rows: Vec<Vec<String>> = page.results.iter().map(row).collect();
    let header =
        ["repository", "downloads", "likes", "licence", "weights", "architecture", "quantisations", ""];
    writeln!(out, "{}", render::table(&header, &rows))?;
    let command = match search.format {
        HubFormat::Gguf => {
            "\nDownloads are counted over 30 days. `hunch models hub REPOSITORY` lists sizes, with --card the model card."
        }
        HubFormat::Mlx => {
            "\nDownloads are counted over 30 days. `hunch models pull REPOSITORY` downloads a folder."
        }
    };
    writeln!(out, "{command}")?;
    if let Some(next) = &page.next {
        writeln!(out, "More: --after {}", render::line(next))?;
    }
    Ok(())
}

fn format_name(format: HubFormat) -> &'static str {
    match format {
        HubFormat::Gguf => "GGUF",
        HubFormat::Mlx => "MLX",
    }
}

fn row(found: &HubResult) -> Vec<String> {
    let or = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".into());
    let number = |value: Option<u64>| value.map_or_else(|| "-".into(), |value| value.to_string());
    let notes = [
        (found.support == HubSupport::OtherArchitecture).then_some("Hunch does not run this architecture"),
        found.gated.then_some("terms to accept"),
    ];
    vec![
        found.repository.clone(),
        number(found.downloads),
        number(found.likes),
        or(&found.licence),
        found.parameters.map_or_else(|| "-".into(), weights),
        or(&found.architecture),
        quantisations(&found.quantisations),
        notes.into_iter().flatten().collect::<Vec<_>>().join(", "),
    ]
}

/// Returns a few quantisations by name, and many by their number.
fn quantisations(names: &[String]) -> String {
    const NAMED: usize = 4;
    const USUAL: &str = "Q4_K_M";
    if names.len() <= NAMED {
        return names.join(" ");
    }
    match names.iter().any(|name| name == USUAL) {
        true => format!("{USUAL} and {} more", names.len() - 1),
        false => format!("{} types", names.len()),
    }
}

/// Returns a number of weights, such as "8.2 B".
fn weights(count: u64) -> String {
    match count {
        0..1_000_000_000 => format!("{:.0} M", count as f64 / 1e6),
        _ => format!("{:.1} B", count as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_quantisations_are_counted_and_weights_rounded() {
        let many: Vec<String> = ["Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q8_0"].map(String::from).to_vec();
        assert_eq!(quantisations(&many), "Q4_K_M and 4 more");
        assert_eq!((quantisations(&many[..2]).as_str(), quantisations(&[]).as_str()), ("Q2_K Q3_K_M", ""));
        assert_eq!((weights(134_515_008).as_str(), weights(8_190_735_360).as_str()), ("135 M", "8.2 B"));
    }
}
