//! Disk space: free bytes, and the share reserved by active downloads. All downloads write to the volume of
//! the models folder.

use std::path::Path;
use std::sync::Arc;

use super::progress::Meter;
use parking_lot::Mutex;

/// Bytes left free on the disk.
const MIN_FREE_BYTES: u64 = 64 << 20;

/// Returns the free bytes of a folder's volume, if the system reports them. The folder need not exist.
pub fn free_space(folder: &Path) -> Option<u64> {
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
pub(super) struct SpaceReservations {
    reserved: Mutex<Vec<Reservation>>,
}

struct Reservation {
    generation: u64,
    /// Size of the complete files.
    size: u64,
    meter: Arc<Meter>,
}

impl Reservation {
    /// Returns the bytes not yet written. Written bytes are no longer free.
    fn remaining(&self) -> u64 {
        self.size.saturating_sub(self.meter.bytes())
    }
}

/// Releases its reservation when dropped.
pub(super) struct ReservationGuard<'a> {
    reservations: &'a SpaceReservations,
    generation: u64,
}

impl Drop for ReservationGuard<'_> {
    fn drop(&mut self) {
        self.reservations.release(self.generation);
    }
}

/// Reason for a failed reservation.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shortage {
    /// Bytes missing.
    pub(super) missing: u64,
    /// Free bytes reserved by other downloads.
    pub(super) reserved: u64,
}

impl SpaceReservations {
    /// Releases the reservation of a task.
    pub(super) fn release(&self, generation: u64) {
        self.reserved.lock().retain(|reservation| reservation.generation != generation);
    }

    /// Reserves space for the rest of a download of `size` bytes. Existing reservations and the `elsewhere`
    /// bytes of other programs' downloads are subtracted from free space. `free` is called under the lock.
    /// If it returns `None`, the reservation succeeds and writing may fail.
    pub(super) fn reserve(
        &self,
        generation: u64,
        size: u64,
        meter: &Arc<Meter>,
        elsewhere: u64,
        free: impl FnOnce() -> Option<u64>,
    ) -> Result<ReservationGuard<'_>, Shortage> {
        let mut all = self.reserved.lock();
        let reservation = Reservation { generation, size, meter: Arc::clone(meter) };
        let needed = reservation.remaining();
        if needed > 0 {
            // Computed before `free`: a byte written in between is then counted twice rather than not at
            // all.
            let reserved = all.iter().map(Reservation::remaining).fold(elsewhere, u64::saturating_add);
            let wanted = needed.saturating_add(reserved).saturating_add(MIN_FREE_BYTES);
            if let Some(free) = free().filter(|free| *free < wanted) {
                return Err(Shortage { missing: wanted - free, reserved });
            }
        }
        all.push(reservation);
        Ok(ReservationGuard { reservations: self, generation })
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
        assert!(!deep.exists(), "the query creates no folder");
        assert!(free_space(Path::new("relative/and/not/there")).unwrap() > 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn free_space_is_read_from_the_mounted_volume() {
        // A mounted volume without free space.
        assert_eq!(free_space(Path::new("/proc/self")), Some(0));
    }

    #[test]
    fn free_space_is_reserved_once() {
        let reservations = SpaceReservations::default();
        let meter = |here: u64| Arc::new(Meter::new([here].into_iter()));
        let free = || Some(MIN_FREE_BYTES + 100);
        let one = meter(10);
        let first = reservations.reserve(1, 70, &one, 0, free).unwrap();
        // The first still needs 60, which leaves 40.
        assert_eq!(
            reservations.reserve(2, 50, &meter(0), 0, free).err(),
            Some(Shortage { missing: 10, reserved: 60 })
        );
        assert_eq!(
            reservations.reserve(2, 40, &meter(0), 5, free).err(),
            Some(Shortage { missing: 5, reserved: 65 })
        );
        let second = reservations.reserve(2, 40, &meter(0), 0, free).unwrap();
        drop(second);
        // Received bytes are no longer reserved.
        one.set(0, 30, PartPhase::Running);
        let free = || Some(MIN_FREE_BYTES + 80);
        assert_eq!(reservations.reserve(3, 41, &meter(0), 0, free).err().unwrap().missing, 1);
        drop(reservations.reserve(3, 40, &meter(0), 0, free).unwrap());
        // Released explicitly, before the guard is dropped.
        reservations.release(1);
        drop(reservations.reserve(3, 80, &meter(0), 0, free).unwrap());
        drop(first);
        drop(reservations.reserve(4, 80, &meter(0), 0, free).unwrap());
        // A complete download needs nothing, and unknown free space is not refused.
        drop(reservations.reserve(5, 80, &meter(80), 0, || Some(0)).unwrap());
        drop(reservations.reserve(6, u64::MAX, &meter(0), u64::MAX, || None).unwrap());
    }
}
