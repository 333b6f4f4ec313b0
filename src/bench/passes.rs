//! Cost of a pass by its rows, in milliseconds and relative to memory bandwidth, for one or more engines.
//!
//! The verify pass is nearly free when t(M) is close to t(1). t(1) is optimal when weights stream at memory speed.
//! Engines take turns, pass by pass, so that other programs affect all of them alike.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::bench::model_bench::{CONTEXT, ModelPass, synthetic_tokens, time_pass};
use hunch_core::model::{DraftWindow, LanguageModel, LogitRows, PassInput};
use hunch_error::{Error, Result};
use hunch_kernels::Threads;
use hunch_model::pass_timer::{PassTimer, PassTimes, TimingObserver, seconds_of};

/// Rows of the passes that are measured.
pub const ROWS: [usize; 6] = [1, 2, 3, 5, 9, 16];

/// Tokens of the prompt whose prefill is measured.
pub const PROMPT: usize = 512;

/// Pause before each measurement: idle threads of other engines spin for a while after their work.
const QUIET: Duration = Duration::from_millis(25);

/// An engine whose passes are timed.
pub trait PassEngine {
    /// Name of the engine in the table.
    fn name(&self) -> &str;
    /// Seconds of one pass of `rows` rows after a context of some tokens.
    ///
    /// # Errors
    /// When the pass fails.
    fn pass(&mut self, rows: usize) -> Result<f64>;
    /// Seconds of reading a prompt of `tokens` tokens.
    ///
    /// # Errors
    /// When the pass fails.
    fn prefill(&mut self, tokens: usize) -> Result<f64>;
}

/// Figures of one engine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PassFigures {
    /// Name of the engine.
    pub engine: String,
    /// Milliseconds of a pass by its rows: medians over the rounds.
    pub pass_ms: BTreeMap<usize, f64>,
    /// t(M) / t(1) by rows: medians of the ratios within a round.
    pub relative: BTreeMap<usize, f64>,
    /// Weights read by a pass of one row, in 10^9 bytes per second.
    pub gb_s: f64,
    /// `gb_s` over memory bandwidth: median of the ratios within a round. At 1 no pass can be faster.
    pub of_memory: f64,
    /// Prompt tokens per second.
    pub prefill_tok_s: f64,
}

/// Passes of all engines.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PassReport {
    /// Name of the target.
    pub target: String,
    /// CPU threads.
    pub threads: usize,
    /// Bytes of weights that a pass reads.
    pub weight_bytes: usize,
    /// Memory bandwidth with as many threads, in 10^9 bytes per second: the median over the rounds.
    pub memory_gb_s: f64,
    /// Figures of the engines, Hunch first.
    pub engines: Vec<PassFigures>,
}

/// Parameters of [`measure`].
#[derive(Clone, Copy, Debug)]
pub struct PassPlan {
    /// Rounds, after one that warms up.
    pub rounds: usize,
    /// Bytes of weights that a pass reads.
    pub weight_bytes: usize,
}

/// Something that is timed once per round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EngineTiming {
    /// Reading memory: seconds per 10^9 bytes.
    Memory,
    /// A pass of an engine, by its index, of some rows: seconds.
    Pass(usize, usize),
    /// Reading a prompt of [`PROMPT`] tokens by an engine: seconds.
    Prefill(usize),
}

/// Measures passes, prefill and memory bandwidth.
///
/// A round runs every number of rows once per engine. Bandwidth (10^9 bytes per second) comes from `memory` and is
/// measured right before the passes of one row. Prefill runs every other round because a prompt is long enough for
/// fewer samples. Returns the median bandwidth and the engines' figures.
///
/// # Errors
/// When a pass fails.
pub fn measure(
    engines: &mut [&mut dyn PassEngine],
    memory: &mut dyn FnMut() -> f64,
    plan: PassPlan,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(f64, Vec<PassFigures>)> {
    let count = engines.len();
    let passes = ROWS.iter().flat_map(|&rows| {
        let memory = (rows == 1).then_some(EngineTiming::Memory);
        memory.into_iter().chain((0..count).map(move |engine| EngineTiming::Pass(engine, rows)))
    });
    let mut timer = PassTimer::new(passes.chain((0..count).map(EngineTiming::Prefill)).collect());
    let mut time = |round: usize, timed: &EngineTiming| {
        if matches!(timed, EngineTiming::Prefill(_)) && round.is_multiple_of(2) {
            return Ok(None);
        }
        std::thread::sleep(QUIET);
        match *timed {
            EngineTiming::Memory => Ok(1.0 / memory()),
            EngineTiming::Pass(engine, rows) => engines[engine].pass(rows),
            EngineTiming::Prefill(engine) => engines[engine].prefill(PROMPT),
        }
        .map(Some)
    };
    timer.run(plan.rounds, &mut time, TimingObserver { on_round: progress, stopped: &|| false })?;
    let times = timer.since(0);
    let figures =
        |(index, engine): (usize, &&mut dyn PassEngine)| figures(&times, index, engine.name(), plan);
    let figures = engines.iter().enumerate().map(figures).collect::<Result<_>>()?;
    Ok((1.0 / times.median(&EngineTiming::Memory).ok_or_else(nothing)?, figures))
}

/// Computes the figures of one engine.
fn figures(
    times: &PassTimes<'_, EngineTiming>,
    engine: usize,
    name: &str,
    plan: PassPlan,
) -> Result<PassFigures> {
    let one = EngineTiming::Pass(engine, 1);
    let mut pass_ms = BTreeMap::new();
    let mut relative = BTreeMap::new();
    for rows in ROWS {
        let pass = EngineTiming::Pass(engine, rows);
        pass_ms.insert(rows, times.median(&pass).ok_or_else(nothing)? * 1e3);
        relative.insert(rows, times.ratio(&pass, &one).ok_or_else(nothing)?);
    }
    let weights_gb = plan.weight_bytes as f64 / 1e9;
    let reads = times.ratio(&EngineTiming::Memory, &one).ok_or_else(nothing)?;
    Ok(PassFigures {
        engine: name.to_owned(),
        gb_s: weights_gb / (pass_ms[&1] / 1e3),
        pass_ms,
        relative,
        of_memory: weights_gb * reads,
        prefill_tok_s: PROMPT as f64 / times.median(&EngineTiming::Prefill(engine)).ok_or_else(nothing)?,
    })
}

fn nothing() -> Error {
    Error::invalid("Nothing was measured: 0 rounds.")
}

/// Measures memory bandwidth.
pub struct MemoryReader<'a> {
    threads: &'a Threads,
    /// 512 MiB, larger than any cache.
    memory: Vec<u64>,
}

impl<'a> MemoryReader<'a> {
    /// Creates a reader that uses these threads.
    pub fn new(threads: &'a Threads) -> Self {
        Self { threads, memory: vec![1; 1 << 26] }
    }

    /// Measures bandwidth in 10^9 bytes per second: the better of two reads of 512 MiB.
    pub fn gb_s(&self) -> f64 {
        let parts: Vec<&[u64]> = self.memory.chunks(1 << 18).collect();
        let sum = std::sync::atomic::AtomicU64::new(0);
        let once = || {
            let begun = Instant::now();
            self.threads.run(parts.len(), &|part| {
                let part = parts[part].iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
                sum.fetch_add(part, std::sync::atomic::Ordering::Relaxed);
            });
            begun.elapsed().as_secs_f64()
        };
        let best = once().min(once());
        std::hint::black_box(sum.into_inner());
        size_of_val(&self.memory[..]) as f64 / best / 1e9
    }
}

/// Hunch's own engine.
pub struct Ours<'a> {
    /// The model that is timed.
    pub model: &'a mut dyn LanguageModel,
    /// Tokens in the cache during a pass and before a prompt is read. `None` for a short context, and for none.
    pub context: Option<usize>,
    /// Part of the cache that passes read. `None` for all of it.
    pub window: Option<DraftWindow>,
    name: String,
}

impl<'a> Ours<'a> {
    /// Creates an engine that times a model.
    pub fn new(
        model: &'a mut dyn LanguageModel,
        context: Option<usize>,
        window: Option<DraftWindow>,
    ) -> Self {
        let name = window.map_or_else(|| "hunch".to_owned(), |window| format!("hunch, window {window}"));
        Self { model, context, window, name }
    }
}

impl PassEngine for Ours<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn pass(&mut self, rows: usize) -> Result<f64> {
        let (context, window) = (self.context.unwrap_or(CONTEXT), self.window);
        time_pass(self.model, &ModelPass { context, window, ..ModelPass::of(rows) })
    }

    fn prefill(&mut self, tokens: usize) -> Result<f64> {
        let base = self.context.unwrap_or(0).min(self.model.cache_len());
        self.model.truncate(base)?;
        let prompt = synthetic_tokens(tokens, self.model.info().n_vocab);
        let seconds = seconds_of(|| {
            for chunk in prompt.chunks(self.model.prefill_rows()) {
                let step = PassInput { window: self.window, ..PassInput::chain(chunk, LogitRows::None) };
                self.model.forward(step)?;
            }
            Ok(())
        })?;
        self.model.truncate(base)?;
        Ok(seconds)
    }
}

/// Another program as an engine, driven over its standard input and output.
///
/// The program writes `ready` when its model is loaded. Then it answers each line `pass ROWS` or `prefill TOKENS`
/// with the seconds taken.
pub struct ExternalRunner {
    name: String,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl ExternalRunner {
    /// Starts the program and waits until it is ready.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when the program does not start or writes anything but `ready`.
    pub fn start(name: &str, program: &str, arguments: &[String]) -> Result<Self> {
        let failed = |why: String| Error::invalid(format!("{name} ({program}) could not be started: {why}."));
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| failed(e.to_string()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("no standard input or output".into()));
        };
        let mut runner = Self { name: name.into(), child, input, output: BufReader::new(output) };
        match runner.line()?.as_str() {
            "ready" => Ok(runner),
            other => Err(failed(format!("it wrote \"{other}\" instead of \"ready\""))),
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        match read {
            Ok(length) if length > 0 => Ok(line.trim().to_owned()),
            _ => Err(Error::invalid(format!("{} ended before it answered.", self.name))),
        }
    }

    fn ask(&mut self, question: &str) -> Result<f64> {
        let sent = writeln!(self.input, "{question}").and_then(|()| self.input.flush());
        sent.map_err(|e| Error::invalid(format!("{} does not accept requests: {e}.", self.name)))?;
        let answer = self.line()?;
        let seconds = answer.parse().ok().filter(|s: &f64| s.is_finite() && *s > 0.0);
        seconds.ok_or_else(|| {
            Error::invalid(format!("{} answered \"{question}\" with \"{answer}\".", self.name))
        })
    }
}

impl PassEngine for ExternalRunner {
    fn name(&self) -> &str {
        &self.name
    }

    fn pass(&mut self, rows: usize) -> Result<f64> {
        self.ask(&format!("pass {rows}"))
    }

    fn prefill(&mut self, tokens: usize) -> Result<f64> {
        self.ask(&format!("prefill {tokens}"))
    }
}

impl Drop for ExternalRunner {
    fn drop(&mut self) {
        // The program holds no state worth a clean exit.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake(&'static str, f64);
    impl PassEngine for Fake {
        fn name(&self) -> &str {
            self.0
        }
        fn pass(&mut self, rows: usize) -> Result<f64> {
            Ok(self.1 * (0.75 + 0.25 * rows as f64))
        }
        fn prefill(&mut self, tokens: usize) -> Result<f64> {
            Ok(self.1 * tokens as f64)
        }
    }

    #[test]
    fn figures_match_a_hand_computed_example() {
        let (mut a, mut b) = (Fake("a", 0.5), Fake("b", 2.0));
        let plan = PassPlan { rounds: 3, weight_bytes: 1_000_000_000 };
        let mut memory = [8.0, 4.0, 2.0].into_iter().cycle();
        let mut memory = || memory.next().unwrap();
        let (memory_gb_s, figures) =
            measure(&mut [&mut a, &mut b], &mut memory, plan, &mut |_, _| {}).unwrap();
        assert_eq!((memory_gb_s, figures[0].of_memory, figures[1].of_memory), (4.0, 0.5, 0.125));
        assert_eq!((figures[0].engine.as_str(), figures[1].engine.as_str()), ("a", "b"));
        assert_eq!(figures[0].pass_ms[&5], 1000.0);
        assert_eq!(
            figures[1].relative,
            BTreeMap::from([(1, 1.0), (2, 1.25), (3, 1.5), (5, 2.0), (9, 3.0), (16, 4.75)])
        );
        assert_eq!((figures[0].gb_s, figures[1].gb_s), (2.0, 0.5));
        assert_eq!(figures[0].prefill_tok_s, 2.0);
        let nothing = PassPlan { rounds: 0, ..plan };
        assert!(measure(&mut [&mut a], &mut memory, nothing, &mut |_, _| {}).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn external_runner_answers_and_reports_failures() {
        let shell = |script: &str| ExternalRunner::start("other", "sh", &["-c".into(), script.into()]);
        let mut other =
            shell("echo ready; read line; echo 0.25; read line; echo nonsense; read line").unwrap();
        assert_eq!(other.pass(3).unwrap(), 0.25);
        assert!(other.prefill(512).unwrap_err().to_string().contains("\"prefill 512\" with \"nonsense\""));
        assert!(shell("echo hello").err().is_some_and(|e| e.to_string().contains("\"hello\"")));
        assert!(shell("exit 0").err().is_some_and(|e| e.to_string().contains("ended before")));
        assert!(ExternalRunner::start("other", "/no/such/program", &[]).is_err());
    }
}
