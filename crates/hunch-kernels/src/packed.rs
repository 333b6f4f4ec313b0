//! Memory layout of quantised weights: GGUF rows interleaved in groups. Packing only, no arithmetic.
//!
//! A *group* has as many weight rows as the instruction set has lanes. A block of a group begins with
//! the first four bytes of every row. The next four bytes of every row follow, and so on. One
//! vector load yields a word of every row, and a thread reads memory sequentially. If the block size
//! is not a multiple of four, the remaining half-precision number of every row comes last. The packed
//! size equals the size of the rows, except that the last group is padded with zeros.
//!
//! Rows are packed once, while the model is loaded, from reads of the file. The file is not mapped.

use std::sync::{Mutex, PoisonError};

use super::memory::{CHUNK_BYTES, ReadAt, WeightBytes, allocate, try_run};
use super::threads::{SharedSlice, Threads};
use crate::error::Result;

/// Size of a word in bytes.
const WORD: usize = 4;

/// Layout of a quantised block, in the file or converted.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockShape {
    /// Size of a block in bytes.
    pub(super) bytes: usize,
    /// Offset of the half-precision number that is left over when the block is split into words, if any.
    pub(super) lone_half: Option<usize>,
}

/// Converts rows of the file to rows of another shape. The output is zero before.
pub(super) type Repack<'a> = dyn Fn(&[u8], &mut [u8]) + Sync + 'a;

/// Rows of one matrix in packed layout.
#[derive(Clone, Debug)]
pub(super) struct PackedRows {
    memory: WeightBytes,
    group_bytes: usize,
    /// Rows per group.
    group: usize,
    shape: BlockShape,
}

impl PackedRows {
    /// Reads `n` rows of `row_bytes` bytes each and packs them in groups of `group` rows.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory) if there is not enough memory, and any error of
    /// `read`.
    pub(super) fn new(
        read: &ReadAt<'_>,
        (n, row_bytes): (usize, usize),
        group: usize,
        shape: BlockShape,
        threads: &Threads,
    ) -> Result<Self> {
        Self::pack(read, (n, row_bytes, row_bytes), group, (shape, None), threads)
    }

    /// Reads `n` rows and converts each before it is packed.
    ///
    /// A row has `row_bytes.0` bytes in the file and `row_bytes.1` bytes of `shape`.
    ///
    /// # Errors
    /// See [`PackedRows::new`].
    pub(super) fn repacked(
        read: &ReadAt<'_>,
        (n, row_bytes): (usize, (usize, usize)),
        group: usize,
        (shape, repack): (BlockShape, &Repack<'_>),
        threads: &Threads,
    ) -> Result<Self> {
        Self::pack(read, (n, row_bytes.0, row_bytes.1), group, (shape, Some(repack)), threads)
    }

    fn pack(
        read: &ReadAt<'_>,
        (n, file_bytes, row_bytes): (usize, usize, usize),
        group: usize,
        (shape, repack): (BlockShape, Option<&Repack<'_>>),
        threads: &Threads,
    ) -> Result<Self> {
        let (group_bytes, groups) = (group * row_bytes, n.div_ceil(group));
        let mut memory = allocate(groups * group_bytes)?;
        let out = SharedSlice::new(&mut memory);
        // Split even a small matrix into a few tasks per thread.
        let share = groups.div_ceil(4 * threads.count());
        let at_once = (CHUNK_BYTES / group_bytes).min(share).max(1);
        // Buffers of finished tasks, for reuse: rows of the file, and converted rows.
        let spare = Mutex::new(Vec::<[Vec<u8>; 2]>::new());
        let spares = || spare.lock().unwrap_or_else(PoisonError::into_inner);
        try_run(threads, groups.div_ceil(at_once), &|task| {
            let (begin, end) = (task * at_once, groups.min((task + 1) * at_once));
            let rows = begin * group..n.min(end * group);
            let [mut file, mut converted] = spares().pop().unwrap_or_default();
            file.resize(rows.len() * file_bytes, 0);
            read(rows.start * file_bytes, &mut file)?;
            if let Some(repack) = repack {
                converted.clear();
                converted.resize(rows.len() * row_bytes, 0);
                repack(&file, &mut converted);
            }
            let ready = if repack.is_some() { &converted } else { &file };
            for (index, rows) in (begin..end).zip(ready.chunks(group_bytes)) {
                // SAFETY: the memory stays borrowed until all tasks are done, and no other task uses
                // this group.
                let out = unsafe { out.part(index * group_bytes, group_bytes) };
                pack_group(rows, row_bytes, group, shape, out);
            }
            spares().push([file, converted]);
            Ok(())
        })?;
        Ok(Self { memory: memory.freeze(), group_bytes, group, shape })
    }

    /// Returns the packed bytes of a group.
    pub(super) fn group(&self, index: usize) -> &[u8] {
        &self.memory[index * self.group_bytes..(index + 1) * self.group_bytes]
    }

    /// Appends the bytes of a row to `out`, in the layout it had before it was packed.
    pub(super) fn unpack_row(&self, row: usize, out: &mut Vec<u8>) {
        let BlockShape { bytes, lone_half } = self.shape;
        let (group, r) = (self.group, row % self.group);
        for block in self.group(row / group).chunks_exact(bytes * group) {
            let (words, half) = match lone_half {
                None => (block, &[][..]),
                Some(_) => {
                    let (words, halves) = block.split_at((bytes - 2) * group);
                    (words, &halves[2 * r..][..2])
                }
            };
            if lone_half == Some(0) {
                out.extend_from_slice(half);
            }
            for words in words.chunks_exact(WORD * group) {
                out.extend_from_slice(&words[WORD * r..][..WORD]);
            }
            if lone_half != Some(0) {
                out.extend_from_slice(half);
            }
        }
    }
}

/// Packs the rows of one group, `row_bytes` bytes each.
///
/// If there are fewer than `group` rows, the missing rows in `out` are left unchanged.
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
    use super::*;

    /// Three rows of two blocks, packed in groups of two. Each letter stands for a byte.
    #[test]
    fn interleaves_words_and_puts_lone_half_last() {
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
            let file = blocks.concat();
            let read = |at: usize, out: &mut [u8]| {
                out.copy_from_slice(&file.as_bytes()[at..at + out.len()]);
                Ok(())
            };
            let threads = Threads::new(2).unwrap();
            let shape = BlockShape { bytes, lone_half };
            let packed = PackedRows::new(&read, (3, 2 * bytes), 2, shape, &threads).unwrap();
            let text = |group| String::from_utf8_lossy(packed.group(group)).replace('\0', "_");
            assert_eq!((text(0).as_str(), text(1).as_str()), (first, second));
            for row in 0..3 {
                let mut unpacked = Vec::new();
                packed.unpack_row(row, &mut unpacked);
                assert_eq!(String::from_utf8(unpacked).unwrap(), blocks[2 * row..2 * row + 2].concat());
            }
        }
    }

    /// Large enough for several tasks, with an incomplete last group.
    #[test]
    fn unpack_restores_rows_of_large_matrix() {
        let (n, row_bytes) = (4 * CHUNK_BYTES / 1000 + 3, 1000);
        let bytes: Vec<u8> = (0..n * row_bytes).map(|i| (i * 7 % 253) as u8).collect();
        let read = |at: usize, out: &mut [u8]| {
            out.copy_from_slice(&bytes[at..at + out.len()]);
            Ok(())
        };
        let shape = BlockShape { bytes: 20, lone_half: None };
        let packed = PackedRows::new(&read, (n, row_bytes), 16, shape, &Threads::new(3).unwrap()).unwrap();
        for row in 0..n {
            let mut unpacked = Vec::new();
            packed.unpack_row(row, &mut unpacked);
            assert!(unpacked == bytes[row * row_bytes..][..row_bytes], "row {row}");
        }
    }
}
