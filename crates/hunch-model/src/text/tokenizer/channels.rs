//! Control tokens of channels: of the harmony format (gpt-oss), and around reasoning (Gemma 4). Their meaning for a text
//! does not belong here.

use hunch_core::token::TokenId;

/// Control tokens of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text) struct HarmonyTokens {
    /// Begins a message. Its role follows.
    pub(in crate::text) start: TokenId,
    /// Begins the name of a channel.
    pub(in crate::text) channel: TokenId,
    /// Ends the names and begins the text of a message.
    pub(in crate::text) message: TokenId,
    /// Ends a message of several.
    pub(super) end: TokenId,
    /// Ends the turn.
    pub(super) turn_end: TokenId,
    /// Ends the turn with the call of a tool.
    pub(super) call: Option<TokenId>,
}

impl HarmonyTokens {
    /// Returns the tokens, or `None` if the vocabulary lacks one. `texts` are the texts of all entries.
    pub(super) fn find<'a>(texts: impl Iterator<Item = &'a str>) -> Option<Self> {
        let names = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"];
        let mut ids = [None; 6];
        for (id, text) in (0..).zip(texts) {
            if let Some(at) = names.iter().position(|name| *name == text) {
                ids[at] = Some(id);
            }
        }
        let [start, channel, message, end, turn_end, call] = ids;
        Some(Self {
            start: start?,
            channel: channel?,
            message: message?,
            end: end?,
            turn_end: turn_end?,
            call,
        })
    }
}

/// Control tokens around reasoning. The name of the channel follows the first, on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text) struct ThoughtTokens {
    /// Begins the name of the channel.
    pub(in crate::text) open: TokenId,
    /// Ends the reasoning.
    pub(in crate::text) close: TokenId,
}

impl ThoughtTokens {
    /// Returns the tokens, or `None` if the vocabulary lacks one. `texts` are the texts of all entries.
    pub(super) fn find<'a>(texts: impl Iterator<Item = &'a str>) -> Option<Self> {
        let (mut open, mut close) = (None, None);
        for (id, text) in (0..).zip(texts) {
            match text {
                "<|channel>" => open = Some(id),
                "<channel|>" => close = Some(id),
                _ => {}
            }
        }
        Some(Self { open: open?, close: close? })
    }
}
