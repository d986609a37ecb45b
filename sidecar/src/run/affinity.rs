//! `--cpu CORE`, and `--gpu` where there is more than one NUMA node: the thread that becomes the frame loop on a core of
//! its own, or on those near the GPU, and every other one where it may be.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::explain::Code;
use crate::report::Failure;

/// Where the process's threads were allowed to run before one of them was pinned. New threads inherit the pin, and the
/// worker inherits it from them: each that is not the frame loop has to undo it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Affinity(CpuSet);

impl Affinity {
    /// Pins this thread.
    ///
    /// # Errors
    /// There is no such core, or it may not be used.
    pub(super) fn pin(core: usize) -> Result<Self, Failure> {
        Self::to(core::iter::once(core)).map_err(|error| {
            Failure::new(Code::Start, format!("--cpu {core}: the frame loop cannot be pinned there"))
                .because(error)
                .hint("name a core that this process may use; `taskset -p $$` shows them")
        })
    }

    /// Puts this thread on some of these cores: those that the process may use.
    ///
    /// # Errors
    /// It may use none of them.
    pub(super) fn near(cores: &[u32]) -> io::Result<Self> {
        let allowed = sched_getaffinity(None)?;
        let cores = cores.iter().map(|core| *core as usize);
        Self::to(cores.filter(|core| *core < CpuSet::MAX_CPU && allowed.is_set(*core)))
    }

    fn to(cores: impl Iterator<Item = usize>) -> io::Result<Self> {
        let mut set = CpuSet::new();
        for core in cores.filter(|core| *core < CpuSet::MAX_CPU) {
            set.set(core);
        }
        let before = sched_getaffinity(None)?;
        sched_setaffinity(None, &set)?;
        Ok(Self(before))
    }

    /// Takes the pin off this thread.
    ///
    /// # Errors
    /// What the system says: the cores of before may not be used any more.
    pub(super) fn undo(self) -> io::Result<()> {
        Ok(sched_setaffinity(None, &self.0)?)
    }
}
