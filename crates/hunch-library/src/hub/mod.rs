//! The hub that models are fetched from: its protocol, its names and its token. What is fetched, in
//! which order and where to is `download`'s; nothing here writes a file.

mod client;
mod listing;
mod names;
mod token;

use reqwest::Url;

use hunch_error::{Error, Result};

pub(crate) use client::{Answer, Cure, Failure, Hub};
pub(crate) use listing::{Listing, RemoteFile};
pub use listing::{choose, parse_listing};
pub use names::{check_path, local_file, part_number, quantisation, repository, short_name};
pub use token::{Token, TokenPlaces, Vault};

/// The hub that is spoken to where the environment names no other.
const USUAL_ENDPOINT: &str = "https://huggingface.co";

/// Through what requests go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProxyChoice {
    /// What `HTTPS_PROXY`, `ALL_PROXY`, `NO_PROXY` or the system's settings say.
    #[default]
    System,
    /// Straight to the hub.
    None,
    /// Through this one.
    Through(String),
}

/// Which hub, and how to be let in.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// Its address, without a slash at the end.
    pub endpoint: String,
    /// Where the token is.
    pub tokens: TokenPlaces,
    /// Through what requests go.
    pub proxy: ProxyChoice,
}

impl HubConfig {
    /// What the environment says: `HF_ENDPOINT`, `HF_TOKEN`, and where Hugging Face's programs keep theirs.
    pub fn from_env() -> Self {
        let endpoint = std::env::var("HF_ENDPOINT").ok().filter(|text| !text.trim().is_empty());
        Self {
            endpoint: endpoint.unwrap_or_else(|| USUAL_ENDPOINT.into()),
            tokens: TokenPlaces::of_this_machine(),
            proxy: ProxyChoice::System,
        }
    }

    fn url(&self) -> Result<Url> {
        let url = Url::parse(self.endpoint.trim().trim_end_matches('/')).ok();
        let usable = |url: &Url| {
            ["http", "https"].contains(&url.scheme()) && url.username().is_empty() && url.password().is_none()
        };
        // Not repeated: an address may hold a password.
        url.filter(usable).ok_or_else(|| {
            Error::invalid(
                "HF_ENDPOINT is not the address of a hub. Write it as https://huggingface.co, or unset it.",
            )
        })
    }
}
