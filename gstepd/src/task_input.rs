//! The standard input of a step's tasks: bytes that grun sent, kept until each addressed task has taken the bytes or has ended. grun may
//! have [`STEP_INPUT_WINDOW_BYTES`] under way and hears how many were taken, so a task that does not read holds up the input and
//! nothing else: signals go past it.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};

use gmodel::supervise::STEP_INPUT_WINDOW_BYTES;

/// The bytes of a step that some task has still to take.
#[derive(Default)]
pub struct StepInputs {
    bytes: VecDeque<u8>,
    /// Position of the first byte in the whole input.
    first: u64,
    ended: bool,
    /// The only rank that reads the bytes; `None`: all.
    only: Option<u32>,
}

/// The pipe into a task, until it is at its end.
pub struct TaskInput {
    pipe: File,
    taken: u64,
}

impl TaskInput {
    /// The supervisor's end, which must not block.
    pub fn new(pipe: File) -> Self {
        Self { pipe, taken: 0 }
    }
}

impl StepInputs {
    /// More of it; nothing is its end.
    ///
    /// # Errors
    /// More than may be under way.
    pub fn take(&mut self, only: Option<u32>, bytes: &[u8]) -> io::Result<()> {
        if self.bytes.len() + bytes.len() > STEP_INPUT_WINDOW_BYTES {
            return Err(io::Error::other("more input than was asked for"));
        }
        self.only = only;
        self.ended |= bytes.is_empty();
        self.bytes.extend(bytes);
        Ok(())
    }

    /// Writes what the task has room for. Its pipe is closed after the last byte, when nothing is meant for it, and when it reads
    /// no more.
    pub fn write_to(&self, rank: u32, input: &mut Option<TaskInput>) {
        while let Some(task) = input {
            if self.only.is_some_and(|only| only != rank) {
                *input = None;
                return;
            }
            let at = (task.taken - self.first) as usize;
            let (front, back) = self.bytes.as_slices();
            let piece = if at < front.len() {
                &front[at..]
            } else {
                &back[at - front.len()..]
            };
            if piece.is_empty() {
                if self.ended {
                    *input = None;
                }
                return;
            }
            match task.pipe.write(piece) {
                Ok(count) => task.taken += count as u64,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => *input = None,
            }
        }
    }

    /// Drops the bytes that all tasks have taken; how many bytes that were.
    pub fn forget<'a>(&mut self, tasks: impl Iterator<Item = &'a TaskInput>) -> usize {
        let all = self.first + self.bytes.len() as u64;
        let taken = tasks.map(|task| task.taken).min().unwrap_or(all);
        let count = (taken - self.first) as usize;
        self.bytes.drain(..count);
        self.first = taken;
        count
    }

    /// The pipe to wait for, while there is something for it.
    pub fn waits_for<'a>(&self, task: &'a TaskInput) -> Option<BorrowedFd<'a>> {
        (task.taken < self.first + self.bytes.len() as u64).then(|| task.pipe.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn pipe() -> (io::PipeReader, Option<TaskInput>) {
        let (reader, writer) = io::pipe().unwrap();
        let writer = File::from(std::os::fd::OwnedFd::from(writer));
        nix::fcntl::fcntl(
            &writer,
            nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK),
        )
        .unwrap();
        (reader, Some(TaskInput::new(writer)))
    }

    #[test]
    fn each_task_reads_all_of_it_and_the_slowest_is_waited_for() {
        let (mut fast_end, mut fast) = pipe();
        let (mut slow_end, mut slow) = pipe();
        let mut inputs = StepInputs::default();
        let whole: Vec<u8> = (0..STEP_INPUT_WINDOW_BYTES).map(|at| at as u8).collect();
        inputs.take(None, &whole).unwrap();
        assert!(
            inputs.take(None, b"one more").is_err(),
            "the window is full"
        );
        let mut read = Vec::new();
        while read.len() < whole.len() {
            inputs.write_to(0, &mut fast);
            let mut piece = vec![0; 64 << 10];
            let count = fast_end.read(&mut piece).unwrap();
            read.extend_from_slice(&piece[..count]);
        }
        assert!(read == whole);
        inputs.write_to(1, &mut slow);
        let taken = inputs.forget([&fast, &slow].into_iter().flatten());
        assert!(
            taken > 0 && taken < whole.len(),
            "what fits the slow one's pipe, and not more: {taken}"
        );
        assert!(
            inputs.waits_for(slow.as_ref().unwrap()).is_some()
                && inputs.waits_for(fast.as_ref().unwrap()).is_none()
        );
        // It goes away without having read on; nothing waits for it.
        let mut begin = vec![0; 10];
        slow_end.read_exact(&mut begin).unwrap();
        drop(slow_end);
        inputs.write_to(1, &mut slow);
        assert!(slow.is_none() && begin == whole[..10]);
        assert_eq!(
            inputs.forget([&fast].into_iter().flatten()),
            whole.len() - taken
        );
        inputs.take(None, b"").unwrap();
        inputs.write_to(0, &mut fast);
        assert!(fast.is_none());
        assert_eq!(fast_end.read(&mut begin).unwrap(), 0, "the end");
    }

    #[test]
    fn one_rank_reads_and_the_others_are_at_the_end_at_once() {
        let (mut meant_end, mut meant) = pipe();
        let (mut other_end, mut other) = pipe();
        let mut inputs = StepInputs::default();
        inputs.take(Some(3), b"for three").unwrap();
        inputs.take(Some(3), b"").unwrap();
        inputs.write_to(3, &mut meant);
        inputs.write_to(4, &mut other);
        let (mut said, mut nothing) = (String::new(), String::new());
        meant_end.read_to_string(&mut said).unwrap();
        other_end.read_to_string(&mut nothing).unwrap();
        assert_eq!((said.as_str(), nothing.as_str()), ("for three", ""));
    }
}
