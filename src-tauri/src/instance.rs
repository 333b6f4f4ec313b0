//! A second start finds the running app by an identifier. Each data folder has its own.

use std::path::Path;

/// Returns the identifier for the data folder of `HUNCH_DATA_DIR`, or `usual` for the default folder.
pub(crate) fn identifier(usual: &str) -> String {
    match hunch_library::other_data_folder() {
        Some(folder) => of_folder(usual, &folder),
        None => usual.into(),
    }
}

/// Asks the running app with `identifier` to show its window. Returns whether one did.
///
/// `tauri-plugin-single-instance` asks the same, but only after GTK has started, and then ends the process. A thread of
/// GTK's event loop may still be connecting to the X server at that moment. It crashed in 1 of 200 second starts.
#[cfg(target_os = "linux")]
pub(crate) fn show_running(identifier: &str) -> bool {
    // Names as in the plugin, which answers in the running app.
    let name = format!("{identifier}.SingleInstance");
    let path = format!("/{}", name.replace('.', "/").replace('-', "_"));
    let ask = || -> zbus::Result<()> {
        let bus = zbus::blocking::connection::Builder::session()?.method_timeout(ANSWER_TIMEOUT).build()?;
        let (arguments, folder) = (Vec::<String>::new(), "");
        bus.call_method(
            Some(name.as_str()),
            path.as_str(),
            Some("org.SingleInstance.DBus"),
            "ExecuteCallback",
            &(arguments, folder),
        )?;
        Ok(())
    };
    // Without a session bus there is nothing to ask, and without a running app nothing answers.
    ask().is_ok()
}

/// Time in which a running app has to answer. After that the plugin decides.
#[cfg(target_os = "linux")]
const ANSWER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

fn of_folder(usual: &str, folder: &Path) -> String {
    let folder = folder.canonicalize().or_else(|_| std::path::absolute(folder)).unwrap_or(folder.into());
    format!("{usual}.data-{:016x}", fnv1a(folder.as_os_str().as_encoded_bytes()))
}

/// Computes the FNV-1a hash, which does not depend on the build.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifier_does_not_depend_on_the_spelling_of_the_folder() {
        let root = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| root.path().join(name));
        std::fs::create_dir(&one).unwrap();
        std::fs::create_dir(&two).unwrap();
        let of = |path: &Path| of_folder("app.hunch.desktop", path);
        assert_eq!(of(&one), of(&two.join("../one/")));
        assert_ne!(of(&one), of(&two));
        // Valid for D-Bus and the file system, and short enough for a socket name.
        let name = of(&one);
        assert!(name.len() < 60 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b".-".contains(&b)));
    }

    #[test]
    fn fnv1a_matches_published_values() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}
