//! Orders of tests to the device, in lines of text, by the function `fake_control` or the variable `FAKE_CONTROL`.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::net::IpAddr;
use std::str::FromStr;
use std::time::{Duration, Instant};

use super::device::Place;
use super::dress::QueueBytes;
use super::events::EventQueue;
use super::number::{IBV_QPS_ERR, IBV_QPS_RTS};
use super::queue_pair::QueuePair;
use super::world::{self, World};
use super::{Answer, cm, execute};

/// The lines that are there from the beginning, with semicolons between them.
const LINES: &str = "FAKE_CONTROL";
/// If it is set, the process aborts where objects are left at its end.
const COUNT: &str = "FAKE_COUNT";
/// The time that the end of the process waits for them.
const LAST: Duration = Duration::from_secs(1);

/// The misbehaviour of calls.
pub(super) struct Script {
    /// The number of calls of each function since the last `reset`.
    calls: HashMap<&'static str, usize>,
    delays: HashMap<String, Duration>,
    failures: Vec<Failure>,
    refusals: HashMap<String, c_int>,
    /// Calls that do not return, with the number of calls of the function that do before.
    holds: HashMap<String, usize>,
    /// No message of the connection manager arrives.
    pub(super) mute: bool,
    /// Nobody answers who is asked where an address is.
    pub(super) unresolved: bool,
    /// So many of the next resolutions of an address, and of a route, are not answered in time.
    expiring: [usize; 2],
    /// A queue pair in the error state gives only so many requests of its send queue back: the device uses the memory of the others
    /// until it is destroyed.
    pub(super) keeps: Option<usize>,
    /// So many of the next messages take a receive, and the rest of them never comes.
    pub(super) cut_off: usize,
    /// No queue pair says that it has no receive of a shared queue any more.
    pub(super) silent: bool,
    /// The number of completions until the one that finds its queue full.
    pub(super) until_overrun: Option<usize>,
    /// The number of completions until the one that no poll can read.
    until_spoiled: Option<usize>,
    /// The number of completions until the one that comes twice.
    until_repeated: Option<usize>,
    /// The number of completions until the one whose id is another one.
    until_misnamed: Option<usize>,
    /// A poll of a completion queue ends where the queue was resized.
    pub(super) cuts_off: bool,
    /// No queue pair tells of its errors.
    pub(super) hides_errors: bool,
    /// The number of messages with a solicited event that have arrived.
    pub(super) solicited: usize,
    /// The number of events of completion queues.
    pub(super) events: usize,
    /// A later request for an event takes the place of the one before.
    pub(super) replaces_arms: bool,
    /// Calls of the connection manager that are answered by this kind of event, with this status.
    answers: Vec<(String, c_uint, c_int)>,
    /// The time after which a message that nobody answers is given up, if it is not the usual one.
    pub(super) patience: Option<Duration>,
    /// Every command of the device fails.
    pub(super) dead: bool,
    /// Objects may be left at the end of the process.
    forgiving: bool,
    /// Requests and events take a time of their own; the state of the generator of these times.
    pace: Option<u64>,
    quiet: bool,
}

/// A step of the resolution of an address.
#[derive(Clone, Copy)]
pub(super) enum Step {
    Address,
    Route,
}

/// The longest time that a request takes then, in microseconds.
const LONGEST: u64 = 300;

/// A call that fails once: after so many more that do not.
struct Failure {
    call: String,
    after: usize,
    error: c_int,
}

impl Default for Script {
    /// Calls behave.
    fn default() -> Self {
        let (calls, delays, failures, refusals, holds) = Default::default();
        Self {
            calls,
            delays,
            failures,
            refusals,
            holds,
            mute: false,
            unresolved: false,
            expiring: [0; 2],
            keeps: None,
            cut_off: 0,
            silent: false,
            until_overrun: None,
            until_spoiled: None,
            until_repeated: None,
            until_misnamed: None,
            cuts_off: false,
            hides_errors: false,
            solicited: 0,
            events: 0,
            replaces_arms: false,
            answers: Vec::new(),
            patience: None,
            dead: false,
            forgiving: false,
            pace: None,
            quiet: true,
        }
    }
}

impl Script {
    /// Counts a call.
    pub(super) fn count(&mut self, call: &'static str) {
        *self.calls.entry(call).or_default() += 1;
    }

    /// The wait and the failure that a call is to have.
    pub(super) fn called(&mut self, call: &'static str) -> (Duration, Option<c_int>) {
        self.count(call);
        if self.dead && call.starts_with("ibv_") {
            return (Duration::ZERO, Some(libc::EIO));
        }
        if self.quiet {
            return (Duration::ZERO, None);
        }
        let delay = self.delays.get(call).copied().unwrap_or_default();
        let mut error = self.refusals.get(call).copied();
        self.failures.retain_mut(|failure| {
            if failure.call != call {
                return true;
            }
            let now = failure.after == 0 && error.is_none();
            if now {
                error = Some(failure.error);
            } else {
                failure.after = failure.after.saturating_sub(1);
            }
            !now
        });
        (delay, error)
    }

    /// Counts a call to those that return before the ones that are held. Returns whether it is one of them.
    pub(super) fn passes(&mut self, call: &str) -> bool {
        let left = self.holds.get_mut(call).filter(|left| **left > 0);
        left.map(|left| *left -= 1).is_some()
    }

    /// Returns whether a call is not to return yet.
    pub(super) fn holds(&self, call: &str) -> bool {
        self.holds.get(call) == Some(&0)
    }

    /// Keeps the calls of a function behind so many.
    fn hold(&mut self, call: &str, after: usize) {
        self.holds.insert(call.to_owned(), after);
        self.quiet = false;
    }

    /// The time that a request or an event waits, and others overtake it: half of them do not wait.
    pub(super) fn linger(&mut self) -> Option<Duration> {
        let state = self.pace.as_mut()?;
        // SplitMix64.
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = mixed ^ (mixed >> 27);
        mixed.is_multiple_of(2).then(|| Duration::from_micros((mixed >> 1) % LONGEST))
    }

    /// Whether a step of a resolution is not answered in time.
    pub(super) fn expires(&mut self, step: Step) -> bool {
        let left = &mut self.expiring[step as usize];
        let expires = *left > 0;
        *left = left.saturating_sub(1);
        expires
    }

    /// The event that answers a call of the connection manager, and its status, if it is not the usual one.
    pub(super) fn answer(&mut self, call: &str) -> Option<(c_uint, c_int)> {
        let place = self.answers.iter().position(|(of, ..)| of == call)?;
        let (_, kind, status) = self.answers.remove(place);
        Some((kind, status))
    }

    /// Counts a completion. Returns whether it finds its queue full.
    pub(super) fn overruns(&mut self) -> bool {
        let left = self.until_overrun.take().map(|left| left.saturating_sub(1));
        self.until_overrun = left.filter(|left| *left > 0);
        left == Some(0)
    }

    /// Counts a completion. Returns whether no poll can read it.
    pub(super) fn spoils(&mut self) -> bool {
        let left = self.until_spoiled.take().map(|left| left.saturating_sub(1));
        self.until_spoiled = left.filter(|left| *left > 0);
        left == Some(0)
    }

    /// Counts a completion. Returns whether it comes twice.
    pub(super) fn repeats(&mut self) -> bool {
        let left = self.until_repeated.take().map(|left| left.saturating_sub(1));
        self.until_repeated = left.filter(|left| *left > 0);
        left == Some(0)
    }

    /// Counts a completion. Returns whether the first half of its id is all ones.
    pub(super) fn misnames(&mut self) -> bool {
        let left = self.until_misnamed.take().map(|left| left.saturating_sub(1));
        self.until_misnamed = left.filter(|left| *left > 0);
        left == Some(0)
    }

    /// A line that concerns calls.
    fn line(&mut self, line: &str) -> Answer<i64> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["reset"] => {
                // The times that requests take are no misbehaviour.
                *self = Self { pace: self.pace, ..Self::default() };
                world::CHANGED.notify_all();
            }
            ["hold", call] => self.hold(call, 0),
            ["hold", call, nth] => self.hold(call, parse::<usize>(nth)?.saturating_sub(1)),
            ["release", call] => {
                self.holds.remove(call);
                world::CHANGED.notify_all();
            }
            ["keep", "requests"] => self.keeps = Some(0),
            ["keep", "requests", flushed] => self.keeps = Some(parse(flushed)?),
            ["refuse", call, error] => {
                self.refusals.insert(call.to_owned(), parse(error)?);
                self.quiet = false;
            }
            ["delay", call, milliseconds] => {
                let seconds = parse::<f64>(milliseconds)? / 1e3;
                let time = Duration::try_from_secs_f64(seconds).map_err(|_| libc::EINVAL)?;
                self.delays.insert(call.to_owned(), time);
                self.quiet = false;
            }
            ["fail", call, nth, error] => {
                let after = parse::<usize>(nth)?.saturating_sub(1);
                let error = parse(error)?;
                self.failures.push(Failure { call: call.to_owned(), after, error });
                self.quiet = false;
            }
            ["pace", "none"] => self.pace = None,
            ["pace", seed] => self.pace = Some(parse(seed)?),
            ["cut", "off"] => self.cuts_off = true,
            ["cut", messages] => self.cut_off = parse(messages)?,
            ["expire", "addresses", count] => self.expiring[Step::Address as usize] = parse(count)?,
            ["expire", "routes", count] => self.expiring[Step::Route as usize] = parse(count)?,
            ["expiring"] => return Ok(self.expiring.iter().sum::<usize>() as i64),
            ["overrun", nth] => self.until_overrun = Some(parse(nth)?),
            ["spoil", nth] => self.until_spoiled = Some(parse(nth)?),
            ["repeat", nth] => self.until_repeated = Some(parse(nth)?),
            ["misname", nth] => self.until_misnamed = Some(parse(nth)?),
            ["solicited"] => return Ok(self.solicited as i64),
            ["events"] => return Ok(self.events as i64),
            ["replace", "arms"] => self.replaces_arms = true,
            ["answer", call, kind, status] => {
                self.answers.push((call.to_owned(), parse(kind)?, parse(status)?));
            }
            ["patience", milliseconds] => {
                self.patience = Some(Duration::from_millis(parse(milliseconds)?));
            }
            ["forgive"] => self.forgiving = true,
            ["lose", "last_receives"] => self.silent = true,
            ["lose", "errors"] => self.hides_errors = true,
            ["lose", "messages"] => self.mute = true,
            ["lose", "addresses"] => self.unresolved = true,
            ["lose", "nothing"] => {
                (self.mute, self.unresolved) = (false, false);
                (self.silent, self.hides_errors) = (false, false);
            }
            _ => return Err(libc::EINVAL),
        }
        Ok(0)
    }
}

fn parse<T: FromStr>(word: &str) -> Answer<T> {
    word.parse().map_err(|_| libc::EINVAL)
}

impl World {
    fn obey(&mut self, line: &str) -> Answer<i64> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["count", "cqe"] => Ok(self.queues.values().map(|queue| queue.room).sum::<usize>() as i64),
            ["count", kind] => {
                let counts = self.counts();
                let found = counts.iter().find(|(name, _)| *name == kind).ok_or(libc::EINVAL)?;
                Ok(found.1 as i64)
            }
            ["registered"] => {
                let pages = self.regions.values().map(|region| region.length.div_ceil(4096));
                Ok(pages.sum::<u64>() as i64 * 4096)
            }
            ["held"] => Ok(self.held as i64),
            ["access", flags] => {
                let flags: u32 = parse(flags)?;
                Ok(self.regions.values().filter(|region| region.access == flags).count() as i64)
            }
            ["dress"] => Ok(self.card.dress as i64),
            ["dress", name] => self.put_on(name).map(|()| 0),
            ["instant"] => self.make_instant().map(|()| 0),
            ["vendor", number] => self.set_vendor(parse(number)?).map(|()| 0),
            ["send_queue", bytes, error] => {
                self.card.sends = QueueBytes::new(parse(bytes)?, parse(error)?);
                Ok(0)
            }
            ["shared_queue", bytes, error] => {
                self.card.shared = QueueBytes::new(parse(bytes)?, parse(error)?);
                Ok(0)
            }
            ["inline_clamp", bytes] => {
                self.card.inline = Some(parse(bytes)?);
                Ok(0)
            }
            ["ece", vendor, options] => {
                self.card.ece = Some((parse(vendor)?, parse(options)?));
                Ok(0)
            }
            ["ece", "none"] => {
                self.card.ece = None;
                Ok(0)
            }
            ["ece", options] => {
                let options: u32 = parse(options)?;
                let all = self.queue_pairs.values().filter(|queue_pair| queue_pair.state == IBV_QPS_RTS);
                let has = all.filter_map(|queue_pair| queue_pair.options);
                Ok(has.filter(|has| has.used == options).count() as i64)
            }
            ["dmabuf"] => {
                self.card.dmabuf = true;
                Ok(0)
            }
            ["fixed", "shared"] => {
                self.card.fixed_shared = true;
                Ok(0)
            }
            ["partitions", first, second] => {
                let key = |word: &str| if word == "none" { Ok(None) } else { parse(word).map(Some) };
                self.set_partitions([key(first)?, key(second)?]);
                Ok(0)
            }
            ["calls", call] => Ok(self.script.calls.get(call).copied().unwrap_or_default() as i64),
            ["vector", number] => {
                let number: c_int = parse(number)?;
                Ok(self.queues.values().filter(|queue| queue.vector == number).count() as i64)
            }
            ["port", number, state] => {
                self.set_port(parse(number)?, state == "up");
                Ok(0)
            }
            ["event", kind, port] => {
                self.port_event(parse(kind)?, parse(port)?);
                Ok(0)
            }
            ["lose", "shared_queues"] => {
                self.lose_shared_queues();
                Ok(0)
            }
            ["fatal"] => {
                (self.script.dead, self.script.forgiving) = (true, true);
                self.remove_device();
                Ok(0)
            }
            ["keep", "nothing"] => {
                self.script.keeps = None;
                let failed =
                    self.queue_pairs.iter().filter(|(_, queue_pair)| queue_pair.state == IBV_QPS_ERR);
                let failed: Vec<usize> = failed.map(|(at, _)| *at).collect();
                failed.into_iter().for_each(|at| self.flush(at));
                Ok(0)
            }
            ["scribble"] => Ok(execute::scribble(self) as i64),
            ["remove"] => {
                self.remove_device();
                cm::device_removed(self);
                Ok(0)
            }
            [attribute @ ("rnr_timer" | "rnr_retries" | "retries" | "ack_timeout"), side] => {
                let passive = match side {
                    "active" => false,
                    "passive" => true,
                    _ => return Err(libc::EINVAL),
                };
                let is_meant = |queue_pair: &&QueuePair| {
                    queue_pair.state == IBV_QPS_RTS
                        && cm::is_passive(self, queue_pair.number) == Some(passive)
                };
                // Of several, any that differs is an error of the test.
                let mut meant = self.queue_pairs.values().filter(is_meant);
                let of = |QueuePair { attributes, .. }: &QueuePair| match attribute {
                    "rnr_timer" => attributes.min_rnr_timer,
                    "rnr_retries" => attributes.rnr_retry,
                    "retries" => attributes.retry_cnt,
                    _ => attributes.timeout,
                };
                let value = meant.next().map(of).ok_or(libc::ENOENT)?;
                if meant.all(|other| of(other) == value) { Ok(value.into()) } else { Err(libc::EEXIST) }
            }
            ["device", name] => self.devices.add(name).map(|()| 0),
            ["rival", name, error] => self.devices.refuse(name, parse(error)?).map(|()| 0),
            ["place", ip, port, key, ref device @ ..] => {
                let device = match device {
                    [] => 0,
                    [name] => self.devices.number(name)?,
                    _ => return Err(libc::EINVAL),
                };
                let (ip, scope) = ip.split_once('%').unwrap_or((ip, "0"));
                let (ip, scope) = (parse(ip)?, parse(scope)?);
                let place = Place { device, ip, scope, port: parse(port)?, key: parse(key)? };
                self.devices.addresses.retain(|other| (other.ip, other.scope) != (ip, scope));
                self.devices.addresses.push(place);
                Ok(0)
            }
            ["displace", ip] => {
                let ip: IpAddr = parse(ip)?;
                self.devices.addresses.retain(|other| other.ip != ip);
                Ok(0)
            }
            ["give", "up"] => Ok(cm::give_up(self) as i64),
            ["report", kind, status] => Ok(cm::report(self, parse(kind)?, parse(status)?) as i64),
            ["gap"] => {
                let gaps = self.cm.channels.values_mut().map(EventQueue::take_longest);
                Ok(gaps.max().unwrap_or_default().as_micros() as i64)
            }
            ["moved"] => Ok(cm::moved(self) as i64),
            ["listening"] => Ok(cm::listening(self) as i64),
            ["move", ip] => {
                cm::address_moved(self, parse(ip)?);
                Ok(0)
            }
            _ => self.script.line(line),
        }
    }
}

/// Carries a line out. Returns what it asks for, or a negative error number.
///
/// # Safety
/// A string of C.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_control(line: *const c_char) -> i64 {
    // SAFETY: the caller's.
    let line = unsafe { CStr::from_ptr(line) };
    let Ok(line) = line.to_str() else { return -i64::from(libc::EINVAL) };
    world::lock().obey(line).unwrap_or_else(|error| -i64::from(error))
}

/// The device as the lines of the environment have it. Has the objects counted at the end of the process, if that is asked for.
pub(super) fn begin() -> World {
    if std::env::var_os(COUNT).is_some() {
        // SAFETY: the function takes nothing and does not unwind.
        unsafe { libc::atexit(count) };
    }
    let mut world = World::default();
    for line in std::env::var(LINES).unwrap_or_default().split(';').filter(|line| !line.trim().is_empty()) {
        assert!(world.obey(line).is_ok(), "{LINES}: {line:?} is not understood");
    }
    world
}

extern "C" fn count() {
    if world::lock().script.forgiving {
        return;
    }
    let counts = || world::lock().counts().into_iter().filter(|(_, count)| *count > 0).collect::<Vec<_>>();
    let begin = Instant::now();
    let mut left = counts();
    // Other threads may be about to give theirs back.
    while !left.is_empty() && begin.elapsed() < LAST {
        std::thread::sleep(Duration::from_millis(1));
        left = counts();
    }
    if !left.is_empty() {
        eprintln!("fake device: objects are left at the end of the process: {left:?}");
        std::process::abort();
    }
}
