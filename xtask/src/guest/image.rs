//! The parts of the guest machine that are made once for each version of the kernel.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::time::Duration;

use crate::exec;
use crate::packages;

/// What makes the parts, and the first program of the guest, which is one of them.
const BUILD: &str = include_str!("../../guest/build.sh");
/// See [`BUILD`].
const INIT: &str = include_str!("../../guest/init.sh");

/// How long making the parts may take; two minutes is usual.
const BUILD_LIMIT: Duration = exec::minutes(15);

/// The parts, on disk.
#[derive(Debug)]
pub(super) struct Image {
    /// The folder with the kernel, its modules and the initial file system.
    pub(super) folder: PathBuf,
    /// The kernel's version, such as `6.1.0-56-amd64`.
    pub(super) kernel: String,
}

/// The image of the kernel that Debian has now, made if it is not there yet.
///
/// # Errors
/// A sentence that says what is missing and what to do.
pub(super) fn prepare() -> Result<Image, String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("the guest machine is made for x86-64 only".into());
    }
    if let Some(sentence) = packages::lacking(packages::GUEST) {
        return Err(sentence);
    }
    let cache = cache();
    if let Some(image) = current_kernel().map(|kernel| image(&cache, kernel)).filter(Image::is_complete) {
        return Ok(image);
    }
    packages::update_lists();
    let kernel = current_kernel()
        .ok_or("apt-cache knows no kernel; the guest machine needs Debian 12 and `sudo apt-get update`")?;
    let image = image(&cache, kernel);
    image.build().map_err(|error| format!("cannot make the guest machine: {error}"))?;
    Ok(image)
}

impl Image {
    /// Whether it has been made.
    fn is_complete(&self) -> bool {
        self.folder.join("initramfs.gz").is_file()
    }

    /// Makes it, in a folder of another name so that it is there as a whole or not at all.
    fn build(&self) -> Result<(), String> {
        eprintln!("making the guest machine in {} (once, about two minutes)", self.folder.display());
        let part = self.folder.with_extension(format!("part-{}", process::id()));
        let result = self.build_in(&part);
        let _ = fs::remove_dir_all(&part);
        result
    }

    /// Makes it in this folder and moves it to its place.
    fn build_in(&self, part: &Path) -> Result<(), String> {
        let wrong = |error: io::Error| format!("{}: {error}", part.display());
        fs::create_dir_all(part).map_err(wrong)?;
        for (name, text) in [("build", BUILD), ("init", INIT)] {
            fs::write(part.join(name), text).map_err(wrong)?;
        }
        let mut command = Command::new("sh");
        command.arg(part.join("build")).arg(&self.kernel).arg(part).arg(part.join("init"));
        command.env("PATH", packages::path_with_system_folders());
        let mut output = String::new();
        exec::quiet_lines(command, BUILD_LIMIT, |line| {
            if line.starts_with("-- ") {
                eprintln!("{line}");
            }
            output += line;
            output.push('\n');
        })
        .map_err(|error| format!("{error}\n{output}"))?;
        match fs::rename(part, &self.folder) {
            // Somebody else was faster.
            Err(_) if self.is_complete() => Ok(()),
            moved => moved.map_err(wrong),
        }
    }
}

/// The image of one version: its folder also names what it was made with.
fn image(cache: &Path, kernel: String) -> Image {
    let mut hasher = DefaultHasher::new();
    (BUILD, INIT).hash(&mut hasher);
    let folder = cache.join(format!("{kernel}.{:08x}", hasher.finish() & 0xffff_ffff));
    Image { folder, kernel }
}

/// Where images are kept: with the user, so that every clone of the repository finds them.
fn cache() -> PathBuf {
    let user = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    let user = user.filter(|folder| folder.is_absolute() && !folder.starts_with("/nonexistent"));
    user.map_or_else(|| crate::root().join("target/guest"), |folder| folder.join("tokio-rdma/guest"))
}

/// The version of the kernel that the package `linux-image-amd64` stands for.
fn current_kernel() -> Option<String> {
    let mut command = Command::new("apt-cache");
    command.args(["depends", "linux-image-amd64"]);
    let mut version = None;
    let result = exec::quiet_lines(command, exec::minutes(1), |line| {
        version = version.take().or_else(|| parse_depends(line));
    });
    result.ok().and(version)
}

/// The version in `  Depends: linux-image-6.1.0-56-amd64`.
fn parse_depends(line: &str) -> Option<String> {
    let version = line.trim_start().strip_prefix("Depends: linux-image-")?;
    let version = version.strip_suffix("-unsigned").unwrap_or(version);
    version.starts_with(|first: char| first.is_ascii_digit()).then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_dependency() {
        assert_eq!(parse_depends("  Depends: linux-image-6.1.0-56-amd64").as_deref(), Some("6.1.0-56-amd64"));
        assert_eq!(parse_depends("linux-image-amd64"), None);
        assert_eq!(parse_depends("  Depends: linux-image-amd64-signed"), None);
    }

    #[test]
    fn each_kernel_has_a_folder_of_its_own() {
        let one = image(Path::new("/cache"), "6.1.0-1-amd64".into());
        let other = image(Path::new("/cache"), "6.1.0-2-amd64".into());
        assert_ne!(one.folder, other.folder);
        assert!(one.folder.starts_with("/cache"));
    }
}
