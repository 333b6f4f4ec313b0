//! Renders templates in a child process of this program. A template comes with a model, from anybody, and can
//! recurse until the stack ends or take all memory, which ends a process; it may be that of the child alone.
//!
//! A program offers itself with [`offer`], as the first thing it does: the child is the same binary, started with
//! an argument of its own. A program that does not offer itself renders where it is.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::renderer::{Renderer, Request};

/// The argument that makes a process such a child.
const ARGUMENT: &str = "--render-chat-templates";
/// Longest that a rendering may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest that a child may take to begin: the machine may be busy.
const BEGINS_WITHIN: Duration = Duration::from_secs(20);
/// Time between two looks at whether somebody has stopped it.
const LOOK: Duration = Duration::from_millis(10);
/// Bytes of memory that a child may take.
#[cfg(unix)]
const MEMORY: u64 = 512 << 20;
/// Seconds of processor time that a rendering may take: a child whose parent is gone ends by that.
#[cfg(unix)]
const PROCESSOR_SECONDS: u64 = 5;
/// Bytes that a request may have: what is rendered takes some times as much memory.
const MOST_REQUEST: usize = 32 << 20;
/// What a child says once it can be asked.
const READY: &[u8] = b"ready";

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Offers this program as the one that renders chat templates. To be called first in `main`: a process that was
/// started to render does that here, and ends.
pub fn offer() {
    if std::env::args_os().nth(1).as_deref() == Some(OsStr::new(ARGUMENT)) {
        let ended = serve(&mut io::stdin().lock(), &mut io::stdout().lock(), &ProcessLimits);
        std::process::exit(i32::from(ended.is_err()));
    }
    // The name of the running file stays true when an update replaces it.
    let running = Path::new("/proc/self/exe");
    let program = if running.exists() { Ok(running.to_path_buf()) } else { std::env::current_exe() };
    if let Ok(program) = program {
        render_with(program);
    }
}

/// Has chat templates rendered by `program`, which calls [`offer`]; the first call counts.
pub fn render_with(program: PathBuf) {
    let _ = PROGRAM.set(program);
}

/// The program that renders, if one was offered.
pub(super) fn program() -> Option<&'static Path> {
    PROGRAM.get().map(PathBuf::as_path)
}

/// Why there is no text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The template says so, or cannot be read.
    Refused(String),
    /// The template ended the child, or took too long.
    Broken(String),
    /// Somebody stopped it.
    Stopped,
}

/// A child that renders, and what is said to it.
#[derive(Debug)]
pub(super) struct RenderingChild {
    process: Child,
    requests: Sender<Vec<u8>>,
    replies: Receiver<io::Result<Vec<u8>>>,
}

impl RenderingChild {
    /// Starts a child and waits until it can be asked.
    pub(super) fn start(program: &Path, stopped: &dyn Fn() -> bool) -> Result<Self, Failure> {
        let started = Command::new(program)
            .arg(ARGUMENT)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let cannot = |error: String| Failure::Broken(format!("it cannot be rendered safely: {error}"));
        let mut process = started.map_err(|error| cannot(error.to_string()))?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(cannot("the child has no pipes".into()));
        };
        let (requests, to_write) = channel();
        let (read, replies) = channel();
        let talk = move || talk(input, output, &to_write, &read);
        let talking = thread::Builder::new().name("hunch-template".into()).spawn(talk);
        let mut child = Self { process, requests, replies };
        talking.map_err(|error| cannot(error.to_string()))?;
        match child.wait(BEGINS_WITHIN, stopped)? {
            reply if reply == READY => Ok(child),
            _ => Err(cannot("the child does not answer as this program does".into())),
        }
    }

    /// Has a request rendered. After [`Failure::Broken`] and [`Failure::Stopped`] the child is of no use.
    pub(super) fn render(
        &mut self,
        request: &Request,
        stopped: &dyn Fn() -> bool,
    ) -> Result<String, Failure> {
        let bytes = serde_json::to_vec(request).map_err(|error| Failure::Broken(error.to_string()))?;
        if bytes.len() > MOST_REQUEST {
            return Err(Failure::Refused(format!(
                "the conversation has more than {} MiB",
                MOST_REQUEST >> 20
            )));
        }
        // One that is gone is told of by the wait.
        let _ = self.requests.send(bytes);
        let reply = self.wait(PATIENCE, stopped)?;
        let reply: Result<String, String> =
            serde_json::from_slice(&reply).map_err(|error| Failure::Broken(error.to_string()))?;
        reply.map_err(Failure::Refused)
    }

    fn wait(&mut self, patience: Duration, stopped: &dyn Fn() -> bool) -> Result<Vec<u8>, Failure> {
        let begun = Instant::now();
        loop {
            match self.replies.recv_timeout(LOOK) {
                Ok(Ok(reply)) => return Ok(reply),
                Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => {
                    let _ = self.process.kill();
                    let how =
                        self.process.wait().map_or_else(|error| error.to_string(), |how| how.to_string());
                    return Err(Failure::Broken(format!(
                        "it ended the process that renders it ({how}), as one does that nests too deep or takes too \
                         much memory"
                    )));
                }
                Err(RecvTimeoutError::Timeout) if stopped() => return Err(Failure::Stopped),
                Err(RecvTimeoutError::Timeout) if begun.elapsed() >= patience => {
                    return Err(Failure::Broken(format!("it took longer than {} s", patience.as_secs())));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

impl Drop for RenderingChild {
    fn drop(&mut self) {
        // It may be in the middle of something endless. Waited for, so that nothing is left of it.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Writes what comes and reads what is said to it, until the child or the parent is gone.
fn talk(
    mut input: ChildStdin,
    mut output: ChildStdout,
    to_write: &Receiver<Vec<u8>>,
    read: &Sender<io::Result<Vec<u8>>>,
) {
    let mut exchange = |request: Option<Vec<u8>>| -> io::Result<Vec<u8>> {
        let most = request.as_ref().map_or(READY.len(), |request| 64 * request.len() + (64 << 20));
        if let Some(request) = request {
            write_frame(&mut input, &request)?;
        }
        read_frame(&mut output, most)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
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

/// The limits a child sets on its own process.
trait Limits {
    /// Limits memory and core dumps.
    fn limit_memory(&self) -> io::Result<()>;
    /// Limits the processor time of the next rendering.
    fn limit_time(&self) -> io::Result<()>;
}

/// Limits by `setrlimit`, where the system has it.
struct ProcessLimits;

/// Renders the requests of the parent process until it closes the pipe.
fn serve(input: &mut impl Read, output: &mut impl Write, limits: &impl Limits) -> io::Result<()> {
    // A system may refuse a limit: macOS does not support all of them. Fuel, the size of the result and the
    // parent's timeout still hold, so rendering goes on without it.
    let _ = limits.limit_memory();
    write_frame(output, READY)?;
    let mut renderer = Renderer::default();
    while let Some(request) = read_frame(input, MOST_REQUEST)? {
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
        let limit = |resource, most: u64| {
            let allowed = getrlimit(resource).maximum;
            let most = Some(allowed.map_or(most, |allowed| allowed.min(most)));
            setrlimit(resource, Rlimit { current: most, maximum: most })
        };
        // Each is tried, whatever became of the other. A core dump of a template is of no use.
        let core = limit(Resource::Core, 0);
        limit(Resource::Data, MEMORY)?;
        Ok(core?)
    }

    fn limit_time(&self) -> io::Result<()> {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        use rustix::time::{ClockId, clock_gettime};
        let spent = u64::try_from(clock_gettime(ClockId::ProcessCPUTime).tv_sec).unwrap_or(0);
        let maximum = getrlimit(Resource::Cpu).maximum;
        let seconds = (spent + 1 + PROCESSOR_SECONDS).min(maximum.unwrap_or(u64::MAX));
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

/// Writes bytes behind their number.
fn write_frame(output: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    output.write_all(&(bytes.len() as u64).to_le_bytes())?;
    output.write_all(bytes)?;
    output.flush()
}

/// Reads bytes behind their number; none at the end.
fn read_frame(input: &mut impl Read, most: usize) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 8];
    if let Err(error) = input.read_exact(&mut length) {
        return if error.kind() == io::ErrorKind::UnexpectedEof { Ok(None) } else { Err(error) };
    }
    let length = u64::from_le_bytes(length);
    if length > most as u64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{length} bytes are too many")));
    }
    let mut bytes = Vec::new();
    input.take(length).read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(Some(bytes)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system that supports no limit, as macOS answers with EINVAL.
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
            messages: vec![hunch_core::chat::ChatMessage {
                role: hunch_core::chat::Role::User,
                content: "Hi".into(),
            }],
            add_generation_prompt: true,
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
    fn reads_back_the_frames_it_writes_and_no_others() {
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
