//! What the PMIx server of a node knows of the ranks of its step: which are at work, the fence that they wait at, and what servers of
//! other nodes ask. Events come in, messages and answers come out. Pure; `R` is the library's way to get an answer.

use std::collections::BTreeMap;

use gmodel::parallel::{MAX_EXCHANGE_PIECE_BYTES, MAX_KEY_SPACE_BYTES};

use super::pmix_message::PmixMessage;

/// Bytes of a piece before its data.
const PIECE_HEAD_BYTES: usize = 6;
const QUESTION: u8 = b'Q';
const ANSWER: u8 = b'A';
/// Of an answer: more follows, nothing was found.
const MORE: u8 = 1;
const NOTHING: u8 = 2;

#[derive(Debug, PartialEq, Eq)]
pub enum PmixEffect<R> {
    Send(PmixMessage),
    /// None: there is no such thing.
    Answer(R, Option<Vec<u8>>),
    /// The library is to say what the rank has put.
    LookUp {
        rank: u32,
        request: u64,
    },
}

use PmixEffect::{Answer, LookUp, Send};

pub struct PmixState<R> {
    /// Of this node, in the order of their positions.
    ranks: Vec<u32>,
    node_of: BTreeMap<u32, u32>,
    is_alone: bool,
    clients: Vec<PmixPhase>,
    /// What the ranks here have put, and which ranks are to get what all have.
    fence: Option<(Vec<u8>, R)>,
    news: Vec<u8>,
    /// Questions to other nodes, with what has come of the answer.
    wanted: BTreeMap<u32, (R, Vec<u8>)>,
    /// Questions of other nodes: node, its number.
    asked: BTreeMap<u64, (u32, u32)>,
    questions: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PmixPhase {
    /// It may never speak PMIx.
    Silent,
    Member,
    Finalized,
    /// Its process has ended without it.
    Absent,
    Gone,
}

impl<R> PmixState<R> {
    /// By node: its ranks.
    pub fn new(nodes: &[Vec<u32>], own: usize) -> Self {
        let of_node = |(at, ranks): (u32, &Vec<u32>)| {
            let pairs: Vec<(u32, u32)> = ranks.iter().map(|rank| (*rank, at)).collect();
            pairs
        };
        Self {
            ranks: nodes[own].clone(),
            node_of: (0..).zip(nodes).flat_map(of_node).collect(),
            is_alone: nodes.iter().filter(|ranks| !ranks.is_empty()).count() < 2,
            clients: vec![PmixPhase::Silent; nodes[own].len()],
            fence: None,
            news: Vec::new(),
            wanted: BTreeMap::new(),
            asked: BTreeMap::new(),
            questions: 0,
        }
    }

    pub fn local(&self, rank: u32) -> u32 {
        let found = self.ranks.iter().position(|known| *known == rank);
        found.unwrap_or(0) as u32
    }

    /// All tasks of this node have ended.
    pub fn is_over(&self) -> bool {
        let is_gone = |phase: &PmixPhase| matches!(phase, PmixPhase::Absent | PmixPhase::Gone);
        self.clients.iter().all(is_gone)
    }

    pub fn connected(&mut self, rank: u32) -> Vec<PmixEffect<R>> {
        let local = self.local(rank) as usize;
        self.clients[local] = PmixPhase::Member;
        self.miss_the_absent()
    }

    pub fn finalized(&mut self, rank: u32) {
        let local = self.local(rank) as usize;
        self.clients[local] = PmixPhase::Finalized;
    }

    pub fn aborted(&mut self, rank: u32, code: i32, message: &str) -> Vec<PmixEffect<R>> {
        self.finalized(rank);
        let message: String = message.trim().chars().take(400).collect();
        let text = match message.as_str() {
            "" | "N/A" => format!("it called MPI_Abort, exit code {code}"),
            message => format!("it called MPI_Abort, exit code {code}: {message}"),
        };
        vec![self.abort(self.local(rank), text)]
    }

    /// A task has ended.
    pub fn left(&mut self, local: u32) -> Vec<PmixEffect<R>> {
        let Some(phase) = self.clients.get_mut(local as usize) else {
            return Vec::new();
        };
        let before = *phase;
        *phase = match before {
            PmixPhase::Silent | PmixPhase::Absent => PmixPhase::Absent,
            _ => PmixPhase::Gone,
        };
        match before {
            PmixPhase::Member => {
                let text = "it has left before MPI_Finalize".to_owned();
                vec![self.abort(local, text)]
            }
            _ => self.miss_the_absent(),
        }
    }

    /// MPI begins with all ranks of a step: one that ended without it is waited for in vain.
    fn miss_the_absent(&self) -> Vec<PmixEffect<R>> {
        let at = |wanted: PmixPhase| self.clients.iter().position(|phase| *phase == wanted);
        match (at(PmixPhase::Absent), at(PmixPhase::Member)) {
            (Some(absent), Some(_)) => {
                let text = "it has ended, and others wait for it".to_owned();
                vec![self.abort(absent as u32, text)]
            }
            _ => Vec::new(),
        }
    }

    fn abort(&self, local: u32, text: String) -> PmixEffect<R> {
        Send(PmixMessage::Abort { local, text })
    }

    /// All ranks here have come to a fence, with this between them.
    pub fn fence(&mut self, data: Vec<u8>, reply: R) -> Vec<PmixEffect<R>> {
        if self.is_alone {
            return vec![Answer(reply, Some(data))];
        }
        let pieces = data.chunks(MAX_EXCHANGE_PIECE_BYTES).map(|piece| {
            Send(PmixMessage::Fence {
                is_last: false,
                piece: piece.to_vec(),
            })
        });
        let end = Send(PmixMessage::Fence {
            is_last: true,
            piece: Vec::new(),
        });
        let effects = pieces.chain([end]).collect();
        self.fence = Some((data, reply));
        effects
    }

    /// What other nodes had at the fence.
    pub fn exchanged(&mut self, is_last: bool, piece: &[u8]) -> Vec<PmixEffect<R>> {
        if self.fence.is_none() || self.news.len() + piece.len() > MAX_KEY_SPACE_BYTES {
            return Vec::new();
        }
        self.news.extend_from_slice(piece);
        match self.fence.take_if(|_| is_last) {
            Some((mut data, reply)) => {
                data.append(&mut self.news);
                vec![Answer(reply, Some(data))]
            }
            None => Vec::new(),
        }
    }

    /// A rank here needs what a rank of another node has put.
    pub fn want(&mut self, rank: u32, reply: R) -> Vec<PmixEffect<R>> {
        let Some(node) = self.node_of.get(&rank) else {
            return vec![Answer(reply, None)];
        };
        self.questions += 1;
        let number = self.questions as u32;
        self.wanted.insert(number, (reply, Vec::new()));
        let bytes = [
            &[QUESTION][..],
            &number.to_be_bytes(),
            &[0],
            &rank.to_be_bytes(),
        ]
        .concat();
        vec![Send(PmixMessage::Direct { node: *node, bytes })]
    }

    /// The library's word for a question of another node.
    pub fn found(&mut self, request: u64, data: Option<Vec<u8>>) -> Vec<PmixEffect<R>> {
        let Some((node, number)) = self.asked.remove(&request) else {
            return Vec::new();
        };
        let piece = |flags: u8, data: &[u8]| {
            let bytes = [&[ANSWER][..], &number.to_be_bytes(), &[flags], data].concat();
            Send(PmixMessage::Direct { node, bytes })
        };
        let Some(data) = data else {
            return vec![piece(NOTHING, &[])];
        };
        let chunks = data.chunks(MAX_EXCHANGE_PIECE_BYTES - PIECE_HEAD_BYTES);
        chunks
            .map(|chunk| piece(MORE, chunk))
            .chain([piece(0, &[])])
            .collect()
    }

    /// A question or a piece of an answer, from the server of another node.
    pub fn directed(&mut self, node: u32, bytes: &[u8]) -> Vec<PmixEffect<R>> {
        let Some((&[kind, a, b, c, d, flags], data)) = bytes.split_first_chunk() else {
            return Vec::new();
        };
        let number = u32::from_be_bytes([a, b, c, d]);
        match (kind, data) {
            (QUESTION, &[a, b, c, d]) => {
                self.questions += 1;
                let (rank, request) = (u32::from_be_bytes([a, b, c, d]), self.questions);
                self.asked.insert(request, (node, number));
                vec![LookUp { rank, request }]
            }
            (ANSWER, data) => self.heard(number, flags, data),
            _ => Vec::new(),
        }
    }

    fn heard(&mut self, number: u32, flags: u8, data: &[u8]) -> Vec<PmixEffect<R>> {
        let all: usize = self.wanted.values().map(|(_, heard)| heard.len()).sum();
        let Some((reply, mut heard)) = self.wanted.remove(&number) else {
            return Vec::new();
        };
        if flags & NOTHING != 0 || all + data.len() > MAX_KEY_SPACE_BYTES {
            return vec![Answer(reply, None)];
        }
        heard.extend_from_slice(data);
        if flags & MORE == 0 {
            return vec![Answer(reply, Some(heard))];
        }
        self.wanted.insert(number, (reply, heard));
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The servers of two nodes with two ranks each.
    fn two() -> [PmixState<&'static str>; 2] {
        let nodes = [vec![0, 1], vec![2, 3]];
        [0, 1].map(|own| PmixState::new(&nodes, own))
    }

    fn aborts(effects: &[PmixEffect<&'static str>]) -> Vec<(u32, String)> {
        let text = |effect: &PmixEffect<_>| match effect {
            Send(PmixMessage::Abort { local, text }) => Some((*local, text.clone())),
            _ => None,
        };
        effects.iter().filter_map(text).collect()
    }

    #[test]
    fn a_fence_brings_together_what_all_nodes_had() {
        let [mut one, _] = two();
        let sent = one.fence(vec![1; MAX_EXCHANGE_PIECE_BYTES + 1], "here");
        assert_eq!(sent.len(), 3, "two pieces and the end");
        assert!(one.exchanged(false, &[2, 2]).is_empty());
        let opened = one.exchanged(true, &[]);
        let [Answer("here", Some(data))] = &opened[..] else {
            panic!("{opened:?}")
        };
        assert_eq!(data.len(), MAX_EXCHANGE_PIECE_BYTES + 3);
        assert!(one.exchanged(true, &[9]).is_empty(), "no fence is awaited");
        let mut alone = PmixState::new(&[vec![0], vec![]], 0);
        assert_eq!(
            alone.fence(vec![5], "at once"),
            [Answer("at once", Some(vec![5]))]
        );
    }

    #[test]
    fn what_a_rank_of_another_node_put_is_asked_for_and_found() {
        let [mut one, mut two] = two();
        let long = vec![7; 2 * MAX_EXCHANGE_PIECE_BYTES];
        for (data, wanted) in [(Some(long.clone()), Some(long)), (None, None)] {
            let asked = one.want(3, "reply");
            let [Send(PmixMessage::Direct { node: 1, bytes })] = &asked[..] else {
                panic!("{asked:?}")
            };
            let looked = two.directed(0, bytes);
            let [LookUp { rank: 3, request }] = looked[..] else {
                panic!("{looked:?}")
            };
            let mut heard = Vec::new();
            for piece in two.found(request, data) {
                let Send(PmixMessage::Direct { node: 0, bytes }) = piece else {
                    panic!("{piece:?}")
                };
                heard.extend(one.directed(1, &bytes));
            }
            assert_eq!(heard, [Answer("reply", wanted)]);
        }
        assert_eq!(one.want(9, "none"), [Answer("none", None)]);
        assert!(one.directed(1, b"rubbish").is_empty() && one.directed(1, &[]).is_empty());
    }

    #[test]
    fn ranks_that_end_without_mpi_finalize_are_told_of() {
        let [mut one, _] = two();
        assert!(aborts(&one.connected(0)).is_empty() && aborts(&one.connected(1)).is_empty());
        one.finalized(0);
        assert!(aborts(&one.left(0)).is_empty());
        let text = "it has left before MPI_Finalize".to_owned();
        assert_eq!(aborts(&one.left(1)), [(1, text)]);
        assert!(one.is_over());
        // One that never began, before and after the other did.
        let absent = [(0, "it has ended, and others wait for it".to_owned())];
        let [mut one, mut other] = two();
        assert!(aborts(&one.left(0)).is_empty());
        assert_eq!(aborts(&one.connected(1)), absent);
        other.connected(3);
        assert_eq!(aborts(&other.left(0)), absent);
        assert!(other.left(7).is_empty(), "no such task");
    }

    #[test]
    fn an_abort_says_its_code() {
        let [mut one, _] = two();
        one.connected(1);
        let text = "it called MPI_Abort, exit code 9".to_owned();
        assert_eq!(aborts(&one.aborted(1, 9, "N/A")), [(1, text)]);
        assert!(aborts(&one.left(1)).is_empty());
    }
}
