//! Bounds what a pickle can make its reader allocate, before the reader sees it.
//!
//! candle's reader trusts lengths, and it copies an object whenever one is stored or fetched. A few bytes could so ask
//! for 4 GB, or double an object forty times. Here the operations run on sizes alone. A pickle of a head has some
//! hundreds of objects, three or four deep.

use std::collections::HashMap;
use std::io::{BufReader, Read};
use std::path::Path;

use zip::ZipArchive;

use crate::file::ModelFile;

/// Most bytes of the pickle itself, without the tensors.
const MOST_BYTES: u64 = 8 << 20;
/// Most objects that are created, copies included.
const MOST_OBJECTS: u64 = 1 << 18;
/// Characters of a text that count as one more object.
const TEXT: u64 = 64;
/// Most levels of objects. Each takes a stretch of stack when it is dropped.
const MOST_LEVELS: u32 = 64;

/// Size of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    /// Objects in it, itself included.
    objects: u64,
    /// Levels, itself included.
    levels: u32,
}

/// Checks the archive at `path`.
///
/// # Errors
/// The reason, if it is no archive with one small, well-formed pickle, or has entries that are compressed or larger than
/// the file.
pub(super) fn check(path: &Path, file: &ModelFile) -> Result<(), String> {
    let unreadable = |error: &dyn std::fmt::Display| format!("it is no archive of PyTorch ({error})");
    let open = std::fs::File::open(path).map_err(|error| unreadable(&error))?;
    let mut archive = ZipArchive::new(BufReader::new(open)).map_err(|error| unreadable(&error))?;
    let mut pickle = None;
    for at in 0..archive.len() {
        let mut entry = archive.by_index(at).map_err(|error| unreadable(&error))?;
        let size = entry.size();
        if entry.compressed_size() != size || size > file.len() as u64 {
            return Err("an entry of its archive is compressed or larger than the file".into());
        }
        let name = entry.name().map_err(|error| unreadable(&error))?;
        if !name.ends_with("data.pkl") {
            continue;
        }
        if size > MOST_BYTES || pickle.is_some() {
            return Err("it has more than one pickle, or one that is too long".into());
        }
        let mut bytes = Vec::new();
        (&mut entry).take(MOST_BYTES).read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
        pickle = Some(bytes);
    }
    pickle.map_or(Err("it has no pickle".into()), |bytes| check_pickle(&bytes))
}

/// Runs the operations of a pickle on sizes.
fn check_pickle(bytes: &[u8]) -> Result<(), String> {
    let mut sizes = Sizes { input: bytes, stack: Vec::new(), memo: HashMap::new(), created: 0 };
    loop {
        match sizes.step() {
            Some(true) => return Ok(()),
            Some(false) if sizes.created <= MOST_OBJECTS => {}
            Some(false) => return Err(format!("its pickle has more than {MOST_OBJECTS} objects")),
            None => return Err("it is no pickle of tensors".into()),
        }
    }
}

struct Sizes<'a> {
    input: &'a [u8],
    /// Sizes of objects; `None` is a mark.
    stack: Vec<Option<Size>>,
    memo: HashMap<u32, Size>,
    /// Objects created so far.
    created: u64,
}

impl Sizes<'_> {
    /// Runs an operation. Returns true after the last, and `None` if it is unknown, cut off or nested too deep.
    fn step(&mut self) -> Option<bool> {
        match self.take(1)?[0] {
            // The version.
            0x80 => drop(self.take(1)?),
            b'c' => {
                let length = self.line()? + self.line()?;
                self.leaf(length)?;
            }
            b'K' => self.skip_to_leaf(1)?,
            b'M' => self.skip_to_leaf(2)?,
            b'J' => self.skip_to_leaf(4)?,
            b'G' => self.skip_to_leaf(8)?,
            b'X' => {
                let length = self.number()? as usize;
                self.skip_to_leaf(length)?;
            }
            0x8a => {
                let length = usize::from(self.take(1)?[0]);
                // Longer ones do not fit the reader's integers.
                (length <= 8).then_some(())?;
                self.skip_to_leaf(length)?;
            }
            b'N' | 0x88 | 0x89 | b')' | b']' | b'}' => self.leaf(0)?,
            b'(' => self.stack.push(None),
            b't' | b'd' => {
                let parts = self.above_mark()?;
                self.join(&parts)?;
            }
            b'Q' | 0x85 => self.join_last(1)?,
            0x86 | b'b' | b'R' | 0x81 => self.join_last(2)?,
            0x87 => self.join_last(3)?,
            b'a' => self.extend(1)?,
            b's' => self.extend(2)?,
            b'e' | b'u' => {
                let mut parts = self.above_mark()?;
                parts.insert(0, self.pop()?);
                self.join(&parts)?;
            }
            b'q' => {
                let at = self.take(1)?[0].into();
                self.store(at)?;
            }
            b'r' => {
                let at = self.number()?;
                self.store(at)?;
            }
            b'h' => {
                let at = self.take(1)?[0].into();
                self.fetch(at)?;
            }
            b'j' => {
                let at = self.number()?;
                self.fetch(at)?;
            }
            b'.' => return Some(true),
            _ => return None,
        }
        Some(false)
    }

    fn take(&mut self, count: usize) -> Option<&[u8]> {
        let (taken, rest) = self.input.split_at_checked(count)?;
        self.input = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    /// Skips a line and returns its length.
    fn line(&mut self) -> Option<usize> {
        let end = self.input.iter().position(|&byte| byte == b'\n')?;
        self.take(end + 1).map(<[u8]>::len)
    }

    fn skip_to_leaf(&mut self, bytes: usize) -> Option<()> {
        self.take(bytes)?;
        self.leaf(bytes)
    }

    /// Pushes an object of so many bytes.
    fn leaf(&mut self, bytes: usize) -> Option<()> {
        self.push(Size { objects: 1 + bytes as u64 / TEXT, levels: 1 })
    }

    fn push(&mut self, size: Size) -> Option<()> {
        self.created = self.created.saturating_add(size.objects);
        self.stack.push(Some(size));
        (size.levels <= MOST_LEVELS).then_some(())
    }

    fn pop(&mut self) -> Option<Size> {
        self.stack.pop()?
    }

    /// Takes the objects above the last mark, and the mark.
    fn above_mark(&mut self) -> Option<Vec<Size>> {
        let mark = self.stack.iter().rposition(Option::is_none)?;
        let parts = self.stack.split_off(mark + 1);
        self.stack.pop();
        parts.into_iter().collect()
    }

    /// Pushes an object made of others. They exist already and are moved.
    fn join(&mut self, parts: &[Size]) -> Option<()> {
        let objects = parts.iter().fold(1u64, |sum, part| sum.saturating_add(part.objects));
        let levels = 1 + parts.iter().map(|part| part.levels).max().unwrap_or(0);
        self.created += 1;
        self.stack.push(Some(Size { objects, levels }));
        (levels <= MOST_LEVELS).then_some(())
    }

    fn join_last(&mut self, count: usize) -> Option<()> {
        let parts = (0..count).map(|_| self.pop()).collect::<Option<Vec<_>>>()?;
        self.join(&parts)
    }

    /// Moves the last `count` objects into the one below them, which stays as deep as it was or as they make it.
    fn extend(&mut self, count: usize) -> Option<()> {
        let parts = (0..count).map(|_| self.pop()).collect::<Option<Vec<_>>>()?;
        let mut all = self.pop()?;
        all.objects = parts.iter().fold(all.objects, |sum, part| sum.saturating_add(part.objects));
        all.levels = parts.iter().fold(all.levels, |levels, part| levels.max(part.levels + 1));
        self.stack.push(Some(all));
        (all.levels <= MOST_LEVELS).then_some(())
    }

    /// Copies the last object to a place.
    fn store(&mut self, at: u32) -> Option<()> {
        let size = (*self.stack.last()?)?;
        self.created = self.created.saturating_add(size.objects);
        self.memo.insert(at, size);
        Some(())
    }

    /// Copies an object from a place.
    fn fetch(&mut self, at: u32) -> Option<()> {
        self.push(*self.memo.get(&at)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(pickle: &[u8]) -> String {
        check_pickle(pickle).expect_err("the pickle passed")
    }

    #[test]
    fn objects_that_double_are_refused() {
        // Store the last object, fetch it, and make a pair of both.
        let double = b"q\x00h\x00\x86".repeat(40);
        let pickle = |times: usize| [&b"\x80\x02N"[..], &double[..times * 5], b"."].concat();
        assert_eq!(check_pickle(&pickle(10)), Ok(()));
        assert!(reason(&pickle(40)).contains("more than 262144 objects"));
        let list = [&b"]("[..], &b"X\x01\0\0\0aq\x00".repeat(200_000), b"e."].concat();
        assert!(reason(&list).contains("objects"), "many small ones");
    }

    #[test]
    fn texts_longer_than_the_pickle_are_refused() {
        assert_eq!(check_pickle(b"X\x02\0\0\0ab."), Ok(()));
        assert!(reason(b"X\xff\xff\xff\xffab.").contains("no pickle"));
        assert!(reason(b"X\x02\0\0\0a").contains("no pickle"));
    }

    #[test]
    fn deep_objects_are_refused() {
        let nested = |levels: usize| [&b"N"[..], &b"\x85".repeat(levels), b"."].concat();
        assert_eq!(check_pickle(&nested(60)), Ok(()));
        assert!(reason(&nested(64)).contains("no pickle"));
        let lists = [&b"]".repeat(100)[..], &b"a".repeat(99), b"."].concat();
        assert!(reason(&lists).contains("no pickle"));
    }

    #[test]
    fn operations_without_their_objects_are_refused() {
        for pickle in
            [&b""[..], b"t.", b"(R.", b"h\x00.", b"q\x00.", b"u.", b"\x8a\x09aaaaaaaaa.", b"cx", b"\xff."]
        {
            assert!(reason(pickle).contains("no pickle"), "{pickle:?}");
        }
    }
}
