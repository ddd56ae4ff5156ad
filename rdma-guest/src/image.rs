//! The parts of the guest machine that are made once and kept.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::time::{Duration, Instant};

use crate::exec;
use crate::packages;

/// The script that makes the parts.
const BUILD: &str = include_str!("../guest/build.sh");
/// The first program of the guest, which is one of the parts.
const INIT: &str = include_str!("../guest/init.sh");

/// How long making the parts may take; two minutes is usual.
const BUILD_LIMIT: Duration = exec::minutes(15);

/// The parts, on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The folder with the kernel, its modules and the initial file system.
    pub folder: PathBuf,
    /// The kernel's version, such as `6.1.0-56-amd64`.
    pub kernel: String,
}

/// The image in this folder of images. It is made if there is none yet: of the kernel that Debian has now.
///
/// # Errors
/// A sentence that says what is missing and what to do.
pub fn prepare(cache: &Path) -> Result<Image, String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("the guest machine is made for x86-64 only".into());
    }
    if let Some(image) = existing(cache) {
        packages::can_run()?;
        return Ok(image);
    }
    packages::can_make()?;
    eprintln!("making the guest machine in {} (once, about two minutes)", cache.display());
    let lists =
        Lists::fetch(&cache.join("apt")).map_err(|error| format!("cannot fetch Debian's lists: {error}"))?;
    let kernel = lists
        .current_kernel()
        .ok_or("apt-cache knows no package `linux-image-amd64`, of which the guest machine is made")?;
    let image = Image::new(cache, kernel);
    image.build(&lists).map_err(|error| format!("cannot make the guest machine: {error}"))?;
    Ok(image)
}

/// The folder for images: that of the user, so that every project finds them.
pub fn user_cache() -> Option<PathBuf> {
    let user = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    let user = user.filter(|folder| folder.is_absolute() && !folder.starts_with("/nonexistent"));
    user.map(|folder| folder.join("rdma-guest"))
}

/// The image that was made last, of those that this version makes.
fn existing(cache: &Path) -> Option<Image> {
    let entries = fs::read_dir(cache).ok()?.flatten();
    let images = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let image = Image::new(cache, name.strip_suffix(&suffix())?.to_owned());
        let made = fs::metadata(image.marker()).and_then(|marker| marker.modified()).ok()?;
        Some((made, image))
    });
    images.max_by_key(|(made, _)| *made).map(|(_, image)| image)
}

/// The end of the names of the folders: it stands for what the images are made with.
fn suffix() -> String {
    let mut hasher = DefaultHasher::new();
    (BUILD, INIT).hash(&mut hasher);
    format!(".{:08x}", hasher.finish() & 0xffff_ffff)
}

impl Image {
    /// That of one version of the kernel.
    fn new(cache: &Path, kernel: String) -> Self {
        Self { folder: cache.join(format!("{kernel}{}", suffix())), kernel }
    }

    /// The file that is there if the image is.
    fn marker(&self) -> PathBuf {
        self.folder.join("initramfs.gz")
    }

    /// Makes it, in a folder of another name so that it is there as a whole or not at all.
    fn build(&self, lists: &Lists) -> Result<(), String> {
        let part = self.folder.with_extension(format!("part-{}", process::id()));
        let result = self.build_in(&part, lists);
        let _ = fs::remove_dir_all(&part);
        result
    }

    /// Makes it in this folder and moves it to its place.
    fn build_in(&self, part: &Path, lists: &Lists) -> Result<(), String> {
        let wrong = |error: io::Error| format!("{}: {error}", part.display());
        fs::create_dir_all(part).map_err(wrong)?;
        for (name, text) in [("build", BUILD), ("init", INIT)] {
            fs::write(part.join(name), text).map_err(wrong)?;
        }
        let mut command = Command::new("sh");
        command.arg(part.join("build")).arg(&self.kernel).arg(part).arg(part.join("init"));
        command.env("PATH", packages::path_with_system_folders()).env("APT_CONFIG", &lists.config);
        let mut output = String::new();
        let started = Instant::now();
        exec::quiet_lines(command, BUILD_LIMIT, |line| {
            if line.starts_with("-- ") {
                eprintln!("{line} ({:.0} s)", started.elapsed().as_secs_f32());
            }
            output += line;
            output.push('\n');
        })
        .map_err(|error| format!("{error}\n{output}"))?;
        eprintln!("-- made ({:.0} s)", started.elapsed().as_secs_f32());
        match fs::rename(part, &self.folder) {
            // Somebody else was faster.
            Err(_) if self.marker().is_file() => Ok(()),
            moved => moved.map_err(wrong),
        }
    }
}

/// apt's lists of packages, in a folder of ours: those of the system are renewed by root only.
struct Lists {
    /// The configuration that leads to them, for the variable `APT_CONFIG`.
    config: PathBuf,
}

impl Lists {
    /// Fetches them into this folder: those of Debian 12.
    fn fetch(folder: &Path) -> Result<Self, String> {
        let wrong = |error: io::Error| format!("{}: {error}", folder.display());
        for part in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(part)).map_err(wrong)?;
        }
        let config = folder.join("config");
        let place = |name: &str, folder: PathBuf| format!("{name} \"{}\";\n", folder.display());
        let text = [
            place("Dir::State::Lists", folder.join("lists")),
            place("Dir::Cache", folder.join("cache")),
            // With its rights dropped, apt of root could not write here.
            "APT::Sandbox::User \"root\";\n".to_owned(),
        ];
        let mut text = text.concat();
        if let Some(line) = packages::debian_12() {
            let sources = folder.join("sources.list");
            fs::write(&sources, format!("{line}\n")).map_err(wrong)?;
            text += &place("Dir::Etc::SourceList", sources);
            text += &place("Dir::Etc::SourceParts", "/dev/null".into());
        }
        fs::write(&config, text).map_err(wrong)?;
        let lists = Self { config };
        eprintln!("-- lists of packages");
        let mut update = lists.command("apt-get");
        update.arg("update");
        exec::quietly(update, exec::minutes(5))?;
        Ok(lists)
    }

    /// A program of apt that uses them.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", &self.config);
        command
    }

    /// The version of the kernel that the package `linux-image-amd64` stands for.
    fn current_kernel(&self) -> Option<String> {
        let mut command = self.command("apt-cache");
        command.args(["depends", "linux-image-amd64"]);
        let mut version = None;
        let result = exec::quiet_lines(command, exec::minutes(1), |line| {
            version = version.take().or_else(|| parse_depends(line));
        });
        result.ok().and(version)
    }
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
    fn the_last_image_of_this_version_is_used() {
        let cache = env::temp_dir().join(format!("rdma-guest-test-{}", process::id()));
        assert_eq!(existing(&cache), None);
        let image = Image::new(&cache, "6.1.0-1-amd64".into());
        for folder in [cache.join("6.1.0-2-amd64.00000000"), image.folder.clone()] {
            fs::create_dir_all(&folder).expect("a folder");
        }
        assert_eq!(existing(&cache), None, "it is not complete");
        fs::write(cache.join("6.1.0-2-amd64.00000000/initramfs.gz"), "").expect("a file");
        assert_eq!(existing(&cache), None, "it is of another version");
        fs::write(image.marker(), "").expect("a file");
        assert_eq!(existing(&cache), Some(image));
        fs::remove_dir_all(&cache).expect("the folder");
    }
}
