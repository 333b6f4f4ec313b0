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
        current.prompt = prompt.len();
        self.drop_excess();
        Ok(())
    }

    /// Drops conversations beyond the limits, the least recently used one first.
    pub(super) fn drop_excess(&mut self) {
        let limits = self.limits;
        let is_over = |kept: &Self| {
            kept.others.len() >= limits.conversations.max(1) || kept.used().bytes > limits.others
        };
        while !self.others.is_empty() && is_over(self) {
            self.others.remove(0);
        }
    }
}

/// Cache of a conversation, with respect to a prompt.
#[derive(Clone, Copy, Debug)]
struct Prefix {
    /// Tokens in the cache.
    cached: usize,
    /// Tokens in the cache that the prompt starts with.
    shared: usize,
    /// Tokens of the last prompt of the conversation. Only its answer follows in the cache.
    last_prompt: usize,
    /// `true` if the prompt is in the cache as a whole.
    is_whole: bool,
}

impl Prefix {
    fn of(conversation: &ConversationResources, prompt: &[TokenId]) -> Self {
        let (cached, shared) = conversation.cached_and_shared(prompt);
        Self { cached, shared, last_prompt: conversation.prompt, is_whole: shared == prompt.len() }
    }

    /// Returns `true` if the prompt continues the conversation, perhaps after an edit near the end, or asks again for its
    /// last answer. Without room, a question from its middle continues it too.
    fn is_continued(self, has_room: bool) -> bool {
        let Self { cached, shared, last_prompt, is_whole } = self;
        let lost = if is_whole { last_prompt.min(cached) } else { cached };
        is_whole && !has_room || lost <= shared + shared / 3
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
    let continued = caches.iter().enumerate().filter(|(_, cache)| cache.is_continued(has_room));
    let best = continued.max_by_key(|(_, cache)| cache.shared).filter(|(_, best)| 2 * best.shared >= longest);
    // An empty cache costs nothing to use.
    let empty = || caches.iter().position(|cache| cache.cached == 0);
    let oldest = || caches.iter().position(|cache| 8 * cache.shared >= 7 * longest);
    best.map(|(i, _)| i).or_else(empty).or_else(|| if has_room { None } else { oldest() })
}

#[cfg(test)]
mod tests {
    use hunch_core::propose::Proposers;
    use hunch_core::table::{TableConfig, TableModel};

    use super::*;

    /// Returns the choice for `(cached, shared)` of each conversation, for a prompt of 20,000 tokens.
    fn chosen(caches: &[(usize, usize)], has_room: bool) -> Option<usize> {
        let prefix = |&(cached, shared)| Prefix::of_lengths(cached, shared, shared);
        choose(&caches.iter().map(prefix).collect::<Vec<_>>(), has_room)
    }

    impl Prefix {
        fn of_lengths(cached: usize, shared: usize, last_prompt: usize) -> Self {
            Self { cached, shared, last_prompt, is_whole: shared == 20_000 }
        }
    }

    #[test]
    fn a_question_from_the_middle_of_a_conversation_leaves_its_end_if_there_is_room() {
        let long = Prefix::of_lengths(90_000, 20_000, 70_000);
        let asked_again = Prefix::of_lengths(90_000, 20_000, 20_000);
        assert_eq!(choose(&[long], true), None);
        assert_eq!(choose(&[long], false), Some(0));
        assert_eq!(choose(&[long, asked_again], true), Some(1));
    }

    /// Returns a conversation whose cache has these tokens.
    fn conversation(tokens: &[TokenId]) -> ConversationResources {
        let model = Box::new(TableModel::new(TableConfig::default()));
        let mut conversation = ConversationResources::new(model, Proposers::new(None));
        conversation.scores_after(tokens, &|| false).unwrap();
        conversation
    }

    /// Returns a prompt that shares no token with those of other numbers.
    fn prompt(number: TokenId) -> Vec<TokenId> {
        vec![number; 40]
    }

    #[test]
    fn caches_beyond_the_bytes_go_the_least_recently_used_first() {
        let bytes = conversation(&prompt(0)).cache_bytes();
        for (others, kept) in
            [(0, vec![]), (bytes, vec![3]), (2 * bytes, vec![2, 3]), (3 * bytes - 1, vec![2, 3])]
        {
            let mut current = conversation(&prompt(0));
            let mut all = KeptConversations::default();
            all.set_limits(CacheLimits { conversations: 9, others });
            for number in 1..5 {
                all.switch(&mut current, &prompt(number)).unwrap();
                current.scores_after(&prompt(number), &|| false).unwrap();
                assert!(all.used().bytes <= others, "{others}");
            }
            let has = |conversation: &ConversationResources, number| {
                conversation.cached_and_shared(&prompt(number)) == (40, 40)
            };
            assert!(has(&current, 4), "{others}");
            assert_eq!(all.used().conversations, kept.len(), "{others}");
            assert!(all.others.iter().zip(&kept).all(|(other, number)| has(other, *number)), "{others}");
        }
    }

    #[test]
    fn smaller_limits_drop_caches_at_once() {
        let mut current = conversation(&prompt(0));
        let mut all = KeptConversations::default();
        all.set_limits(CacheLimits { conversations: 4, others: u64::MAX });
        for number in 1..4 {
            all.switch(&mut current, &prompt(number)).unwrap();
            current.scores_after(&prompt(number), &|| false).unwrap();
        }
        assert_eq!(all.used().conversations, 3);
        all.set_limits(CacheLimits { conversations: 4, others: 2 * current.cache_bytes() });
        all.drop_excess();
        assert_eq!(all.used().conversations, 2);
        all.set_limits(CacheLimits::default());
        all.drop_excess();
        assert_eq!(all.used(), CacheUse::default());
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
