//! A sidecar's side of a region, with its worker in the same thread: no wake-up is in what is measured.

use std::io;

use sidecar_core::agent::HEADROOM;
use sidecar_core::tunnel::{AgentId, Epoch};
use sidecar_shm::attach::{Connection, Listener};
use sidecar_shm::clock;
use sidecar_shm::layout::Geometry;
use sidecar_shm::owner::{FromWorker, Owner};
use sidecar_shm::region::{Identity, create};
use sidecar_shm::slots::{Observed, SlotIndex};
use sidecar_shm::worker::{AttachOptions, Worker};

use crate::hop;
use crate::place::Place;

/// See the module's text.
pub(super) struct Side {
    pub(super) owner: Owner,
    listener: Listener,
    connections: Vec<Connection>,
    sequence: u64,
    place: Place,
}

impl Side {
    /// # Errors
    /// `/dev/shm` has no room for the region.
    pub(super) fn new(geometry: &Geometry) -> io::Result<Self> {
        let place = Place::new()?;
        let agent =
            AgentId::new("gpu").map_err(|_| io::Error::other("an id of three letters is too long"))?;
        let identity = Identity { job_endpoint_hash: [9; 32], agent };
        let opened = create(&place.region(), geometry, &identity, clock::now()).map_err(io::Error::other)?;
        let listener = Listener::bind(&place.region())?;
        Ok(Self { owner: opened.owner, listener, connections: Vec::new(), sequence: 1, place })
    }

    /// A worker of this process.
    ///
    /// # Errors
    /// It does not attach.
    pub(super) fn attach(&mut self) -> io::Result<Worker> {
        let region = self.place.region();
        let attaching = std::thread::spawn(move || Worker::attach(&region, &AttachOptions::default()));
        self.connections.push(hop::attach(&mut self.owner, &self.listener)?);
        self.owner.deliver_pending();
        let attached = attaching.join().map_err(|_| io::Error::other("attaching panicked"))?;
        attached.map_err(io::Error::other)
    }

    /// Bytes of a payload arrive in a claimed slot.
    pub(super) fn receive(&mut self, slot: SlotIndex, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.owner.geometry().observation_bytes as usize);
        let start = self.owner.slot_base(slot).wrapping_add(HEADROOM as usize + at);
        // SAFETY: the bytes fit the slot (asserted above), which is claimed: nobody else uses it.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
    }

    /// An observation arrives, all at once; its last byte now.
    ///
    /// # Errors
    /// The worker has all slots.
    pub(super) fn observe(&mut self, payload: &[u8]) -> io::Result<()> {
        let slot = self.claim()?;
        self.receive(slot, 0, payload);
        let (now, sequence) = (clock::now(), self.sequence);
        self.sequence += 1;
        // Slots are counted in 32 bits.
        let length = payload.len() as u32;
        let seen = Observed { epoch: Epoch(1), sequence, length, first_byte: now, last_byte: now };
        self.owner.publish(slot, &seen);
        self.owner.deliver_pending();
        Ok(())
    }

    /// A slot to receive into.
    ///
    /// # Errors
    /// The worker has them all.
    pub(super) fn claim(&mut self) -> io::Result<SlotIndex> {
        self.owner.claim_slot().ok_or_else(|| io::Error::other("no slot is free"))
    }

    /// Takes what the worker said; what was answered counts as sent.
    ///
    /// # Errors
    /// The worker broke the region's rules.
    pub(super) fn take(&mut self) -> io::Result<()> {
        while let Some(said) = self.owner.poll_worker().map_err(io::Error::other)? {
            if let FromWorker::Action { sequence, .. } = said {
                self.owner.finish_action();
                self.owner.journal().action_started(sequence);
                self.owner.journal().action_sent(sequence);
                self.owner.answered(sequence);
            }
        }
        Ok(())
    }
}
