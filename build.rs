//! Says in a sentence what the feature `rdma-sys` lacks on this machine, and does nothing without that feature.
//!
//! The bindings come from `rdma-sys`, whose own build script would fail, but with a page of backtrace, and only after
//! its generator was compiled. This script needs nothing to be compiled before it, so cargo runs it earlier.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The newest libclang that the generator of the bindings understands.
const NEWEST_LIBCLANG: u32 = 15;

/// The libraries with the version that the bindings are for: that of rdma-core 28.
const LIBRARIES: [(&str, &str); 2] = [("libibverbs", "1.8.28"), ("librdmacm", "1.2.28")];

/// The variables that decide the outcome, beside files.
const VARIABLES: [&str; 7] = [
    "LIBCLANG_PATH",
    "LLVM_CONFIG_PATH",
    "LD_LIBRARY_PATH",
    "PATH",
    "PKG_CONFIG",
    "PKG_CONFIG_PATH",
    "PKG_CONFIG_LIBDIR",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The files that a cross-compiler would need are where only the build script of the bindings knows to look.
    if env::var_os("CARGO_FEATURE_RDMA_SYS").is_none() || env::var_os("HOST") != env::var_os("TARGET") {
        return;
    }
    for variable in VARIABLES {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    if let Some(sentence) = complaint(|name| env::var_os(name)) {
        println!("cargo::error={sentence}");
    }
}

/// The fault of this machine, given its environment variables.
pub(crate) fn complaint(variable: impl Fn(&str) -> Option<OsString>) -> Option<String> {
    let pkg_config = variable("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    for (library, version) in LIBRARIES {
        let found = Command::new(&pkg_config)
            .args([&format!("--atleast-version={version}"), library])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success());
        if !found {
            return Some(format!(
                "the feature `rdma-sys` needs pkg-config and the headers of {library} {version} or newer: install \
                 `pkg-config libibverbs-dev librdmacm-dev` on Debian, `pkgconf-pkg-config rdma-core-devel` on Fedora"
            ));
        }
    }
    let needs = format!("the feature `rdma-sys` needs libclang {NEWEST_LIBCLANG} or older");
    let install = "install `libclang-14-dev` on Debian, `clang15-devel` on Fedora, and set LIBCLANG_PATH to its folder if \
         another libclang is there, too";
    match libclang(&variable) {
        None => Some(format!("{needs}, and there is none: {install}")),
        Some((version, path)) if version > NEWEST_LIBCLANG => {
            Some(format!("{needs}, and would take {}, which is {version}: {install}", path.display()))
        }
        Some(_) => None,
    }
}

/// The libclang that the generator of the bindings takes, which is the one whose name has the highest version.
fn libclang(variable: &impl Fn(&str) -> Option<OsString>) -> Option<(u32, PathBuf)> {
    let named = variable("LIBCLANG_PATH").map(PathBuf::from);
    let files: Vec<PathBuf> = match named {
        Some(path) if path.is_file() => vec![path],
        Some(path) => entries(&path).collect(),
        None => folders(variable).iter().flat_map(|folder| entries(folder)).collect(),
    };
    let candidates =
        files.into_iter().filter_map(|path| Some((version_in(path.file_name()?.to_str()?)?, path)));
    let (version, path) = candidates.max()?;
    // A name can be a link, and older than what it leads to.
    let linked = fs::canonicalize(&path).ok().and_then(|path| version_in(path.file_name()?.to_str()?));
    Some((linked.map_or(version, |linked| linked.max(version)), path))
}

/// The folders in which the generator looks for libclang unless it is told.
fn folders(variable: &impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    let llvm_config = variable("LLVM_CONFIG_PATH").unwrap_or_else(|| "llvm-config".into());
    if let Ok(output) = Command::new(llvm_config).arg("--prefix").output() {
        let prefix = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        folders.extend(["bin", "lib", "lib64"].map(|name| prefix.join(name)));
    }
    if let Some(paths) = variable("LD_LIBRARY_PATH") {
        folders.extend(env::split_paths(&paths));
    }
    for root in ["/usr", "/usr/local"].map(Path::new) {
        for library in folders_in(root).filter(|folder| begins(folder, "lib")) {
            for below in folders_in(&library) {
                folders.extend(folders_in(&below));
                folders.push(below);
            }
            folders.push(library);
        }
        for llvm in folders_in(root).filter(|folder| begins(folder, "llvm")) {
            folders.extend(folders_in(&llvm).filter(|folder| begins(folder, "lib")));
        }
    }
    folders
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}

fn folders_in(folder: &Path) -> impl Iterator<Item = PathBuf> {
    entries(folder).filter(|path| path.is_dir())
}

fn begins(path: &Path, start: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start))
}

/// The major version in the name of a libclang, such as `libclang.so.14` and `libclang-14.so.1`; 0 if it has none;
/// `None` for any other name.
fn version_in(name: &str) -> Option<u32> {
    let rest = name.strip_prefix("libclang")?;
    if !rest.contains(".so") || !rest.starts_with(['.', '-']) || rest.contains("cpp") {
        return None;
    }
    let number = rest.strip_prefix('-').or_else(|| rest.strip_prefix(".so."));
    Some(number.and_then(|number| number.split('.').next()?.parse().ok()).unwrap_or(0))
}
