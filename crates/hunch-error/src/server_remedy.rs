//! Remedies for the failures of servers.

use std::fmt;

/// Remedy for a failure of a server. The window shows it in its own language, by its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerRemedy {
    /// The server cannot be reached.
    CheckAddress,
    /// Something else answers at the address.
    CheckProtocol,
    /// The server speaks the protocol, and cannot use this model.
    ChooseModel,
    /// The server redirects to another address.
    FollowRedirect,
    /// The server needs a key, and has none.
    AddKey,
    /// The server refuses the key.
    CheckKey,
    /// The server is busy.
    Wait,
    /// The server refuses the request.
    ChangeRequest,
    /// The failure may pass.
    Retry,
}

impl ServerRemedy {
    /// Returns the code, as `serverRemedies` in `ui/src/lib/strings/keys.ts` lists it.
    pub fn code(self) -> &'static str {
        match self {
            Self::CheckAddress => "check_address",
            Self::CheckProtocol => "check_protocol",
            Self::ChooseModel => "choose_model",
            Self::FollowRedirect => "follow_redirect",
            Self::AddKey => "add_key",
            Self::CheckKey => "check_key",
            Self::Wait => "wait",
            Self::ChangeRequest => "change_request",
            Self::Retry => "retry",
        }
    }
}

impl fmt::Display for ServerRemedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CheckAddress => "Check that it runs, and its address.",
            Self::CheckProtocol => {
                "Check the address: it must be of a server that speaks OpenAI's protocol."
            }
            Self::ChooseModel => "Choose another of its models.",
            Self::FollowRedirect => "It redirects to another address. Use that one.",
            Self::AddKey => {
                "It needs a key: set HUNCH_SERVER_KEY for the command line, or add it in the window's library."
            }
            Self::CheckKey => "Check the key.",
            Self::Wait => "Wait a little, then try again.",
            Self::ChangeRequest => "Change the request.",
            Self::Retry => "Try again.",
        })
    }
}
