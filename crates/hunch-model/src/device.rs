//! Compute devices: CPU or Metal, our GPU kernels, thread count, and memory usage. Models do not belong here.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use candle_core::Device;
use parking_lot::Mutex;

use crate::metal::costs::{Basis, Chip, PassSize};
use crate::metal::gpu::Gpu;
use crate::metal::kernels::Kernels;
use crate::metal::selftest::{MachineId, SelfTest, SelfTestRecord, Workload};
use hunch_error::{Error, Result};
use hunch_kernels::Threads;

/// Name of the file that keeps the self-test of a GPU.
pub const SELF_TEST_FILE: &str = "gpu.json";

/// Device requested by the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// Metal on macOS if available, otherwise the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The Metal GPU. An error if there is none.
    Metal,
}

impl FromStr for DeviceChoice {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "metal" => Ok(Self::Metal),
            other => Err(Error::invalid(format!("Unknown device \"{other}\". Choose auto, cpu or metal."))),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Metal => "metal",
        })
    }
}

/// Device of a draft model whose target is on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftDevice {
    /// The faster one, by a short measurement at load.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The target's GPU.
    Gpu,
}

impl FromStr for DraftDevice {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "gpu" => Ok(Self::Gpu),
            other => {
                Err(Error::invalid(format!("Unknown draft device \"{other}\". Choose auto, cpu or gpu.")))
            }
        }
    }
}

impl fmt::Display for DraftDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
        })
    }
}

/// Number type of the KV cache on the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// 32 bits.
    F32,
    /// 16 bits: half the memory for the same context, and half of what attention reads.
    #[default]
    F16,
}

impl KvType {
    /// Returns the bytes of a value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

impl FromStr for KvType {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        match name {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            other => Err(Error::invalid(format!("Unknown cache type \"{other}\". Choose f16 or f32."))),
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        })
    }
}

/// Our kernels on a GPU, with their self-test.
struct OwnKernels {
    kernels: Arc<Kernels>,
    workload: Workload,
    /// File that keeps the self-test.
    record: OnceLock<PathBuf>,
    /// Held while the test runs, so that it runs once.
    testing: Mutex<()>,
    known: Mutex<Known>,
}

/// The self-test, as far as this process knows it.
enum Known {
    /// The record was not read yet.
    Unread,
    /// There is no record of this machine.
    Missing,
    /// It ran, or was on record.
    Found(Arc<SelfTestRecord>),
}

impl OwnKernels {
    fn new(gpu: Arc<dyn Gpu>, workload: Workload) -> Arc<Self> {
        Arc::new(Self {
            kernels: Arc::new(Kernels::new(gpu)),
            workload,
            record: OnceLock::new(),
            testing: Mutex::default(),
            known: Mutex::new(Known::Unread),
        })
    }

    fn machine(&self) -> MachineId {
        MachineId::with(self.kernels.gpu().as_ref())
    }

    /// Returns the self-test if it ran or is on record. Reads the file once.
    fn known(&self) -> Option<Arc<SelfTestRecord>> {
        let mut known = self.known.lock();
        if let (Known::Unread, Some(path)) = (&*known, self.record.get()) {
            let read = SelfTestRecord::read(path, &self.machine());
            *known = read.map_or(Known::Missing, |record| Known::Found(Arc::new(record)));
        }
        match &*known {
            Known::Found(record) => Some(record.clone()),
            Known::Unread | Known::Missing => None,
        }
    }

    /// Tests the kernels unless that was done, or in any case if `again` is set, and keeps the results.
    fn test(&self, again: bool) -> Arc<SelfTestRecord> {
        let _testing = self.testing.lock();
        if let Some(known) = self.known().filter(|_| !again) {
            return known;
        }
        let test = SelfTest::run(&self.kernels, self.workload);
        let record = Arc::new(SelfTestRecord { machine: self.machine(), test });
        if let Some(path) = self.record.get().filter(|_| record.test.is_lasting()) {
            // Without a file the next start tests again.
            let _ = record.write(path);
        }
        *self.known.lock() = Known::Found(record.clone());
        record
    }
}

/// Device, its CPU thread pool, and the type of CPU caches. Cheap to clone.
#[derive(Clone)]
pub struct Compute {
    device: Device,
    own: Option<Arc<OwnKernels>>,
    threads: Arc<Threads>,
    kv: KvType,
}

impl Compute {
    /// Opens a device with `threads` CPU threads, 1 to 256.
    ///
    /// The default is one thread for each core available to the process, at most 16. On Apple silicon
    /// only performance cores count.
    ///
    /// # Errors
    /// [`Error::Device`] if Metal is requested but unavailable, [`Error::InvalidRequest`] if the number
    /// of threads is out of range.
    pub fn open(choice: DeviceChoice, threads: Option<usize>) -> Result<Self> {
        let threads = thread_pool(threads)?;
        let device = match choice {
            DeviceChoice::Cpu => Device::Cpu,
            DeviceChoice::Metal => metal()?,
            DeviceChoice::Auto if cfg!(target_os = "macos") => metal().unwrap_or(Device::Cpu),
            DeviceChoice::Auto => Device::Cpu,
        };
        let own = gpu_of(&device).map(|gpu| OwnKernels::new(gpu, Workload::REAL));
        Ok(Self { device, own, threads, kv: KvType::default() })
    }

    /// Opens a GPU of any kind with our kernels, such as a simulated one. Models that the kernels cannot run
    /// use candle on the CPU.
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] if the number of threads is out of range.
    pub fn on_gpu(gpu: Arc<dyn Gpu>, workload: Workload, threads: Option<usize>) -> Result<Self> {
        let own = Some(OwnKernels::new(gpu, workload));
        Ok(Self { device: Device::Cpu, own, threads: thread_pool(threads)?, kv: KvType::default() })
    }

    /// Keeps the self-test of a GPU in a folder, as [`SELF_TEST_FILE`]. Applies to all clones, once.
    pub fn keep_self_test_in(&self, folder: &Path) {
        if let Some(own) = &self.own {
            let _ = own.record.set(folder.join(SELF_TEST_FILE));
        }
    }

    /// Returns the self-test of our kernels, or `None` on the CPU.
    ///
    /// Reads the record of this machine, or runs the test once, which takes seconds.
    pub fn self_test(&self) -> Option<Arc<SelfTestRecord>> {
        Some(self.own.as_deref()?.test(false))
    }

    /// Returns the self-test if it ran or is on record. Does not run it, and does not wait for one that runs.
    pub fn known_self_test(&self) -> Option<Arc<SelfTestRecord>> {
        self.own.as_deref()?.known()
    }

    /// Runs the self-test again and returns it. `None` on the CPU.
    pub fn test_again(&self) -> Option<Arc<SelfTestRecord>> {
        Some(self.own.as_deref()?.test(true))
    }

    /// Starts the self-test on a thread of its own if this machine has a GPU and no record of it. `on_end` is called
    /// after it, also if it fails. Returns `true` if it was started.
    pub fn start_self_test(&self, on_end: impl FnOnce() + Send + 'static) -> bool {
        if self.own.is_none() || self.known_self_test().is_some() {
            return false;
        }
        let compute = self.clone();
        let run = move || {
            // A panic of a driver must not leave `on_end` out. The next load of a model tests again.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| compute.self_test()));
            on_end();
        };
        std::thread::Builder::new().name("self-test".into()).spawn(run).is_ok()
    }

    /// Returns what passes on a GPU are predicted from: `chip` if given, else measured products, else the figures of
    /// the chip at hand. `None` on the CPU and on unknown chips.
    pub fn cost_basis(&self, chip: Option<Chip>) -> Option<Basis> {
        let measured = || Some(Basis::Measured(self.known_self_test()?.test.speed.clone()?));
        let at_hand = || Chip::named(&self.kernels()?.gpu().name(), gpu_cores()).map(Basis::Chip);
        chip.map(Basis::Chip).or_else(measured).or_else(at_hand)
    }

    /// Predicts the times of passes of 1 to `most` rows in milliseconds, by [`cost_basis`](Self::cost_basis).
    pub fn predicted_ms(&self, size: PassSize, most: usize) -> Option<Vec<(usize, f64)>> {
        Some(self.cost_basis(None)?.curve(size, most))
    }

    /// Returns the same device, for models whose caches on the CPU have this type.
    #[must_use]
    pub fn with_kv(self, kv: KvType) -> Self {
        Self { kv, ..self }
    }

    /// Returns the CPU of this device, with the same threads.
    #[must_use]
    pub fn cpu(&self) -> Self {
        Self { device: Device::Cpu, own: None, threads: self.threads.clone(), kv: self.kv }
    }

    /// Returns the type of caches on the CPU.
    pub fn kv(&self) -> KvType {
        self.kv
    }

    /// Returns the candle device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns our kernels, if the device is a GPU.
    pub fn kernels(&self) -> Option<&Arc<Kernels>> {
        self.own.as_ref().map(|own| &own.kernels)
    }

    /// Returns `true` if models run on a GPU.
    pub fn is_gpu(&self) -> bool {
        self.own.is_some() || !self.device.is_cpu()
    }

    /// Returns "metal" or "cpu".
    pub fn name(&self) -> &'static str {
        if self.is_gpu() { "metal" } else { "cpu" }
    }

    /// Returns the CPU thread pool.
    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    /// Returns the recommended memory limit of the device in bytes. `None` on the CPU.
    pub fn working_set_bytes(&self) -> Option<u64> {
        #[cfg(target_os = "macos")]
        if let Device::Metal(device) = &self.device {
            return Some(device.metal_device().recommended_max_working_set_size() as u64);
        }
        None
    }

    /// Returns the bytes this process has allocated on the device. 0 on the CPU.
    pub fn allocated_bytes(&self) -> u64 {
        #[cfg(target_os = "macos")]
        if let Device::Metal(device) = &self.device {
            return device.metal_device().current_allocated_size() as u64;
        }
        0
    }

    /// Waits until all queued work of the device is done. Needed before measuring time.
    ///
    /// # Errors
    /// If the queued work failed.
    pub fn synchronise(&self) -> Result<()> {
        if let Some(kernels) = self.kernels() {
            kernels.gpu().wait()?;
        }
        Ok(self.device.synchronize()?)
    }
}

fn thread_pool(threads: Option<usize>) -> Result<Arc<Threads>> {
    let threads = threads.unwrap_or_else(default_threads);
    if !(1..=256).contains(&threads) {
        return Err(Error::invalid(format!("threads is {threads}, but it must be 1 to 256.")));
    }
    let failed = |e| Error::Device { device: "cpu", reason: format!("could not start its threads: {e}") };
    Ok(Arc::new(Threads::new(threads).map_err(failed)?))
}

/// Returns candle's device as a GPU for our kernels. `None` for the CPU.
fn gpu_of(device: &Device) -> Option<Arc<dyn Gpu>> {
    #[cfg(target_os = "macos")]
    if let Device::Metal(device) = device {
        return Some(Arc::new(crate::metal::device::MetalGpu::new(device.clone())));
    }
    let _ = device;
    None
}

fn metal() -> Result<Device> {
    // candle's device uses residency sets, which macOS 14 does not have.
    #[cfg(target_os = "macos")]
    if !objc2::available!(macos = 15.0) {
        return Err(Error::Device { device: "metal", reason: "it needs macOS 15 or later".into() });
    }
    // candle panics on a machine without any GPU, such as a virtual machine.
    std::panic::catch_unwind(|| Device::new_metal(0))
        .map_err(|_| Error::Device { device: "metal", reason: "this machine has no Metal GPU".into() })?
        .map_err(|e| Error::Device { device: "metal", reason: e.to_string() })
}

/// Returns the default number of threads.
///
/// Efficiency cores are left out, because a step of a pass takes as long as its slowest thread.
fn default_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    performance_cores().map_or(cores, |performance| performance.clamp(1, cores)).min(16)
}

/// Returns the number of performance cores, if the system distinguishes them.
fn performance_cores() -> Option<usize> {
    if !cfg!(target_os = "macos") {
        return None;
    }
    let output =
        std::process::Command::new("/usr/sbin/sysctl").args(["-n", "hw.perflevel0.logicalcpu"]).output();
    String::from_utf8(output.ok()?.stdout).ok()?.trim().parse().ok()
}

/// Returns the number of GPU cores of a Mac. Metal does not report it. `None` if unknown. Read once.
fn gpu_cores() -> Option<u32> {
    static CORES: OnceLock<Option<u32>> = OnceLock::new();
    *CORES.get_or_init(|| {
        if !cfg!(target_os = "macos") {
            return None;
        }
        let output = std::process::Command::new("/usr/sbin/ioreg").args(["-rc", "AGXAccelerator"]).output();
        gpu_cores_in(&String::from_utf8_lossy(&output.ok()?.stdout))
    })
}

/// Reads the number of GPU cores from the registry of devices, as `ioreg` prints it.
fn gpu_cores_in(registry: &str) -> Option<u32> {
    let (_, after) = registry.split_once("\"gpu-core-count\" = ")?;
    after.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Returns name and version of the operating system. Empty if unknown.
pub fn system_version() -> String {
    sysinfo::System::long_os_version().unwrap_or_default()
}

/// Returns the peak resident memory of this process in bytes. 0 if unknown.
pub fn peak_memory_bytes() -> u64 {
    #[cfg(target_os = "linux")]
    return proc_status_bytes("VmHWM:");
    #[cfg(not(target_os = "linux"))]
    {
        use nix::sys::resource::{UsageWho, getrusage};
        // In bytes on macOS. Other systems report KiB.
        getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| usage.max_rss().max(0) as u64)
    }
}

/// Returns the current memory of this process in bytes, without file mappings. 0 if unknown.
pub fn own_memory_bytes() -> u64 {
    #[cfg(target_os = "linux")]
    return proc_status_bytes("RssAnon:");
    #[cfg(not(target_os = "linux"))]
    {
        use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System, get_current_pid};
        let (Ok(pid), Ok(mut system)) = (get_current_pid(), System::new()) else { return 0 };
        let only = ProcessesToUpdate::Some(&[pid]);
        system.refresh_processes_specifics(only, true, ProcessRefreshKind::nothing().with_memory());
        system.process(pid).map_or(0, sysinfo::Process::memory)
    }
}

/// Reads a line of `/proc/self/status` in bytes.
#[cfg(target_os = "linux")]
fn proc_status_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_cores_are_read_from_the_registry() {
        let registry = "+-o AGXAcceleratorG16X  <class AGXAcceleratorG16X, id 0x1>\n    {\n      \
                        \"model\" = \"Apple M4 Max\"\n      \"gpu-core-count\" = 32\n      \"IOClass\" = \"AGX\"\n    }\n";
        assert_eq!(gpu_cores_in(registry), Some(32));
        for other in
            ["", "\"gpu-core-count\" = ", "\"gpu-core-count\" = many", "\"gpu-core-count\" = 99999999999"]
        {
            assert_eq!(gpu_cores_in(other), None, "{other}");
        }
        assert!(cfg!(target_os = "macos") || gpu_cores().is_none());
    }
}
