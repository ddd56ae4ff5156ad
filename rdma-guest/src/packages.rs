//! Debian packages: which are missing, and how to install them.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::exec;

/// To make the guest machine and to run it: QEMU, what builds siw, what sets the devices up, and the libraries of verbs.
#[rustfmt::skip]
pub const MACHINE: &[&str] = &[
    "qemu-system-x86", "busybox-static", "cpio", "kmod", "make", "gcc-12", "binutils", "xz-utils", "iproute2",
    "librdmacm1", "ibverbs-providers",
];

/// Programs that the machine needs once it is made, each with its package on Debian, Fedora and Arch.
const PROGRAMS: &[(&str, [&str; 3])] = &[
    ("qemu-system-x86_64", ["qemu-system-x86", "qemu-system-x86-core", "qemu-system-x86"]),
    ("busybox", ["busybox-static", "busybox", "busybox"]),
    ("modprobe", ["kmod", "kmod", "kmod"]),
    ("ip", ["iproute2", "iproute", "iproute2"]),
    ("rdma", ["iproute2", "iproute", "iproute2"]),
];

/// The command that starts Debian 12 in a container.
const CONTAINER: &str = r#"podman run --rm -it -v "$PWD:$PWD" -w "$PWD" -v rdma-guest:/root/.cache/rdma-guest docker.io/library/rust:1-bookworm"#;

/// Folders that hold system programs but are not on every user's path.
const SYSTEM_FOLDERS: &[&str] = &["/usr/sbin", "/sbin"];

/// Every folder in which programs are looked for.
fn folders() -> impl Iterator<Item = PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let own: Vec<PathBuf> = env::split_paths(&path).collect();
    own.into_iter().chain(SYSTEM_FOLDERS.iter().map(PathBuf::from))
}

/// The variable `PATH` with the system's folders, for a script that calls such programs.
pub fn path_with_system_folders() -> OsString {
    env::join_paths(folders()).unwrap_or_else(|_| env::var_os("PATH").unwrap_or_default())
}

/// Whether this system installs packages with apt.
pub fn has_apt() -> bool {
    folders().any(|folder| folder.join("apt-get").is_file())
}

/// Those of the packages that are not installed: all of them on a system that is not Debian's.
pub fn missing(packages: &[&'static str]) -> Vec<&'static str> {
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat", "${db:Status-Status} ${Package}\\n"]).args(packages);
    // Libraries have this ending since their time_t has 64 bits: Debian 13, Ubuntu 24.04.
    query.args(
        packages.iter().filter(|package| package.starts_with("lib")).map(|package| format!("{package}t64")),
    );
    let mut lines = Vec::new();
    // It fails when it does not know one of them, and still tells of the others.
    let _ = exec::quiet_lines(query, exec::minutes(1), |line| lines.push(line.to_owned()));
    not_installed(packages, &lines)
}

/// Those of the packages that no line tells to be installed.
fn not_installed(packages: &[&'static str], lines: &[String]) -> Vec<&'static str> {
    let names = || lines.iter().filter_map(|line| line.strip_prefix("installed "));
    let installed = |package: &str| names().any(|name| name.strip_suffix("t64").unwrap_or(name) == package);
    packages.iter().copied().filter(|package| !installed(package)).collect()
}

/// A sentence on how to install the missing ones of these packages; none if there are none.
pub fn lacking(packages: &[&'static str]) -> Option<String> {
    let missing = missing(packages);
    (!missing.is_empty()).then(|| how_to_install(&missing))
}

/// The command that a person would type.
pub fn how_to_install(packages: &[&str]) -> String {
    let list = packages.join(" ");
    if has_apt() {
        format!("missing: sudo apt-get update && sudo apt-get install --no-install-recommends {list}")
    } else {
        format!("missing: what Debian 12 calls {list} (this system has no apt-get)")
    }
}

/// The system that we run on, by os-release(5).
struct System {
    /// Its word, and those of the systems that it is like, such as `ubuntu debian`.
    kinds: String,
    /// Its version, such as `12`.
    version: String,
    /// Its name, such as `Debian GNU/Linux 12 (bookworm)`.
    name: String,
}

impl System {
    /// Reads its file.
    fn this() -> Self {
        Self::parse(&fs::read_to_string("/etc/os-release").unwrap_or_default())
    }

    /// Reads the text of that file.
    fn parse(text: &str) -> Self {
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            line.unwrap_or_default().trim_matches(['"', '\'']).to_owned()
        };
        let kinds = format!("{} {}", value("ID"), value("ID_LIKE"));
        Self { kinds, version: value("VERSION_ID"), name: value("PRETTY_NAME") }
    }

    /// Whether it is one of the systems of this word.
    fn is(&self, kind: &str) -> bool {
        self.kinds.split_whitespace().any(|one| one == kind)
    }

    /// Whether it is Debian 12, whose kernel the machine has.
    fn is_debian_12(&self) -> bool {
        self.kinds.split_whitespace().next() == Some("debian") && self.version == "12"
    }

    /// The packages that make the machine.
    fn packages(&self) -> Vec<&'static str> {
        let keys: &[_] = if self.is_debian_12() { &[] } else { &["debian-archive-keyring"] };
        [MACHINE, keys].concat()
    }

    /// The command that installs what these programs are in.
    fn how_to_install(&self, programs: &[(&str, [&str; 3])]) -> String {
        let (command, column) = if self.is("fedora") {
            ("sudo dnf install", 1)
        } else if self.is("arch") {
            ("sudo pacman -S", 2)
        } else {
            ("sudo apt-get install --no-install-recommends", 0)
        };
        let mut packages: Vec<_> = programs.iter().map(|(_, packages)| packages[column]).collect();
        packages.dedup();
        format!("{command} {}", packages.join(" "))
    }
}

/// Whether a machine that has been made can run here.
///
/// # Errors
/// A sentence that says what is missing and how to install it.
pub fn can_run() -> Result<(), String> {
    let is_missing = |program: &str| !folders().any(|folder| folder.join(program).is_file());
    let missing: Vec<_> = PROGRAMS.iter().copied().filter(|(program, _)| is_missing(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = missing.iter().map(|(program, _)| *program).collect();
    Err(format!("missing: {}. To install it: {}", names.join(", "), System::this().how_to_install(&missing)))
}

/// Whether the machine can be made here.
///
/// # Errors
/// A sentence that says what is missing, and how to install it or what to do instead.
pub fn can_make() -> Result<(), String> {
    let system = System::this();
    if !system.is("debian") {
        return Err(elsewhere(&system));
    }
    lacking(&system.packages()).map_or(Ok(()), Err)
}

/// apt's line for the packages of Debian 12, on a system that does not have them itself.
pub(crate) fn debian_12() -> Option<&'static str> {
    let line = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main";
    (!System::this().is_debian_12()).then_some(line)
}

/// The advice for a system without apt.
fn elsewhere(system: &System) -> String {
    let name = if system.name.is_empty() { "not Debian" } else { &system.name };
    format!(
        "the guest machine is made with apt from packages of Debian 12, and this system is {name}.\n\
        A container of Debian 12 needs neither root nor a privilege:\n    {CONTAINER}\n\
        In it: cargo install rdma-guest && apt-get update && apt-get install --no-install-recommends {}",
        MACHINE.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partly_installed_package_is_missing() {
        let lines =
            ["installed a", "config-files b", "dpkg-query: no packages found matching c", "installed dd"];
        let lines = lines.map(str::to_owned);
        assert_eq!(not_installed(&["a", "b", "c", "d"], &lines), ["b", "c", "d"]);
        assert_eq!(not_installed(&["a", "b"], &[]), ["a", "b"]);
        assert!(not_installed(&["liba1"], &["installed liba1t64".to_owned()]).is_empty());
    }

    #[test]
    fn how_to_install_names_every_package() {
        assert!(how_to_install(&["a", "b"]).contains("a b"));
        assert_eq!(lacking(&[]), None);
    }

    #[test]
    fn other_systems_are_told_what_to_do() {
        let ubuntu = System::parse(
            "PRETTY_NAME=\"Ubuntu 24.04.1 LTS\"\nID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"24.04\"\n",
        );
        assert!(ubuntu.is("debian") && !ubuntu.is_debian_12());
        assert!(ubuntu.packages().contains(&"debian-archive-keyring"));
        let debian = System::parse("ID=debian\nVERSION_ID=\"12\"\n");
        assert!(debian.is_debian_12() && debian.packages() == MACHINE);
        assert!(!System::parse("ID=debian\nVERSION_ID=\"13\"\n").is_debian_12());
        let fedora = System::parse("PRETTY_NAME=\"Fedora Linux 41\"\nID=fedora\n");
        assert!(!fedora.is("debian") && !System::parse("").is("debian"));
        let sentence = elsewhere(&fedora);
        assert!(sentence.contains("Fedora Linux 41") && sentence.contains("podman"), "{sentence}");
    }

    #[test]
    fn each_system_has_its_own_names() {
        let install = |text| System::parse(text).how_to_install(PROGRAMS);
        assert_eq!(install("ID=fedora\n"), "sudo dnf install qemu-system-x86-core busybox kmod iproute");
        assert!(install("ID=manjaro\nID_LIKE=arch\n").starts_with("sudo pacman -S qemu-system-x86 busybox"));
        assert!(install("ID=debian\n").contains("busybox-static"));
    }
}
