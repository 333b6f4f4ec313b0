//! The hub and downloads from it. Actions of a person that need the hub ask a locked keychain once more.

use super::App;
use hunch_error::Result;
use hunch_library::download::{DownloadSettings, Downloads};
use hunch_library::hub::HubConfig;
use hunch_library::types::{
    Download, DownloadRequest, HubCard, HubRepository, HubSearch, HubSearchPage, HubState,
};

impl App {
    /// Returns the downloads, opened on first use.
    ///
    /// # Errors
    /// When the environment names an invalid hub or proxy.
    pub fn downloader(&self) -> Result<Downloads> {
        let mut downloads = self.shared.library.lock_downloads();
        if let Some(downloads) = &*downloads {
            return Ok(downloads.clone());
        }
        let opened =
            Downloads::open(&self.shared.places.models, HubConfig::from_env(), DownloadSettings::default())?;
        Ok(downloads.insert(opened).clone())
    }

    /// Returns the downloads, for an action of a person.
    fn downloader_for_person(&self) -> Result<Downloads> {
        let downloads = self.downloader()?;
        downloads.retry_keychain();
        Ok(downloads)
    }

    /// Replaces the downloads, for example to use another hub than the environment's.
    ///
    /// # Errors
    /// When the address of the hub is invalid.
    pub fn use_hub(&self, hub: HubConfig, settings: DownloadSettings) -> Result<()> {
        let opened = Downloads::open(&self.shared.places.models, hub, settings)?;
        self.shared.library.set_downloads(opened);
        Ok(())
    }

    /// Lists the models of a repository on the hub. Waits for the hub.
    ///
    /// # Errors
    /// As [`Downloads::repository`].
    pub fn hub_repository(&self, repository: &str) -> Result<HubRepository> {
        self.downloader_for_person()?.repository(repository)
    }

    /// Searches the hub for repositories by name. Waits for the hub.
    ///
    /// # Errors
    /// As [`Downloads::search`].
    pub fn search_hub(&self, search: &HubSearch) -> Result<HubSearchPage> {
        self.downloader_for_person()?.search(search)
    }

    /// Fetches the model card of a repository on the hub. Waits for the hub.
    ///
    /// # Errors
    /// As [`Downloads::card`].
    pub fn hub_card(&self, repository: &str) -> Result<HubCard> {
        self.downloader_for_person()?.card(repository)
    }

    /// Returns the hub and the source of its token. The first call may wait for the person to unlock the keychain.
    ///
    /// # Errors
    /// As [`App::downloader`].
    pub fn hub_state(&self) -> Result<HubState> {
        Ok(self.downloader()?.hub_state())
    }

    /// Stores the hub's token in the keychain, or removes it.
    ///
    /// # Errors
    /// As [`Downloads::set_hub_token`].
    pub fn set_hub_token(&self, token: Option<&str>) -> Result<HubState> {
        self.downloader()?.set_hub_token(token)
    }

    /// Lists all downloads.
    ///
    /// # Errors
    /// As [`App::downloader`].
    pub fn downloads(&self) -> Result<Vec<Download>> {
        Ok(self.downloader()?.list())
    }

    /// Starts a download.
    ///
    /// # Errors
    /// As [`Downloads::start`].
    pub fn start_download(&self, request: &DownloadRequest) -> Result<Download> {
        self.downloader_for_person()?.start(request)
    }

    /// Pauses a download. The bytes fetched so far are kept.
    ///
    /// # Errors
    /// As [`Downloads::pause`].
    pub fn pause_download(&self, id: &str) -> Result<()> {
        self.downloader()?.pause(id)
    }

    /// Resumes a download.
    ///
    /// # Errors
    /// As [`Downloads::pause`].
    pub fn resume_download(&self, id: &str) -> Result<()> {
        self.downloader_for_person()?.resume(id)
    }

    /// Removes a download and the bytes fetched so far.
    ///
    /// # Errors
    /// As [`Downloads::pause`].
    pub fn remove_download(&self, id: &str) -> Result<()> {
        self.downloader()?.remove(id)
    }
}
