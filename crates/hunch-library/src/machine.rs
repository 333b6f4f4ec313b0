//! What memory this machine has, and which class of machines it is. Asks the system; loads nothing.

use sysinfo::System;

use crate::types::{MachineMemory, MemoryClass};
use hunch_model::device::{Compute, own_memory_bytes};

/// The memory of this machine, for a program whose models hold `held_by_models` bytes of it already; 0 where the
/// system does not tell.
pub fn memory(held_by_models: u64, compute: &Compute) -> MachineMemory {
    let (total, available) = of_system();
    let usable = match compute.working_set_bytes() {
        Some(bytes) => bytes.min(total),
        None => available.saturating_add(held_by_models).min(total),
    };
    // A system that does not tell what is free, or a GPU without a limit, says 0.
    MachineMemory { total, usable: if usable == 0 { total } else { usable } }
}

/// Bytes that this program's models hold: buffers of the GPU, or what of the process's memory is no file's.
pub fn held(compute: &Compute) -> u64 {
    match compute.allocated_bytes() {
        0 => own_memory_bytes(),
        bytes => bytes,
    }
}

/// All of it and what is free for a program, in bytes: where the system gives this program a share of the
/// machine only, of that share.
fn of_system() -> (u64, u64) {
    let Ok(mut system) = System::new() else { return (0, 0) };
    system.refresh_memory();
    let (total, available) = (system.total_memory(), system.available_memory());
    match system.cgroup_limits() {
        // What the share holds of files can be given back, so what programs hold counts, not what it holds.
        Some(limits) if limits.total_memory > 0 && limits.total_memory < total => {
            let free = limits.total_memory.saturating_sub(limits.rss).max(limits.free_memory);
            (limits.total_memory, free.min(available))
        }
        _ => (total, available),
    }
}

/// The class of a machine with so many bytes. Systems keep a little of the memory to themselves, so each class
/// begins a tenth below its name.
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
    fn classes_are_named_by_what_is_sold() {
        let class = |gib: u64| memory_class(gib << 30);
        assert_eq!([8, 16, 18].map(class), [MemoryClass::Gb8, MemoryClass::Gb16, MemoryClass::Gb16]);
        assert_eq!([24, 32, 36].map(class), [MemoryClass::Gb24To36; 3]);
        assert_eq!([48, 64].map(class), [MemoryClass::Gb48; 2]);
        assert_eq!([96, 128, 512].map(class), [MemoryClass::Gb96; 3]);
        // What Linux says of a machine with 16 GB.
        assert_eq!(memory_class(15_600 << 20), MemoryClass::Gb16);
    }

    #[test]
    fn there_is_some_memory_and_what_models_hold_counts() {
        let compute = Compute::open(DeviceChoice::Cpu, Some(1)).unwrap();
        let now = memory(0, &compute);
        assert!(now.usable > 0 && now.usable <= now.total);
        let all = memory(now.total, &compute);
        assert_eq!(all.usable, all.total);
    }
}
