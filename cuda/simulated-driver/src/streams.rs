//! Streams, events, and the work that waits on them.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use crate::host;
use crate::ipc;
use crate::shared::{Name, Shared};
use crate::state::{INVALID_HANDLE, INVALID_VALUE, NOT_READY, State};

/// Work on a stream. Host addresses are numbers here: whether they are still good is asked when it is done.
#[derive(Clone, Debug)]
enum Work {
    ToDevice {
        from: usize,
        to: u64,
        length: usize,
    },
    ToHost {
        from: u64,
        to: usize,
        length: usize,
    },
    /// The event is reached once this is done.
    Record {
        event: usize,
        round: u64,
    },
    /// Nothing behind it is done before the event is reached.
    Wait {
        event: usize,
        round: u64,
    },
}

#[derive(Debug)]
struct Event {
    flags: u32,
    counts: Counts,
}

/// How often an event was recorded, and up to which record the work is done.
#[derive(Debug)]
enum Counts {
    Here {
        recorded: u64,
        reached: u64,
    },
    /// Another process waits for it, or may.
    Ours(Shared),
    /// Another process records it.
    Others(Shared),
}

impl Event {
    fn recorded(&self) -> u64 {
        match &self.counts {
            Counts::Here { recorded, .. } => *recorded,
            Counts::Ours(shared) | Counts::Others(shared) => shared.recorded().load(Ordering::SeqCst),
        }
    }

    fn reached(&self) -> u64 {
        match &self.counts {
            Counts::Here { reached, .. } => *reached,
            Counts::Ours(shared) | Counts::Others(shared) => shared.reached().load(Ordering::SeqCst),
        }
    }

    /// The number of a new record.
    fn record(&mut self) -> u64 {
        match &mut self.counts {
            Counts::Here { recorded, .. } => {
                *recorded += 1;
                *recorded
            }
            Counts::Ours(shared) | Counts::Others(shared) => {
                shared.recorded().fetch_add(1, Ordering::SeqCst) + 1
            }
        }
    }

    fn reach(&mut self, round: u64) {
        match &mut self.counts {
            Counts::Here { reached, .. } => *reached = (*reached).max(round),
            Counts::Ours(shared) | Counts::Others(shared) => {
                shared.reached().fetch_max(round, Ordering::SeqCst);
            }
        }
    }
}

/// Between two looks whether another process's work is done.
const LOOK: Duration = Duration::from_micros(100);
/// So many looks without it are a wait without end.
const MOST_LOOKS: u32 = 100_000;

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// 0 is the stream that every context has.
    queues: BTreeMap<usize, VecDeque<Work>>,
    events: BTreeMap<usize, Event>,
    /// The device in whose context a stream or an event was made.
    homes: BTreeMap<usize, i32>,
    next: usize,
    /// Looks in a row that found another process's work undone.
    looks: u32,
}

/// A handle that is no address of anything.
const FIRST_HANDLE: usize = 0xC0DE_0000;

impl Streams {
    pub(crate) fn leaks(&self) -> Vec<String> {
        let streams =
            self.queues.keys().filter(|handle| **handle != 0).map(|handle| format!("stream {handle:#x}"));
        streams.chain(self.events.keys().map(|handle| format!("event {handle:#x}"))).collect()
    }

    /// Whether queued work reads or writes a part of a host range.
    pub(crate) fn uses_host(&self, start: usize, length: usize) -> bool {
        self.queues.values().flatten().any(|work| {
            let (at, bytes) = match work {
                Work::ToDevice { from, length, .. } => (*from, *length),
                Work::ToHost { to, length, .. } => (*to, *length),
                Work::Record { .. } | Work::Wait { .. } => return false,
            };
            at < start + length && start < at + bytes
        })
    }

    /// Whether queued work reads or writes a part of a device range.
    pub(crate) fn uses_device(&self, start: u64, length: usize) -> bool {
        self.queues.values().flatten().any(|work| {
            let (at, bytes) = match work {
                Work::ToDevice { to, length, .. } => (*to, *length),
                Work::ToHost { from, length, .. } => (*from, *length),
                Work::Record { .. } | Work::Wait { .. } => return false,
            };
            at < start + length as u64 && start < at + bytes as u64
        })
    }

    /// Lets other processes wait for an event that was made with these flags.
    pub(crate) fn share(&mut self, event: usize, flags: u32, uuid: [u8; 16]) -> Result<Name, String> {
        let known = self.events.get_mut(&event).ok_or("it is no event")?;
        if known.flags & flags != flags {
            return Err(format!("it was made with flags {:#x}", known.flags));
        }
        if let Counts::Here { recorded, reached } = known.counts {
            let shared = Shared::new(ipc::EVENT, uuid, &[]).map_err(|error| error.to_string())?;
            shared.recorded().store(recorded, Ordering::SeqCst);
            shared.reached().store(reached, Ordering::SeqCst);
            known.counts = Counts::Ours(shared);
        }
        match &known.counts {
            Counts::Ours(shared) => Ok(*shared.name()),
            Counts::Here { .. } | Counts::Others(_) => Err("it is another process's".into()),
        }
    }

    /// Another process's event.
    pub(crate) fn import(&mut self, home: Option<i32>, shared: Shared) -> usize {
        let handle = self.handle(home);
        self.events.insert(handle, Event { flags: 0, counts: Counts::Others(shared) });
        handle
    }

    fn is_others(&self, event: usize) -> bool {
        self.events.get(&event).is_some_and(|known| matches!(known.counts, Counts::Others(_)))
    }

    fn handle(&mut self, home: Option<i32>) -> usize {
        self.next += 16;
        let handle = FIRST_HANDLE + self.next;
        self.homes.extend(home.map(|home| (handle, home)));
        handle
    }

    fn queue(&mut self, stream: usize) -> Option<&mut VecDeque<Work>> {
        if stream == 0 {
            return Some(self.queues.entry(0).or_default());
        }
        self.queues.get_mut(&stream)
    }
}

impl State {
    pub(crate) fn make_stream(&mut self) -> usize {
        let handle = self.streams.handle(self.current());
        self.streams.queues.insert(handle, VecDeque::new());
        handle
    }

    /// CUDA lets queued work finish after the call; here it is done in it.
    pub(crate) fn destroy_stream(&mut self, stream: usize) -> Result<(), u32> {
        if stream == 0 {
            return self.refuse("cuStreamDestroy of the stream that is always there".into(), INVALID_HANDLE);
        }
        self.finish_stream(stream, "cuStreamDestroy")?;
        self.streams.queues.remove(&stream);
        Ok(())
    }

    pub(crate) fn make_event(&mut self, flags: u32) -> usize {
        let handle = self.streams.handle(self.current());
        let counts = Counts::Here { recorded: 0, reached: 0 };
        self.streams.events.insert(handle, Event { flags, counts });
        handle
    }

    pub(crate) fn destroy_event(&mut self, event: usize) -> Result<(), u32> {
        match self.streams.events.remove(&event).map(|known| known.counts) {
            None => self.refuse(format!("cuEventDestroy of {event:#x}, which is no event"), INVALID_HANDLE),
            Some(Counts::Ours(shared)) if shared.openers() > 0 => {
                self.violation(format!("cuEventDestroy of {event:#x}, which another process has open"));
                Ok(())
            }
            Some(_) => Ok(()),
        }
    }

    /// Moves on what other processes wait for, a piece of each stream.
    pub(crate) fn beat(&mut self) {
        let waited_for = |work: &Work| {
            let Work::Record { event, .. } = work else { return false };
            self.streams.events.get(event).is_some_and(|known| matches!(known.counts, Counts::Ours(_)))
        };
        let due =
            |(stream, queue): (&usize, &VecDeque<Work>)| queue.iter().any(waited_for).then_some(*stream);
        let due: Vec<usize> = self.streams.queues.iter().filter_map(due).collect();
        for stream in due {
            self.step(stream);
        }
    }

    /// A stream or an event that was made in another context than the current one is refused.
    fn at_home(&mut self, handle: usize, name: &str) -> Result<(), u32> {
        let home = self.streams.homes.get(&handle).copied();
        if home.is_some() && home != self.current() {
            return self.refuse(format!("{name} with {handle:#x} of another context"), INVALID_HANDLE);
        }
        Ok(())
    }

    pub(crate) fn record(&mut self, event: usize, stream: usize) -> Result<(), u32> {
        self.at_home(event, "cuEventRecord")?;
        let Some(known) = self.streams.events.get_mut(&event) else {
            return self.refuse(format!("cuEventRecord of {event:#x}, which is no event"), INVALID_HANDLE);
        };
        if matches!(known.counts, Counts::Others(_)) {
            return self
                .refuse(format!("cuEventRecord of {event:#x}, which is another process's"), INVALID_HANDLE);
        }
        let round = known.record();
        self.enqueue("cuEventRecord", stream, Work::Record { event, round })
    }

    pub(crate) fn wait(&mut self, stream: usize, event: usize) -> Result<(), u32> {
        let Some(known) = self.streams.events.get(&event) else {
            return self
                .refuse(format!("cuStreamWaitEvent on {event:#x}, which is no event"), INVALID_HANDLE);
        };
        let round = known.recorded();
        self.enqueue("cuStreamWaitEvent", stream, Work::Wait { event, round })
    }

    pub(crate) fn copy_to_device(
        &mut self,
        to: u64,
        from: usize,
        length: usize,
        stream: usize,
    ) -> Result<(), u32> {
        let pinned = self.check_copy("cuMemcpyHtoDAsync", to, from, length)?;
        self.enqueue("cuMemcpyHtoDAsync", stream, Work::ToDevice { from, to, length })?;
        self.behind_copy(pinned, stream, "cuMemcpyHtoDAsync")
    }

    pub(crate) fn copy_to_host(
        &mut self,
        to: usize,
        from: u64,
        length: usize,
        stream: usize,
    ) -> Result<(), u32> {
        let pinned = self.check_copy("cuMemcpyDtoHAsync", from, to, length)?;
        self.enqueue("cuMemcpyDtoHAsync", stream, Work::ToHost { from, to, length })?;
        self.behind_copy(pinned, stream, "cuMemcpyDtoHAsync")
    }

    /// Out of pageable memory and into it the driver copies before it returns.
    fn behind_copy(&mut self, pinned: bool, stream: usize, name: &str) -> Result<(), u32> {
        if pinned {
            return Ok(());
        }
        self.count("pageable");
        self.finish_stream(stream, name)
    }

    /// Whether the host side is page-locked.
    fn check_copy(&mut self, name: &str, device: u64, host: usize, length: usize) -> Result<bool, u32> {
        if length == 0 {
            self.violation(format!("{name} of 0 bytes"));
            return Err(INVALID_VALUE);
        }
        if self.memory.on_device(device, length).is_none() {
            self.violation(format!("{name}: {length} bytes at {device:#x} are not on the device"));
            return Err(INVALID_VALUE);
        }
        if !host::is_mapped(host, length) {
            self.violation(format!("{name}: {length} bytes at {host:#x} are not mapped"));
            return Err(INVALID_VALUE);
        }
        self.memory.is_registered(host, length).map_err(|()| {
            self.violation(format!("{name}: only a part of {length} bytes at {host:#x} is registered"));
            INVALID_VALUE
        })
    }

    fn enqueue(&mut self, name: &str, stream: usize, work: Work) -> Result<(), u32> {
        self.at_home(stream, name)?;
        let Some(queue) = self.streams.queue(stream) else {
            return self.refuse(format!("{name} on {stream:#x}, which is no stream"), INVALID_HANDLE);
        };
        queue.push_back(work);
        Ok(())
    }

    /// Does all that is queued on a stream.
    pub(crate) fn finish_stream(&mut self, stream: usize, name: &str) -> Result<(), u32> {
        if self.streams.queue(stream).is_none() {
            return self.refuse(format!("{name} of {stream:#x}, which is no stream"), INVALID_HANDLE);
        }
        while self.step(stream) {}
        Ok(())
    }

    /// Asking moves a stream on by one piece of work, so that who asks long enough sees it done.
    pub(crate) fn query_stream(&mut self, stream: usize) -> Result<(), u32> {
        let Some(queue) = self.streams.queue(stream) else {
            return self.refuse(format!("cuStreamQuery of {stream:#x}, which is no stream"), INVALID_HANDLE);
        };
        if queue.is_empty() {
            return Ok(());
        }
        self.step(stream);
        Err(NOT_READY)
    }

    /// As [`State::query_stream`], for the stream that the event was recorded on.
    pub(crate) fn query_event(&mut self, event: usize) -> Result<(), u32> {
        if self.is_reached(event, "cuEventQuery")? {
            return Ok(());
        }
        if let Some(stream) = self.stream_of(event) {
            self.step(stream);
        }
        Err(NOT_READY)
    }

    pub(crate) fn finish_event(&mut self, event: usize) -> Result<(), u32> {
        while !self.is_reached(event, "cuEventSynchronize")? {
            match self.stream_of(event) {
                Some(stream) => {
                    self.step(stream);
                }
                None if self.streams.is_others(event) && self.look_again("cuEventSynchronize") => {}
                None => return Ok(()),
            }
        }
        self.streams.looks = 0;
        Ok(())
    }

    /// Another process's work is not done: waits a little. `false`: it was waited for long enough.
    fn look_again(&mut self, name: &str) -> bool {
        self.streams.looks += 1;
        if self.streams.looks > MOST_LOOKS {
            self.streams.looks = 0;
            self.violation(format!("{name}: another process's event is never reached"));
            return false;
        }
        std::thread::sleep(LOOK);
        true
    }

    fn is_reached(&mut self, event: usize, name: &str) -> Result<bool, u32> {
        let Some(known) = self.streams.events.get(&event) else {
            self.violation(format!("{name} of {event:#x}, which is no event"));
            return Err(INVALID_HANDLE);
        };
        Ok(known.reached() >= known.recorded())
    }

    fn stream_of(&self, event: usize) -> Option<usize> {
        let records = |work: &Work| matches!(work, Work::Record { event: other, .. } if *other == event);
        self.streams.queues.iter().find(|(_, queue)| queue.iter().any(records)).map(|(stream, _)| *stream)
    }

    /// Does the next piece of work of a stream. `false`: there was none.
    fn step(&mut self, stream: usize) -> bool {
        let Some(work) = self.streams.queues.get(&stream).and_then(|queue| queue.front().cloned()) else {
            return false;
        };
        if let Work::Wait { event, round } = work
            && self.streams.events.get(&event).is_some_and(|known| known.reached() < round)
        {
            if let Some(other) = self.stream_of(event) {
                return self.step(other);
            }
            if self.streams.is_others(event) && self.look_again("cuStreamWaitEvent") {
                return true;
            }
        }
        self.streams.looks = 0;
        if let Some(queue) = self.streams.queues.get_mut(&stream) {
            queue.pop_front();
        }
        match work {
            Work::ToDevice { from, to, length } => self.run_to_device(from, to, length),
            Work::ToHost { from, to, length } => self.run_to_host(from, to, length),
            Work::Record { event, round } => {
                if let Some(known) = self.streams.events.get_mut(&event) {
                    known.reach(round);
                }
            }
            Work::Wait { .. } => {}
        }
        true
    }

    fn run_to_device(&mut self, from: usize, to: u64, length: usize) {
        if !host::is_mapped(from, length) {
            return self
                .violation(format!("{length} bytes at {from:#x} were unmapped before they were copied"));
        }
        // SAFETY: mapped (asked just now), and whoever queued the copy promised that it may be read until it is done.
        let bytes = unsafe { host::read(from, length) };
        match self.memory.on_device(to, length) {
            Some(target) => target.copy_from_slice(&bytes),
            None => self.violation(format!("{length} bytes at {to:#x} were freed before they were written")),
        }
    }

    fn run_to_host(&mut self, from: u64, to: usize, length: usize) {
        if !host::is_mapped(to, length) {
            return self
                .violation(format!("{length} bytes at {to:#x} were unmapped before they were written"));
        }
        let Some(bytes) = self.memory.on_device(from, length).map(|bytes| bytes.to_vec()) else {
            return self.violation(format!("{length} bytes at {from:#x} were freed before they were copied"));
        };
        // SAFETY: mapped (asked just now), and whoever queued the copy promised that it may be written until it is done.
        unsafe { host::write(to, &bytes) };
    }
}
