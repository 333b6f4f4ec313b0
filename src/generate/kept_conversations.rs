//! Conversations whose caches are kept while others run, and the choice among them for a prompt.
//!
//! Rows of a cache are never copied from one conversation to another.

use hunch_core::token::TokenId;
use hunch_error::Result;

use super::conversation::ConversationResources;

/// Limits of the caches that are kept at the same time. By default, those of one conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheLimits {
    /// Most conversations, the current one included. 0 counts as 1.
    pub conversations: usize,
    /// Most bytes of the caches of all conversations but the current one.
    pub others: u64,
}

/// Caches in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Number of conversations.
    pub conversations: usize,
    /// Allocated bytes of their caches.
    pub bytes: u64,
}

impl CacheUse {
    /// Returns the sum.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { conversations: self.conversations + other.conversations, bytes: self.bytes + other.bytes }
    }
}

/// Conversations other than the current one, the least recently used one first.
#[derive(Default)]
pub(super) struct KeptConversations {
    others: Vec<ConversationResources>,
    limits: CacheLimits,
}

impl KeptConversations {
    /// Sets the limits of the next switches.
    pub(super) fn set_limits(&mut self, limits: CacheLimits) {
        self.limits = limits;
    }

    /// Drops all of them.
    pub(super) fn clear(&mut self) {
        self.others.clear();
    }

    /// Returns the caches of these conversations.
    pub(super) fn used(&self) -> CacheUse {
        let bytes = self.others.iter().map(ConversationResources::cache_bytes).sum();
        CacheUse { conversations: self.others.len(), bytes }
    }

    /// Replaces `current` by the conversation that a prompt continues best, or by a new one. Conversations beyond the
    /// limits are dropped, the least recently used one first.
    ///
    /// # Errors
    /// If the device fails. Nothing has changed then.
    pub(super) fn switch(&mut self, current: &mut ConversationResources, prompt: &[TokenId]) -> Result<()> {
        let limits = self.limits;
        let all = self.others.iter().chain([&*current]);
        let caches: Vec<Prefix> = all.map(|conversation| Prefix::of(conversation, prompt)).collect();
        let kept = self.used().bytes + current.cache_bytes();
        let has_room = caches.len() < limits.conversations && kept <= limits.others;
        match choose(&caches, has_room) {
            Some(chosen) if chosen < self.others.len() => {
                let chosen = self.others.remove(chosen);
                self.others.push(std::mem::replace(current, chosen));
            }
            Some(_) => {}
            None => {
                let new = current.fork()?;
                self.others.push(std::mem::replace(current, new));
            }
        }
        let is_over = |kept: &Self| {
            kept.others.len() >= limits.conversations.max(1) || kept.used().bytes > limits.others
        };
        while !self.others.is_empty() && is_over(self) {
            self.others.remove(0);
        }
        Ok(())
    }
}

/// Cache of a conversation, with respect to a prompt.
#[derive(Clone, Copy, Debug)]
struct Prefix {
    /// Tokens in the cache.
    cached: usize,
    /// Tokens in the cache that the prompt starts with.
    shared: usize,
    /// `true` if these are the whole prompt.
    is_whole: bool,
}

impl Prefix {
    fn of(conversation: &ConversationResources, prompt: &[TokenId]) -> Self {
        let (cached, shared) = conversation.cached_and_shared(prompt);
        Self { cached, shared, is_whole: shared == prompt.len() }
    }

    /// Returns `true` if the prompt continues the conversation, perhaps after an edit near the end, or asks again for an
    /// answer.
    fn is_continued(self) -> bool {
        self.is_whole || self.cached <= self.shared + self.shared / 3
    }
}

/// Chooses the conversation for a prompt. `caches` is in the order of use, the least recently used one first. `None`
/// stands for a new conversation, which is chosen only with `has_room`.
///
/// The longest common prefix wins. A prompt that shares only the start with it, such as instructions of an agent, gets a
/// new conversation. Without room it takes the least recently used one of those with a prefix of nearly that length. So
/// one prompt after another does not take the conversation that was used just now.
fn choose(caches: &[Prefix], has_room: bool) -> Option<usize> {
    let longest = caches.iter().map(|cache| cache.shared).max().unwrap_or(0);
    let continued = caches.iter().enumerate().filter(|(_, cache)| cache.is_continued());
    let best = continued.max_by_key(|(_, cache)| cache.shared).filter(|(_, best)| 2 * best.shared >= longest);
    // An empty cache costs nothing to use.
    let empty = || caches.iter().position(|cache| cache.cached == 0);
    let oldest = || caches.iter().position(|cache| 8 * cache.shared >= 7 * longest);
    best.map(|(i, _)| i).or_else(empty).or_else(|| if has_room { None } else { oldest() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the choice for `(cached, shared)` of each conversation, for a prompt of 20,000 tokens.
    fn chosen(caches: &[(usize, usize)], has_room: bool) -> Option<usize> {
        let prefix = |&(cached, shared)| Prefix { cached, shared, is_whole: shared == 20_000 };
        choose(&caches.iter().map(prefix).collect::<Vec<_>>(), has_room)
    }

    #[test]
    fn a_continued_conversation_is_chosen_whatever_the_room() {
        for has_room in [true, false] {
            assert_eq!(chosen(&[(900, 20), (500, 500), (800, 20)], has_room), Some(1));
            // The last question was edited.
            assert_eq!(chosen(&[(900, 20), (500, 450), (800, 20)], has_room), Some(1));
            assert_eq!(chosen(&[(0, 0)], has_room), Some(0));
            // The same question again, after a long answer.
            assert_eq!(chosen(&[(900, 20), (90_000, 20_000)], has_room), Some(1));
        }
    }

    #[test]
    fn another_conversation_gets_a_cache_of_its_own() {
        assert_eq!(chosen(&[(900, 20)], true), None);
        assert_eq!(chosen(&[(900, 20), (0, 0)], true), Some(1));
        assert_eq!(chosen(&[(900, 600), (900, 20)], true), None);
        // The second conversation has just the instructions that all of them share.
        assert_eq!(chosen(&[(9000, 600), (500, 500), (8000, 600)], true), Some(1));
        assert_eq!(chosen(&[(12_000, 8000), (30, 30)], true), None);
    }

    #[test]
    fn without_room_the_least_recently_used_of_the_longest_prefixes_goes() {
        assert_eq!(chosen(&[(900, 0), (900, 0)], false), Some(0));
        assert_eq!(chosen(&[(900, 20), (900, 22), (900, 21)], false), Some(0));
        assert_eq!(chosen(&[(900, 20), (900, 400), (900, 410)], false), Some(1));
        assert_eq!(chosen(&[(30, 30), (12_000, 8000)], false), Some(1));
    }
}
