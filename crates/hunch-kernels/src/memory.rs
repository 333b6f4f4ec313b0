//! Anonymous memory for weights, and parallel copying into it. No packing, no arithmetic.
//!
//! A pass reads all weights once, so it visits every page of them. Most matrices are smaller than a huge page or end
//! within one. They therefore share arenas, which lie on huge pages as a whole.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use memmap2::{MmapMut, MmapRaw};

use crate::error::{Error, ReadError, Result};
use crate::threads::{SharedSlice, Threads};

/// Callback that fills a buffer with the source bytes at an offset.
pub type ReadAt<'a> = dyn Fn(usize, &mut [u8]) -> Result<(), ReadError> + Sync + 'a;

/// Maximum bytes that a task reads at once. Small enough to stay in the core's cache until packed.
pub(super) const CHUNK_BYTES: usize = 256 << 10;

/// Size of an arena, unless a matrix needs a larger one. Memory that no matrix takes is never touched.
const ARENA_BYTES: usize = 64 << 20;
/// Alignment of an arena: a huge page of a processor with pages of 4 KiB.
const HUGE_PAGE: usize = 2 << 20;
/// Alignment of a matrix: the longest cache line of a processor that Hunch runs on.
const CACHE_LINE: usize = 128;

/// Anonymous memory from which matrices take parts. It is unmapped once the last of them is dropped.
#[derive(Debug)]
struct Arena {
    mapping: MmapRaw,
    /// Offset of the first byte in the mapping.
    first: usize,
    len: usize,
    /// Bytes taken so far. Parts are never returned.
    taken: Mutex<usize>,
}

impl Arena {
    /// Maps zeroed memory of `len` bytes.
    fn map(len: usize) -> std::io::Result<Self> {
        let mapping = MmapMut::map_anon(len.saturating_add(HUGE_PAGE))?;
        let first = mapping.as_ptr().align_offset(HUGE_PAGE);
        // Huge pages reduce page faults and TLB misses. A failure is harmless.
        #[cfg(target_os = "linux")]
        let _ = mapping.advise_range(memmap2::Advice::HugePage, first, len);
        Ok(Self { mapping: mapping.into(), first, len, taken: Mutex::new(0) })
    }

    fn taken(&self) -> MutexGuard<'_, usize> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of bytes that nobody has taken.
    fn room(&self) -> usize {
        self.len - *self.taken()
    }

    /// Takes `len` bytes. `None` if fewer are left.
    fn take(self: &Arc<Self>, len: usize) -> Option<NewWeightBytes> {
        let mut taken = self.taken();
        let from = *taken;
        if len > self.len - from {
            return None;
        }
        *taken = (from + len).next_multiple_of(CACHE_LINE).min(self.len);
        Some(NewWeightBytes(WeightBytes { arena: self.clone(), from: self.first + from, len }))
    }
}

/// Bytes of weights that nobody else can access, to be filled.
pub(super) struct NewWeightBytes(WeightBytes);

impl NewWeightBytes {
    /// Makes the bytes read-only and shareable.
    pub(super) fn freeze(self) -> WeightBytes {
        self.0
    }
}

impl Deref for NewWeightBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for NewWeightBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        let WeightBytes { arena, from, len } = &self.0;
        // SAFETY: the arena gave this part to nobody else, and it cannot be cloned before it is frozen. The part is
        // inside the mapping, which the arena keeps alive.
        unsafe { std::slice::from_raw_parts_mut(arena.mapping.as_mut_ptr().add(*from), *len) }
    }
}

/// Bytes of weights. A clone shares the memory.
#[derive(Clone, Debug)]
pub(super) struct WeightBytes {
    arena: Arc<Arena>,
    /// Offset in the mapping of the arena.
    from: usize,
    len: usize,
}

impl Deref for WeightBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: nobody writes to a part that is frozen, and one that is not is borrowed from its only owner. The
        // part is inside the mapping, which the arena keeps alive, and the mapping is initialised with zeros.
        unsafe { std::slice::from_raw_parts(self.arena.mapping.as_ptr().add(self.from), self.len) }
    }
}

/// Allocator of weights: the arena with the most room, as long as one of its parts is in use.
struct Arenas(Weak<Arena>);

impl Arenas {
    /// Allocates `size` zeroed bytes.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the system refuses.
    fn allocate(&mut self, size: usize) -> Result<NewWeightBytes> {
        let last = self.0.upgrade();
        if let Some(bytes) = last.as_ref().and_then(|arena| arena.take(size)) {
            return Ok(bytes);
        }
        let out_of_memory = || Error::OutOfMemory { bytes: size };
        let arena = Arena::map(size.max(ARENA_BYTES)).or_else(|_| Arena::map(size));
        let arena = Arc::new(arena.map_err(|_| out_of_memory())?);
        let bytes = arena.take(size).ok_or_else(out_of_memory)?;
        if last.is_none_or(|last| last.room() < arena.room()) {
            self.0 = Arc::downgrade(&arena);
        }
        Ok(bytes)
    }
}

/// Allocates `size` zeroed bytes for weights.
///
/// # Errors
/// [`Error::OutOfMemory`] if the system refuses.
pub(super) fn allocate(size: usize) -> Result<NewWeightBytes> {
    static ARENAS: Mutex<Arenas> = Mutex::new(Arenas(Weak::new()));
    ARENAS.lock().unwrap_or_else(PoisonError::into_inner).allocate(size)
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
pub struct CopiedBytes(WeightBytes);

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
        Ok(Self(memory.freeze()))
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
    fn parts_of_an_arena_are_zero_apart_and_on_lines_of_the_cache() {
        let len = 3 * HUGE_PAGE;
        let arena = Arc::new(Arena::map(len).unwrap());
        let mut parts: Vec<NewWeightBytes> =
            [1, CACHE_LINE, HUGE_PAGE + 1, 7].map(|len| arena.take(len).unwrap()).into();
        assert!(parts[0].as_ptr().addr().is_multiple_of(HUGE_PAGE));
        for (number, part) in (1..).zip(&mut parts) {
            assert!(part.as_ptr().addr().is_multiple_of(CACHE_LINE));
            assert!(part.iter().all(|&byte| byte == 0));
            part.fill(number);
        }
        let frozen: Vec<WeightBytes> = parts.into_iter().map(NewWeightBytes::freeze).collect();
        for (number, part) in (1..).zip(&frozen) {
            assert!(part.iter().all(|&byte| byte == number), "part {number}");
        }
        let room = arena.room();
        assert_eq!(room, len - (HUGE_PAGE + 4 * CACHE_LINE));
        assert!(arena.take(room + 1).is_none());
        assert_eq!(arena.take(room).map(|part| part.len()), Some(room));
        assert_eq!(arena.room(), 0);
    }

    #[test]
    fn an_arena_goes_with_its_last_part() {
        let arena = Arc::new(Arena::map(HUGE_PAGE).unwrap());
        let gone = Arc::downgrade(&arena);
        let [first, second] = [3, 4].map(|len| arena.take(len).unwrap().freeze());
        drop(arena);
        let clone = first.clone();
        drop((first, second));
        assert!(gone.upgrade().is_some());
        drop(clone);
        assert!(gone.upgrade().is_none());
    }

    #[test]
    fn small_matrices_share_an_arena_and_a_large_one_leaves_it_to_them() {
        let mut arenas = Arenas(Weak::new());
        let small = [arenas.allocate(5).unwrap(), arenas.allocate(6).unwrap()];
        let large = arenas.allocate(ARENA_BYTES + 1).unwrap();
        let next = arenas.allocate(7).unwrap();
        assert!(small.iter().all(|small| Arc::ptr_eq(&small.0.arena, &next.0.arena)));
        assert!(small.iter().all(|small| !Arc::ptr_eq(&small.0.arena, &large.0.arena)));
        assert!(!Arc::ptr_eq(&next.0.arena, &large.0.arena));
        assert_eq!(large.len(), ARENA_BYTES + 1);
    }

    #[test]
    fn memory_that_no_system_has_is_an_error() {
        assert!(
            matches!(allocate(usize::MAX / 4), Err(Error::OutOfMemory { bytes }) if bytes == usize::MAX / 4)
        );
    }

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
