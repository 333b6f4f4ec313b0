//! The threads of the CPU kernels. A pass is some hundred short parallel steps, so waking must cost
//! less than a step: a worker that has nothing to do looks out for the next step for a moment, then
//! sleeps, so that between answers the machine is the window's. The caller always works too, and
//! never waits for a worker that was not there when the step began.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a worker looks out for work before it sleeps: longer than what happens between the passes
/// of an answer, where waking would cost more than looking.
const WATCH: Duration = Duration::from_millis(2);
/// How often it looks between two looks at the clock.
const LOOKS: u32 = 256;

/// A fixed set of threads, the caller's among them, that share the tasks of one call after another.
pub struct Threads {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One call at a time.
    calling: Mutex<()>,
}

struct Shared {
    gate: AtomicU64,
    work: Mutex<Option<Work>>,
    next: AtomicUsize,
    /// How many workers sleep; changed with the lock held.
    sleeping: AtomicUsize,
    asleep: Mutex<()>,
    wake: Condvar,
    stop: AtomicBool,
    panicked: AtomicBool,
}

/// What the workers were called for. The lifetime is erased; the gate keeps the promise.
#[derive(Clone, Copy)]
struct Work {
    task: *const (dyn Fn(usize) + Sync),
    tasks: usize,
}
// SAFETY: the pointer is to a `Sync` closure, and workers use it only inside the gate, which the
// caller closes and empties before the closure ends.
unsafe impl Send for Work {}

// The gate: the number of the call in the high half, then whether it is closed, then how many
// workers are inside.
const CALL: u64 = 1 << 32;
const CLOSED: u64 = 1 << 31;
const INSIDE: u64 = CLOSED - 1;

impl Threads {
    /// `count` threads, 1 or more, the caller's included.
    ///
    /// # Errors
    /// When the system gives no more threads.
    pub fn new(count: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(CLOSED),
            work: Mutex::new(None),
            next: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
            asleep: Mutex::new(()),
            wake: Condvar::new(),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
        });
        let mut threads = Self { shared: shared.clone(), workers: Vec::new(), calling: Mutex::new(()) };
        for i in 1..count {
            let shared = shared.clone();
            let name = format!("hunch-cpu-{i}");
            threads.workers.push(std::thread::Builder::new().name(name).spawn(move || shared.serve())?);
        }
        Ok(threads)
    }

    /// How many threads there are, the caller's included.
    pub fn count(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(0)` to `task(tasks - 1)`, each once, on any thread and in any order, and comes back
    /// when all are done. A call from inside a task runs its tasks one after another.
    ///
    /// # Panics
    /// When a task did.
    pub fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let free = if tasks > 1 && !self.workers.is_empty() { try_locked(&self.calling) } else { None };
        let Some(_calling) = free else {
            (0..tasks).for_each(task);
            return;
        };
        // SAFETY: only the lifetime changes. `Inside` closes the gate and waits until it is empty
        // before this function is left, also by a panic, and nobody outside the gate uses the work.
        let task: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(task) };
        let shared = &*self.shared;
        *locked(&shared.work) = Some(Work { task, tasks });
        shared.next.store(0, Ordering::Relaxed);
        shared.panicked.store(false, Ordering::Relaxed);
        let call = (shared.gate.load(Ordering::Relaxed) & !(CALL - 1)).wrapping_add(CALL);
        shared.gate.store(call, Ordering::SeqCst);
        let open = Open { shared };
        if shared.sleeping.load(Ordering::SeqCst) > 0 {
            // Taking the lock makes sure that who is about to sleep has seen the gate or hears this.
            drop(locked(&shared.asleep));
            shared.wake.notify_all();
        }
        shared.take_tasks(Work { task, tasks });
        drop(open);
        assert!(
            !shared.panicked.load(Ordering::Relaxed),
            "a task of the CPU kernels panicked, as said above"
        );
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(locked(&self.shared.asleep));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker's panic was reported when it happened.
            let _ = worker.join();
        }
    }
}

/// An open gate; dropping it closes the gate and waits until nobody is inside.
struct Open<'a> {
    shared: &'a Shared,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.shared.gate.fetch_or(CLOSED, Ordering::AcqRel);
        let mut looks = 0u32;
        while self.shared.gate.load(Ordering::Acquire) & INSIDE > 0 {
            looks += 1;
            // Another program may have taken the worker's core: then ours is of better use to it.
            if looks.is_multiple_of(LOOKS) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

impl Shared {
    fn take_tasks(&self, work: Work) {
        // SAFETY: the caller is inside the gate or is the one who opened it, so the closure lives.
        let task = unsafe { &*work.task };
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= work.tasks {
                return;
            }
            task(index);
        }
    }

    /// A worker's life.
    fn serve(&self) {
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

    /// Waits for a call after number `seen` and gives the gate; `None` when all is over.
    fn next_call(&self, seen: u64) -> Option<u64> {
        let mut looks = 0u32;
        let begun = Instant::now();
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return None;
            }
            let gate = self.gate.load(Ordering::Acquire);
            if gate / CALL != seen {
                return Some(gate);
            }
            looks += 1;
            if !looks.is_multiple_of(LOOKS) || begun.elapsed() < WATCH {
                std::hint::spin_loop();
                continue;
            }
            let mut asleep = locked(&self.asleep);
            self.sleeping.fetch_add(1, Ordering::SeqCst);
            while self.gate.load(Ordering::SeqCst) / CALL == seen && !self.stop.load(Ordering::SeqCst) {
                asleep = self.wake.wait(asleep).unwrap_or_else(PoisonError::into_inner);
            }
            self.sleeping.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Goes in unless the call is over.
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

/// The data behind a lock; that a thread panicked while it held it does no harm here.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the lock unless another thread holds it. A panic in an earlier call does not count as held.
fn try_locked<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// A slice whose parts different tasks write.
#[derive(Clone, Copy)]
pub(super) struct SharedSlice<T> {
    first: *mut T,
    len: usize,
}
// SAFETY: each user of `part` promises that no two tasks touch one element.
unsafe impl<T: Send> Send for SharedSlice<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedSlice<T> {}

impl<T> SharedSlice<T> {
    pub(super) fn new(slice: &mut [T]) -> Self {
        Self { first: slice.as_mut_ptr(), len: slice.len() }
    }

    /// Elements `from .. from + len`.
    ///
    /// # Safety
    /// The slice it was made of is still borrowed, and no other task has an element of the part.
    ///
    /// # Panics
    /// If the part is not inside the slice.
    pub(super) unsafe fn part<'a>(self, from: usize, len: usize) -> &'a mut [T] {
        assert!(from <= self.len && len <= self.len - from, "the part is inside the slice");
        // SAFETY: inside, as just checked; the rest is the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.first.add(from), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_call_after_call() {
        for count in [1, 2, 5] {
            let threads = Threads::new(count).unwrap();
            assert_eq!(threads.count(), count);
            for tasks in (0..200).chain([5_000]) {
                let ran: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                threads.run(tasks, &|i| {
                    ran[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(ran.iter().all(|n| n.load(Ordering::Relaxed) == 1), "{count} threads, {tasks} tasks");
            }
        }
    }

    /// No lock and no atomic of the test's own orders these writes and reads: ThreadSanitizer sees whether the calls do.
    #[test]
    fn shows_each_call_what_the_last_one_wrote() {
        let threads = Threads::new(3).unwrap();
        let mut cells = vec![0u64; 64];
        for call in 1..=2_000 {
            if call % 500 == 0 {
                // Longer than a worker looks out for work.
                std::thread::sleep(5 * WATCH);
            }
            let out = SharedSlice::new(&mut cells);
            threads.run(64, &|i| {
                // SAFETY: the cells are borrowed until all tasks are done, and only this task has the cell.
                let cell = unsafe { out.part((i * 7 + call) % 64, 1) };
                cell[0] += 1;
            });
            assert!(cells.iter().all(|&cell| cell == call as u64), "call {call}");
        }
    }

    #[test]
    fn who_fell_asleep_is_woken() {
        let threads = Threads::new(2).unwrap();
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            // The first task waits until the second runs: the worker has to come.
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
    fn a_call_inside_a_task_and_calls_from_two_threads_work() {
        let threads = Threads::new(3).unwrap();
        let sum = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        threads.run(4, &|i| {
                            threads.run(2, &|j| {
                                sum.fetch_add(i + j, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 200 * (12 + 4));
    }

    #[test]
    fn runs_in_parallel_after_a_task_panicked() {
        let threads = Threads::new(2).unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| threads.run(2, &|_| panic!("a task that fails"))));
        assert!(panicked.is_err());
        // Each task waits for the other, so one thread alone cannot finish them.
        let (waiting, other_came) = (Mutex::new(0), Condvar::new());
        let met = AtomicUsize::new(0);
        threads.run(2, &|_| {
            let mut waiting = locked(&waiting);
            *waiting += 1;
            other_came.notify_all();
            let limit = Duration::from_secs(30);
            let waited = other_came.wait_timeout_while(waiting, limit, |waiting| *waiting < 2).unwrap();
            met.fetch_add(usize::from(!waited.1.timed_out()), Ordering::SeqCst);
        });
        assert_eq!(met.into_inner(), 2, "tasks that ran at the same time");
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_threads_go_on() {
        let threads = Threads::new(2).unwrap();
        for _ in 0..3 {
            let fell = catch_unwind(AssertUnwindSafe(|| threads.run(64, &|i| assert!(i != 40, "task 40"))));
            assert!(fell.is_err());
            let sum = AtomicUsize::new(0);
            threads.run(10, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 45);
        }
    }
}
