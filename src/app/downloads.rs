//! Fetching models: what the hub has, and the downloads from it. Whatever a person begins here that needs the hub
//! has a keychain that stayed shut asked once more.

use super::{App, lock};
use hunch_error::Result;
use hunch_library::download::{DownloadSettings, Downloads};
use hunch_library::hub::HubConfig;
use hunch_library::types::{Download, DownloadRequest, HubRepository, HubState};

impl App {
    /// The downloads, opened when they are first asked for. Whoever watches the library subscribes here.
    ///
    /// # Errors
    /// When the environment's hub or proxy makes no sense.
    pub fn downloader(&self) -> Result<Downloads> {
        let mut downloads = lock(&self.shared.downloads);
        if let Some(downloads) = &*downloads {
            return Ok(downloads.clone());
        }
        let opened =
            Downloads::open(&self.shared.places.models, HubConfig::from_env(), DownloadSettings::default())?;
        Ok(downloads.insert(opened).clone())
    }

    /// The downloads, for something that a person begins.
    fn downloader_anew(&self) -> Result<Downloads> {
        let downloads = self.downloader()?;
        downloads.retry_keychain();
        Ok(downloads)
    }

    /// Downloads from another hub than the environment's, or in another way.
    ///
    /// # Errors
    /// When its address makes no sense.
    pub fn use_hub(&self, hub: HubConfig, settings: DownloadSettings) -> Result<()> {
        let opened = Downloads::open(&self.shared.places.models, hub, settings)?;
        // Closed outside the lock: closing waits for what is being told, and who is told may ask for them.
        let before = lock(&self.shared.downloads).replace(opened);
        drop(before);
        Ok(())
    }

    /// The GGUF models of a repository on the hub. Waits for the hub.
    ///
    /// # Errors
    /// As [`Downloads::repository`].
    pub fn hub_repository(&self, repository: &str) -> Result<HubRepository> {
        self.downloader_anew()?.repository(repository)
    }

    /// The hub, and where its token is from. May wait for the person to open the keychain, the first time.
    ///
    /// # Errors
    /// As [`App::downloader`].
    pub fn hub_state(&self) -> Result<HubState> {
        Ok(self.downloader()?.hub_state())
    }

    /// Keeps the hub's token in the keychain, or forgets it.
    ///
    /// # Errors
    /// As [`Downloads::set_hub_token`].
    pub fn set_hub_token(&self, token: Option<&str>) -> Result<HubState> {
        self.downloader()?.set_hub_token(token)
    }

    /// Every download.
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
        self.downloader_anew()?.start(request)
    }

    /// Stops a download; what is here of it stays.
    ///
    /// # Errors
    /// As [`Downloads::pause`].
    pub fn pause_download(&self, id: &str) -> Result<()> {
        self.downloader()?.pause(id)
    }

    /// Goes on with a download.
    ///
    /// # Errors
    /// As [`Downloads::pause`].
    pub fn resume_download(&self, id: &str) -> Result<()> {
        self.downloader_anew()?.resume(id)
    }

    /// Takes a download away, with what is here of it.
    ///
    /// # Errors
    /// As [`Downloads::pause`].
    pub fn remove_download(&self, id: &str) -> Result<()> {
        self.downloader()?.remove(id)
    }
}
