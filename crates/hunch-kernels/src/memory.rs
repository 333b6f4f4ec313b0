//! Anonymous memory for weights, and parallel copying into it. No packing, no arithmetic.

use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{Mmap, MmapMut};

use crate::error::{Error, ReadError, Result};
use crate::threads::{SharedSlice, Threads};

/// Callback that fills a buffer with the source bytes at an offset.
pub type ReadAt<'a> = dyn Fn(usize, &mut [u8]) -> Result<(), ReadError> + Sync + 'a;

/// Maximum bytes that a task reads at once. Small enough to stay in the core's cache until packed.
pub(super) const CHUNK_BYTES: usize = 256 << 10;

/// Allocates zeroed anonymous memory of `size` bytes.
///
/// # Errors
/// [`Error::OutOfMemory`] if the system refuses.
pub(super) fn allocate(size: usize) -> Result<MmapMut> {
    let memory = MmapMut::map_anon(size).map_err(|_| out_of_memory(size))?;
    // Huge pages reduce page faults and TLB misses. A failure is harmless.
    #[cfg(target_os = "linux")]
    let _ = memory.advise(memmap2::Advice::HugePage);
    Ok(memory)
}

/// Makes memory read-only and shareable.
///
/// # Errors
/// [`Error::OutOfMemory`] if the system refuses.
pub(super) fn freeze(memory: MmapMut) -> Result<Arc<Mmap>> {
    let size = memory.len();
    Ok(Arc::new(memory.make_read_only().map_err(|_| out_of_memory(size))?))
}

fn out_of_memory(size: usize) -> Error {
    Error::OutOfMemory { bytes: size }
}

/// Runs `tasks` fallible tasks and returns the first error. Tasks not yet started are then skipped.
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

/// Bytes copied into memory unchanged.
#[derive(Clone, Debug)]
pub struct CopiedBytes(Arc<Mmap>);

impl CopiedBytes {
    /// Copies `len` bytes. `len` must be at least 1.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is not enough memory, and any error of `read`.
    pub fn new(len: usize, read: &ReadAt<'_>, threads: &Threads) -> Result<Self> {
        let mut memory = allocate(len)?;
        let out = SharedSlice::new(&mut memory);
        try_run(threads, len.div_ceil(CHUNK_BYTES), &|index| {
            let from = index * CHUNK_BYTES;
            // SAFETY: the memory stays borrowed until all tasks are done, and no other task uses this chunk.
            Ok(read(from, unsafe { out.part(from, CHUNK_BYTES.min(len - from)) })?)
        })?;
        Ok(Self(freeze(memory)?))
    }

    /// Returns the copied bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_all_bytes_and_returns_read_errors() {
        let threads = Threads::new(2).unwrap();
        for len in [1, CHUNK_BYTES - 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 7] {
            let bytes: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            let read = |at: usize, out: &mut [u8]| {
                out.copy_from_slice(&bytes[at..at + out.len()]);
                Ok(())
            };
            assert!(CopiedBytes::new(len, &read, &threads).unwrap().bytes() == bytes, "{len} bytes");
            let fails = |at: usize, _: &mut [u8]| match at + CHUNK_BYTES < len {
                true => Ok(()),
                false => Err("last chunk".into()),
            };
            assert!(CopiedBytes::new(len, &fails, &threads).is_err(), "{len} bytes");
        }
    }
}
