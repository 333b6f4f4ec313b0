//! Rendering of templates in a sandboxed child process.
//!
//! Templates come with models from any source. A template can overflow the stack or exhaust memory,
//! which must crash only the child.
//!
//! The child is the same binary, started with a special argument. A program enables it by calling
//! [`offer`] first in `main`. Otherwise templates are rendered in the calling process. The rendering
//! itself belongs to `renderer`.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::renderer::{Renderer, Request};

/// Command-line argument that starts a process as rendering child.
const ARGUMENT: &str = "--render-chat-templates";
/// Timeout for rendering.
const RENDER_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout for starting a child, generous because the machine may be busy.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval for polling cancellation.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Memory limit of a child in bytes.
#[cfg(unix)]
const MEMORY_LIMIT: u64 = 512 << 20;
/// CPU time limit per rendering in seconds. Also ends a child whose parent is gone.
#[cfg(unix)]
const CPU_SECONDS: u64 = 5;
/// Maximum size of a request in bytes. Rendering needs several times as much memory.
const MAX_REQUEST: usize = 32 << 20;
/// Message of a child that is ready for requests.
const READY: &[u8] = b"ready";

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Offers this program for rendering chat templates. Call it first in `main`.
///
/// A process started as rendering child serves requests here and exits.
pub fn offer() {
    if std::env::args_os().nth(1).as_deref() == Some(OsStr::new(ARGUMENT)) {
        let served = serve(&mut io::stdin().lock(), &mut io::stdout().lock(), &ProcessLimits);
        std::process::exit(i32::from(served.is_err()));
    }
    // This path stays valid when an update replaces the executable.
    let running = Path::new("/proc/self/exe");
    let program = if running.exists() { Ok(running.to_path_buf()) } else { std::env::current_exe() };
    if let Ok(program) = program {
        render_with(program);
    }
}

/// Sets the program that renders chat templates, which must call [`offer`]. Only the first call counts.
pub fn render_with(program: PathBuf) {
    let _ = PROGRAM.set(program);
}

/// Returns the rendering program, if one was offered.
pub(super) fn program() -> Option<&'static Path> {
    PROGRAM.get().map(PathBuf::as_path)
}

/// Failure to render a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RenderFailure {
    /// The template raised an error or cannot be parsed.
    Rejected(String),
    /// The template crashed the child or timed out.
    Crashed(String),
    /// The caller cancelled it.
    Cancelled,
}

/// Child process for rendering, with its request and reply channels.
#[derive(Debug)]
pub(super) struct RenderingChild {
    process: Child,
    requests: Sender<Vec<u8>>,
    replies: Receiver<io::Result<Vec<u8>>>,
}

impl RenderingChild {
    /// Starts a child and waits until it is ready.
    pub(super) fn start(program: &Path, cancelled: &dyn Fn() -> bool) -> Result<Self, RenderFailure> {
        let started = Command::new(program)
            .arg(ARGUMENT)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let cannot = |error: String| RenderFailure::Crashed(format!("it cannot be rendered safely: {error}"));
        let mut process = started.map_err(|error| cannot(error.to_string()))?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(cannot("the child process has no pipes".into()));
        };
        let (requests, to_write) = channel();
        let (read, replies) = channel();
        let exchange = move || exchange_messages(input, output, &to_write, &read);
        let thread = thread::Builder::new().name("hunch-template".into()).spawn(exchange);
        let mut child = Self { process, requests, replies };
        thread.map_err(|error| cannot(error.to_string()))?;
        match child.wait(START_TIMEOUT, cancelled)? {
            reply if reply == READY => Ok(child),
            _ => Err(cannot("the child process sent an unexpected reply".into())),
        }
    }

    /// Renders a request. After [`RenderFailure::Crashed`] or [`RenderFailure::Cancelled`] the child is unusable.
    pub(super) fn render(
        &mut self,
        request: &Request,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<String, RenderFailure> {
        let bytes = serde_json::to_vec(request).map_err(|error| RenderFailure::Crashed(error.to_string()))?;
        if bytes.len() > MAX_REQUEST {
            return Err(RenderFailure::Rejected(format!(
                "the conversation exceeds {} MiB",
                MAX_REQUEST >> 20
            )));
        }
        // If the child is gone, `wait` reports it.
        let _ = self.requests.send(bytes);
        let reply = self.wait(RENDER_TIMEOUT, cancelled)?;
        let reply: Result<String, String> =
            serde_json::from_slice(&reply).map_err(|error| RenderFailure::Crashed(error.to_string()))?;
        reply.map_err(RenderFailure::Rejected)
    }

    fn wait(&mut self, timeout: Duration, cancelled: &dyn Fn() -> bool) -> Result<Vec<u8>, RenderFailure> {
        let started = Instant::now();
        loop {
            match self.replies.recv_timeout(POLL_INTERVAL) {
                Ok(Ok(reply)) => return Ok(reply),
                Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => {
                    let _ = self.process.kill();
                    let how =
                        self.process.wait().map_or_else(|error| error.to_string(), |how| how.to_string());
                    return Err(RenderFailure::Crashed(format!(
                        "it ended the process that renders it ({how}), probably by deep nesting or by using \
                         too much memory"
                    )));
                }
                Err(RecvTimeoutError::Timeout) if cancelled() => return Err(RenderFailure::Cancelled),
                Err(RecvTimeoutError::Timeout) if started.elapsed() >= timeout => {
                    return Err(RenderFailure::Crashed(format!(
                        "it took longer than {} s",
                        timeout.as_secs()
                    )));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Drop for RenderingChild {
    fn drop(&mut self) {
        // The child may be in an endless loop. Waiting avoids a zombie process.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Writes requests and reads replies until the child or the parent is gone.
fn exchange_messages(
    mut input: ChildStdin,
    mut output: ChildStdout,
    to_write: &Receiver<Vec<u8>>,
    read: &Sender<io::Result<Vec<u8>>>,
) {
    let mut exchange = |request: Option<Vec<u8>>| -> io::Result<Vec<u8>> {
        let max = request.as_ref().map_or(READY.len(), |request| 64 * request.len() + (64 << 20));
        if let Some(request) = request {
            write_frame(&mut input, &request)?;
        }
        read_frame(&mut output, max)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    };
    if read.send(exchange(None)).is_err() {
        return;
    }
    for request in to_write {
        if read.send(exchange(Some(request))).is_err() {
            return;
        }
    }
}

/// Limits that a child sets on its own process.
trait Limits {
    /// Limits memory and core dumps.
    fn limit_memory(&self) -> io::Result<()>;
    /// Limits the CPU time of the next rendering.
    fn limit_time(&self) -> io::Result<()>;
}

/// Limits by `setrlimit`, on systems that have it.
struct ProcessLimits;

/// Main loop of a child: renders requests until the input ends.
fn serve(input: &mut impl Read, output: &mut impl Write, limits: &impl Limits) -> io::Result<()> {
    // A system may refuse a limit: macOS does not support all of them. Fuel, the size limit of the result and
    // the timeout of the parent still apply, so the child continues without it.
    let _ = limits.limit_memory();
    write_frame(output, READY)?;
    let mut renderer = Renderer::default();
    while let Some(request) = read_frame(input, MAX_REQUEST)? {
        let _ = limits.limit_time();
        let request: Request = serde_json::from_slice(&request)?;
        write_frame(output, &serde_json::to_vec(&renderer.render(&request))?)?;
    }
    Ok(())
}

#[cfg(unix)]
impl Limits for ProcessLimits {
    fn limit_memory(&self) -> io::Result<()> {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limit = |resource, max: u64| {
            let allowed = getrlimit(resource).maximum;
            let max = Some(allowed.map_or(max, |allowed| allowed.min(max)));
            setrlimit(resource, Rlimit { current: max, maximum: max })
        };
        // Core dumps of a child are useless. Each limit is tried even if the other is refused.
        let core = limit(Resource::Core, 0);
        limit(Resource::Data, MEMORY_LIMIT)?;
        Ok(core?)
    }

    fn limit_time(&self) -> io::Result<()> {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        use rustix::time::{ClockId, clock_gettime};
        let spent = u64::try_from(clock_gettime(ClockId::ProcessCPUTime).tv_sec).unwrap_or(0);
        let maximum = getrlimit(Resource::Cpu).maximum;
        let seconds = (spent + 1 + CPU_SECONDS).min(maximum.unwrap_or(u64::MAX));
        setrlimit(Resource::Cpu, Rlimit { current: Some(seconds), maximum })?;
        Ok(())
    }
}

#[cfg(not(unix))]
impl Limits for ProcessLimits {
    fn limit_memory(&self) -> io::Result<()> {
        Ok(())
    }

    fn limit_time(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes a frame: the length as u64, then the bytes.
fn write_frame(output: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    output.write_all(&(bytes.len() as u64).to_le_bytes())?;
    output.write_all(bytes)?;
    output.flush()
}

/// Reads a frame of at max `max` bytes. Returns `None` at the end of the input.
fn read_frame(input: &mut impl Read, max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 8];
    if let Err(error) = input.read_exact(&mut length) {
        return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) };
    }
    let length = u64::from_le_bytes(length);
    if length > max as u64 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a frame of {length} bytes is too long"),
        ));
    }
    let mut bytes = Vec::new();
    input.take(length).read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(Some(bytes)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system that refuses every limit, as macOS may with EINVAL.
    struct Refused;

    impl Limits for Refused {
        fn limit_memory(&self) -> io::Result<()> {
            Err(io::ErrorKind::InvalidInput.into())
        }

        fn limit_time(&self) -> io::Result<()> {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }

    #[test]
    fn renders_where_the_system_refuses_limits() {
        let request = Request {
            source: "{{ messages[0].content }}".into(),
            bos: String::new(),
            eos: String::new(),
            time: None,
            messages: vec![crate::text::ToolMessage::Text(hunch_core::chat::ChatMessage {
                role: hunch_core::chat::Role::User,
                content: "Hi".into(),
            })],
            tools: Vec::new(),
            add_generation_prompt: true,
            thinking: None,
            variables: false,
        };
        let mut input = Vec::new();
        write_frame(&mut input, &serde_json::to_vec(&request).unwrap()).unwrap();
        let mut output = Vec::new();
        serve(&mut &input[..], &mut output, &Refused).unwrap();
        let mut output = &output[..];
        assert_eq!(read_frame(&mut output, 64).unwrap().unwrap(), READY);
        let reply = read_frame(&mut output, 64).unwrap().unwrap();
        let reply: Result<String, String> = serde_json::from_slice(&reply).unwrap();
        assert_eq!(reply, Ok("Hi".to_owned()));
    }

    #[test]
    fn frames_round_trip_and_invalid_ones_are_rejected() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, b"one").unwrap();
        write_frame(&mut bytes, b"").unwrap();
        let mut input = &bytes[..];
        assert_eq!(read_frame(&mut input, 3).unwrap().unwrap(), b"one");
        assert_eq!(read_frame(&mut input, 3).unwrap().unwrap(), b"");
        assert!(read_frame(&mut input, 3).unwrap().is_none());
        assert!(read_frame(&mut &bytes[..], 2).is_err(), "too long");
        assert!(read_frame(&mut &bytes[..9], 3).is_err(), "cut short");
    }
}
