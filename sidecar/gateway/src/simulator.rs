//! What a simulator is to the gateway: bytes out, bytes in. The gateway never looks into either.

/// What an action led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The case goes on with the next observation.
    Running,
    /// The case ends well.
    Solved,
    /// The action was applied and the case ends badly; the text says how.
    Failed(String),
    /// The action was not understood and not applied; the case ends. The text says what came.
    Rejected(String),
}

/// One case of a job: a world in lockstep with its agent. Time stands still between two actions.
pub trait Simulator: Send {
    /// Appends the observation of the current step. Asked twice without an action between, it appends the same
    /// bytes twice.
    fn observe(&mut self, out: &mut Vec<u8>);

    /// Applies an action.
    fn act(&mut self, action: &[u8]) -> Step;
}

/// Makes the simulator of each case of a job, numbered from 0.
pub type Factory = Box<dyn Fn(u32) -> Box<dyn Simulator> + Send + Sync>;
