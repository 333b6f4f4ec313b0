//! `hunch doctor`: facts of this machine, the self-test of the GPU's kernels, and predicted costs of passes.

mod points;

use std::io::Write;

use anyhow::Result;
use clap::Args;
use hunch::bench::timed_passes::TimedPasses;
use hunch::generate::Models;
use hunch::proof::{self, ProofCheck};
use hunch::services::load::{self, ModelNames};
use hunch_core::limits::MAX_DRAFT;
use hunch_error::Error;
use hunch_library::fit::too_large_message;
use hunch_library::types::FitVerdict;
use hunch_library::{Places, machine};
use hunch_model::device::{Compute, DeviceChoice};
use hunch_model::execution::Backend;
use hunch_model::metal::costs::{Basis, Chip, PassSize};
use hunch_model::metal::selftest::SelfTestRecord;
use hunch_model::spec::ModelSpec;
use hunch_model::weights::WeightFile;
use serde::Serialize;

use super::models::predicted_fit;
use super::{open_compute, render};
use points::CheckedPoint;

/// Numbers of rows whose cost is printed.
const ROWS: [usize; 7] = [1, 2, 4, 5, 8, 9, MAX_DRAFT + 1];
/// Numbers of rows that are timed on the CPU.
const CPU_ROWS: [usize; 2] = [1, 5];

/// Check this machine.
#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// Device: auto is Metal on a Mac and the CPU elsewhere
    #[arg(long, default_value = "auto", value_name = "auto|cpu|metal")]
    device: DeviceChoice,
    /// Model that is predicted, timed on the GPU and the CPU, and checked. The installed default model is timed only if
    /// there is a GPU [default: the default model]
    #[arg(long, value_name = "PATH|NAME")]
    target: Option<String>,
    /// Draft model that is checked together with the target
    #[arg(long, value_name = "PATH|NAME", requires = "target")]
    draft: Option<String>,
    /// Predict costs for this chip, such as "M4 Max" or "M4 Max 32" with its GPU cores [default: the chip of this
    /// machine]
    #[arg(long, value_name = "NAME")]
    chip: Option<String>,
    /// Print one JSON object, for a bug report
    #[arg(long)]
    json: bool,
}

/// Facts of a machine, in the form of a bug report.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    system: String,
    architecture: &'static str,
    device: &'static str,
    threads: usize,
    /// Instruction set of the CPU kernels.
    cpu_kernels: &'static str,
    memory_bytes: u64,
    usable_bytes: u64,
    /// Self-test of our kernels, on a GPU.
    gpu: Option<SelfTestRecord>,
    /// Predicted costs of passes, for GPUs.
    predicted: Option<PredictedCosts>,
    /// Passes of the target on the GPU.
    on_gpu: Option<TimedPasses>,
    /// Passes of the target on the CPU.
    cpu: Option<TimedPasses>,
    /// Checks that drafts change no text.
    checks: Option<Checks>,
    /// Parts of the report that are missing because the models do not fit into memory.
    refusals: Refusals,
    /// `true` if the predictions are those of a chip that was named, which may not be the one at hand.
    chip_named: bool,
    /// Properties that only a Mac can show. Empty without a GPU.
    points: Vec<CheckedPoint>,
}

/// Predictions of memory because of which models were not loaded.
#[derive(Default, Serialize)]
struct Refusals {
    on_gpu: Option<String>,
    cpu: Option<String>,
    checks: Option<String>,
}

/// A part of the report, or the prediction of memory because of which its models were not loaded.
type IfLoaded<T> = std::result::Result<T, String>;

/// Short proof on the device, with the models that were given.
#[derive(Serialize)]
struct Checks {
    target: String,
    draft: Option<String>,
    /// Device of the draft model, with the times that decided, if the target is on a GPU.
    draft_placement: Option<String>,
    checks: Vec<ProofCheck>,
}

/// Costs that were predicted, not measured.
#[derive(Serialize)]
struct PredictedCosts {
    model: String,
    /// "chip" or "products".
    basis: &'static str,
    chip: Option<Chip>,
    /// Rows, and the predicted time of a pass in milliseconds.
    pass_ms: Vec<(usize, f64)>,
}

pub(crate) fn run(args: &DoctorArgs) -> Result<bool> {
    let chip = args.chip.as_deref().map(chip_named).transpose()?;
    let compute = open_compute(args.device, None)?;
    let memory = machine::memory(0, &compute);
    // The test runs again even if there is a record: that is what the command is for.
    let gpu = compute.test_again().map(|record| SelfTestRecord::clone(&record));
    let on_gpu = Backend::usual(&compute) != Backend::Cpu;
    let target = args.target.clone().or_else(|| on_gpu.then(installed_default).flatten());
    let target = target.as_deref();
    let timed_on =
        |compute: &Compute, rows: &[usize]| target.map(|target| timed(target, compute, rows)).transpose();
    let gpu_passes = if on_gpu { timed_on(&compute, &ROWS)? } else { None };
    let (on_gpu, gpu_refusal) = parts(gpu_passes);
    let (cpu, cpu_refusal) = parts(timed_on(&open_compute(DeviceChoice::Cpu, None)?, &CPU_ROWS)?);
    let found = target.map(|target| checks(target, args.draft.as_deref(), &compute)).transpose()?;
    let (checks, checks_refusal) = parts(found);
    let mut report = Report {
        version: hunch::VERSION,
        system: hunch_model::device::system_version(),
        architecture: std::env::consts::ARCH,
        device: compute.name(),
        threads: compute.threads().count(),
        cpu_kernels: hunch_kernels::level_in_use(),
        memory_bytes: memory.total,
        usable_bytes: memory.usable,
        predicted: predicted(args.target.as_deref(), chip, &compute)?,
        gpu,
        on_gpu,
        cpu,
        checks,
        refusals: Refusals { on_gpu: gpu_refusal, cpu: cpu_refusal, checks: checks_refusal },
        chip_named: args.chip.is_some(),
        points: Vec::new(),
    };
    report.points = points::checked(&report);
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        write!(out, "{}", text(&report))?;
    }
    let holds = report.checks.is_none_or(|checks| checks.checks.iter().all(|check| check.passed));
    Ok(holds && report.gpu.is_none_or(|gpu| gpu.test.problems().next().is_none()))
}

fn chip_named(name: &str) -> Result<Chip, Error> {
    Chip::named(name, None).ok_or_else(|| {
        Error::invalid(format!(
            "There are no figures of the chip \"{name}\". Choose one of {}, or a later one. Add the number of GPU cores \
             if it is not the largest, as in \"M4 Max 32\".",
            Chip::all_names().collect::<Vec<_>>().join(", ")
        ))
    })
}

/// Predicts the costs of a model on `chip`, else on the GPU at hand. `None` on the CPU and on unknown chips.
fn predicted(target: Option<&str>, chip: Option<Chip>, compute: &Compute) -> Result<Option<PredictedCosts>> {
    let Some(basis) = compute.cost_basis(chip) else { return Ok(None) };
    let places = Places::of_this_user()?;
    let path = match target {
        Some(target) => hunch_library::resolve(target, &places)?,
        None => match hunch_library::resolve(hunch_library::DEFAULT_MODEL, &places) {
            Ok(path) => path,
            Err(_) => return Ok(None),
        },
    };
    let file = WeightFile::open(&path)?;
    let spec = ModelSpec::from_gguf(file.gguf())?;
    let size = PassSize::of(file.gguf(), &spec);
    let pass_ms = basis.curve(size, MAX_DRAFT + 1);
    let (basis, chip) = match basis {
        Basis::Chip(chip) => ("chip", Some(chip)),
        Basis::Measured(_) => ("products", None),
    };
    Ok(Some(PredictedCosts { model: spec.name, basis, chip, pass_ms }))
}

/// Returns the name of the default model, if it is installed.
fn installed_default() -> Option<String> {
    let found = Places::of_this_user()
        .and_then(|places| hunch_library::resolve(hunch_library::DEFAULT_MODEL, &places));
    found.is_ok().then(|| hunch_library::DEFAULT_MODEL.to_owned())
}

/// Separates a part of the report from the reason for which it is missing.
fn parts<T>(loaded: Option<IfLoaded<T>>) -> (Option<T>, Option<String>) {
    match loaded {
        Some(Ok(part)) => (Some(part), None),
        Some(Err(refusal)) => (None, Some(refusal)),
        None => (None, None),
    }
}

/// Checks target and draft on a device. Says so if they do not fit into memory.
fn checks(target: &str, draft: Option<&str>, compute: &Compute) -> Result<IfLoaded<Checks>> {
    let places = Places::of_this_user()?;
    let plan = load::find(&places, ModelNames { target, draft, head: None })?;
    let fit = predicted_fit(compute, &places, &plan, None)?;
    if fit.verdict == FitVerdict::TooLarge {
        let refusal = too_large_message(&fit);
        eprintln!("hunch: Not checked: {}.", render::line(&refusal));
        return Ok(Err(refusal));
    }
    let mut models = Models::load_by(&plan, compute)?;
    Ok(Ok(Checks {
        target: models.target_name(),
        draft: models.draft_name(),
        draft_placement: models.draft_placement().map(str::to_owned),
        checks: proof::short(&mut models)?,
    }))
}

/// Times passes of a model on a device. Says so if it does not fit into memory.
fn timed(target: &str, compute: &Compute, rows: &[usize]) -> Result<IfLoaded<TimedPasses>> {
    let places = Places::of_this_user()?;
    let plan = load::find(&places, ModelNames::target(target))?;
    let fit = predicted_fit(compute, &places, &plan, None)?;
    if fit.verdict == FitVerdict::TooLarge {
        let device = if Backend::usual(compute) == Backend::Cpu { "CPU" } else { "GPU" };
        let refusal = too_large_message(&fit);
        eprintln!("hunch: Not timed on the {device}: {}.", render::line(&refusal));
        return Ok(Err(refusal));
    }
    Ok(Ok(TimedPasses::measure(&plan.target, compute, rows, fit.target.weights)?))
}

fn text(report: &Report) -> String {
    let mut out = machine_text(report);
    if let Some(speed) = report.gpu.as_ref().and_then(|gpu| gpu.test.speed.as_ref()) {
        let curve: Vec<(usize, f64)> = (1..).zip(speed.product_ms.iter().copied()).collect();
        out += &format!("\nA Q4_K product of M rows, measured:\n{}\n", curve_table(&curve));
    }
    out.extend(report.predicted.as_ref().map(predicted_text));
    out.extend(report.on_gpu.as_ref().map(|timed| timed_text(timed, "GPU")));
    out.extend(report.cpu.as_ref().map(|timed| timed_text(timed, "CPU")));
    out.extend(report.checks.as_ref().map(checks_text));
    if !report.points.is_empty() {
        out += "\nProperties that only a Mac can show:\n";
        out.extend(report.points.iter().map(|point| format!("{}\n", render::line(&point.line()))));
    }
    out
}

/// Formats the facts of the machine, one in each line.
fn machine_text(report: &Report) -> String {
    // Memory is sold in powers of two: 16 GB of a Mac are 16 GiB.
    let memory = report.memory_bytes as f64 / f64::from(1 << 30);
    let mut rows = vec![
        ("Hunch", report.version.to_owned()),
        ("system", format!("{}, {}", report.system, report.architecture)),
        ("device", format!("{}, {} CPU threads", report.device, report.threads)),
        ("CPU kernels", report.cpu_kernels.to_owned()),
        ("memory", format!("{memory:.1} GiB, {} for models", render::bytes(report.usable_bytes))),
    ];
    match &report.gpu {
        Some(gpu) => rows.extend(gpu_rows(gpu)),
        None => rows.push(("GPU", "none that Hunch can use".into())),
    }
    render::fields(&rows) + "\n"
}

/// Returns the chip of a GPU, the result of its self-test and the speed of its memory.
fn gpu_rows(gpu: &SelfTestRecord) -> Vec<(&'static str, String)> {
    let problems: Vec<&str> = gpu.test.problems().collect();
    let tested = render::count(gpu.test.findings.len(), "part");
    let kernels = if problems.is_empty() {
        format!("{tested} passed the self-test")
    } else {
        format!("{} of {tested} failed; docs/metal.md lists their replacements", problems.len())
    };
    let mut rows = vec![("GPU", gpu.machine.chip.clone()), ("kernels", kernels)];
    rows.extend(problems.into_iter().map(|problem| ("failed", render::line(problem))));
    let speed = gpu.test.speed.as_ref();
    rows.extend(
        speed.map(|speed| ("memory speed", format!("{:.0} GB/s, measured with a copy", speed.memory_gb_s))),
    );
    rows
}

/// Formats the predicted costs of passes, and the figures that they come from.
fn predicted_text(predicted: &PredictedCosts) -> String {
    let basis = match &predicted.chip {
        Some(Chip { name, memory_gb_s, cores, assumed_like, .. }) => {
            let assumed =
                assumed_like.map(|like| format!(", assumed to be those of {like}")).unwrap_or_default();
            format!("figures of {name} ({memory_gb_s} GB/s, {cores} cores{assumed}); predicted, not measured")
        }
        None => "the measured products; predicted, not measured".into(),
    };
    let model = render::line(&predicted.model);
    format!("\nA pass of M rows of {model}, from {basis}:\n{}\n", curve_table(&predicted.pass_ms))
}

/// Formats the passes that were timed on a device, and its notes.
fn timed_text(TimedPasses { model, note, pass_ms, .. }: &TimedPasses, device: &str) -> String {
    let (model, table) = (render::line(model), curve_table(pass_ms));
    let mut out = format!("\nA pass of M rows of {model} on the {device}, measured:\n{table}\n");
    let notes = note.iter().flat_map(|note| note.lines());
    out.extend(notes.map(|line| format!("{}\n", render::line(line))));
    out
}

/// Formats the number of passed checks, the failed ones, and the device of the draft model.
fn checks_text(Checks { target, draft, draft_placement, checks }: &Checks) -> String {
    let draft = draft.as_ref().map(|draft| format!(" with {}", render::line(draft))).unwrap_or_default();
    let failed: Vec<&ProofCheck> = checks.iter().filter(|check| !check.passed).collect();
    let passed = checks.len() - failed.len();
    let (target, total) = (render::line(target), render::count(checks.len(), "check"));
    let mut out = format!("\nText of {target}{draft}: {passed} of {total} passed\n");
    out.extend(failed.into_iter().map(|check| format!("failed  {}: {}\n", check.name, check.finding)));
    out.extend(draft_placement.iter().map(|placement| format!("{}\n", render::line(placement))));
    out
}

fn curve_table(curve: &[(usize, f64)]) -> String {
    let one = curve.first().map_or(1.0, |(_, ms)| *ms);
    let shown = curve.iter().filter(|(rows, _)| ROWS.contains(rows));
    let rows: Vec<Vec<String>> =
        shown.map(|(m, ms)| vec![m.to_string(), format!("{ms:.2}"), format!("{:.2}", ms / one)]).collect();
    render::table(&["M", "ms", "t(M)/t(1)"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hunch_model::metal::selftest::{GpuTimes, MachineId, SelfTest};

    pub(super) fn report() -> Report {
        let curve = |ms: f64| (1..=16).map(|rows| (rows, ms + rows as f64)).collect::<Vec<_>>();
        let timed = |ms: f64, rows: &[usize]| TimedPasses {
            model: "m".into(),
            note: None,
            pass_ms: curve(ms).into_iter().filter(|(m, _)| rows.contains(m)).collect(),
            weight_bytes: 100_000_000,
            device_bytes: 120_000_000,
        };
        let speed = GpuTimes { product_ms: vec![0.5; 16], product_bytes: 100, memory_gb_s: 200.0 };
        let machine =
            MachineId { chip: "Apple M9".into(), system: "macOS 15".into(), version: "1.0.0".into() };
        Report {
            version: "1.0.0",
            system: "macOS 15".into(),
            architecture: "aarch64",
            device: "metal",
            threads: 4,
            cpu_kernels: "neon",
            memory_bytes: 1 << 34,
            usable_bytes: 1 << 33,
            gpu: Some(SelfTestRecord {
                machine,
                test: SelfTest { findings: Vec::new(), speed: Some(speed) },
            }),
            predicted: Some(PredictedCosts {
                model: "m".into(),
                basis: "products",
                chip: None,
                pass_ms: curve(2.0),
            }),
            on_gpu: Some(timed(3.0, &ROWS)),
            cpu: Some(timed(30.0, &CPU_ROWS)),
            checks: Some(Checks {
                target: "m".into(),
                draft: Some("d".into()),
                draft_placement: None,
                checks: [true, false]
                    .map(|passed| ProofCheck {
                        name: "row invariance".into(),
                        finding: "2 rows differ".into(),
                        passed,
                    })
                    .into(),
            }),
            refusals: Refusals::default(),
            chip_named: false,
            points: Vec::new(),
        }
    }

    #[test]
    fn text_has_the_passes_of_both_devices_for_2_5_9_and_16_rows() {
        let text = text(&report());
        let section = |title: &str| {
            let from = text.find(title).unwrap_or_else(|| panic!("{title} is missing:\n{text}"));
            text[from..].split("\n\n").next().unwrap().to_owned()
        };
        for (title, one) in [
            ("A pass of M rows of m, from the measured products", 2.0),
            ("A pass of M rows of m on the GPU, measured", 3.0),
        ] {
            let section = section(title);
            for rows in [2, 5, 9, 16] {
                let ms = one + rows as f64;
                let cells = [rows.to_string(), format!("{ms:.2}"), format!("{:.2}", ms / (one + 1.0))];
                let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
                assert!(section.lines().any(|line| words(line) == cells), "{rows} rows:\n{section}");
            }
        }
        assert!(section("A Q4_K product of M rows, measured").contains("0.50"));
        assert!(section("A pass of M rows of m on the CPU, measured").contains("35.00"));
        assert!(text.contains("200 GB/s"));
        assert!(
            text.contains("Text of m with d: 1 of 2 checks passed\nfailed  row invariance: 2 rows differ")
        );
    }

    #[test]
    fn json_has_the_passes_and_the_points_on_the_gpu() {
        let mut report = report();
        report.points = points::checked(&report);
        let json = serde_json::to_value(report).unwrap();
        assert_eq!(json["points"][12]["claim"], "the speed of memory");
        assert_eq!(json["points"][12]["outcome"], "measured");
        assert_eq!(json["on_gpu"]["pass_ms"][5], serde_json::json!([9, 12.0]));
        assert_eq!(json["gpu"]["machine"]["chip"], "Apple M9");
    }
}
