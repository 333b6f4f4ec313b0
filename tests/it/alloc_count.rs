//! Global allocator that counts allocations per thread.
//!
//! A test can measure the memory of a function while other tests run in parallel.

// Implementing `GlobalAlloc` is unsafe. Every call is forwarded unchanged.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// System allocator with counters.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(by: isize) {
    // An ending thread has no counters, and they are no longer read.
    let _ = LIVE.try_with(|live| {
        live.set(live.get() + by);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

// SAFETY: every call is forwarded to the system allocator with the same arguments, and its result is
// returned. The counters are plain numbers and do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller upholds the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both blocks exist while the bytes are copied.
        count(size as isize);
        count(-(layout.size() as isize));
        // SAFETY: the caller upholds the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Runs `work` and returns its result and its peak allocation on this thread in bytes.
pub(crate) fn peak_during<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = work();
    (result, usize::try_from(PEAK.get() - before).unwrap_or(0))
}

#[test]
fn counts_allocations() {
    let (bytes, peak) = peak_during(|| vec![1u8; 100_000]);
    assert!((100_000..110_000).contains(&peak), "{peak}");
    let ((), peak) = peak_during(|| drop(bytes));
    assert_eq!(peak, 0);
}
