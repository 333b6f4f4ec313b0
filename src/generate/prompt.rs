//! Prompts, and truncation of long conversations. Only messages and tokens; no model or tokeniser.

use hunch_core::chat::{ChatMessage, Role};
use hunch_core::token::TokenId;

/// Text to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A conversation, rendered with the model's chat template.
    Chat(Vec<ChatMessage>),
    /// A conversation whose last answer starts with these tokens.
    Continued(Vec<ChatMessage>, Vec<TokenId>),
    /// Text, without a template.
    Raw(String),
}

impl Prompt {
    /// Returns the number of tokens at the end that already belong to the answer.
    pub fn begun(&self) -> usize {
        if let Self::Continued(_, answer) = self { answer.len() } else { 0 }
    }

    /// Returns the prompt without its oldest messages, and how many were removed.
    ///
    /// Removes everything before the `cut`-th removable question (from 1; 0 removes nothing). System
    /// messages and the last question always stay.
    pub(super) fn without_oldest(&self, cut: usize) -> (Self, usize) {
        let mut prompt = self.clone();
        let (Self::Chat(messages) | Self::Continued(messages, _)) = &mut prompt else { return (prompt, 0) };
        let end = cut.checked_sub(1).and_then(|cut| cuts(messages).get(cut).copied());
        let Some(end) = end else { return (prompt, 0) };
        let dropped = messages.drain(first_turn(messages)..end).count();
        (prompt, dropped)
    }

    /// Returns the number of possible cuts.
    pub(super) fn max_cuts(&self) -> usize {
        match self {
            Self::Chat(messages) | Self::Continued(messages, _) => cuts(messages).len(),
            Self::Raw(_) => 0,
        }
    }
}

/// Returns the index of the first message that is not a system message.
fn first_turn(messages: &[ChatMessage]) -> usize {
    messages.iter().position(|message| message.role != Role::System).unwrap_or(messages.len())
}

/// Returns the possible ends of the removed part: every question but those at the start.
fn cuts(messages: &[ChatMessage]) -> Vec<usize> {
    let first = first_turn(messages);
    let is_cut = |&at: &usize| at > first && messages[at].role == Role::User;
    (0..messages.len()).filter(is_cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(role: Role, content: &str) -> ChatMessage {
        ChatMessage { role, content: content.into() }
    }

    #[test]
    fn cuts_before_questions_and_keeps_system_message_and_last_question() {
        let (user, answer) = (|text| message(Role::User, text), |text| message(Role::Assistant, text));
        let all = vec![
            message(Role::System, "s"),
            // Imported conversations may start with an answer.
            answer("before"),
            user("1"),
            answer("a"),
            user("2"),
            answer("b"),
            user("3"),
        ];
        let prompt = Prompt::Chat(all.clone());
        assert_eq!(prompt.max_cuts(), 3);
        let left = |cut| match prompt.without_oldest(cut) {
            (Prompt::Chat(messages), dropped) => {
                assert_eq!(messages.len() + dropped, all.len());
                messages.into_iter().map(|message| message.content).collect::<Vec<_>>().concat()
            }
            _ => panic!("expected a conversation"),
        };
        assert_eq!([0, 1, 2, 3].map(left), ["sbefore1a2b3", "s1a2b3", "s2b3", "s3"]);
        let alone = Prompt::Chat(vec![user("1")]);
        assert_eq!((alone.max_cuts(), alone.without_oldest(1)), (0, (alone.clone(), 0)));
        let raw = Prompt::Raw("text".into());
        assert_eq!((raw.max_cuts(), raw.without_oldest(5)), (0, (raw.clone(), 0)));
    }
}
