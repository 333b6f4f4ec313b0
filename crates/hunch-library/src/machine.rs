//! Memory of this machine, and its memory class.

use sysinfo::System;

use crate::types::{MachineMemory, MemoryClass};
use hunch_model::device::{Compute, own_memory_bytes};

/// Returns the machine's memory. The `held_by_models` bytes used by loaded models count as usable. Totals
/// are 0 if the system does not report them.
pub fn memory(held_by_models: u64, compute: &Compute) -> MachineMemory {
    let (total, available) = system_memory();
    let usable = match compute.working_set_bytes() {
        Some(bytes) => bytes.min(total),
        None => available.saturating_add(held_by_models).min(total),
    };
    // The usable amount is 0 if the system does not report free memory, or the GPU has no limit.
    MachineMemory { total, usable: if usable == 0 { total } else { usable } }
}

/// Returns the bytes held by loaded models. On a GPU, the size of its buffers. On the CPU, the process's
/// memory without mapped files.
pub fn held_by_models(compute: &Compute) -> u64 {
    match compute.allocated_bytes() {
        0 => own_memory_bytes(),
        bytes => bytes,
    }
}

/// Returns total and available memory in bytes, limited to this process's cgroup.
fn system_memory() -> (u64, u64) {
    let Ok(mut system) = System::new() else { return (0, 0) };
    system.refresh_memory();
    let (total, available) = (system.total_memory(), system.available_memory());
    match system.cgroup_limits() {
        // Page cache counts as used in a cgroup but can be reclaimed, so resident memory decides.
        Some(limits) if limits.total_memory > 0 && limits.total_memory < total => {
            let free = limits.total_memory.saturating_sub(limits.rss).max(limits.free_memory);
            (limits.total_memory, free.min(available))
        }
        _ => (total, available),
    }
}

/// Returns the memory class of a machine. Each class starts 10% below its nominal size, because systems
/// reserve some memory.
pub fn memory_class(total: u64) -> MemoryClass {
    let gib = total as f64 / f64::from(1 << 30);
    match gib {
        gib if gib >= 96.0 * 0.9 => MemoryClass::Gb96,
        gib if gib >= 48.0 * 0.9 => MemoryClass::Gb48,
        gib if gib >= 24.0 * 0.9 => MemoryClass::Gb24To36,
        gib if gib >= 16.0 * 0.9 => MemoryClass::Gb16,
        _ => MemoryClass::Gb8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hunch_model::device::DeviceChoice;

    #[test]
    fn classes_match_nominal_memory_sizes() {
        let class = |gib: u64| memory_class(gib << 30);
        assert_eq!([8, 16, 18].map(class), [MemoryClass::Gb8, MemoryClass::Gb16, MemoryClass::Gb16]);
        assert_eq!([24, 32, 36].map(class), [MemoryClass::Gb24To36; 3]);
        assert_eq!([48, 64].map(class), [MemoryClass::Gb48; 2]);
        assert_eq!([96, 128, 512].map(class), [MemoryClass::Gb96; 3]);
        // Linux reports this much on a 16 GB machine.
        assert_eq!(memory_class(15_600 << 20), MemoryClass::Gb16);
    }

    #[test]
    fn memory_held_by_models_counts_as_usable() {
        let compute = Compute::open(DeviceChoice::Cpu, Some(1)).unwrap();
        let now = memory(0, &compute);
        assert!(now.usable > 0 && now.usable <= now.total);
        let all = memory(now.total, &compute);
        assert_eq!(all.usable, all.total);
    }
}
