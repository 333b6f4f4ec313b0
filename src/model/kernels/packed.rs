//! Quantised weights as the kernels read them: rows of the GGUF file side by side.
//!
//! A *group* is as many weight rows as the instruction set has lanes. Of each block of a group the
//! first four bytes of every row come first, then the next four of every row, and so on: one vector
//! load gives a word of every row, and a thread reads memory from front to back, which is what memory
//! is fast at. A block whose size is no multiple of four has one half more, which comes last. The
//! bytes are those of the file, and as many, but that the last group is filled up with zeros.
//!
//! Packing happens once, when a model is loaded; the pages of the file are then given back.

use std::ops::Range;
use std::sync::Arc;

use memmap2::{Mmap, MmapMut};

use super::mapping::MappedFile;
use super::threads::{SharedSlice, Threads};
use crate::error::{Error, Result};

/// Bytes of a word.
const WORD: usize = 4;
/// Bytes packed before their pages of the file are given back.
const STRETCH: usize = 8 << 20;

/// How blocks lie in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockShape {
    /// Bytes of a block.
    pub(super) bytes: usize,
    /// Where in the block the half is that makes it no multiple of four, if it is none.
    pub(super) lone_half: Option<usize>,
}

/// The rows of one matrix, packed.
#[derive(Clone, Debug)]
pub(super) struct PackedRows {
    memory: Arc<Mmap>,
    group_bytes: usize,
}

impl PackedRows {
    /// Packs the `n` rows at `range` of the file in groups of `group`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] when there is no room.
    pub(super) fn new(
        file: &MappedFile,
        range: Range<usize>,
        n: usize,
        group: usize,
        shape: BlockShape,
        threads: &Threads,
    ) -> Result<Self> {
        let rows = &file.bytes()[range.clone()];
        let row_bytes = rows.len() / n;
        let (group_bytes, groups) = (group * row_bytes, n.div_ceil(group));
        let size = groups * group_bytes;
        let no_room = |_| Error::OutOfMemory(format!("a weight matrix needs {} MiB", size >> 20));
        let mut memory = MmapMut::map_anon(size).map_err(no_room)?;
        // Fewer page faults and translations; where the system has no such pages nothing is lost.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        let out = SharedSlice::new(&mut memory);
        // A stretch at a time, so that the file's pages and the copy are never both there as a whole.
        let stretch = (STRETCH / group_bytes).max(1);
        for begin in (0..groups).step_by(stretch) {
            let end = groups.min(begin + stretch);
            threads.run(end - begin, &|index| {
                let index = begin + index;
                // SAFETY: the memory is borrowed until all is packed, and only this task has the group.
                let out = unsafe { out.part(index * group_bytes, group_bytes) };
                let (first, last) = (index * group, n.min((index + 1) * group));
                pack_group(&rows[first * row_bytes..last * row_bytes], row_bytes, group, shape, out);
            });
            let packed = begin * group_bytes..range.len().min(end * group_bytes);
            file.release(range.start + packed.start..range.start + packed.end);
        }
        let memory = memory.make_read_only().map_err(no_room)?;
        Ok(Self { memory: Arc::new(memory), group_bytes })
    }

    /// The bytes of a group.
    pub(super) fn group(&self, index: usize) -> &[u8] {
        &self.memory[index * self.group_bytes..(index + 1) * self.group_bytes]
    }
}

/// Packs the rows of one group, `row_bytes` each; there may be fewer than `group`, and what would be
/// theirs in `out` is left as it is.
fn pack_group(rows: &[u8], row_bytes: usize, group: usize, shape: BlockShape, out: &mut [u8]) {
    for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
        let blocks = row.chunks_exact(shape.bytes).zip(out.chunks_exact_mut(shape.bytes * group));
        for (block, out) in blocks {
            let (words, half) = match shape.lone_half {
                None => (block, None),
                Some(0) => (&block[2..], Some(&block[..2])),
                Some(at) => (&block[..at], Some(&block[at..])),
            };
            for (word, out) in words.chunks_exact(WORD).zip(out.chunks_exact_mut(WORD * group)) {
                out[WORD * r..][..WORD].copy_from_slice(word);
            }
            if let Some(half) = half {
                out[words.len() * group..][2 * r..][..2].copy_from_slice(half);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Bytes (as letters) of two blocks a row and three rows, in groups of two.
    #[test]
    fn words_lie_side_by_side_and_the_lone_half_last() {
        let cases = [
            (
                4,
                None,
                ["aaaa", "bbbb", "AAAA", "BBBB", "1111", "2222"],
                "aaaaAAAAbbbbBBBB",
                "1111____2222____",
            ),
            (
                6,
                Some(0),
                ["xxaaaa", "yybbbb", "XXAAAA", "YYBBBB", "001111", "992222"],
                "aaaaAAAAxxXXbbbbBBBByyYY",
                "1111____00__2222____99__",
            ),
            (
                6,
                Some(4),
                ["aaaaxx", "bbbbyy", "AAAAXX", "BBBBYY", "111100", "222299"],
                "aaaaAAAAxxXXbbbbBBBByyYY",
                "1111____00__2222____99__",
            ),
        ];
        for (bytes, lone_half, blocks, first, second) in cases {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(b"?").unwrap();
            file.write_all(blocks.concat().as_bytes()).unwrap();
            let file = MappedFile::open(file.path()).unwrap();
            let range = 1..1 + 6 * bytes;
            let threads = Threads::new(2).unwrap();
            let shape = BlockShape { bytes, lone_half };
            let packed = PackedRows::new(&file, range.clone(), 3, 2, shape, &threads).unwrap();
            let text = |group| String::from_utf8_lossy(packed.group(group)).replace('\0', "_");
            assert_eq!((text(0).as_str(), text(1).as_str()), (first, second));
            // What was given back is read again.
            assert_eq!(&file.bytes()[range], blocks.concat().as_bytes());
        }
    }
}
