//! What the threads of grun tell its main one.

use gmodel::supervise::StepOutput;

/// Of a step: output, ends, signals to pass on.
pub(crate) enum Message {
    From(u32, StepOutput),
    /// The connection of this node of the step is at its end.
    Gone(u32),
    /// No task of this node is heard of any more, and why.
    Failed(u32, String),
    /// The step goes on without this grun.
    Left(String),
    Signal(u8),
}
