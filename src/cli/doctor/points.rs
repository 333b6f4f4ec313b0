//! Properties of the Metal kernels that only a Mac can show, and the outcome of each in a report.
//!
//! `docs/metal.md` has the same list, which a test compares. The checks themselves belong to the self-test, to
//! `bench::timed_passes` and to `proof`.

use serde::Serialize;

use super::Report;
use hunch_error::megabytes;

/// Property that no test without a Mac proves.
struct Point {
    /// The property, as in `docs/metal.md`.
    claim: &'static str,
    /// Part of the command that checks it, as in `docs/metal.md`.
    covered_by: &'static str,
    outcome: fn(&Report) -> Outcome,
}

/// Outcome of a point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", content = "detail", rename_all = "snake_case")]
pub(super) enum Outcome {
    /// All of its checks passed.
    Passed,
    /// Problems that were found.
    Failed(String),
    /// Figures without a bound that they could miss.
    Measured(String),
    /// Reason for which it was not checked.
    NotChecked(String),
}

/// Point with its outcome, for a bug report.
#[derive(Clone, Debug, Serialize)]
pub(super) struct CheckedPoint {
    claim: String,
    /// Part of the command that checks it.
    covered_by: String,
    #[serde(flatten)]
    outcome: Outcome,
}

impl CheckedPoint {
    /// Returns a line of the report.
    pub(super) fn line(&self) -> String {
        let (state, detail) = match &self.outcome {
            Outcome::Passed => ("passed", None),
            Outcome::Failed(problems) => ("FAILED", Some(problems)),
            Outcome::Measured(figures) => ("measured", Some(figures)),
            Outcome::NotChecked(reason) => ("not checked", Some(reason)),
        };
        let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
        format!("{state:<11}  {}{detail}", self.claim)
    }
}

const POINTS: [Point; 17] = [
    Point {
        claim: "Apple's compiler accepts the kernels",
        covered_by: "self-test: a kernel that is refused is listed with the compiler's message",
        outcome: compiled,
    },
    Point {
        claim: "products are right on hardware, and a row has the same bits alone and among 2 to 48",
        covered_by: "self-test: products of each type, within 1e-5 of f64, and bit for bit with one row",
        outcome: |report| parts(report, |part| part.starts_with("product ")),
    },
    Point {
        claim: "the matrix unit adds integers exactly",
        covered_by: "self-test: products of 5, 8 and 16 rows",
        outcome: |report| parts(report, |part| part.starts_with("product")),
    },
    Point {
        claim: "`exp`, `rsqrt`, `tanh` and denormals stay within the bounds of the tests",
        covered_by: "self-test: norms, gates, heads, attention, caps",
        outcome: |report| {
            parts(report, |part| {
                ["norm", "gate", "heads", "attention", "cap"].iter().any(|kind| part.contains(kind))
            })
        },
    },
    Point {
        claim: "barriers and memory order are sufficient on real threads",
        covered_by: "self-test, in part: an error that depends on timing may need many runs",
        outcome: |report| parts(report, |_| true),
    },
    Point {
        claim: "attention has the same bits for 1, 2, 5, 8 and 16 rows",
        covered_by: "self-test: attention for each width of a head",
        outcome: |report| parts(report, |part| part.starts_with("attention")),
    },
    Point {
        claim: "a gated delta net has the same bits for 1 and 5 rows",
        covered_by: "self-test: gated delta nets for each width of a head",
        outcome: |report| parts(report, |part| part.starts_with("gated delta net")),
    },
    Point {
        claim: "the choice and the draw of tokens are right",
        covered_by: "self-test: choice and draw",
        outcome: |report| parts(report, |part| matches!(part, "choice" | "draw")),
    },
    Point {
        claim: "candle's command buffers keep the order of dispatches",
        covered_by: "`--target T`: passes of some hundred dispatches, against rows alone; self-test, in part",
        outcome: |report| parts(report, |_| true).and(|| text(report)),
    },
    Point {
        claim: "the system's math mode is the safe one",
        covered_by: "self-test: products and attention bit for bit",
        outcome: |report| parts(report, |part| part.starts_with("product") || part.starts_with("attention")),
    },
    Point {
        claim: "models take the GPU memory that is predicted",
        covered_by: "`--target T`: predicted and allocated bytes, or the prediction that refused the model",
        outcome: memory,
    },
    Point {
        claim: "a pass takes what is predicted",
        covered_by: "`--target T`: prediction and measurement of 1, 2, 4, 5, 8, 9 and 16 rows",
        outcome: predictions,
    },
    Point {
        claim: "the speed of memory",
        covered_by: "self-test: a copy is timed",
        outcome: |report| match times(report) {
            Some(times) => Outcome::Measured(format!("{:.0} GB/s", times.memory_gb_s)),
            None => not_timed(),
        },
    },
    Point {
        claim: "a pass of the CPU takes what is expected (NEON, i8mm)",
        covered_by: "`--target T`: instructions, and passes of 1 and 5 rows",
        outcome: |report| match &report.cpu {
            Some(cpu) => Outcome::Measured(format!("{}, {}", report.cpu_kernels, rows_ms(&cpu.pass_ms))),
            None => not_loaded(report.refusals.cpu.as_ref()),
        },
    },
    Point {
        claim: "text with speculation is the same as without",
        covered_by: "`--target T`, `--draft D`: rows bit for bit in passes of 2 to 16, and drafted texts against plain \
                     ones; `hunch verify` checks distributions too",
        outcome: text,
    },
    Point {
        claim: "the draft model runs on the faster device",
        covered_by: "`--target T --draft D`: the chosen device, with both times",
        outcome: |report| match report.checks.as_ref().map(|checks| checks.draft_placement.clone()) {
            Some(Some(placement)) => Outcome::Measured(placement),
            Some(None) => Outcome::NotChecked(
                "no draft model was timed on both devices; add --draft, at most 1 GiB".into(),
            ),
            None => not_loaded(report.refusals.checks.as_ref()),
        },
    },
    Point {
        claim: "register pressure and occupancy",
        covered_by: "only as times: products of 1 to 16 rows",
        outcome: |report| match times(report) {
            Some(times) => {
                let curve: Vec<_> = (1..).zip(times.product_ms.iter().copied()).collect();
                Outcome::Measured(rows_ms(&curve))
            }
            None => not_timed(),
        },
    },
];

/// Returns the outcomes of all points in a report. Empty without a GPU.
pub(super) fn checked(report: &Report) -> Vec<CheckedPoint> {
    if report.gpu.is_none() {
        return Vec::new();
    }
    let checked = |point: &Point| CheckedPoint {
        claim: point.claim.replace('`', ""),
        covered_by: point.covered_by.replace('`', ""),
        outcome: (point.outcome)(report),
    };
    POINTS.iter().map(checked).collect()
}

impl Outcome {
    /// Returns the first of two outcomes that is not a pass.
    fn and(self, other: impl FnOnce() -> Self) -> Self {
        if self == Self::Passed { other() } else { self }
    }

    fn of(problems: Vec<&str>) -> Self {
        if problems.is_empty() { Self::Passed } else { Self::Failed(problems.join("; ")) }
    }
}

/// Outcome of the parts of the self-test whose names are `wanted`.
fn parts(report: &Report, wanted: impl Fn(&str) -> bool) -> Outcome {
    let findings = report.gpu.iter().flat_map(|gpu| &gpu.test.findings);
    let findings: Vec<_> = findings.filter(|finding| wanted(&finding.part)).collect();
    if findings.is_empty() {
        return Outcome::NotChecked("the self-test has no such part".into());
    }
    Outcome::of(findings.iter().filter_map(|finding| finding.problem.as_deref()).collect())
}

/// Parts whose kernel could not be run, with the reason.
fn compiled(report: &Report) -> Outcome {
    let tested = parts(report, |_| true);
    let Some(gpu) = report.gpu.as_ref().filter(|_| !matches!(tested, Outcome::NotChecked(_))) else {
        return tested;
    };
    Outcome::of(gpu.test.problems().filter(|problem| problem.contains(" failed: ")).collect())
}

fn times(report: &Report) -> Option<&hunch_model::metal::selftest::GpuTimes> {
    report.gpu.as_ref()?.test.speed.as_ref()
}

fn not_timed() -> Outcome {
    Outcome::NotChecked("a kernel that is timed failed".into())
}

/// Outcome of a point whose model is missing: refused, with the prediction of its memory, or not named.
fn not_loaded(refusal: Option<&String>) -> Outcome {
    Outcome::NotChecked(match refusal {
        Some(refusal) => format!("too large: {refusal}"),
        None => "no model was loaded; add --target".into(),
    })
}

fn text(report: &Report) -> Outcome {
    let Some(checks) = &report.checks else { return not_loaded(report.refusals.checks.as_ref()) };
    let failed = checks.checks.iter().filter(|check| !check.passed);
    Outcome::of(failed.map(|check| check.finding.as_str()).collect())
}

/// Predicted bytes of the weights next to those that the model took.
fn memory(report: &Report) -> Outcome {
    let Some(measured) = &report.on_gpu else { return not_loaded(report.refusals.on_gpu.as_ref()) };
    let [weights, taken] = [measured.weight_bytes, measured.device_bytes].map(megabytes);
    Outcome::Measured(format!("{taken} with a short cache, of which {weights} of weights are predicted"))
}

/// Measured times next to the predicted ones, of the rows that have both.
fn predictions(report: &Report) -> Outcome {
    let Some(measured) = &report.on_gpu else { return not_loaded(report.refusals.on_gpu.as_ref()) };
    if report.chip_named {
        return Outcome::NotChecked("the prediction is for the chip that --chip names".into());
    }
    let Some(predicted) = &report.predicted else {
        return Outcome::NotChecked("nothing is predicted: there are no figures of this GPU".into());
    };
    let pairs = measured.pass_ms.iter().filter_map(|(rows, ms)| {
        let (_, expected) = predicted.pass_ms.iter().find(|(other, _)| other == rows)?;
        Some(format!("{rows} rows {ms:.2} ms, predicted {expected:.2}"))
    });
    Outcome::Measured(pairs.collect::<Vec<_>>().join("; "))
}

fn rows_ms(curve: &[(usize, f64)]) -> String {
    let of = curve.iter().filter(|(rows, _)| super::ROWS.contains(rows));
    of.map(|(rows, ms)| format!("{rows} rows {ms:.2} ms")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;
    use hunch_model::metal::selftest::{Finding, KernelPart};

    /// A report of a run with all options, whose self-test passed.
    fn complete() -> Report {
        let mut report = report();
        report.gpu.as_mut().unwrap().test.findings =
            KernelPart::all().map(|part| Finding::new(part, None)).collect();
        let checks = report.checks.as_mut().unwrap();
        checks.draft_placement = Some("The draft model runs on the GPU.".into());
        checks.checks.retain(|check| check.passed);
        report
    }

    fn outcomes(report: &Report) -> Vec<Outcome> {
        checked(report).into_iter().map(|point| point.outcome).collect()
    }

    #[test]
    fn docs_list_the_points_of_the_command() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/metal.md")).unwrap();
        let table = page.split("| not proved | part of `hunch doctor` that covers it |").nth(1).unwrap();
        let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
        let rows: Vec<Vec<&str>> =
            rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect();
        let points = POINTS.map(|point| vec![point.claim, point.covered_by]);
        assert_eq!(rows, points);
    }

    #[test]
    fn every_point_has_an_outcome_in_a_complete_report() {
        for point in checked(&complete()) {
            assert!(
                matches!(point.outcome, Outcome::Passed | Outcome::Measured(_)),
                "{}: {:?}",
                point.claim,
                point.outcome
            );
        }
    }

    #[test]
    fn every_point_says_that_it_was_not_checked() {
        let mut bare = complete();
        (bare.on_gpu, bare.cpu, bare.checks) = (None, None, None);
        let test = &mut bare.gpu.as_mut().unwrap().test;
        (test.findings, test.speed) = (Vec::new(), None);
        assert!(outcomes(&bare).iter().all(|outcome| matches!(outcome, Outcome::NotChecked(_))));
        bare.gpu = None;
        assert!(checked(&bare).is_empty());
    }

    #[test]
    fn refused_models_missing_ones_and_other_chips_have_reasons_of_their_own() {
        let outcome = |claim: &str, change: &dyn Fn(&mut Report)| {
            let mut report = complete();
            change(&mut report);
            let point = checked(&report).into_iter().find(|point| point.claim.starts_with(claim)).unwrap();
            match point.outcome {
                Outcome::NotChecked(reason) => reason,
                other => format!("{other:?}"),
            }
        };
        let refuse = |report: &mut Report| {
            (report.on_gpu, report.cpu, report.checks) = (None, None, None);
            let [on_gpu, cpu, checks] =
                ["GPU", "CPU", "both"].map(|of| Some(format!("it takes 9 GB on {of}")));
            report.refusals = super::super::Refusals { on_gpu, cpu, checks };
        };
        for (claim, of) in [
            ("models take", "GPU"),
            ("a pass takes", "GPU"),
            ("a pass of the CPU", "CPU"),
            ("text with", "both"),
            ("the draft model", "both"),
        ] {
            assert_eq!(outcome(claim, &refuse), format!("too large: it takes 9 GB on {of}"), "{claim}");
            let absent = |report: &mut Report| {
                refuse(report);
                report.refusals = super::super::Refusals::default();
            };
            assert_eq!(outcome(claim, &absent), "no model was loaded; add --target", "{claim}");
        }
        let named = |report: &mut Report| report.chip_named = true;
        assert!(outcome("a pass takes", &named).contains("--chip"));
        let unknown = |report: &mut Report| report.predicted = None;
        assert!(outcome("a pass takes", &unknown).starts_with("nothing is predicted"));
        assert!(outcome("a pass takes", &|_| ()).contains("predicted 3.00"));
    }

    #[test]
    fn failed_parts_fail_their_points_alone() {
        let failed = |part: &str, problem: &str| {
            let mut report = complete();
            let findings = &mut report.gpu.as_mut().unwrap().test.findings;
            findings.iter_mut().find(|finding| finding.part == part).unwrap().problem = Some(problem.into());
            let failed = outcomes(&report).into_iter().enumerate();
            failed.filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_))).map(|(at, _)| at).collect()
        };
        let differs: Vec<usize> = failed("product Q4_K", "product Q4_K differs from the CPU");
        assert_eq!(differs, [1, 2, 4, 8, 9]);
        let refused: Vec<usize> = failed("draw", "draw failed: refused");
        assert_eq!(refused, [0, 4, 7, 8]);
        let attention: Vec<usize> = failed("attention 64 with a window", "it depends on the number of rows");
        assert_eq!(attention, [3, 4, 5, 8, 9]);
        let delta_net: Vec<usize> = failed("gated delta net 64", "it depends on the number of rows");
        assert_eq!(delta_net, [3, 4, 6, 8]);
    }

    #[test]
    fn lines_have_state_claim_and_detail() {
        let line = checked(&complete())[12].line();
        assert_eq!(line, "measured     the speed of memory: 200 GB/s");
    }
}
