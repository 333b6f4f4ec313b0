//! What is to be answered, and which of its oldest turns go when it is too long. Messages and tokens
//! only: no model, no text made of them.

use hunch_core::chat::{ChatMessage, Role};
use hunch_core::token::TokenId;

/// What to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A conversation, through the model's chat template.
    Chat(Vec<ChatMessage>),
    /// A conversation whose last answer has begun with these tokens.
    Continued(Vec<ChatMessage>, Vec<TokenId>),
    /// Text as it is.
    Raw(String),
}

impl Prompt {
    /// Tokens with which the answer begins already.
    pub fn begun(&self) -> usize {
        if let Self::Continued(_, answer) = self { answer.len() } else { 0 }
    }

    /// The same without its oldest messages, up to the question number `cut` (from 1) among those that may go;
    /// and how many messages that were. Instructions and the last question always stay.
    pub(super) fn without_oldest(&self, cut: usize) -> (Self, usize) {
        let mut prompt = self.clone();
        let (Self::Chat(messages) | Self::Continued(messages, _)) = &mut prompt else { return (prompt, 0) };
        let end = cut.checked_sub(1).and_then(|cut| cuts(messages).get(cut).copied());
        let Some(end) = end else { return (prompt, 0) };
        let dropped = messages.drain(first_said(messages)..end).count();
        (prompt, dropped)
    }

    /// How many cuts there are.
    pub(super) fn most_cuts(&self) -> usize {
        match self {
            Self::Chat(messages) | Self::Continued(messages, _) => cuts(messages).len(),
            Self::Raw(_) => 0,
        }
    }
}

/// The first message that is not instructions.
fn first_said(messages: &[ChatMessage]) -> usize {
    messages.iter().position(|message| message.role != Role::System).unwrap_or(messages.len())
}

/// Where the beginning of a conversation can end: before each question but those it begins with.
fn cuts(messages: &[ChatMessage]) -> Vec<usize> {
    let first = first_said(messages);
    let asked = |&at: &usize| at > first && messages[at].role == Role::User;
    (0..messages.len()).filter(asked).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(role: Role, content: &str) -> ChatMessage {
        ChatMessage { role, content: content.into() }
    }

    #[test]
    fn a_conversation_is_cut_before_a_question_and_keeps_instructions_and_the_last_one() {
        let (user, answer) = (|text| said(Role::User, text), |text| said(Role::Assistant, text));
        let all = vec![
            said(Role::System, "s"),
            // An imported conversation may begin with an answer.
            answer("before"),
            user("1"),
            answer("a"),
            user("2"),
            answer("b"),
            user("3"),
        ];
        let prompt = Prompt::Chat(all.clone());
        assert_eq!(prompt.most_cuts(), 3);
        let left = |cut| match prompt.without_oldest(cut) {
            (Prompt::Chat(messages), dropped) => {
                assert_eq!(messages.len() + dropped, all.len());
                messages.into_iter().map(|message| message.content).collect::<Vec<_>>().concat()
            }
            _ => panic!("it stays a conversation"),
        };
        assert_eq!([0, 1, 2, 3].map(left), ["sbefore1a2b3", "s1a2b3", "s2b3", "s3"]);
        let alone = Prompt::Chat(vec![user("1")]);
        assert_eq!((alone.most_cuts(), alone.without_oldest(1)), (0, (alone.clone(), 0)));
        let raw = Prompt::Raw("text".into());
        assert_eq!((raw.most_cuts(), raw.without_oldest(5)), (0, (raw.clone(), 0)));
    }
}
