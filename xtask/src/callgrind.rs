//! Instructions of user space and system calls, as callgrind counts them. Also a module of `benches/fake`.
//!
//! The difference of two runs with different numbers of operations has nothing of what a program does once.
//!
//! Why not gungraun (once iai-callgrind): its runner is a program that has to be installed in the version of the library; it compares
//! with an earlier run in `target`, not with figures in the tree that record the compiler and the processor; and it reports one
//! number for a benchmark, which holds the start of the program, while a line here has a number for each end of one connection and
//! of one thread. What is left for a library is the sum over the output of callgrind, which this file has.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

/// The device of `tests/fake`, which is not a part of what is measured.
const DEVICE: &str = "libfake.so";
/// The functions that run the ends of a connection in `benches/instructions`.
const ENDS: [&str; 2] = ["::active_end", "::passive_end"];
/// The function of the C library that reads a clock: a system call only under valgrind, which has no vDSO.
const CLOCK: &str = "clock_gettime";
/// The function by which tokio wakes a driver that sleeps, through an eventfd. Sockets are written to by others.
const WRITE: [&str; 2] = ["write", "__write"];

/// Functions of the C library for any x86-64 processor. Others would be taken by the features of this one, of which valgrind passes on
/// some, and a long copy by `rep movsb` counts as an instruction for each byte. And small blocks of memory that are freed are not joined
/// with their neighbours: whether these are free differs from run to run.
const TUNABLES: &str = "glibc.cpu.hwcaps=-AVX_Fast_Unaligned_Load,-AVX2,-AVX2_Usable,-AVX,-BMI2,-ERMS,-FSRM,-SSSE3,\
                        -SSE4_1,-SSE4_2,-MOVBE:glibc.malloc.mxfast=160";

/// valgrind, which writes its figures to this file. The program and its arguments are still to be added.
pub(crate) fn command(figures: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--quiet", "--collect-systime=yes"]);
    command.arg(format!("--callgrind-out-file={}", figures.display()));
    command.env("GLIBC_TUNABLES", TUNABLES);
    command
}

/// The instructions and the system calls of a whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Those of the device, and of the functions that it calls.
    pub(crate) device: u64,
    /// Those of the program, and of the libraries that it calls.
    pub(crate) own: u64,
    /// Those of each end of a connection, with the functions that it calls: the active end, and the passive one.
    pub(crate) ends: [u64; 2],
    /// System calls of the process.
    pub(crate) calls: u64,
    /// Those of them that write to an eventfd.
    pub(crate) eventfd_writes: u64,
}

/// An object or a function that a cost belongs to.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Mark {
    /// Whether it is the device.
    is_device: bool,
    /// The end of a connection that the function runs.
    end: Option<usize>,
    /// Whether it reads a clock.
    is_clock: bool,
    /// Whether it writes to an eventfd.
    is_eventfd_write: bool,
}

impl Mark {
    /// That of a name.
    fn of(name: &str) -> Self {
        // A hash or a version may follow the name.
        Self {
            is_device: name.ends_with(DEVICE),
            end: ENDS.iter().position(|end| name.contains(end)),
            is_clock: name.starts_with(CLOCK),
            is_eventfd_write: WRITE.contains(&name.split('@').next().unwrap_or_default()),
        }
    }
}

/// Names, which are abbreviated: `(3) name` the first time, then `(3)`.
#[derive(Default)]
struct Names<'a>(HashMap<&'a str, Mark>);

impl<'a> Names<'a> {
    /// The mark of an object or a function.
    fn mark(&mut self, text: &'a str) -> Mark {
        let (id, name) = text.split_once(' ').unwrap_or((text, ""));
        if !name.is_empty() {
            self.0.insert(id, Mark::of(name));
        }
        self.0.get(id).copied().unwrap_or_default()
    }
}

/// Sums the costs of a file of callgrind. See "Callgrind Format Specification" of valgrind's manual.
pub(crate) fn totals(text: &str) -> Totals {
    let mut sums = Totals::default();
    let (mut objects, mut functions) = (Names::default(), Names::default());
    let mut all = 0;
    let mut in_device = false;
    let mut function = Mark::default();
    // The object of the function that is called, if it is another one; and that function.
    let mut leads_to_device = None;
    let mut leads_to_end = None;
    // Whether the next line is the cost of a call, and to where.
    let mut call = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            in_device = objects.mark(name).is_device;
        } else if let Some(name) = line.strip_prefix("cob=") {
            leads_to_device = Some(objects.mark(name).is_device);
        } else if let Some(name) = line.strip_prefix("fn=") {
            function = functions.mark(name);
        } else if let Some(name) = line.strip_prefix("cfn=") {
            leads_to_end = functions.mark(name).end;
        } else if line.starts_with("calls=") {
            call = Some((leads_to_device.take().unwrap_or(in_device), leads_to_end.take()));
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            // Instructions, then system calls, unless there were none.
            let mut costs = line.split_whitespace().skip(1).map(|cost| cost.parse().unwrap_or(0));
            let (cost, calls) = (costs.next().unwrap_or(0), costs.next().unwrap_or(0));
            let Some((to_device, to_end)) = call.take() else {
                all += cost;
                sums.device += if in_device { cost } else { 0 };
                sums.calls += if function.is_clock { 0 } else { calls };
                sums.eventfd_writes += if function.is_eventfd_write { calls } else { 0 };
                continue;
            };
            // The cost of a call is counted in the function that was called, too.
            if let Some(end) = to_end {
                sums.ends[end] += cost;
            }
            // All that the device has a library do is its own.
            if in_device && !to_device {
                sums.device += cost;
            }
        }
    }
    sums.own = all - sums.device;
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that runs both ends, one of which calls the device, which calls the C library. The other one waits, reads the clock
    /// and wakes a driver.
    const FILE: &str = "\
events: Ir sysCount sysTime

ob=(1) /target/instructions
fl=(1) main.rs
fn=(1) instructions::main
16 5
cfn=(2) instructions::ends::active_end
calls=2 40
17 1000
cfn=(3) instructions::ends::passive_end
calls=1 50
18 300 4 9

fn=(2)
40 100
cob=(2) /target/libfake.so
cfn=(4) ibv_post_send
calls=2 7
+1 900

fn=(3)
50 200
cob=(3) /lib/libc.so.6
cfn=(6) epoll_wait
calls=2 1
+1 40 2 5
cob=(3)
cfn=(7) clock_gettime@@GLIBC_2.17
calls=1 1
+1 30 1 1
cob=(3)
cfn=(8) write
calls=1 1
+1 30 1 3

ob=(2)
fn=(4)
7 200
cob=(3)
cfn=(5) malloc
calls=2 1
* 700

ob=(3)
fn=(5)
1 700

fn=(6)
1 40 2 5

fn=(7)
1 30 1 1

fn=(8)
1 30 1 3

totals: 1305 4 9
";

    #[test]
    fn the_device_and_the_ends_are_counted_apart() {
        let Totals { device, own, ends, .. } = totals(FILE);
        assert_eq!((device, own, ends), (900, 405, [1000, 300]));
    }

    #[test]
    fn clocks_are_no_system_calls() {
        let Totals { calls, eventfd_writes, .. } = totals(FILE);
        assert_eq!((calls, eventfd_writes), (3, 1));
    }

    #[test]
    fn end_name_may_carry_a_hash() {
        assert_eq!(Mark::of("instructions::ends::active_end").end, Some(0));
        assert_eq!(Mark::of("instructions::ends::passive_end::h0123456789abcdef").end, Some(1));
        assert_eq!(Mark::of("instructions::ends::runtime").end, None);
    }
}
