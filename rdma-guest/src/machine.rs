//! One start of the guest machine, which runs one command.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::environment::{assignment, quoted};
use crate::image::Image;
use crate::{Usage, environment, exec, suite};

/// How long the machine may take to start and to end, beside its command; ten seconds is usual.
const START_LIMIT: Duration = exec::minutes(4);

/// The programs of every run: their place in its folder, their text and their mode.
const PROGRAMS: &[(&str, &str)] =
    &[("start", include_str!("../guest/start.sh")), ("bin/guest-siw", include_str!("../guest/siw.sh"))];

/// The names and addresses of the machine's devices, as variables for the commands in it.
pub(crate) const DEVICES: &[(&str, &str)] = &[
    ("TOKIO_RDMA_GUEST", "1"),
    ("TOKIO_RDMA_SCRATCH", "/run/scratch"),
    ("TOKIO_RDMA_RXE_DEVICE", "rxe0"),
    ("TOKIO_RDMA_RXE_LINK", "veth0"),
    ("TOKIO_RDMA_RXE_ADDR", "10.77.0.1"),
    ("TOKIO_RDMA_RXE_ADDR6", "fd77::1"),
    ("TOKIO_RDMA_SIW_DEVICE", "siw0"),
    ("TOKIO_RDMA_SIW_LINK", "veth2"),
    ("TOKIO_RDMA_SIW_ADDR", "10.78.0.1"),
    ("TOKIO_RDMA_SIW_ADDR6", "fd78::1"),
];

/// An oops ends the machine. A processor that seems to stand still is one of a busy host. The time is that of the
/// processor's counter, which is read without a system call, as on a real machine: of its own accord the kernel does not
/// trust that of an emulated processor, and asks a device. The last line turns off what makes a kernel harder to attack, and
/// tests of its own: nobody attacks this one, and here they take a sixth of the time.
const KERNEL_OPTIONS: &str = "console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off no_timer_check nowatchdog \
    rcupdate.rcu_cpu_stall_suppress=1 workqueue.watchdog_thresh=0 tsc=reliable clocksource=tsc \
    init_on_alloc=0 hardened_usercopy=off randomize_kstack_offset=off apparmor=0 audit=0 cryptomgr.notests=1";

/// All that QEMU can emulate, but for what it emulates slowly where the kernel and libc take it for fast: strings copied byte
/// by byte (`erms`, `fsrm`), a page table with a fifth level, a bit that is switched around each access to user memory (`smap`), and
/// registers of 256 bits, which each switch of threads saves (`xsave`).
const PROCESSOR: &str = "max,erms=off,fsrm=off,la57=off,smap=off,xsave=off";

/// How many processors the machine has. Each has a thread of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processors {
    /// Two: what its programs do at the same time happens at the same time.
    Two,
    /// One. Machines that run side by side then have a processor of the host each. With two in each, threads of all machines
    /// would wait for locks whose owner has been preempted.
    One,
}

impl Processors {
    /// The argument of QEMU's option `-smp`.
    fn count(self) -> &'static str {
        match self {
            Self::Two => "2",
            Self::One => "1",
        }
    }
}

/// The memory of the machine in MiB. What its programs write to files is part of it.
pub(crate) const MEMORY: usize = 2560;

/// Words on the console that tell of a broken kernel.
const BROKEN: &[&str] = &["Kernel panic", "Oops:", "BUG:", "general protection fault", "guest:"];

/// Words that tell of a process that the kernel has killed because memory ran out.
const EXHAUSTED: &[&str] = &["Out of memory:"];

/// Words that tell of a fault that the kernel survives.
const DOUBTFUL: &[&str] = &["WARNING:", "blocked for more than", "refcount_t:"];

/// A build of siw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Siw {
    /// As it is in the kernel's source.
    Stock,
    /// With peer-to-peer mode, and CRC required.
    PeerToPeer,
}

impl Siw {
    /// Reads the argument of `--siw`.
    pub fn parse(word: &str) -> Result<Self, Usage> {
        match word {
            "stock" => Ok(Self::Stock),
            "p2p" => Ok(Self::PeerToPeer),
            _ => Err(Usage(format!("there is no siw `{word}`, only `stock` and `p2p`"))),
        }
    }

    /// The word that `parse` reads.
    fn word(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::PeerToPeer => "p2p",
        }
    }
}

/// How the machine is to be started.
pub struct Machine<'a> {
    /// Its parts.
    pub image: &'a Image,
    /// The devices that it has: some of [`suite::DEVICES`].
    pub devices: &'a [&'static str],
    /// The build of siw that it loads, if it has that device.
    pub siw: Siw,
    /// How long the command may take.
    pub limit: Duration,
    /// The folder in which the command starts.
    pub folder: &'a Path,
    /// Variables that it is given besides those of the list of [`environment`].
    pub named: &'a [String],
    /// The folder of all runs. Each run has a folder there that it shares with the machine.
    pub runs: &'a Path,
    /// How many processors it has.
    pub processors: Processors,
}

impl Machine<'_> {
    /// Runs a command, passing on its output; returns its exit status.
    ///
    /// # Errors
    /// A sentence, if the machine did not start, broke, or took too long.
    pub fn run(&self, command: &[String]) -> Result<u8, String> {
        self.start(command, exec::pass)
    }

    /// As [`run`](Self::run), but hands each line of the output to `each`.
    ///
    /// # Errors
    /// As for `run`.
    pub fn run_lines(&self, command: &[String], each: impl FnMut(&str)) -> Result<u8, String> {
        self.start(command, |machine, limit| exec::quiet_lines(machine, limit, each))
    }

    /// Runs a command in the machine, which is run by `execute`.
    fn start(
        &self,
        command: &[String],
        execute: impl FnOnce(Command, Duration) -> Result<(), String>,
    ) -> Result<u8, String> {
        let folder = Folder::new(self.runs)?;
        folder.write(self, command).map_err(|error| format!("{}: {error}", folder.0.display()))?;
        let outcome = execute(self.qemu(&folder.0), START_LIMIT + self.limit);
        folder.status(outcome, self.limit)
    }

    /// The command that is the machine.
    fn qemu(&self, folder: &Path) -> Command {
        let image = &self.image.folder;
        let mut command = Command::new("sh");
        // QEMU takes no descriptor below 3, and refuses one that can be read where it only writes: these are pipes.
        command.args(["-c", "exec qemu-system-x86_64 \"$@\" 3>&1 4>&2", "qemu"]);
        // Not KVM: it may be there and yet hang the kernel.
        command.args(["-accel", "tcg,thread=multi", "-cpu", PROCESSOR, "-smp", self.processors.count()]);
        command.arg("-m").arg(format!("{MEMORY}M"));
        command.args([
            "-display",
            "none",
            "-monitor",
            "none",
            "-no-user-config",
            "-nodefaults",
            "-no-reboot",
        ]);
        command.arg("-kernel").arg(image.join("vmlinuz")).arg("-initrd").arg(image.join("initramfs.gz"));
        command.args(["-append", KERNEL_OPTIONS]);
        command.arg("-serial").arg(option("file:", &folder.join("console")));
        let host = "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap";
        let run = option("local,mount_tag=run,security_model=none,multidevs=remap,path=", folder);
        command.arg("-virtfs").arg(host).arg("-virtfs").arg(run);
        command.args(["-device", "virtio-serial-pci"]);
        for (descriptor, stream) in [("3", "out"), ("4", "err")] {
            command.arg("-add-fd").arg(format!("fd={descriptor},set={descriptor}"));
            command.arg("-chardev").arg(format!("file,id={stream},path=/dev/fdset/{descriptor},append=on"));
            command.arg("-device").arg(format!("virtserialport,chardev={stream},name={stream}"));
        }
        command
    }

    /// The variables that the command finds beside those of the caller.
    fn variables(&self) -> Vec<(&'static str, PathBuf)> {
        let image = &self.image.folder;
        let stock = image.join("lib/modules").join(&self.image.kernel).join("extra/siw.ko");
        let is_own = |name| device_of(name).is_none_or(|device| self.devices.contains(&device));
        let own = DEVICES.iter().filter(|(name, _)| is_own(name));
        let mut all: Vec<_> = own.map(|&(name, value)| (name, PathBuf::from(value))).collect();
        all.push(("TOKIO_RDMA_GUEST_SIW_STOCK", stock));
        all.push(("TOKIO_RDMA_GUEST_SIW_P2P", image.join("siw-p2p.ko")));
        all
    }
}

/// The device of a variable of [`DEVICES`], if it is one of a device.
fn device_of(name: &str) -> Option<&'static str> {
    suite::DEVICES.into_iter().find(|device| {
        name.strip_prefix("TOKIO_RDMA_").is_some_and(|rest| rest.starts_with(&device.to_ascii_uppercase()))
    })
}

/// The folder that a run shares with the machine. Gone at the end, unless the machine broke.
struct Folder(PathBuf);

impl Folder {
    /// A new one. Those of processes that are gone were kept to be looked at, until now.
    fn new(all: &Path) -> Result<Self, String> {
        for entry in fs::read_dir(all).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let process = name.to_str().and_then(|name| name.strip_prefix("run-")?.split('-').next());
            if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = all.join(format!("run-{}-{count}", process::id()));
        // Others than the user have no business with the variables.
        let created = fs::create_dir_all(&path)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o700)))
            .and_then(|()| fs::create_dir(path.join("bin")));
        created.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }

    /// Writes what the machine reads.
    fn write(&self, machine: &Machine<'_>, command: &[String]) -> io::Result<()> {
        for (name, text) in PROGRAMS {
            fs::write(self.0.join(name), text)?;
            fs::set_permissions(self.0.join(name), fs::Permissions::from_mode(0o755))?;
        }
        let variables = machine.variables();
        let mut settings = fs::File::create(self.0.join("settings"))?;
        settings.write_all(&assignment("GUEST_FOLDER".as_ref(), machine.image.folder.as_os_str()))?;
        settings.write_all(&assignment("GUEST_DEVICES".as_ref(), machine.devices.join(" ").as_ref()))?;
        settings.write_all(&assignment("GUEST_SIW".as_ref(), machine.siw.word().as_ref()))?;
        settings
            .write_all(&assignment("GUEST_SECONDS".as_ref(), machine.limit.as_secs().to_string().as_ref()))?;
        for (name, value) in &variables {
            settings.write_all(&assignment(name.as_ref(), value.as_os_str()))?;
        }
        let mut script = fs::File::create(self.0.join("command"))?;
        for (name, value) in environment::passed_on(machine.named) {
            script.write_all(&assignment(&name, &value))?;
        }
        for (name, value) in &variables {
            script.write_all(&assignment(name.as_ref(), value.as_os_str()))?;
        }
        script.write_all(b"PATH=/run/guest/bin:$PATH:/usr/sbin:/sbin\ncd -- ")?;
        script.write_all(&quoted(machine.folder.as_os_str()))?;
        script.write_all(b" || exit 126\nexec")?;
        for word in command {
            script.write_all(b" ")?;
            script.write_all(&quoted(word.as_ref()))?;
        }
        script.write_all(b"\n")
    }

    /// The exit status of the command, given how the machine ended.
    fn status(self, outcome: Result<(), String>, limit: Duration) -> Result<u8, String> {
        // It has the variables, which nobody needs to look at a broken machine.
        let _ = fs::remove_file(self.0.join("command"));
        let read = |name| fs::read(self.0.join(name)).map(|text| String::from_utf8_lossy(&text).into_owned());
        let console = read("console").unwrap_or_default();
        let status = read("status").ok().and_then(|status| status.trim().parse::<u8>().ok());
        let exhausted = first_with(EXHAUSTED, &console)
            .map(|line| format!("the guest's memory of {MEMORY} MiB ran out: {line}"));
        let wrong = if let Some(line) = first_with(BROKEN, &console) {
            format!("the guest's kernel broke: {line}")
        } else if let Ok(failure) = read("failure") {
            format!("the guest did not start: {}", failure.trim())
        } else if let Err(error) = outcome {
            format!("the guest: {error}")
        } else if let Some(status) = status {
            if let Some(sentence) = exhausted {
                eprintln!("{sentence}");
            }
            if self.0.join("late").exists() {
                eprintln!("the command in the guest was killed; it may take {} s", limit.as_secs());
            }
            match first_with(DOUBTFUL, &console) {
                Some(line) => {
                    eprintln!("the guest's kernel warns: {line}\nits log is in {}", self.0.display())
                }
                None => drop(fs::remove_dir_all(&self.0)),
            }
            return Ok(status);
        } else {
            exhausted.unwrap_or_else(|| "the guest ended before its command".into())
        };
        Err(format!("{wrong}\nwhat it said is in {}", self.0.display()))
    }
}

/// The first line of the console that has one of these words.
fn first_with<'a>(words: &[&str], console: &'a str) -> Option<&'a str> {
    console.lines().find(|line| words.iter().any(|word| line.contains(word))).map(str::trim)
}

/// An option of QEMU that ends with a path, in which a comma is written twice.
fn option(start: &str, path: &Path) -> OsString {
    let mut bytes = start.as_bytes().to_vec();
    for &byte in path.as_os_str().as_bytes() {
        bytes.extend(if byte == b',' { &b",,"[..] } else { std::slice::from_ref(&byte) });
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_in_a_path_is_no_option() {
        assert_eq!(option("a=b,path=", Path::new("/x,y/é")), "a=b,path=/x,,y/é");
    }

    #[test]
    fn a_broken_kernel_is_seen() {
        assert_eq!(
            first_with(BROKEN, "[ 1.0] fine\n[ 2.0] BUG: unable to handle page fault\r\n"),
            Some("[ 2.0] BUG: unable to handle page fault")
        );
        assert_eq!(first_with(BROKEN, "[ 1.0] WARNING: at net/core"), None);
    }

    const KILLED: &str = "[ 9.0] Out of memory: Killed process 812 (rustc) total-vm:9kB";

    /// The status that is reported of a run whose machine has left these files and said this on its console.
    fn status(files: &[(&str, &str)], console: &str) -> Result<u8, String> {
        let folder = Folder::new(&std::env::temp_dir().join("rdma-guest-tests")).expect("a folder");
        for (name, text) in files.iter().chain(&[("console", console)]) {
            fs::write(folder.0.join(name), text).expect("written");
        }
        folder.status(Ok(()), Duration::from_secs(9))
    }

    #[test]
    fn memory_that_runs_out_breaks_no_kernel() {
        assert_eq!(status(&[("status", "137\n")], KILLED), Ok(137));
        let error = status(&[], KILLED).expect_err("the command has no status");
        assert!(
            error.starts_with("the guest's memory of 2560 MiB ran out: [ 9.0] Out of memory: "),
            "{error}"
        );
        assert!(status(&[], "").expect_err("none").starts_with("the guest ended before its command"));
    }

    #[test]
    fn a_machine_has_the_variables_of_its_devices() {
        let image = Image { folder: "/image".into(), kernel: "6.1".into() };
        let names = |devices: &[&'static str]| {
            let machine = Machine {
                image: &image,
                devices,
                siw: Siw::Stock,
                limit: Duration::from_secs(9),
                folder: Path::new("/"),
                named: &[],
                runs: Path::new("/runs"),
                processors: Processors::Two,
            };
            machine.variables().into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        let (both, rxe) = (names(&["rxe", "siw"]), names(&["rxe"]));
        let has = |names: &[&str], name| names.contains(&name);
        assert!(has(&both, "TOKIO_RDMA_SIW_ADDR") && has(&both, "TOKIO_RDMA_RXE_ADDR"));
        assert!(!has(&rxe, "TOKIO_RDMA_SIW_ADDR") && has(&rxe, "TOKIO_RDMA_RXE_ADDR"));
        assert!(has(&rxe, "TOKIO_RDMA_GUEST") && has(&rxe, "TOKIO_RDMA_SCRATCH"));
    }
}
