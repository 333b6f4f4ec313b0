//! What a pass costs by its rows, in milliseconds and beside the memory: the verify pass is nearly
//! free when t(M) is near t(1), and t(1) is as good as it gets when the weights stream at the speed of
//! the memory. Engines take turns, pass by pass, so that what else the machine does hits them alike.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::bench::figures::median;
use crate::bench::model::{TimedPass, made_up_tokens, timed_pass};
use hunch_core::model::{LanguageModel, LogitRows, Step};
use hunch_error::{Error, Result};
use hunch_kernels::Threads;

/// Rows of the passes that are measured.
pub const ROWS: [usize; 6] = [1, 2, 3, 5, 9, 16];

/// Tokens of the prompt whose prefill is measured.
pub const PROMPT: usize = 512;

/// Before each measurement: the threads of other engines look out for work for a while after theirs.
const QUIET: Duration = Duration::from_millis(25);

/// An engine that takes part.
pub trait PassEngine {
    /// Its name in the table.
    fn name(&self) -> &str;
    /// Seconds of one pass of `rows` rows behind a context of some tokens.
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

/// What was measured of one engine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PassFigures {
    /// The engine.
    pub engine: String,
    /// Milliseconds of a pass by its rows: medians over the rounds.
    pub pass_ms: BTreeMap<usize, f64>,
    /// t(M)/t(1): medians of the ratios within a round.
    pub relative: BTreeMap<usize, f64>,
    /// Weights a second during a pass of one row, in 10^9 bytes.
    pub gb_s: f64,
    /// That beside what the memory gave in the same round: the median share. 1 is the floor of t(1).
    pub of_memory: f64,
    /// Prompt tokens a second.
    pub prefill_tok_s: f64,
}

/// The table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PassReport {
    /// The target.
    pub target: String,
    /// Threads of the CPU.
    pub threads: usize,
    /// Bytes of weights that a pass reads.
    pub weight_bytes: usize,
    /// What this machine reads from memory a second with as many threads, in 10^9 bytes: the median
    /// over the rounds.
    pub memory_gb_s: f64,
    /// The engines, Hunch first.
    pub engines: Vec<PassFigures>,
}

/// What [`measure`] asks for.
#[derive(Clone, Copy, Debug)]
pub struct PassPlan {
    /// Rounds to measure, after one that warms up.
    pub rounds: usize,
    /// Bytes of weights that a pass reads.
    pub weight_bytes: usize,
}

/// Measures rounds, each with every number of rows and a prompt once for every engine, and with the
/// speed of the memory (10^9 bytes a second), which `memory` measures, before the passes of one row.
/// Gives the memory's median and the engines' figures.
///
/// # Errors
/// When a pass fails.
pub fn measure(
    engines: &mut [&mut dyn PassEngine],
    memory: &mut dyn FnMut() -> f64,
    plan: PassPlan,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<(f64, Vec<PassFigures>)> {
    let PassPlan { rounds, weight_bytes } = plan;
    let mut times = vec![BTreeMap::<usize, Vec<f64>>::new(); engines.len()];
    let mut memory_gb_s = Vec::new();
    for round in 0..=rounds {
        progress(round, rounds + 1);
        for turn in 0..ROWS.len() {
            let rows = ROWS[(round + turn) % ROWS.len()];
            if rows == 1 && round > 0 {
                std::thread::sleep(QUIET);
                memory_gb_s.push(memory());
            }
            for (engine, times) in engines.iter_mut().zip(&mut times) {
                std::thread::sleep(QUIET);
                let seconds = engine.pass(rows)?;
                if round > 0 {
                    times.entry(rows).or_default().push(seconds);
                }
            }
        }
        // A prompt is long enough to be measured every other round.
        for (engine, times) in engines.iter_mut().zip(&mut times).filter(|_| round % 2 == 1) {
            std::thread::sleep(QUIET);
            times.entry(PROMPT).or_default().push(engine.prefill(PROMPT)?);
        }
    }
    let nothing = || Error::invalid("Nothing was measured: 0 rounds.");
    let figures = |(engine, times): (&mut &mut dyn PassEngine, BTreeMap<usize, Vec<f64>>)| {
        let of = |rows: usize| times.get(&rows).and_then(|t| median(t)).ok_or_else(nothing);
        let mut pass_ms = BTreeMap::new();
        let mut relative = BTreeMap::new();
        for rows in ROWS {
            pass_ms.insert(rows, of(rows)? * 1e3);
            let ratios: Vec<f64> = times[&rows].iter().zip(&times[&1]).map(|(t, one)| t / one).collect();
            relative.insert(rows, median(&ratios).ok_or_else(nothing)?);
        }
        let gb_s = |seconds: f64| weight_bytes as f64 / seconds / 1e9;
        let shares: Vec<f64> =
            times[&1].iter().zip(&memory_gb_s).map(|(t, memory)| gb_s(*t) / memory).collect();
        Ok(PassFigures {
            engine: engine.name().to_owned(),
            pass_ms,
            relative,
            gb_s: gb_s(of(1)?),
            of_memory: median(&shares).ok_or_else(nothing)?,
            prefill_tok_s: PROMPT as f64 / of(PROMPT)?,
        })
    };
    let figures = engines.iter_mut().zip(times).map(figures).collect::<Result<_>>()?;
    Ok((median(&memory_gb_s).ok_or_else(nothing)?, figures))
}

/// Measures what the machine reads from memory a second.
pub struct MemoryReader<'a> {
    threads: &'a Threads,
    /// More than any cache holds.
    memory: Vec<u64>,
}

impl<'a> MemoryReader<'a> {
    /// Reads with these threads.
    pub fn new(threads: &'a Threads) -> Self {
        Self { threads, memory: vec![1; 1 << 26] }
    }

    /// The speed now, in 10^9 bytes a second: the better of two sums over 512 MiB.
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

/// This engine.
pub struct Ours<'a>(pub &'a mut dyn LanguageModel);

impl PassEngine for Ours<'_> {
    fn name(&self) -> &str {
        "hunch"
    }

    fn pass(&mut self, rows: usize) -> Result<f64> {
        timed_pass(self.0, &TimedPass::of(rows))
    }

    fn prefill(&mut self, tokens: usize) -> Result<f64> {
        self.0.truncate(0)?;
        let prompt = made_up_tokens(tokens, self.0.info().n_vocab);
        let begun = Instant::now();
        for chunk in prompt.chunks(self.0.prefill_rows()) {
            self.0.forward(Step::chain(chunk, LogitRows::None))?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        self.0.truncate(0)?;
        Ok(seconds)
    }
}

/// Another program that takes part, over its standard input and output: it writes `ready` when its
/// model is loaded, then answers each line `pass ROWS` or `prefill TOKENS` with the seconds it took.
pub struct ExternalRunner {
    name: String,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl ExternalRunner {
    /// Starts it and waits until it is ready.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] when it does not start or says something else.
    pub fn start(name: &str, program: &str, arguments: &[String]) -> Result<Self> {
        let failed = |why: String| Error::invalid(format!("{name} ({program}) cannot take part: {why}."));
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| failed(e.to_string()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("it has no input or output".into()));
        };
        let mut beside = Self { name: name.into(), child, input, output: BufReader::new(output) };
        match beside.line()?.as_str() {
            "ready" => Ok(beside),
            other => Err(failed(format!("it said \"{other}\" instead of \"ready\""))),
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
        sent.map_err(|e| Error::invalid(format!("{} does not listen: {e}.", self.name)))?;
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
        // It has nothing to lose.
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
    fn figures_by_hand() {
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
    fn another_program_takes_part_and_its_failures_are_told() {
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
