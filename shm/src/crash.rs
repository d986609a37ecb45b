//! Places in the code at which a crash is worth trying: each store that another process, or a successor, can see.
//!
//! Nothing happens there in a product. With the feature `simulation` each [`Point`] is counted, and can be the last.
//! With the feature `failpoints` so is each single store of a word ([`crate::sync`] tells), and each system call that
//! others see ([`step`]).

/// Such a place.
#[cfg_attr(not(feature = "simulation"), expect(unreachable_pub, reason = "a simulation counts them"))]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Point {
    /// A record of the journal is about to be written.
    JournalBefore,
    /// Half of its words are written.
    JournalTorn,
    /// It is written.
    JournalAfter,
    /// A descriptor is about to be pushed to the worker.
    DownBefore,
    /// It is pushed.
    DownAfter,
    /// What the worker said is about to be marked as read.
    CommitBefore,
    /// It is marked.
    CommitAfter,
    /// A worker is about to push to the sidecar.
    UpBefore,
    /// It has pushed.
    UpAfter,
    /// A worker has pushed, and is about to look whether the sidecar sleeps.
    PostBefore,
}

#[cfg(feature = "simulation")]
impl Point {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 10] = [
        Self::JournalBefore,
        Self::JournalTorn,
        Self::JournalAfter,
        Self::DownBefore,
        Self::DownAfter,
        Self::CommitBefore,
        Self::CommitAfter,
        Self::UpBefore,
        Self::UpAfter,
        Self::PostBefore,
    ];

    /// It is the sidecar that passes here.
    pub const fn of_owner(self) -> bool {
        !matches!(self, Self::UpBefore | Self::UpAfter | Self::PostBefore)
    }
}

/// One was reached.
#[inline]
#[cfg_attr(feature = "failpoints", track_caller)]
pub(crate) fn point(point: Point) {
    step();
    #[cfg(feature = "simulation")]
    crate::simulation::reached(point);
    #[cfg(not(feature = "simulation"))]
    let _ = point;
}

/// Between two system calls whose effects others see: a file, a name, a socket, a message.
#[inline]
#[cfg_attr(feature = "failpoints", track_caller)]
pub(crate) fn step() {
    #[cfg(feature = "failpoints")]
    crate::failpoints::reached(core::panic::Location::caller());
}
