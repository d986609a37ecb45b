//! Cores, and who runs on which. Children inherit the cores of the thread that starts them.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Numbers of the cores that this run may use, in order.
#[derive(Debug, Clone)]
pub(crate) struct Cores(Vec<usize>);

impl Cores {
    /// Those of this process.
    ///
    /// # Errors
    /// If there is none, or the system does not say.
    pub(crate) fn usable() -> io::Result<Self> {
        let allowed = sched_getaffinity(None)?;
        let cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect::<Vec<_>>();
        if cores.is_empty() { Err(io::Error::other("no core may be used")) } else { Ok(Self(cores)) }
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The core at `index`, if there are so many.
    pub(crate) fn get(&self, index: usize) -> Option<usize> {
        self.0.get(index).copied()
    }

    /// All of them.
    pub(crate) fn all(&self) -> &[usize] {
        &self.0
    }
}

/// From here on the calling thread, and whoever it starts, runs on these cores.
///
/// # Errors
/// If the system refuses.
pub(crate) fn stay_on(cores: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    Ok(sched_setaffinity(None, &set)?)
}
