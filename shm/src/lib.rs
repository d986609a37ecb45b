//! The region that a sidecar and its worker share: one file, mapped by both.
//!
//! ```text
//!  owner     the sidecar's side: slots, deliveries, actions, seats     worker    the worker's side, blocking
//!  ├─ region    creating it, taking it over                            ├─ attach    the socket beside the region
//!  ├─ slots     the ledger: who may touch which slot                   │
//!  ├─ journal   what a successor has to know                           │
//!  ├─ stats, errors   what anybody may read from outside               │
//!  └───────────┬───────────────────────────────────────────────────────┘
//!   ring, descriptor, eventcount, spin, futex   one producer, one consumer, and how they wake each other
//!   device          where observations also lie on a device
//!   layout, cells   where it all lies           sync, clock   the only atomics, the only clock
//! ```
//!
//! The life of an observation: [`owner::Owner::claim_slot`], received into the slot, [`owner::Owner::publish`]; a
//! descriptor in the ring; [`worker::Worker::next`]; [`worker::Worker::answer`]; a descriptor in the other ring;
//! [`owner::Owner::poll_worker`], copied out, [`owner::Owner::finish_action`], sent, [`owner::Owner::answered`].
//! Payloads are never copied on the way in.
//!
//! **Progress.** No side waits for the other in shared memory: rings have one producer and one consumer, and there are
//! no locks. A process that is killed or stopped at any instruction blocks nobody but itself.
//!
//! **Crashes.** What only a living process knows is in the journal before it matters to others. A worker's
//! observations wait for its successor; a sidecar's successor goes on with rings, slots and worker as they are.
//!
//! **Trust.** The sidecar believes nothing that a worker can write. The worker believes the sidecar, but checks what
//! would make it read outside of the region. Who has the file's rights can do anything: it is no barrier between users.
//!
//! It refuses to know WebSocket, sessions' meaning, or a GPU.
//!
//! Under `cfg(sidecar_loom)` the words of the region, futexes and the doorbell are a model's; everything else is the same.

pub mod attach;
mod cells;
pub mod clock;
mod crash;
pub mod descriptor;
pub mod device;
pub mod errors;
pub mod eventcount;
#[cfg(all(feature = "failpoints", not(sidecar_loom)))]
pub mod failpoints;
pub mod futex;
#[cfg(all(feature = "fuzzing", not(sidecar_loom)))]
pub mod fuzzing;
pub mod guard;
pub mod journal;
pub mod layout;
mod map;
pub mod owner;
pub mod region;
pub mod ring;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod slots;
pub mod spin;
pub mod stats;
pub mod sync;
mod sys;
#[cfg(all(test, not(sidecar_loom)))]
mod testing;
pub mod worker;

pub use sys::is_ending;
