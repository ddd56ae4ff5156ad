//! The messages of the build script on machines on which the feature `rdma-sys` cannot be built.

#[expect(
    dead_code,
    clippy::print_stdout,
    reason = "it is for cargo to run its main function and to read its output"
)]
#[path = "../../build.rs"]
mod build;

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::{env, fs, process};

/// A folder for the files of a test, gone with this value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("tokio-rdma-build-{name}-{}", process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) {
        fs::write(self.0.join(name), "").unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The complaint where `LIBCLANG_PATH` and the program pkg-config are these.
fn complaint(libclang: &PathBuf, pkg_config: &str) -> Option<String> {
    build::complaint(|name| match name {
        "LIBCLANG_PATH" => Some(libclang.into()),
        "PKG_CONFIG" => Some(OsString::from(pkg_config)),
        _ => None,
    })
}

#[test]
fn missing_headers_are_named_with_their_packages() {
    let folder = Folder::new("headers");
    for pkg_config in ["false", "/there/is/no/such/program"] {
        let said = complaint(&folder.0, pkg_config).unwrap();
        for word in ["libibverbs-dev librdmacm-dev` on Debian", "rdma-core-devel` on Fedora", "pkg-config"] {
            assert!(said.contains(word), "{said}");
        }
        assert!(!said.contains('\n'), "one line: {said}");
    }
}

#[test]
fn a_missing_libclang_is_named_with_its_packages() {
    let folder = Folder::new("none");
    folder.file("libclang-cpp.so.14");
    folder.file("libclangd.so.3");
    let said = complaint(&folder.0, "true").unwrap();
    for word in ["15 or older", "there is none", "libclang-14-dev` on Debian", "clang15-devel` on Fedora"] {
        assert!(said.contains(word), "{said}");
    }
    assert!(!said.contains('\n'), "one line: {said}");
}

#[test]
fn a_libclang_that_is_too_new_is_named() {
    for name in ["libclang.so.16", "libclang-19.so.19", "libclang-16.so", "libclang.so.20.1"] {
        let folder = Folder::new(name);
        folder.file("libclang.so.14");
        folder.file(name);
        let said = complaint(&folder.0, "true").unwrap();
        assert!(said.contains(name) && said.contains("LIBCLANG_PATH"), "{said}");
    }
}

#[test]
fn a_libclang_of_the_right_age_is_taken() {
    for name in ["libclang.so.15", "libclang-14.so.14.0.6", "libclang-15.so", "libclang.so"] {
        let folder = Folder::new(name);
        folder.file(name);
        assert_eq!(complaint(&folder.0, "true"), None, "{name}");
        assert_eq!(complaint(&folder.0.join(name), "true"), None, "{name}");
    }
}

#[test]
fn libclang_version_comes_from_the_link_target() {
    let folder = Folder::new("link");
    let other = Folder::new("linked");
    other.file("libclang-17.so.17.0.6");
    symlink(other.0.join("libclang-17.so.17.0.6"), folder.0.join("libclang.so")).unwrap();
    let said = complaint(&folder.0, "true").unwrap();
    assert!(said.contains("is 17"), "{said}");
}
