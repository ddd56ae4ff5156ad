//! Sources of Debian's packages, by an apt whose configuration and lists are in `target`: those of the system stay as they are.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::FOLDER;
use crate::exec::{self, minutes};
use crate::packages;

/// The release whose sources are the newest.
const RELEASE: &str = "sid";

/// The key of the archive, of the package `debian-archive-keyring`.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The file of a folder that has been unpacked as a whole, with the version.
const MARKER: &str = ".version";

/// Fetches the source of a package as its authors publish it, without the changes of Debian. Returns its folder, which is kept for
/// the next run.
///
/// # Errors
/// A sentence on what failed.
pub(super) fn source(package: &str) -> Result<PathBuf, String> {
    let folder = super::folder(package);
    if let Ok(version) = fs::read_to_string(folder.join(MARKER)) {
        println!("{package} {version} is in {}", folder.display());
        return Ok(folder);
    }
    let archives = Path::new(FOLDER).join("archives");
    let apt = Apt::new(&Path::new(FOLDER).join("apt"))?;
    let wrong = |error: io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(&archives).map_err(wrong)?;
    let mut fetch = apt.command("apt-get");
    fetch.args(["source", "--download-only", "--only-source", package]).current_dir(&archives);
    let fetched = exec::quietly(fetch, minutes(10));
    // Lists that are older than the archive name changes of Debian that it has no more. The source is there all the same.
    let Some((file, version)) = original(&archives, package).map_err(wrong)? else {
        return Err(fetched.err().unwrap_or_else(|| format!("apt has fetched no source of {package}")));
    };
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(wrong)?;
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(&file).args(["--strip-components", "1", "-C"]).arg(&folder);
    exec::quietly(tar, minutes(5))?;
    fs::write(folder.join(MARKER), &version).map_err(wrong)?;
    println!("{package} {version} has been fetched");
    Ok(folder)
}

/// The archive of the authors among these files, and its version.
fn original(archives: &Path, package: &str) -> io::Result<Option<(PathBuf, String)>> {
    for entry in fs::read_dir(archives)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(version) = version(&name, package) {
            return Ok(Some((path, version.to_owned())));
        }
    }
    Ok(None)
}

/// The version in the name of such an archive.
fn version<'a>(name: &'a str, package: &str) -> Option<&'a str> {
    let (version, compression) = name.strip_prefix(package)?.strip_prefix('_')?.split_once(".orig.tar.")?;
    // Not its signature.
    (!compression.contains('.')).then_some(version)
}

/// apt with lists of its own.
struct Apt {
    /// The configuration that leads to them, for the variable `APT_CONFIG`.
    config: PathBuf,
}

impl Apt {
    /// Fetches the lists.
    fn new(folder: &Path) -> Result<Self, String> {
        let archive = packages::debian_archive().ok_or("apt knows no archive of Debian")?;
        let folder = crate::root().join(folder);
        let wrong = |error: io::Error| format!("{}: {error}", folder.display());
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(part)).map_err(wrong)?;
        }
        let sources = folder.join("sources.list");
        fs::write(&sources, format!("deb-src [signed-by={KEYS}] {archive} {RELEASE} main\n"))
            .map_err(wrong)?;
        let place = |name: &str, path: &Path| format!("{name} \"{}\";\n", path.display());
        let text = [
            place("Dir::Etc::SourceList", &sources),
            place("Dir::Etc::SourceParts", Path::new("/dev/null")),
            place("Dir::State::Lists", &folder.join("lists")),
            place("Dir::Cache", &folder.join("cache")),
            // With its rights dropped, apt of root could not write here.
            "APT::Sandbox::User \"root\";\n".to_owned(),
        ];
        let config = folder.join("config");
        fs::write(&config, text.concat()).map_err(wrong)?;
        let apt = Self { config };
        let mut update = apt.command("apt-get");
        update.arg("update");
        exec::quietly(update, minutes(5))?;
        Ok(apt)
    }

    /// A program of apt that uses them.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", &self.config);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_names_of_archives() {
        assert_eq!(version("valkey_9.1.2.orig.tar.gz", "valkey"), Some("9.1.2"));
        assert_eq!(version("rdma-core_65.0.orig.tar.xz", "rdma-core"), Some("65.0"));
        for name in ["valkey_9.1.2-1.dsc", "valkey_9.1.2.orig.tar.gz.asc", "valkey-x_1.orig.tar.gz"] {
            assert_eq!(version(name, "valkey"), None, "{name}");
        }
    }
}
