//! What a step's client is to hear of its ranks, in order, as the way to it has room.

use std::collections::VecDeque;

use gmodel::supervise::{StepOutput, StepStream};

use crate::step_link::StepLink;

/// Refusals that a step's client hears of.
const MAX_TOLD: usize = 100;

pub struct RankWords {
    ranks: Vec<u32>,
    words: VecDeque<StepOutput>,
    told: usize,
    /// The client has heard why the step ends.
    is_aborted: bool,
}

impl RankWords {
    pub fn new(ranks: &[u32]) -> Self {
        Self {
            ranks: ranks.to_vec(),
            words: VecDeque::new(),
            told: 0,
            is_aborted: false,
        }
    }

    /// True when something was sent.
    pub fn tell(&mut self, link: &mut StepLink) -> bool {
        let before = self.words.len();
        while link.has_room()
            && let Some(word) = self.words.pop_front()
        {
            link.send(&word);
        }
        self.words.len() < before
    }

    pub fn len(&self) -> usize {
        self.words.len()
    }

    pub fn fence(&mut self, is_last: bool, piece: Vec<u8>) {
        self.words.push_back(StepOutput::Fence { is_last, piece });
    }

    pub fn direct(&mut self, node: u32, bytes: Vec<u8>) {
        self.words.push_back(StepOutput::Direct { node, bytes });
    }

    /// On the rank's stderr. A rank that is refused again and again is not told of each time.
    pub fn say(&mut self, local: usize, text: &str) {
        if self.told >= MAX_TOLD {
            return;
        }
        self.told += 1;
        let rank = self.rank(local);
        self.words.push_back(StepOutput::Output {
            rank,
            stream: StepStream::Stderr,
            bytes: format!("task {rank}: {text}\n").into_bytes(),
        });
    }

    /// The step is to end. The first reason is told, and no other.
    pub fn abort(&mut self, local: usize, text: String) {
        let rank = self.rank(local);
        if !std::mem::replace(&mut self.is_aborted, true) {
            self.words.push_back(StepOutput::Aborted { rank, text });
        }
    }

    fn rank(&self, local: usize) -> u32 {
        self.ranks.get(local).copied().unwrap_or(0)
    }
}
