//! Export of a comparison as JSON, as CSV with one line per answer, or as a picture.

use std::fmt::Write;

use super::report::{
    ComparisonFormat, ComparisonReport, ComparisonSetting, LaneConfig, LaneModels, LaneReport, LaneVerdict,
    Loss,
};
use hunch_core::method::Method;
use hunch_error::{Error, Result};

/// Writes the report in a format.
///
/// # Errors
/// [`Error::Internal`] when the report cannot be written as JSON.
pub fn export(report: &ComparisonReport, format: ComparisonFormat) -> Result<String> {
    match format {
        ComparisonFormat::Json => serde_json::to_string_pretty(report)
            .map(|json| json + "\n")
            .map_err(|error| Error::Internal(error.to_string())),
        ComparisonFormat::Csv => Ok(csv(report)),
        ComparisonFormat::Picture => Ok(picture(report)),
    }
}

/// Writes the verdict as one sentence.
pub fn sentence(verdict: &LaneVerdict) -> String {
    let LaneVerdict { speedup, tokens_per_pass, pass_cost, .. } = verdict;
    let head = match verdict {
        LaneVerdict { unanimous: false, .. } => format!("No clear difference ({speedup:.2}x)"),
        _ if *speedup >= 1.0 => format!("{speedup:.2}x the speed of plain"),
        _ => format!("Slower: {speedup:.2}x the speed of plain"),
    };
    let lost = match verdict.loss {
        Loss::Drafting => "; most is lost on drafting",
        Loss::WiderPasses => "; most is lost on passes of several rows",
        Loss::Loop => "; most is lost in the loop",
        Loss::Nothing => "",
    };
    format!("{head}: {tokens_per_pass:.1} tokens per pass at a pass cost of {pass_cost:.2}x{lost}.")
}

fn csv(report: &ComparisonReport) -> String {
    let mut text = String::from(
        "prompt,run,method,max_draft,tokens,speedup,wall_ms,ttft_ms,prefill_tok_s,decode_tok_s,acceptance_rate,\
         mean_acceptance_length,rounds,drafted,accepted,propose_ms,target_ms,verify_ms,other_ms,temperature,rule,target,\
         draft,head\n",
    );
    for answer in &report.answers {
        let (prompt, lane) =
            (&report.setting.prompts[answer.prompt as usize], &report.setting.lanes[answer.lane as usize]);
        let number = answer.lane as usize;
        let (target, draft, head) = models(&report.setting, lane);
        let s = &answer.stats;
        let name = if prompt.id.is_empty() { "prompt" } else { &prompt.id };
        let speedup = answer.speedup.map_or(String::new(), |speedup| format!("{speedup:.4}"));
        let depth = if lane.method == Method::Plain { "0".into() } else { lane.max_draft.to_string() };
        writeln!(
            text,
            "{},{},{},{depth},{},{speedup},{:.3},{:.3},{:.3},{:.3},{:.5},{:.5},{},{},{},{:.3},{:.3},{:.3},{:.3},{},{},{},{},{}",
            quoted(name),
            answer.run + 1,
            lane.method,
            s.generated_tokens,
            s.wall_ms,
            s.ttft_ms,
            s.prefill_tok_s,
            s.decode_tok_s,
            s.acceptance_rate,
            s.mean_acceptance_length,
            s.rounds,
            s.drafted,
            s.accepted,
            s.propose_ms,
            s.target_ms,
            s.verify_ms,
            s.other_ms,
            report.setting.sampling_of(number).temperature,
            quoted(&report.setting.rule_of(number).to_string()),
            quoted(target),
            quoted(draft.unwrap_or_default()),
            quoted(head.unwrap_or_default())
        )
        .expect("writing to a String cannot fail");
    }
    text
}

/// Returns the names of a lane's target, draft model and head. The head of the loaded models is not recorded.
fn models<'r>(
    setting: &'r ComparisonSetting,
    lane: &'r LaneConfig,
) -> (&'r str, Option<&'r str>, Option<&'r str>) {
    match &lane.models {
        None => (&setting.target, setting.draft.as_deref(), None),
        Some(LaneModels { target, draft, head }) => (target, draft.as_deref(), head.as_deref()),
    }
}

/// Quotes a field of a CSV file if needed (RFC 4180).
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.into()
    }
}

const WIDTH: f64 = 960.0;
const LEFT: f64 = 220.0;
/// Height of a lane, and of one with a line of settings below it.
const BAR: f64 = 44.0;
const BAR_WITH_SETTINGS: f64 = 60.0;
const TOP: f64 = 132.0;
/// Colours of the bars, plain first.
const COLOURS: [&str; 8] =
    ["#8a8f98", "#1a7f4b", "#8456d6", "#b26b00", "#0a6fc2", "#b8336a", "#5f6b00", "#7a4b2a"];

/// Draws one bar per lane with tokens per second and speedup, and the best lane's verdict.
fn picture(report: &ComparisonReport) -> String {
    let ComparisonReport { setting, lanes, .. } = report;
    let settings: Vec<String> = lanes.iter().map(|lane| own_settings(setting, lane)).collect();
    let step = if settings.iter().all(String::is_empty) { BAR } else { BAR_WITH_SETTINGS };
    let height = TOP + step * lanes.len() as f64 + 108.0;
    let fastest = lanes.iter().map(|lane| lane.tok_s).fold(f64::MIN_POSITIVE, f64::max);
    let draft = setting.draft.as_deref().map_or(String::new(), |draft| format!(", draft {draft}"));
    let what = match &setting.prompts[..] {
        [one] => format!("“{}”", shortened(&one.text, 76)),
        many => format!("{} prompts", many.len()),
    };
    let runs = if setting.runs == 1 { "1 run".to_owned() } else { format!("{} runs", setting.runs) };
    let with = format!(
        "{what} · {runs} · temperature {} · {}, {} threads",
        setting.sampling.temperature, setting.device, setting.threads
    );
    let mut parts = vec![
        label(32.0, 44.0, 24, INK, "Speculative and plain decoding, measured side by side"),
        label(32.0, 72.0, 15, FAINT, &format!("{}{draft}", setting.target)),
        label(32.0, 96.0, 13, FAINT, &with),
    ];
    for (index, (lane, settings)) in lanes.iter().zip(&settings).enumerate() {
        let y = TOP + step * index as f64;
        let width = (WIDTH - LEFT - 310.0) * lane.tok_s / fastest;
        parts.push(label(32.0, y + 20.0, 15, INK, &method(lane)));
        parts.push(label(32.0, y + 42.0, 12, FAINT, &shortened(settings, LINE_CHARS)));
        parts.push(format!(
            "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"28\" rx=\"4\" fill=\"{}\"/>",
            COLOURS[index % COLOURS.len()]
        ));
        parts.push(label(LEFT + width + 12.0, y + 20.0, 15, INK, &figures(lane)));
    }
    if let Some((best, verdict)) = report.best().and_then(|best| Some((best, best.verdict?))) {
        let own = own_settings(setting, best);
        let name =
            [method(best), own].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
        parts.push(label(
            32.0,
            height - 68.0,
            13,
            FAINT,
            &format!("Largest speedup: {}", shortened(&name, LINE_CHARS)),
        ));
        parts.push(label(32.0, height - 46.0, 15, INK, &sentence(&verdict)));
    }
    let plains = lanes.iter().filter(|lane| lane.config.method == Method::Plain).count();
    let over = if plains > 1 { "plain decoding of the same target and temperature" } else { "plain" };
    let how = format!(
        "Tokens a second after prefill (median); speedup of wall time over {over}, median and 10th to 90th percentile. \
         Made with Hunch."
    );
    parts.push(label(32.0, height - 20.0, 12, FAINT, &how));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"system-ui, sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{}\n</svg>\n",
        parts.join("\n")
    )
}

const INK: &str = "#1c1c1f";
const FAINT: &str = "#55585f";

fn label(x: f64, y: f64, size: u32, colour: &str, text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    // XML does not allow control characters.
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{colour}\">{text}</text>")
}

/// Most characters of a line in small letters.
const LINE_CHARS: usize = 130;

/// Returns a lane's method and draft length.
fn method(lane: &LaneReport) -> String {
    match lane.config.method {
        Method::Plain => Method::Plain.to_string(),
        method => format!("{method}, K {}", lane.config.max_draft),
    }
}

/// Returns a lane's settings that differ from those of the comparison. Empty if none do.
fn own_settings(setting: &ComparisonSetting, lane: &LaneReport) -> String {
    let LaneConfig { rule, temperature, models, .. } = &lane.config;
    let mut parts = Vec::new();
    parts.extend(temperature.map(|temperature| format!("temperature {temperature}")));
    parts.extend(rule.map(|rule| format!("rule {rule}")));
    if let Some(LaneModels { target, draft, head }) = models {
        let own_target = *target != setting.target;
        parts.extend(own_target.then(|| format!("target {target}")));
        parts.extend(draft.as_ref().map(|draft| format!("draft {draft}")));
        parts.extend(head.as_ref().map(|head| format!("head {head}")));
        parts.extend((!own_target && draft.is_none() && head.is_none()).then(|| "no draft".to_owned()));
    }
    parts.join(", ")
}

fn figures(lane: &LaneReport) -> String {
    let rate = format!("{:.1} tok/s", lane.tok_s);
    if lane.verdict.is_none() {
        return rate;
    }
    format!("{rate} · {:.2}x ({:.2}–{:.2})", lane.speedup, lane.speedup_low, lane.speedup_high)
}

/// Joins a text into one line of at most `most` characters.
pub fn shortened(text: &str, most: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= most {
        return line;
    }
    line.chars().take(most - 1).collect::<String>() + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: LaneVerdict = LaneVerdict {
        speedup: 1.34,
        unanimous: true,
        certain: true,
        tokens_per_pass: 2.4,
        pass_cost: 1.5,
        loss: Loss::Drafting,
        drafting_share: 0.3,
        wider_share: 0.2,
        loop_share: 0.01,
    };

    #[test]
    fn writes_verdict_as_sentence() {
        assert_eq!(
            sentence(&GOOD),
            "1.34x the speed of plain: 2.4 tokens per pass at a pass cost of 1.50x; most is lost on drafting."
        );
        let slower = LaneVerdict { speedup: 0.8, loss: Loss::Nothing, ..GOOD };
        assert_eq!(
            sentence(&slower),
            "Slower: 0.80x the speed of plain: 2.4 tokens per pass at a pass cost of 1.50x."
        );
        assert!(
            sentence(&LaneVerdict { unanimous: false, ..GOOD }).starts_with("No clear difference (1.34x)")
        );
    }

    #[test]
    fn escapes_fields_and_labels() {
        assert_eq!(quoted("plain"), "plain");
        assert_eq!(quoted("a \"b\", c"), "\"a \"\"b\"\", c\"");
        assert!(label(0.0, 0.0, 13, INK, "<b>&\u{1}").contains(">&lt;b&gt;&amp;</text>"));
        assert_eq!(shortened("a  b\nc", 9), "a b c");
        assert_eq!(shortened(&"x".repeat(90), 10), "x".repeat(9) + "…");
    }
}
