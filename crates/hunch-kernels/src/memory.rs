//! Memory for weights, and how it is filled from where the weights come from.

use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{Mmap, MmapMut};

use crate::error::{Error, ReadError, Result};
use crate::threads::{SharedSlice, Threads};

/// Reads bytes at an offset of what is being copied.
pub type ReadAt<'a> = dyn Fn(usize, &mut [u8]) -> Result<(), ReadError> + Sync + 'a;

/// Most bytes that a task reads at once: they stay in the core's cache until they are packed.
pub(super) const STRETCH: usize = 256 << 10;

/// Memory of the process, filled with zeros.
///
/// # Errors
/// [`Error::OutOfMemory`] when there is no room.
pub(super) fn reserve(size: usize) -> Result<MmapMut> {
    let memory = MmapMut::map_anon(size).map_err(|_| no_room(size))?;
    // Fewer page faults and translations; where the system has no such pages nothing is lost.
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    Ok(memory)
}

/// Memory that nobody writes to any more.
///
/// # Errors
/// [`Error::OutOfMemory`] when the system refuses.
pub(super) fn seal(memory: MmapMut) -> Result<Arc<Mmap>> {
    let size = memory.len();
    Ok(Arc::new(memory.make_read_only().map_err(|_| no_room(size))?))
}

fn no_room(size: usize) -> Error {
    Error::OutOfMemory { bytes: size }
}

/// Runs `tasks` tasks that may fail, and returns the first error there was. After one the others are skipped.
pub(super) fn try_run(
    threads: &Threads,
    tasks: usize,
    task: &(dyn Fn(usize) -> Result<()> + Sync),
) -> Result<()> {
    let failed = Mutex::new(None);
    let failure = || failed.lock().unwrap_or_else(PoisonError::into_inner);
    threads.run(tasks, &|index| {
        if failure().is_some() {
            return;
        }
        if let Err(error) = task(index) {
            failure().get_or_insert(error);
        }
    });
    let first = failure().take();
    first.map_or(Ok(()), Err)
}

/// Bytes of a file as they are, copied into memory.
#[derive(Clone, Debug)]
pub struct CopiedBytes(Arc<Mmap>);

impl CopiedBytes {
    /// Copies `len` bytes, 1 or more.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when there is no room, and as `read`.
    pub fn new(len: usize, read: &ReadAt<'_>, threads: &Threads) -> Result<Self> {
        let mut memory = reserve(len)?;
        let out = SharedSlice::new(&mut memory);
        try_run(threads, len.div_ceil(STRETCH), &|index| {
            let from = index * STRETCH;
            // SAFETY: the memory is borrowed until all is read, and only this task has the stretch.
            Ok(read(from, unsafe { out.part(from, STRETCH.min(len - from)) })?)
        })?;
        Ok(Self(seal(memory)?))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_every_byte_and_returns_the_error_of_a_read() {
        let threads = Threads::new(2).unwrap();
        for len in [1, STRETCH - 1, STRETCH, 3 * STRETCH + 7] {
            let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            let read = |at: usize, out: &mut [u8]| {
                out.copy_from_slice(&bytes[at..at + out.len()]);
                Ok(())
            };
            assert!(CopiedBytes::new(len, &read, &threads).unwrap().bytes() == bytes, "{len} bytes");
            let fails = |at: usize, _: &mut [u8]| match at + STRETCH < len {
                true => Ok(()),
                false => Err("the last stretch".into()),
            };
            assert!(CopiedBytes::new(len, &fails, &threads).is_err(), "{len} bytes");
        }
    }
}
