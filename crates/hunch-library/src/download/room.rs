//! Disk space: free bytes, and the share reserved by active downloads. All downloads write to the volume of
//! the models folder.

use std::path::Path;
use std::sync::{Arc, Mutex};

use super::lock;
use super::progress::Meter;

/// Bytes left free on the disk.
const SPARE: u64 = 64 << 20;

/// Returns the free bytes of a folder's volume, or `None` if the system does not report them. The folder
/// need not exist.
pub(super) fn free_space(folder: &Path) -> Option<u64> {
    let folder = std::path::absolute(folder).ok()?;
    available(&folder.ancestors().find_map(|folder| folder.canonicalize().ok())?)
}

#[cfg(target_os = "linux")]
fn available(folder: &Path) -> Option<u64> {
    let volume = rustix::fs::statvfs(folder).ok()?;
    Some(volume.f_bavail.saturating_mul(volume.f_frsize))
}

/// macOS frees purgeable space on demand. `sysinfo` includes it.
#[cfg(not(target_os = "linux"))]
fn available(folder: &Path) -> Option<u64> {
    let disks = sysinfo::Disks::new_with_refreshed_list().ok()?;
    let of_folder = disks.iter().filter(|disk| folder.starts_with(disk.mount_point()));
    of_folder.max_by_key(|disk| disk.mount_point().components().count()).map(sysinfo::Disk::available_space)
}

/// Space reserved by this program's downloads.
#[derive(Default)]
pub(super) struct Room {
    promised: Mutex<Vec<Promise>>,
}

struct Promise {
    run: u64,
    /// Size of the complete files.
    size: u64,
    meter: Arc<Meter>,
}

impl Promise {
    /// Returns the bytes not yet written. Written bytes are no longer free.
    fn left(&self) -> u64 {
        self.size.saturating_sub(self.meter.bytes())
    }
}

/// Releases its reservation when dropped.
pub(super) struct Promised<'a> {
    room: &'a Room,
    run: u64,
}

impl Drop for Promised<'_> {
    fn drop(&mut self) {
        self.room.withdraw(self.run);
    }
}

/// Why a reservation failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shortage {
    /// Bytes missing.
    pub(super) missing: u64,
    /// Free bytes reserved by other downloads.
    pub(super) promised: u64,
}

impl Room {
    /// Releases the reservation of a task.
    pub(super) fn withdraw(&self, run: u64) {
        lock(&self.promised).retain(|promise| promise.run != run);
    }

    /// Reserves space for the rest of a download of `size` bytes. Existing reservations and the `elsewhere`
    /// bytes of other programs' downloads are subtracted from free space. `free` is called under the lock.
    /// If it returns `None`, the reservation succeeds and writing may fail.
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
            // Computed before `free`: a byte written in between is then counted twice rather than not at
            // all.
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
    fn free_space_is_known_for_missing_folders() {
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
    fn free_space_is_that_of_the_mounted_volume() {
        // A mounted volume without free space.
        assert_eq!(free_space(Path::new("/proc/self")), Some(0));
    }

    #[test]
    fn free_space_is_reserved_once() {
        let room = Room::default();
        let meter = |here: u64| Arc::new(Meter::new([here].into_iter()));
        let free = || Some(SPARE + 100);
        let one = meter(10);
        let first = room.promise(1, 70, &one, 0, free).unwrap();
        // The first still needs 60, which leaves 40.
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
        // Received bytes are no longer reserved.
        one.set(0, 30, PartPhase::Running);
        let free = || Some(SPARE + 80);
        assert_eq!(room.promise(3, 41, &meter(0), 0, free).err().unwrap().missing, 1);
        drop(room.promise(3, 40, &meter(0), 0, free).unwrap());
        // Released explicitly, before the guard is dropped.
        room.withdraw(1);
        drop(room.promise(3, 80, &meter(0), 0, free).unwrap());
        drop(first);
        drop(room.promise(4, 80, &meter(0), 0, free).unwrap());
        // A complete download needs nothing, and unknown free space is not refused.
        drop(room.promise(5, 80, &meter(80), 0, || Some(0)).unwrap());
        drop(room.promise(6, u64::MAX, &meter(0), u64::MAX, || None).unwrap());
    }
}
