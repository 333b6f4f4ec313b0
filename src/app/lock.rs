//! Locks of the application's state. Debug builds assert their order, so that no two threads can wait for each other.
//!
//! A thread that holds a lock takes none of the same or a lower rank. Locks inside a log of events, the engine or a
//! connection of the store come after all of them, and are not ranked.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard};

/// Place of a lock in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rank {
    /// The turn of loads, held for a whole load, and that of changes of the list of servers. A thread holds one of them.
    /// They come first.
    Turn,
    /// State of one subject, held for a moment. A thread holds one of them at a time.
    State,
}

impl Rank {
    fn bit(self) -> u8 {
        1 << self as u8
    }
}

thread_local! {
    /// Ranks of the locks that this thread holds, as bits.
    static HELD: Cell<u8> = const { Cell::new(0) };
}

/// A mutex with a place in the order.
pub(super) struct RankedMutex<T> {
    rank: Rank,
    mutex: Mutex<T>,
}

impl<T> RankedMutex<T> {
    /// Makes the lock of a subject's state.
    pub(super) fn state(value: T) -> Self {
        Self { rank: Rank::State, mutex: Mutex::new(value) }
    }

    /// Makes a lock that is taken before those of states.
    pub(super) fn turn(value: T) -> Self {
        Self { rank: Rank::Turn, mutex: Mutex::new(value) }
    }

    /// Waits for the lock.
    ///
    /// # Panics
    /// In debug builds, if this thread holds a lock of the same or a higher rank.
    pub(super) fn lock(&self) -> RankedGuard<'_, T> {
        let held = HELD.get();
        debug_assert!(held < self.rank.bit(), "{:?} is locked while the ranks {held:#b} are held", self.rank);
        self.guard(self.mutex.lock())
    }

    /// Takes the lock if it is free. Allowed in any order, as it does not wait.
    pub(super) fn try_lock(&self) -> Option<RankedGuard<'_, T>> {
        self.mutex.try_lock().map(|guard| self.guard(guard))
    }

    fn guard<'a>(&self, guard: MutexGuard<'a, T>) -> RankedGuard<'a, T> {
        let (held, bit) = (HELD.get(), self.rank.bit());
        HELD.set(held | bit);
        // A lock of the same rank that was taken before keeps its mark when this one is released.
        let marks = if held & bit == 0 { bit } else { 0 };
        RankedGuard { marks, guard }
    }
}

impl<T: Default> Default for RankedMutex<T> {
    /// Makes the lock of a subject's state.
    fn default() -> Self {
        Self::state(T::default())
    }
}

/// A held lock, released on drop.
pub(super) struct RankedGuard<'a, T> {
    /// Bit of the rank, unless the thread held it before.
    marks: u8,
    guard: MutexGuard<'a, T>,
}

impl<T> Drop for RankedGuard<'_, T> {
    fn drop(&mut self) {
        HELD.set(HELD.get() & !self.marks);
    }
}

impl<T> Deref for RankedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for RankedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turn_comes_before_state_and_locks_are_released() {
        let (turn, state) = (RankedMutex::turn(()), RankedMutex::state(1));
        for _ in 0..2 {
            let held = turn.lock();
            *state.lock() += 1;
            drop(held);
        }
        assert_eq!(*state.lock(), 3);
        assert_eq!(HELD.get(), 0);
    }

    #[test]
    fn a_second_lock_of_a_rank_leaves_the_first_marked() {
        let (first, second) = (RankedMutex::state(()), RankedMutex::state(()));
        let held = first.lock();
        drop(second.try_lock());
        assert_eq!(HELD.get(), Rank::State.bit());
        drop(held);
        assert_eq!(HELD.get(), 0);
    }

    #[test]
    #[should_panic(expected = "State is locked while the ranks 0b10 are held")]
    fn second_state_is_refused() {
        let (first, second) = (RankedMutex::state(()), RankedMutex::state(()));
        let _held = first.lock();
        drop(second.lock());
    }

    #[test]
    #[should_panic(expected = "Turn is locked while the ranks 0b10 are held")]
    fn turn_after_state_is_refused() {
        let (turn, state) = (RankedMutex::turn(()), RankedMutex::state(()));
        let _held = state.lock();
        drop(turn.lock());
    }
}
