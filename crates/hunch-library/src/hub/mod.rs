//! The Hub that models are downloaded from: protocol, names and token. Writes no files. Downloads are in
//! [`download`](crate::download).

mod card;
mod client;
mod listing;
mod names;
mod search;
mod token;

use reqwest::Url;

use crate::http::ProxyChoice;
use hunch_error::{Refusal, Result};

pub use card::plain_card;
pub(crate) use client::{Hub, HubResponse, RequestFailure, Retry};
#[cfg(test)]
pub(crate) use listing::is_head_name;
pub(crate) use listing::{Listing, RemoteFile, TOKENISER};
pub use listing::{choose_file, parse_listing};
pub(crate) use names::{check_part, file_name, model_name};
pub use names::{check_path, is_folder, local_file, part_number, quantisation, repository, short_name};
pub(crate) use search::check as check_search;
pub use search::parse_search;
pub use token::{Token, TokenSources, Vault};

/// Hub used unless `HF_ENDPOINT` is set.
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Address of the Hub, and access to it.
#[derive(Clone, Debug)]
pub struct HubConfig {
    /// Address, without a trailing slash.
    pub endpoint: String,
    /// Sources of the token.
    pub tokens: TokenSources,
    /// Proxy for requests.
    pub proxy: ProxyChoice,
}

impl HubConfig {
    /// Reads the environment: `HF_ENDPOINT`, `HF_TOKEN` and the variables of Hugging Face's tools.
    pub fn from_env() -> Self {
        let endpoint = std::env::var("HF_ENDPOINT").ok().filter(|text| !text.trim().is_empty());
        Self {
            endpoint: endpoint.unwrap_or_else(|| DEFAULT_ENDPOINT.into()),
            tokens: TokenSources::of_this_machine(),
            proxy: ProxyChoice::System,
        }
    }

    fn url(&self) -> Result<Url> {
        let url = Url::parse(self.endpoint.trim().trim_end_matches('/')).ok();
        let usable = |url: &Url| {
            ["http", "https"].contains(&url.scheme()) && url.username().is_empty() && url.password().is_none()
        };
        // Not quoted, because it may contain a password.
        url.filter(usable).ok_or_else(|| Refusal::BadEndpoint.into())
    }
}
