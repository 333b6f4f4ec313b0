//! Room on the disk: what is free, and what of that the downloads that are under way have been promised. All of
//! them lie on one volume, that of the models folder.

use std::path::Path;
use std::sync::{Arc, Mutex};

use super::lock;
use super::progress::Meter;

/// Bytes that are left free on the disk.
const SPARE: u64 = 64 << 20;

/// Free bytes of the volume that a folder is on, or will be on once it is made; `None` where the system does not
/// tell.
pub(super) fn free_space(folder: &Path) -> Option<u64> {
    let folder = std::path::absolute(folder).ok()?;
    available(&folder.ancestors().find_map(|folder| folder.canonicalize().ok())?)
}

#[cfg(target_os = "linux")]
fn available(folder: &Path) -> Option<u64> {
    let volume = rustix::fs::statvfs(folder).ok()?;
    Some(volume.f_bavail.saturating_mul(volume.f_frsize))
}

/// On a Mac a volume gives more than it has free: what can be fetched again makes room. `sysinfo` counts that in.
#[cfg(not(target_os = "linux"))]
fn available(folder: &Path) -> Option<u64> {
    let disks = sysinfo::Disks::new_with_refreshed_list().ok()?;
    let of_folder = disks.iter().filter(|disk| folder.starts_with(disk.mount_point()));
    of_folder.max_by_key(|disk| disk.mount_point().components().count()).map(sysinfo::Disk::available_space)
}

/// What has been promised to the downloads of this program.
#[derive(Default)]
pub(super) struct Room {
    promised: Mutex<Vec<Promise>>,
}

struct Promise {
    run: u64,
    /// Bytes that it has when all are here.
    size: u64,
    meter: Arc<Meter>,
}

impl Promise {
    /// Bytes that have not been written yet; the others are no longer free.
    fn left(&self) -> u64 {
        self.size.saturating_sub(self.meter.bytes())
    }
}

/// Room that a download has been promised, until this is dropped.
pub(super) struct Promised<'a> {
    room: &'a Room,
    run: u64,
}

impl Drop for Promised<'_> {
    fn drop(&mut self) {
        self.room.withdraw(self.run);
    }
}

/// Why there is no room.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shortage {
    /// Bytes that are missing.
    pub(super) missing: u64,
    /// Bytes that other downloads still need of those that are free.
    pub(super) promised: u64,
}

impl Room {
    /// Promises run `run` nothing any more.
    pub(super) fn withdraw(&self, run: u64) {
        lock(&self.promised).retain(|promise| promise.run != run);
    }

    /// Promises run `run` the room for what its meter says is missing of `size` bytes, if there is room beside what
    /// others have been promised and the `elsewhere` bytes that other programs' downloads need. What is free is
    /// asked once no other can be promised it; where that is not known, it is found out by writing.
    pub(super) fn promise(
        &self,
        run: u64,
        size: u64,
        meter: &Arc<Meter>,
        elsewhere: u64,
        free: impl FnOnce() -> Option<u64>,
    ) -> Result<Promised<'_>, Shortage> {
        let mut all = lock(&self.promised);
        let promise = Promise { run, size, meter: Arc::clone(meter) };
        let needed = promise.left();
        if needed > 0 {
            // Before what is free: a byte that is written between the two counts as missing twice, not never.
            let promised = all.iter().map(Promise::left).fold(elsewhere, u64::saturating_add);
            let wanted = needed.saturating_add(promised).saturating_add(SPARE);
            if let Some(free) = free().filter(|free| *free < wanted) {
                return Err(Shortage { missing: wanted - free, promised });
            }
        }
        all.push(promise);
        Ok(Promised { room: self, run })
    }
}

#[cfg(test)]
mod tests {
    use super::super::progress::PartPhase;
    use super::*;

    #[test]
    fn what_is_free_is_known_of_a_folder_that_is_yet_to_be_made() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("not/there/yet");
        for path in [folder.path(), &deep] {
            assert!(free_space(path).unwrap() > 0, "{}", path.display());
        }
        assert!(!deep.exists(), "asking makes nothing");
        assert!(free_space(Path::new("relative/and/not/there")).unwrap() > 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_is_free_is_that_of_the_volume() {
        // It lies in a folder of another one, and nothing can be written to it.
        assert_eq!(free_space(Path::new("/proc/self")), Some(0));
    }

    #[test]
    fn what_is_free_is_promised_once() {
        let room = Room::default();
        let meter = |here: u64| Arc::new(Meter::new([here].into_iter()));
        let free = || Some(SPARE + 100);
        let one = meter(10);
        let first = room.promise(1, 70, &one, 0, free).unwrap();
        // 60 are to come there, which leaves 40.
        assert_eq!(
            room.promise(2, 50, &meter(0), 0, free).err(),
            Some(Shortage { missing: 10, promised: 60 })
        );
        assert_eq!(
            room.promise(2, 40, &meter(0), 5, free).err(),
            Some(Shortage { missing: 5, promised: 65 })
        );
        let second = room.promise(2, 40, &meter(0), 0, free).unwrap();
        drop(second);
        // What has come of the first takes up room, and is promised no more.
        one.set(0, 30, PartPhase::Running);
        let free = || Some(SPARE + 80);
        assert_eq!(room.promise(3, 41, &meter(0), 0, free).err().unwrap().missing, 1);
        drop(room.promise(3, 40, &meter(0), 0, free).unwrap());
        // One that is stopped writes no more, before it has let go of everything too.
        room.withdraw(1);
        drop(room.promise(3, 80, &meter(0), 0, free).unwrap());
        drop(first);
        drop(room.promise(4, 80, &meter(0), 0, free).unwrap());
        // One that has all its bytes needs none, and what is not known is not refused.
        drop(room.promise(5, 80, &meter(80), 0, || Some(0)).unwrap());
        drop(room.promise(6, u64::MAX, &meter(0), u64::MAX, || None).unwrap());
    }
}
