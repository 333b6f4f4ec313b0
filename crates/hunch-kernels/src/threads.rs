//! Thread pool of the CPU kernels, and the slice type that its tasks write to. No arithmetic here.
//!
//! A pass consists of several hundred short parallel calls, so starting a call must be cheaper than
//! the work in it. An idle worker spins for a short time and then sleeps, which leaves the cores free
//! between answers. The calling thread always takes part, and never waits for a worker that did not
//! join the call.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time an idle worker spins before it sleeps.
///
/// Longer than the gap between two passes of an answer, where waking costs more than spinning.
const SPIN_TIME: Duration = Duration::from_millis(2);
/// Number of spins between two checks of the clock.
const SPINS_PER_CHECK: u32 = 256;

/// Fixed-size thread pool. The calling thread counts as one of its threads.
pub struct Threads {
    shared: Arc<PoolState>,
    workers: Vec<JoinHandle<()>>,
    /// Held during a call: only one call runs at a time.
    calling: Mutex<()>,
}

struct PoolState {
    /// Call number, closed flag and count of workers inside. See [`CALL`].
    gate: AtomicU64,
    work: Mutex<Option<ErasedTasks>>,
    /// Index of the next task to take.
    next: AtomicUsize,
    /// Number of sleeping workers. Changed only while `sleep_lock` is held.
    sleeping: AtomicUsize,
    sleep_lock: Mutex<()>,
    wake: Condvar,
    stop: AtomicBool,
    panicked: AtomicBool,
}

/// Tasks of the current call. The lifetime of the closure is erased, and the gate enforces it.
#[derive(Clone, Copy)]
struct ErasedTasks {
    task: *const (dyn Fn(usize) + Sync),
    tasks: usize,
}
// SAFETY: the pointer refers to a `Sync` closure. Workers use it only inside the gate, which the
// caller closes and drains before the closure is dropped.
unsafe impl Send for ErasedTasks {}

/// Unit of the call number, which is the high half of the gate.
const CALL: u64 = 1 << 32;
/// Flag of a closed gate.
const CLOSED: u64 = 1 << 31;
/// Bits that count the workers inside the gate.
const INSIDE: u64 = CLOSED - 1;

impl Threads {
    /// Creates a pool of `count` threads, at least 1, including the caller.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn new(count: usize) -> std::io::Result<Self> {
        let shared = Arc::new(PoolState {
            gate: AtomicU64::new(CLOSED),
            work: Mutex::new(None),
            next: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
            sleep_lock: Mutex::new(()),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
        });
        let mut threads = Self { shared: shared.clone(), workers: Vec::new(), calling: Mutex::new(()) };
        for i in 1..count {
            let shared = shared.clone();
            let name = format!("hunch-cpu-{i}");
            threads.workers.push(std::thread::Builder::new().name(name).spawn(move || shared.worker_loop())?);
        }
        Ok(threads)
    }

    /// Returns the number of threads, including the caller.
    pub fn count(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(0)` to `task(tasks - 1)` once each and returns when all are done.
    ///
    /// Tasks run on any thread in any order. A call from inside a task runs its tasks sequentially.
    ///
    /// # Panics
    /// If a task panics.
    pub fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let free = if tasks > 1 && !self.workers.is_empty() { try_locked(&self.calling) } else { None };
        let Some(_calling) = free else {
            (0..tasks).for_each(task);
            return;
        };
        // SAFETY: only the lifetime changes. `OpenGate` closes the gate and waits until it is empty
        // before this function returns or unwinds. No thread outside the gate uses the work.
        let task: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(task) };
        let shared = &*self.shared;
        *locked(&shared.work) = Some(ErasedTasks { task, tasks });
        shared.next.store(0, Ordering::Relaxed);
        shared.panicked.store(false, Ordering::Relaxed);
        let call = (shared.gate.load(Ordering::Relaxed) & !(CALL - 1)).wrapping_add(CALL);
        shared.gate.store(call, Ordering::SeqCst);
        let open = OpenGate { shared };
        if shared.sleeping.load(Ordering::SeqCst) > 0 {
            // Taking the lock once ensures that a worker about to sleep either sees the open gate or
            // receives the notification.
            drop(locked(&shared.sleep_lock));
            shared.wake.notify_all();
        }
        shared.take_tasks(ErasedTasks { task, tasks });
        drop(open);
        assert!(
            !shared.panicked.load(Ordering::Relaxed),
            "a task of the CPU kernels panicked; its message is printed above"
        );
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(locked(&self.shared.sleep_lock));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A panic of a worker has already been reported.
            let _ = worker.join();
        }
    }
}

/// Guard of an open gate. Closes the gate on drop and waits until no worker is inside.
struct OpenGate<'a> {
    shared: &'a PoolState,
}

impl Drop for OpenGate<'_> {
    fn drop(&mut self) {
        self.shared.gate.fetch_or(CLOSED, Ordering::AcqRel);
        let mut spins = 0u32;
        while self.shared.gate.load(Ordering::Acquire) & INSIDE > 0 {
            spins += 1;
            // The worker may have lost its core to another program, so offer it this one.
            if spins.is_multiple_of(SPINS_PER_CHECK) {
                std::thread::yield_now()
            } else {
                std::hint::spin_loop()
            }
        }
    }
}

impl PoolState {
    fn take_tasks(&self, work: ErasedTasks) {
        // SAFETY: the caller is inside the gate or has opened it, so the closure is still alive.
        let task = unsafe { &*work.task };
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= work.tasks {
                return;
            }
            task(index);
        }
    }

    /// Main loop of a worker thread.
    fn worker_loop(&self) {
        let mut seen = 0;
        while let Some(gate) = self.next_call(seen) {
            seen = gate / CALL;
            if !self.enter(gate) {
                continue;
            }
            let work = *locked(&self.work);
            let done = catch_unwind(AssertUnwindSafe(|| work.map(|work| self.take_tasks(work))));
            if done.is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.gate.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Waits for a call with a number other than `seen`. Returns the gate, or `None` on shutdown.
    fn next_call(&self, seen: u64) -> Option<u64> {
        let mut spins = 0u32;
        let started = Instant::now();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            let gate = self.gate.load(Ordering::Acquire);
            if gate / CALL != seen {
                return Some(gate);
            }
            spins += 1;
            if !spins.is_multiple_of(SPINS_PER_CHECK) || started.elapsed() < SPIN_TIME {
                std::hint::spin_loop();
                continue;
            }
            let mut sleep_lock = locked(&self.sleep_lock);
            self.sleeping.fetch_add(1, Ordering::SeqCst);
            while self.gate.load(Ordering::SeqCst) / CALL == seen && !self.stop.load(Ordering::SeqCst) {
                sleep_lock = self.wake.wait(sleep_lock).unwrap_or_else(PoisonError::into_inner);
            }
            self.sleeping.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Enters the gate. Returns `false` if it is closed or the call is over.
    fn enter(&self, mut gate: u64) -> bool {
        let call = gate / CALL;
        while gate / CALL == call && gate & CLOSED == 0 {
            match self.gate.compare_exchange_weak(gate, gate + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => gate = now,
            }
        }
        false
    }
}

/// Locks a mutex. A poisoned mutex is safe to use, because the data is valid at any time.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a mutex unless another thread holds it. Ignores poisoning by an earlier panic.
fn try_locked<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Slice that several tasks write at the same time, each to its own part.
#[derive(Clone, Copy)]
pub(super) struct SharedSlice<T> {
    first: *mut T,
    len: usize,
}
// SAFETY: callers of `part` guarantee that no two tasks access the same element.
unsafe impl<T: Send> Send for SharedSlice<T> {}
// SAFETY: see `Send`.
unsafe impl<T: Send> Sync for SharedSlice<T> {}

impl<T> SharedSlice<T> {
    pub(super) fn new(slice: &mut [T]) -> Self {
        Self { first: slice.as_mut_ptr(), len: slice.len() }
    }

    /// Returns the elements `from .. from + len`.
    ///
    /// # Safety
    /// The original slice must still be borrowed, and no other task may access these elements.
    ///
    /// # Panics
    /// If the range is out of bounds.
    pub(super) unsafe fn part<'a>(self, from: usize, len: usize) -> &'a mut [T] {
        assert!(from <= self.len && len <= self.len - from, "the range must be inside the slice");
        // SAFETY: the range was checked above. The caller guarantees the rest.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(from), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_call_runs_every_task_once() {
        for count in [1, 2, 5] {
            let threads = Threads::new(count).unwrap();
            assert_eq!(threads.count(), count);
            let (few, many) = if cfg!(miri) { (4, 50) } else { (200, 5_000) };
            for tasks in (0..few).chain([many]) {
                let ran: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                threads.run(tasks, &|i| {
                    ran[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(ran.iter().all(|n| n.load(Ordering::Relaxed) == 1), "{count} threads, {tasks} tasks");
            }
        }
    }

    /// The test has no locks or atomics of its own, so ThreadSanitizer reports a data race if calls do
    /// not synchronise the threads.
    #[test]
    fn each_call_sees_writes_of_previous_call() {
        let threads = Threads::new(3).unwrap();
        let mut cells = vec![0u64; 64];
        let (calls, between_sleeps) = if cfg!(miri) { (8, 4) } else { (2_000, 500) };
        for call in 1..=calls {
            if call % between_sleeps == 0 {
                // Longer than an idle worker spins.
                std::thread::sleep(5 * SPIN_TIME);
            }
            let out = SharedSlice::new(&mut cells);
            threads.run(64, &|i| {
                // SAFETY: the cells stay borrowed until all tasks are done, and no other task uses
                // this cell.
                let cell = unsafe { out.part((i * 7 + call) % 64, 1) };
                cell[0] += 1;
            });
            assert!(cells.iter().all(|&cell| cell == call as u64), "call {call}");
        }
    }

    #[test]
    fn sleeping_worker_wakes_for_call() {
        let threads = Threads::new(2).unwrap();
        for _ in 0..if cfg!(miri) { 1 } else { 5 } {
            std::thread::sleep(std::time::Duration::from_millis(20));
            // Each task waits until the other runs, so the worker must wake up.
            let met = AtomicUsize::new(0);
            threads.run(2, &|_| {
                met.fetch_add(1, Ordering::SeqCst);
                while met.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn supports_nested_and_concurrent_calls() {
        let threads = Threads::new(3).unwrap();
        let sum = AtomicUsize::new(0);
        let calls = if cfg!(miri) { 3 } else { 100 };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..calls {
                        threads.run(4, &|i| {
                            threads.run(2, &|j| {
                                sum.fetch_add(i + j, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 2 * calls * (12 + 4));
    }

    #[test]
    fn runs_in_parallel_after_task_panic() {
        let threads = Threads::new(2).unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| threads.run(2, &|_| panic!("failing task"))));
        assert!(panicked.is_err());
        // Each task waits for the other, so a single thread cannot finish them.
        let (waiting, arrived) = (Mutex::new(0), Condvar::new());
        let met = AtomicUsize::new(0);
        threads.run(2, &|_| {
            let mut waiting = locked(&waiting);
            *waiting += 1;
            arrived.notify_all();
            let limit = Duration::from_secs(30);
            let waited = arrived.wait_timeout_while(waiting, limit, |waiting| *waiting < 2).unwrap();
            met.fetch_add(usize::from(!waited.1.timed_out()), Ordering::SeqCst);
        });
        assert_eq!(met.into_inner(), 2, "tasks that ran at the same time");
    }

    #[test]
    fn task_panic_reaches_caller_and_pool_stays_usable() {
        let threads = Threads::new(2).unwrap();
        for _ in 0..3 {
            let panicked =
                catch_unwind(AssertUnwindSafe(|| threads.run(64, &|i| assert!(i != 40, "task 40"))));
            assert!(panicked.is_err());
            let sum = AtomicUsize::new(0);
            threads.run(10, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 45);
        }
    }
}
