//! The simulated GPU: compiles kernels as C++ and runs them in a child process.
//!
//! Compiled kernels are kept in the target folder, by their text. The compiler is the one that
//! `scripts/metal-test` chose. Without it the tests fail. With `HUNCH_METAL_CUDA`, the process runs the same kernels
//! as PTX on an NVIDIA GPU (`scripts/metal-on-cuda`).

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};

use hunch_error::{Error, Result};
use hunch_model::metal::gpu::{Argument, BufferId, Gpu, Grid, KernelId, KernelSource};

use crate::translate::{to_cpp, to_cuda_cpp, written_buffers};

/// Folder of the simulator's headers.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
const RUNTIME: &str = include_str!("simulator/runtime.h");
/// Headers that compiled text includes.
const HEADERS: [&str; 4] = [
    include_str!("simulator/include/metal_stdlib"),
    include_str!("simulator/include/vectors.h"),
    include_str!("simulator/include/constructors.h"),
    include_str!("ptx/metal_stdlib"),
];
const HOST: &str = concat!(include_str!("protocol.cc"), include_str!("simulator/host.cc"));
const CUDA_HOST: &str = concat!(include_str!("protocol.cc"), include_str!("ptx/host.cc"));

/// Calls a function before each load and store, which stay as wide as in the text.
const COUNT_TRAFFIC: [&str; 4] = [
    "-DSIM_COUNT_TRAFFIC",
    "-fsanitize-coverage=func,trace-loads,trace-stores",
    "-fno-vectorize",
    "-fno-slp-vectorize",
];

const PTX_TARGET: [&str; 3] = ["-target", "nvptx64-cuda", "-mcpu=sm_80+ptx70"];
const PTX_FLAGS: [&str; 3] = ["-S", "-ffreestanding", "-fsigned-char"];

/// Choices that Metal leaves open and a run of the simulator fixes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Schedule {
    /// Draws which thread runs next. 0 runs threads in order.
    pub seed: u64,
    /// Order in which the matrix unit and sums of a simdgroup add: 0, 1 or 2.
    pub order: u32,
    /// Elements of 8x8 matrices by lane: 0 or 1.
    pub mapping: u32,
}

impl Schedule {
    /// Schedules that differ in everything.
    pub const ALL: [Self; 3] = [
        Self { seed: 0, order: 0, mapping: 0 },
        Self { seed: 0x9e37_79b9, order: 1, mapping: 1 },
        Self { seed: 0x1234_5678_9abc, order: 2, mapping: 0 },
    ];
}

/// Simulated GPU.
pub struct Simulator {
    state: Mutex<SimulatorState>,
}

struct SimulatorState {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    kernels: Vec<Kernel>,
    /// Bytes of the buffers.
    sizes: HashMap<u32, usize>,
    libraries: u32,
    schedule: Schedule,
    counts: Counts,
    /// Buffers that dispatches used since the last wait.
    used: HashSet<u32>,
    /// Kernels are compiled to count their loads and stores.
    counts_traffic: bool,
}

/// Compiled kernel.
#[derive(Clone)]
struct Kernel {
    library: u32,
    function: String,
    /// For each buffer, whether the kernel's text can write it.
    written: Vec<bool>,
}

/// Bytes that kernels loaded from a buffer, or stored to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// By all threads, each of them counted.
    pub by_threads: u64,
    /// Different bytes of a dispatch, added up over the dispatches.
    pub distinct: u64,
}

/// Bytes that kernels moved from a buffer and to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Loaded bytes.
    pub loads: Moved,
    /// Stored bytes.
    pub stores: Moved,
}

/// Calls since the last [`Simulator::take_counts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Dispatches of kernels.
    pub dispatches: usize,
    /// Waits for the dispatches before.
    pub waits: usize,
}

impl Simulator {
    /// Starts a simulator.
    pub fn start() -> Arc<Self> {
        let program =
            if on_cuda() { build("cuda-host", CUDA_HOST, &["-ldl"]) } else { build("host", HOST, &[]) };
        let mut child = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{} does not start: {e}", program.display()));
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let state = SimulatorState {
            child,
            to,
            from,
            kernels: Vec::new(),
            sizes: HashMap::new(),
            libraries: 0,
            schedule: Schedule::default(),
            counts: Counts::default(),
            used: HashSet::new(),
            counts_traffic: false,
        };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Sets the schedule of the next dispatches.
    pub fn set_schedule(&self, schedule: Schedule) {
        self.state.lock().unwrap().schedule = schedule;
    }

    /// Returns the calls since the last one of this method.
    pub fn take_counts(&self) -> Counts {
        std::mem::take(&mut self.state.lock().unwrap().counts)
    }

    /// Returns the number of kernels that were compiled.
    pub fn compiled(&self) -> usize {
        self.state.lock().unwrap().kernels.len()
    }

    /// Starts a simulator whose kernels count their loads and stores.
    pub fn counting_traffic() -> Arc<Self> {
        let simulator = Self::start();
        let mut state = simulator.state.lock().unwrap();
        state.counts_traffic = true;
        state.send(b"C");
        drop(state);
        simulator
    }

    /// Returns the traffic of a buffer since the last call of this method.
    pub fn take_traffic(&self, buffer: BufferId) -> Traffic {
        let mut state = self.state.lock().unwrap();
        state.send(b"N");
        state.send(&buffer.0.to_le_bytes());
        let mut counts = [0; 32];
        state.receive(&mut counts);
        let count = |at: usize| u64::from_le_bytes(counts[8 * at..8 * at + 8].try_into().unwrap());
        let [loads, stores] = [0, 2].map(|at| Moved { by_threads: count(at), distinct: count(at + 1) });
        Traffic { loads, stores }
    }

    /// Compiles several kernels of one library and returns them in order.
    pub fn compile_all(&self, name: &str, text: &str, functions: &[&str]) -> Vec<KernelId> {
        let library = if on_cuda() {
            build_ptx(name, text, functions).unwrap_or_else(|e| panic!("{name} does not compile:\n{e}"))
        } else {
            let mut flags = vec!["-shared", "-fPIC"];
            if self.state.lock().unwrap().counts_traffic {
                flags.extend(COUNT_TRAFFIC);
            }
            build(name, &to_cpp(text, functions), &flags)
        };
        let mut state = self.state.lock().unwrap();
        let path = library.to_str().unwrap();
        state.send(b"L");
        state.send(&(path.len() as u32).to_le_bytes());
        state.send(path.as_bytes());
        state.answer().unwrap();
        let index = state.libraries;
        state.libraries += 1;
        let first = state.kernels.len();
        state.kernels.extend(functions.iter().map(|function| Kernel {
            library: index,
            function: (*function).to_owned(),
            written: written_buffers(text, function),
        }));
        (first..state.kernels.len()).map(|i| KernelId(i as u32)).collect()
    }
}

impl Drop for SimulatorState {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl SimulatorState {
    fn wait(&mut self) {
        self.counts.waits += 1;
        self.used.clear();
    }

    fn send(&mut self, bytes: &[u8]) {
        if self.to.write_all(bytes).is_err() {
            self.ended();
        }
    }

    fn receive(&mut self, out: &mut [u8]) {
        if self.to.flush().is_err() || self.from.read_exact(out).is_err() {
            self.ended();
        }
    }

    fn read(&mut self, buffer: u32, offset: usize, out: &mut [u8]) {
        self.send(b"R");
        self.send(&buffer.to_le_bytes());
        self.send(&(offset as u64).to_le_bytes());
        self.send(&(out.len() as u64).to_le_bytes());
        self.receive(out);
    }

    /// Reads a whole buffer. No wait is counted.
    fn contents(&mut self, buffer: u32) -> Vec<u8> {
        let mut bytes = vec![0; self.sizes[&buffer]];
        self.read(buffer, 0, &mut bytes);
        bytes
    }

    /// The process has said on its standard error what was wrong.
    fn ended(&mut self) -> ! {
        panic!("the simulator ended: {:?}", self.child.wait());
    }

    fn answer(&mut self) -> Result<()> {
        let mut length = [0; 4];
        self.receive(&mut length);
        let mut message = vec![0; u32::from_le_bytes(length) as usize];
        self.receive(&mut message);
        if message.is_empty() {
            return Ok(());
        }
        Err(Error::Device { device: "metal", reason: String::from_utf8_lossy(&message).into_owned() })
    }
}

impl Gpu for Simulator {
    fn name(&self) -> String {
        "simulated GPU".into()
    }

    fn compile(&self, source: &KernelSource) -> Result<KernelId> {
        Ok(self.compile_all(&source.name, &source.text, &[&source.function])[0])
    }

    fn allocate(&self, bytes: usize) -> Result<BufferId> {
        let mut state = self.state.lock().unwrap();
        state.send(b"A");
        state.send(&(bytes as u64).to_le_bytes());
        let mut id = [0; 4];
        state.receive(&mut id);
        let id = u32::from_le_bytes(id);
        state.sizes.insert(id, bytes);
        Ok(BufferId(id))
    }

    fn release(&self, buffer: BufferId) {
        // A test that failed may have ended the process.
        if let Ok(mut state) = self.state.lock() {
            state.used.remove(&buffer.0);
            state.sizes.remove(&buffer.0);
            let _ = state.to.write_all(b"F").and_then(|()| state.to.write_all(&buffer.0.to_le_bytes()));
        }
    }

    fn write(&self, buffer: BufferId, offset: usize, bytes: &[u8]) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        // A GPU would have to finish its work first.
        if state.used.contains(&buffer.0) {
            state.wait();
        }
        state.send(b"W");
        state.send(&buffer.0.to_le_bytes());
        state.send(&(offset as u64).to_le_bytes());
        state.send(&(bytes.len() as u64).to_le_bytes());
        state.send(bytes);
        Ok(())
    }

    fn read(&self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        state.wait();
        state.read(buffer.0, offset, out);
        Ok(())
    }

    fn dispatch(&self, kernel: KernelId, arguments: &[Argument<'_>], grid: Grid) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        state.counts.dispatches += 1;
        let Kernel { library, function, written } = state.kernels[kernel.0 as usize].clone();
        // Kernels may leave such a buffer as it is. If one wrote it, candle's encoder on a Mac would put no barrier
        // before the next dispatch that reads it, and the two would race.
        let inputs = writable_inputs(&written, arguments);
        let before: Vec<Vec<u8>> = inputs.iter().map(|buffer| state.contents(*buffer)).collect();
        let mut command = vec![b'D'];
        let mut number = |n: u32| command.extend_from_slice(&n.to_le_bytes());
        number(library);
        number(function.len() as u32);
        command.extend_from_slice(function.as_bytes());
        command.extend_from_slice(&(arguments.len() as u32).to_le_bytes());
        for argument in arguments {
            match *argument {
                Argument::Constants(words) => {
                    command.extend_from_slice(&1u32.to_le_bytes());
                    command.extend_from_slice(&(4 * words.len() as u32).to_le_bytes());
                    command.extend(words.iter().flat_map(|w| w.to_le_bytes()));
                }
                Argument::Input(buffer, offset) | Argument::Output(buffer, offset) => {
                    state.used.insert(buffer.0);
                    command.extend_from_slice(&0u32.to_le_bytes());
                    command.extend_from_slice(&buffer.0.to_le_bytes());
                    command.extend_from_slice(&(offset as u64).to_le_bytes());
                }
            }
        }
        let Schedule { seed, order, mapping } = state.schedule;
        for n in grid.groups.into_iter().chain([grid.threads, 1, 1]) {
            command.extend_from_slice(&n.to_le_bytes());
        }
        command.extend_from_slice(&(grid.scratch as u64).to_le_bytes());
        command.extend_from_slice(&seed.to_le_bytes());
        command.extend_from_slice(&order.to_le_bytes());
        command.extend_from_slice(&mapping.to_le_bytes());
        state.send(&command);
        let ran = state.answer();
        for (buffer, before) in inputs.into_iter().zip(before) {
            let same = state.contents(buffer) == before;
            assert!(same, "{function} writes buffer {buffer}, which is bound as an input");
        }
        ran.map_err(|e| Error::Device { device: "metal", reason: format!("{function}: {e}") })
    }

    fn wait(&self) -> Result<()> {
        self.state.lock().unwrap().wait();
        Ok(())
    }
}

/// Returns the buffers that a kernel can write and that are bound as inputs.
fn writable_inputs(written: &[bool], arguments: &[Argument<'_>]) -> Vec<u32> {
    let bound = written.iter().zip(arguments);
    let input = |(written, argument): (&bool, &Argument<'_>)| match argument {
        Argument::Input(buffer, _) if *written => Some(buffer.0),
        _ => None,
    };
    bound.filter_map(input).collect()
}

/// Compiles C++ unless that text was compiled before, and returns the path of the result.
fn build(name: &str, text: &str, flags: &[&str]) -> PathBuf {
    build_in(name, text, flags).unwrap_or_else(|message| panic!("{name} does not compile:\n{message}"))
}

/// Returns `true` if kernels run on an NVIDIA GPU instead of the simulated one.
fn on_cuda() -> bool {
    std::env::var_os("HUNCH_METAL_CUDA").is_some()
}

/// Compiles like [`build`], and returns the compiler's messages if it refuses.
pub fn build_in(name: &str, text: &str, flags: &[&str]) -> std::result::Result<PathBuf, String> {
    let mut all = vec!["-fno-strict-aliasing", "-fvisibility=hidden"];
    if cfg!(target_arch = "x86_64") {
        all.extend(["-mavx2", "-mfma", "-mf16c"]);
    }
    all.extend(flags);
    compile("HUNCH_METAL_CXX", "simulator/include", name, text, &all)
}

/// Compiles kernels of a library to PTX, and returns the compiler's messages if it refuses.
pub fn build_ptx(name: &str, text: &str, functions: &[&str]) -> std::result::Result<PathBuf, String> {
    let cpp = to_cuda_cpp(text, functions);
    let build = |name: String, flags: &[&str]| {
        let all = [flags, &PTX_FLAGS].concat();
        compile("HUNCH_METAL_PTX_CXX", "ptx", &name, &cpp, &all)
    };
    // For PTX, a pointer without an address space may point anywhere. Metal refuses it, and so do other targets, where
    // the spaces have no relation. It does so before it optimises.
    build(format!("{name}.ll"), &["-target", "x86_64-linux-musl", "-emit-llvm", "-O0"])?;
    build(format!("{name}.ptx"), &PTX_TARGET)
}

/// Compiles a kernel to text like PTX in which operations on matrices are single instructions.
pub fn build_to_count(source: &KernelSource) -> std::result::Result<PathBuf, String> {
    let cpp = to_cuda_cpp(&source.text, &[&source.function]);
    let all = [&PTX_TARGET[..], &PTX_FLAGS, &["-DSIM_COUNT"]].concat();
    compile("HUNCH_METAL_PTX_CXX", "ptx", &format!("{}.count", source.name), &cpp, &all)
}

/// Returns the folder of compiled kernels, in the target folder: `TARGET/PROFILE/deps` holds the running tests.
fn kernel_folder() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.ancestors().nth(3).unwrap().join("tmp/metal")
}

/// Compiles C++ with the compiler that a variable names. `headers` is a folder next to this file.
fn compile(
    variable: &str,
    headers: &str,
    name: &str,
    text: &str,
    flags: &[&str],
) -> std::result::Result<PathBuf, String> {
    let compiler = std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} names no C++ compiler. Run these tests with: make metal-test")
    });
    let mut hasher = DefaultHasher::new();
    (text, RUNTIME, HEADERS, &compiler, flags).hash(&mut hasher);
    let folder = kernel_folder();
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(format!("{name}-{:016x}", hasher.finish()));
    if path.exists() {
        return Ok(path);
    }
    // Tests that want the same kernel at once each write a file of their own.
    let own = format!("{name}-{}-{:?}", std::process::id(), std::thread::current().id());
    let (source, own) = (folder.join(format!("{own}.cc")), folder.join(own));
    std::fs::write(&source, text).unwrap();
    let mut words = compiler.split_whitespace();
    let output = Command::new(words.next().unwrap())
        .args(words)
        .args(["-x", "c++", "-std=c++20", "-O2", "-ffp-contract=off", "-fno-exceptions", "-fno-rtti", "-w"])
        // Its processes have one thread. Guards of statics would need the C++ library.
        .args(["-fno-sanitize=all", "-fno-threadsafe-statics"])
        .arg("-I")
        .arg(Path::new(SOURCE).join(headers))
        .arg("-I")
        .arg(Path::new(SOURCE).join("simulator"))
        .args(flags)
        .arg(&source)
        .arg("-o")
        .arg(&own)
        .output()
        .unwrap_or_else(|e| panic!("{compiler} does not start: {e}"));
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    std::fs::rename(&own, &path).unwrap();
    let _ = std::fs::remove_file(source);
    Ok(path)
}
