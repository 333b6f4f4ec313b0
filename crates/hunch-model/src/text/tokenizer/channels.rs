//! Control tokens of channels: of the harmony format (gpt-oss), and around reasoning (Gemma 4, Seed-OSS,
//! Magistral). Their meaning for a text
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

/// Control tokens around reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::text) struct ThoughtTokens {
    /// Begins the reasoning, or the name of its channel.
    pub(in crate::text) open: TokenId,
    /// Ends the reasoning.
    pub(in crate::text) close: TokenId,
    /// The name of a channel follows the first token, on a line.
    pub(in crate::text) has_name: bool,
}

/// Tokens that begin and end the reasoning, of Gemma 4, Seed-OSS and Magistral. Only Gemma's channel has a name.
const THOUGHTS: [(&str, &str, bool); 3] = [
    ("<|channel>", "<channel|>", true),
    ("<seed:think>", "</seed:think>", false),
    ("[THINK]", "[/THINK]", false),
];

impl ThoughtTokens {
    /// Returns the tokens, or `None` if the vocabulary lacks one. `texts` are the texts of all entries.
    pub(super) fn find<'a>(texts: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mut found = [(None, None); THOUGHTS.len()];
        for (id, text) in (0..).zip(texts) {
            for ((open, close), (opening, closing, _)) in found.iter_mut().zip(THOUGHTS) {
                if text == opening {
                    *open = Some(id);
                } else if text == closing {
                    *close = Some(id);
                }
            }
        }
        let pairs = found.into_iter().zip(THOUGHTS);
        pairs
            .into_iter()
            .find_map(|((open, close), (.., has_name))| Some(Self { open: open?, close: close?, has_name }))
    }
}
