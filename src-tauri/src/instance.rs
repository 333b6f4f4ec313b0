//! Identifier by which a second start finds the running app. Each data folder has its own.

use std::path::Path;

/// Returns the identifier for the data folder of `HUNCH_DATA_DIR`, or `usual` for the default folder.
pub(crate) fn identifier(usual: &str) -> String {
    match hunch_library::other_data_folder() {
        Some(folder) => of_folder(usual, &folder),
        None => usual.into(),
    }
}

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
