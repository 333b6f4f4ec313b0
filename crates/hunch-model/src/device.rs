//! Where the tensors live: Metal or the CPU, how many threads, how much memory. Nothing here knows
//! what a model is.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use candle_core::Device;

use hunch_error::{Error, Result};
use hunch_kernels::Threads;

/// Which device to run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// Metal on a Mac, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The Metal GPU; an error where there is none.
    Metal,
}

impl FromStr for DeviceChoice {
    type Err = Error;
    fn from_str(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "metal" => Ok(Self::Metal),
            other => {
                Err(Error::invalid(format!("There is no device \"{other}\". Choose auto, cpu or metal.")))
            }
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

/// A device and the CPU threads that serve it. Cheap to clone.
#[derive(Clone)]
pub struct Compute {
    device: Device,
    threads: Arc<Threads>,
}

impl Compute {
    /// Opens a device. `threads` is the number of CPU threads, 1..=256, by default one for each
    /// core the process may use, on Apple's chips for each performance core.
    ///
    /// # Errors
    /// [`Error::Device`] when Metal is asked for and not there; [`Error::InvalidRequest`] for an
    /// absurd number of threads.
    pub fn open(choice: DeviceChoice, threads: Option<usize>) -> Result<Self> {
        let threads = threads.unwrap_or_else(default_threads);
        if !(1..=256).contains(&threads) {
            return Err(Error::invalid(format!("threads is {threads}; it must be 1 to 256.")));
        }
        let threads = Threads::new(threads).map_err(|e| Error::Device {
            device: "cpu",
            reason: format!("its threads did not start: {e}"),
        })?;
        let device = match choice {
            DeviceChoice::Cpu => Device::Cpu,
            DeviceChoice::Metal => metal()?,
            DeviceChoice::Auto if cfg!(target_os = "macos") => metal().unwrap_or(Device::Cpu),
            DeviceChoice::Auto => Device::Cpu,
        };
        Ok(Self { device, threads: Arc::new(threads) })
    }

    /// The candle device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// "metal" or "cpu".
    pub fn name(&self) -> &'static str {
        if self.device.is_metal() { "metal" } else { "cpu" }
    }

    /// The CPU's threads.
    pub fn threads(&self) -> &Threads {
        &self.threads
    }

    /// Bytes that the device says programs should stay within; `None` on the CPU, which says nothing of the kind.
    pub fn working_set_bytes(&self) -> Option<u64> {
        #[cfg(target_os = "macos")]
        if let Device::Metal(device) = &self.device {
            return Some(device.metal_device().recommended_max_working_set_size() as u64);
        }
        None
    }

    /// Bytes this process has in buffers of the device; 0 on the CPU.
    pub fn allocated_bytes(&self) -> u64 {
        #[cfg(target_os = "macos")]
        if let Device::Metal(device) = &self.device {
            return device.metal_device().current_allocated_size() as u64;
        }
        0
    }

    /// Waits until the device has done what it was given, so that a clock read next is true.
    ///
    /// # Errors
    /// When the device failed meanwhile.
    pub fn synchronise(&self) -> Result<()> {
        Ok(self.device.synchronize()?)
    }
}

fn metal() -> Result<Device> {
    // candle panics rather than fails when a machine has no GPU at all (a virtual machine).
    std::panic::catch_unwind(|| Device::new_metal(0))
        .map_err(|_| Error::Device { device: "metal", reason: "this machine has no Metal GPU".into() })?
        .map_err(|e| Error::Device { device: "metal", reason: e.to_string() })
}

/// One for each core that this process may use; on Apple's chips for each performance core, because
/// a step of a pass ends when its slowest thread does.
fn default_threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    performance_cores().map_or(cores, |performance| performance.clamp(1, cores)).min(16)
}

/// The number of performance cores, where the system tells them apart.
fn performance_cores() -> Option<usize> {
    if !cfg!(target_os = "macos") {
        return None;
    }
    let output =
        std::process::Command::new("/usr/sbin/sysctl").args(["-n", "hw.perflevel0.logicalcpu"]).output();
    String::from_utf8(output.ok()?.stdout).ok()?.trim().parse().ok()
}

/// The most memory this process has had resident so far, in bytes; 0 where the system does not tell.
pub fn peak_memory_bytes() -> u64 {
    #[cfg(target_os = "linux")]
    return of_status("VmHWM:");
    #[cfg(not(target_os = "linux"))]
    {
        use nix::sys::resource::{UsageWho, getrusage};
        // macOS counts in bytes, where the other systems count in KiB.
        getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| usage.max_rss().max(0) as u64)
    }
}

/// Memory of this process now that is not a file's, in bytes; 0 where the system does not tell.
pub fn own_memory_bytes() -> u64 {
    #[cfg(target_os = "linux")]
    return of_status("RssAnon:");
    #[cfg(not(target_os = "linux"))]
    {
        use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System, get_current_pid};
        let (Ok(pid), Ok(mut system)) = (get_current_pid(), System::new()) else { return 0 };
        let only = ProcessesToUpdate::Some(&[pid]);
        system.refresh_processes_specifics(only, true, ProcessRefreshKind::nothing().with_memory());
        system.process(pid).map_or(0, sysinfo::Process::memory)
    }
}

/// A line of what Linux says about this process, in bytes.
#[cfg(target_os = "linux")]
fn of_status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
