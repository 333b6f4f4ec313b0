//! Releases: the version of a build, and the files that the scripts write for a release.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::cli::{hunch, text};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn script(name: &str, arguments: &[&str]) -> Output {
    Command::new(Path::new(ROOT).join("scripts").join(name)).args(arguments).output().unwrap()
}

fn write(path: &Path, content: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

fn git(folder: &Path, arguments: &[&str]) -> String {
    let mut git = Command::new("git");
    git.arg("-C").arg(folder).args(["-c", "user.name=Test", "-c", "user.email=test@example.org"]);
    // Settings of the user, such as signed commits, must not affect a test.
    let output =
        git.args(arguments).env("GIT_CONFIG_GLOBAL", "/dev/null").env_remove("GIT_DIR").output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).trim().into()
}

/// The build script as a program.
struct BuildScript(PathBuf);

impl BuildScript {
    fn compile(folder: &Path) -> Self {
        let program = folder.join("build-script");
        let mut rustc = Command::new("rustc");
        rustc.args(["--edition", "2024", "-o"]).arg(&program).arg(Path::new(ROOT).join("build.rs"));
        assert!(rustc.status().unwrap().success());
        Self(program)
    }

    /// Returns the lines for Cargo in a build of `root`.
    fn output(&self, root: &Path, profile: &str, commit: Option<&str>) -> String {
        let mut script = Command::new(&self.0);
        script.env("CARGO_MANIFEST_DIR", root).env("CARGO_PKG_VERSION", "1.2.3").env("PROFILE", profile);
        script.env_remove("HUNCH_COMMIT").env_remove("GIT_DIR").current_dir(root);
        if let Some(commit) = commit {
            script.env("HUNCH_COMMIT", commit);
        }
        let output = script.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Returns the version of a build of `root`.
    fn version(&self, root: &Path, profile: &str, commit: Option<&str>) -> String {
        let lines = self.output(root, profile, commit);
        let line = lines.lines().find_map(|line| line.strip_prefix("cargo:rustc-env=HUNCH_VERSION="));
        line.unwrap().into()
    }
}

#[test]
fn version_names_the_commit_of_checkouts_and_source_archives() {
    let folder = tempfile::tempdir().unwrap();
    let script = BuildScript::compile(folder.path());
    let checkout = folder.path().join("checkout");
    write(&checkout.join("src/commit.txt"), "$Format:%H$\n");
    let sources =
        ["Cargo.toml", "src/lib.rs", "crates/a/src/lib.rs", "src-tauri/tauri.conf.json", "ui/src/app.ts"];
    for source in sources {
        write(&checkout.join(source), "1\n");
    }
    write(&checkout.join("README.md"), "1\n");
    // Neither a checkout nor an archive.
    assert_eq!(script.version(&checkout, "release", None), "1.2.3");

    git(&checkout, &["init", "--quiet"]);
    git(&checkout, &["add", "."]);
    git(&checkout, &["commit", "--quiet", "-m", "First"]);
    let commit = git(&checkout, &["rev-parse", "HEAD"]);
    let short = &commit[..12];
    assert_eq!(script.version(&checkout, "release", None), format!("1.2.3 ({short})"));
    assert_eq!(script.version(&checkout, "debug", None), "1.2.3");
    assert_eq!(script.version(&checkout, "debug", Some(&commit)), format!("1.2.3 ({short})"));
    // A file that is not compiled does not count, and neither does one that git does not know.
    write(&checkout.join("README.md"), "2\n");
    write(&checkout.join("ui/node_modules/a/index.js"), "1\n");
    assert_eq!(script.version(&checkout, "release", None), format!("1.2.3 ({short})"));
    for source in sources {
        write(&checkout.join(source), "2\n");
        assert_eq!(
            script.version(&checkout, "release", None),
            format!("1.2.3 ({short}, modified)"),
            "{source}"
        );
        write(&checkout.join(source), "1\n");
    }
    let watched = script.output(&checkout, "release", None);
    for source in sources {
        assert!(watched.lines().any(|line| line == format!("cargo:rerun-if-changed={source}")), "{watched}");
    }
    assert!(!watched.contains("node_modules"), "{watched}");

    // An archive keeps its own commit, also below another checkout. One without a commit has none there.
    let archive = checkout.join("target/archive");
    write(&archive.join("src/commit.txt"), "$Format:%H$\n");
    assert_eq!(script.version(&archive, "release", None), "1.2.3");
    write(&archive.join("src/commit.txt"), "0123456789abcdef0123456789abcdef01234567\n");
    assert_eq!(script.version(&archive, "release", None), "1.2.3 (0123456789ab)");
}

#[test]
fn git_writes_the_commit_into_archives_of_this_repository() {
    let attributes = std::fs::read_to_string(Path::new(ROOT).join(".gitattributes")).unwrap();
    assert!(attributes.lines().any(|line| line == "src/commit.txt export-subst"));
    // In an archive of the repository, git has filled it in.
    let commit = std::fs::read_to_string(Path::new(ROOT).join("src/commit.txt")).unwrap();
    assert!(commit.trim() == "$Format:%H$" || commit.trim().len() == 40, "{commit}");
}

#[test]
fn hunch_prints_its_version() {
    let data = tempfile::tempdir().unwrap();
    let printed = text(&hunch(data.path(), &["--version"]).stdout);
    assert_eq!(printed.trim(), format!("hunch {}", hunch::VERSION));
    assert!(hunch::VERSION.starts_with(env!("CARGO_PKG_VERSION")));
}

#[test]
fn release_has_checksums_and_homebrew_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    write(&folder.path().join("Hunch_1.2.3_aarch64.dmg"), "image");
    write(&folder.path().join("hunch-1.2.3-source.tar.gz"), "sources");
    let address = "https://example.org/v1.2.3";
    let arguments = [path, "--version", "1.2.3", "--repository", "owner/name", "--url", address];
    // A second run replaces the files of the first.
    for _ in 0..2 {
        let output = script("release-manifest", &arguments);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    // SHA-256 of "image" and of "sources".
    let image = "6105d6cc76af400325e94d588ce511be5bfdbb73b437dc51eca43917d7a43e3d";
    let sources = "878a52fc5ff6a57d50b7b870aa51637a3dfd38fc22352a39f95a3c292eb976d5";
    let sums = read("SHA256SUMS");
    let names: Vec<&str> = sums.lines().filter_map(|line| line.split("  ").nth(1)).collect();
    assert_eq!(names, ["Hunch_1.2.3_aarch64.dmg", "hunch-1.2.3-source.tar.gz", "hunch-app.rb", "hunch.rb"]);
    let cask = read("hunch-app.rb");
    assert!(cask.starts_with("cask \"hunch-app\" do\n") && !cask.contains('@'), "{cask}");
    assert!(cask.contains(&format!("url \"{address}/Hunch_1.2.3_aarch64.dmg\"")), "{cask}");
    assert!(cask.contains(image) && sums.contains(image), "{sums}");
    let formula = read("hunch.rb");
    assert!(formula.starts_with("class Hunch < Formula\n") && !formula.contains('@'), "{formula}");
    assert!(formula.contains(sources) && sums.contains(sources), "{sums}");

    // A second image leaves open which one is meant.
    write(&folder.path().join("Hunch_1.2.3_other_aarch64.dmg"), "other");
    let output = script("release-manifest", &arguments);
    assert!(!output.status.success() && text(&output.stderr).contains("more than one"));
}

/// Returns a signature as the bundler writes it for the updater. The manifest copies it, and the app checks it.
fn signature(version: &str) -> String {
    let text = format!(
        "untrusted comment: signature from tauri secret key\nRUSP\ntrusted comment: timestamp:1\tfile:Hunch\tversion:{version}\nQ31Z\n"
    );
    base64(text.as_bytes())
}

/// Encodes bytes in base64.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |group: u32, place: u32| char::from(DIGITS[(group >> (18 - 6 * place)) as usize & 63]);
    let encode = |part: &[u8]| {
        let group = (0..3).fold(0, |group, at| group << 8 | u32::from(part.get(at).copied().unwrap_or(0)));
        (0..4).map(move |place| if place as usize > part.len() { '=' } else { digit(group, place) }).collect()
    };
    bytes.chunks(3).map(encode).collect::<Vec<String>>().concat()
}

/// A folder of bundles of version 1.2.3 that are signed for the updater.
struct SignedBundles(tempfile::TempDir);

impl SignedBundles {
    fn new() -> Self {
        let bundles = Self(tempfile::tempdir().unwrap());
        bundles.add("Hunch_1.2.3_aarch64.dmg", "image");
        for name in ["Hunch_1.2.3_aarch64.app.tar.gz", "Hunch_1.2.3_amd64.deb", "Hunch_1.2.3_amd64.AppImage"]
        {
            bundles.add(name, name);
            bundles.add(&format!("{name}.sig"), &signature("1.2.3"));
        }
        bundles
    }

    fn add(&self, name: &str, content: &str) {
        write(&self.0.path().join(name), content);
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.0.path().join(name)).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.path().join(name)).unwrap()
    }

    /// Writes the manifest. Returns it, or the error.
    fn manifest(&self) -> Result<serde_json::Value, String> {
        let other = tempfile::tempdir().unwrap();
        let notes = other.path().join("notes.md");
        write(&notes, "### Added\n\n- An updater.\n");
        let folder = self.0.path().to_str().unwrap();
        let address = "https://example.org/v1.2.3/";
        let named = ["--version", "1.2.3", "--repository", "owner/name", "--notes", notes.to_str().unwrap()];
        let output = script("release-manifest", &[&[folder, "--url", address], &named[..]].concat());
        match output.status.success() {
            true => Ok(std::fs::read_to_string(self.0.path().join("latest.json"))
                .map(|text| serde_json::from_str(&text).unwrap())
                .unwrap_or_default()),
            false => Err(text(&output.stderr)),
        }
    }
}

#[test]
fn manifest_of_the_updater_names_every_signed_bundle() {
    let bundles = SignedBundles::new();
    let manifest = bundles.manifest().unwrap();
    let bundle = |name: &str| serde_json::json!({ "url": format!("https://example.org/v1.2.3/{name}"), "signature": signature("1.2.3") });
    let platforms = serde_json::json!({
        "darwin-aarch64-app": bundle("Hunch_1.2.3_aarch64.app.tar.gz"),
        "linux-x86_64-appimage": bundle("Hunch_1.2.3_amd64.AppImage"),
        "linux-x86_64-deb": bundle("Hunch_1.2.3_amd64.deb"),
    });
    let notes = "### Added\n\n- An updater.";
    assert_eq!(manifest, serde_json::json!({ "version": "1.2.3", "notes": notes, "platforms": platforms }));
    assert!(bundles.read("hunch-app.rb").contains("\n  auto_updates true\n  depends_on arch: :arm64\n"));
}

#[test]
fn no_manifest_of_the_updater_without_signatures() {
    let bundles = SignedBundles::new();
    for name in ["aarch64.app.tar.gz", "amd64.deb", "amd64.AppImage"] {
        bundles.remove(&format!("Hunch_1.2.3_{name}.sig"));
    }
    assert_eq!(bundles.manifest(), Ok(serde_json::Value::Null));
    assert!(!bundles.read("hunch-app.rb").contains("auto_updates"));
}

#[test]
fn manifest_of_the_updater_needs_every_signature_for_this_version() {
    let missing = SignedBundles::new();
    missing.remove("Hunch_1.2.3_amd64.deb.sig");
    let error = missing.manifest().unwrap_err();
    assert!(error.contains("Hunch_1.2.3_amd64.deb has no signature"), "{error}");

    let older = SignedBundles::new();
    older.add("Hunch_1.2.3_amd64.deb.sig", &signature("1.2.2"));
    let error = older.manifest().unwrap_err();
    assert!(error.contains("for version 1.2.2, not 1.2.3"), "{error}");

    let unbound = SignedBundles::new();
    unbound
        .add("Hunch_1.2.3_amd64.deb.sig", &base64(b"untrusted\nRUSP\ntrusted comment: timestamp:1\nQ31Z\n"));
    assert!(unbound.manifest().unwrap_err().contains("names no version"));

    let broken = SignedBundles::new();
    broken.add("Hunch_1.2.3_amd64.deb.sig", "<html>");
    assert!(broken.manifest().unwrap_err().contains("is no signature"));

    let mac = SignedBundles::new();
    mac.remove("Hunch_1.2.3_aarch64.app.tar.gz");
    assert!(mac.manifest().unwrap_err().contains("without its bundle for the updater"));
}

#[test]
fn release_has_bundles_of_its_version_only() {
    for other in ["Hunch_1.2.2_amd64.rpm", "Hunch_1.2.3-rc.1_amd64.rpm", "hunch-1.2.30-source.tar.gz"] {
        let bundles = SignedBundles::new();
        bundles.add(other, "other");
        let error = bundles.manifest().unwrap_err();
        assert!(error.contains(other) && error.contains("not of version 1.2.3"), "{error}");
    }
}

#[test]
fn configuration_of_the_updater_needs_a_key_and_a_fixed_address() {
    let key = base64(b"untrusted comment: minisign public key: 8F28\nRWSP\n");
    let address = "https://example.org/latest.json";
    let output = script("updater-config", &[&key, address]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let config: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        config["plugins"]["updater"],
        serde_json::json!({ "pubkey": key, "endpoints": [address], "requireSignedVersion": true })
    );
    assert_eq!(config["bundle"]["createUpdaterArtifacts"], true);
    for (key, address) in [
        ("nothing", address),
        (&*base64(b"untrusted comment: rsign encrypted secret key\nRWRT\n"), address),
        (&key, "http://example.org/latest.json"),
        (&key, "https://example.org/{{current_version}}"),
    ] {
        assert!(!script("updater-config", &[key, address]).status.success(), "{key} {address}");
    }
}

#[test]
fn release_needs_a_matching_tag() {
    let version = env!("CARGO_PKG_VERSION");
    let other = script("release-notes", &["v0.0.0-none"]);
    assert!(!other.status.success());
    let said = text(&other.stderr);
    assert!(said.contains("v0.0.0-none") && said.contains(version), "{said}");
}
