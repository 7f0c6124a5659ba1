//! What one node knows of the ranks of a step that speak PMI: their key-value space, which ranks wait at a fence, which have left. Requests come
//! in, answers and words for the other nodes come out. Pure.
//!
//! Keys that a rank puts are seen on its own node at once, and on all nodes after the next fence: each node gives what is new there to
//! the step's client, which gives each node what is new on the other nodes.

use std::collections::BTreeMap;

use gmodel::parallel::{MAX_EXCHANGE_PIECE_BYTES, MAX_KEY_SPACE_BYTES};

use super::wire::{PmiAnswer, PmiRequest, PmiVersion};

/// As MPICH and its clients have them.
const MAX_KEY_BYTES: usize = 64;
const MAX_VALUE_BYTES: usize = 1024;
/// What MPI_Comm_spawn is told.
pub const SPAWN_REFUSED: &str = "MPI_Comm_spawn is not offered: a step keeps the ranks that it began with. Start all of them at once, \
                                 with -n, or others by a grun of their own";
const MAPPING_KEY: &str = "PMI_process_mapping";

/// What follows from a request, for the rank at this position among those of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PmiEffect {
    Answer {
        local: usize,
        bytes: Vec<u8>,
    },
    /// The ranks here wait at a fence; these pairs are new, in pieces. The client gets them.
    Exchange(Vec<Vec<u8>>),
    /// For the rank's stderr.
    Tell {
        local: usize,
        text: String,
    },
    /// The step is to end, because of this rank.
    Abort {
        local: usize,
        text: String,
    },
}

/// What the ranks of a node are told of their step.
pub struct PmiStep {
    /// Name of its key-value space.
    pub name: String,
    pub size: u32,
    pub ranks: Vec<u32>,
    /// Which ranks share a node, in MPICH's words; empty: not told.
    pub mapping: String,
    /// No other node has ranks of it.
    pub is_alone: bool,
}

pub struct PmiServer {
    step: PmiStep,
    pairs: BTreeMap<String, String>,
    pair_bytes: usize,
    /// Put here since the last fence.
    fresh: Vec<(String, String)>,
    of_node: BTreeMap<String, String>,
    clients: Vec<PmiClient>,
    /// The client has our part of a fence.
    is_exchanging: bool,
}

#[derive(Default)]
struct PmiClient {
    version: PmiVersion,
    phase: ClientPhase,
    /// The request of each that waits.
    fence: Option<PmiRequest>,
    of_node: Option<PmiRequest>,
    spawns: usize,
    /// Its process has ended: a fence that other ranks wait at stays shut.
    is_gone: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ClientPhase {
    /// It may never speak PMI.
    #[default]
    Silent,
    Member,
    Finalized,
}

impl PmiServer {
    pub fn new(step: PmiStep) -> Self {
        let clients = step.ranks.iter().map(|_| PmiClient::default()).collect();
        Self {
            step,
            pairs: BTreeMap::new(),
            pair_bytes: 0,
            fresh: Vec::new(),
            of_node: BTreeMap::new(),
            clients,
            is_exchanging: false,
        }
    }

    /// How the next request of a rank is written.
    pub fn version(&self, local: usize) -> PmiVersion {
        self.clients[local].version
    }

    pub fn take(&mut self, local: usize, request: &PmiRequest) -> Vec<PmiEffect> {
        match self.version(local) {
            PmiVersion::One => self.take_one(local, request),
            PmiVersion::Two => self.take_two(local, request),
        }
    }

    /// A rank's process has ended, or its connection cannot be read on. Why the step has to end, if it has to.
    pub fn left(&mut self, local: usize) -> Option<String> {
        let client = &mut self.clients[local];
        let was_member = client.phase == ClientPhase::Member;
        client.phase = ClientPhase::Finalized;
        if std::mem::replace(&mut client.is_gone, true) {
            return None;
        }
        let others_wait = self.clients.iter().any(|client| client.fence.is_some());
        match was_member {
            true => Some("it has left before MPI_Finalize".to_owned()),
            false => others_wait.then(|| "it has ended, and others wait for it".to_owned()),
        }
    }

    /// News of the other nodes at a fence.
    ///
    /// # Errors
    /// Bytes that no node sends.
    pub fn exchanged(&mut self, piece: &[u8], is_last: bool) -> Result<Vec<PmiEffect>, String> {
        if !self.is_exchanging {
            return Err("a fence that no rank waits at".to_owned());
        }
        for (key, value) in read_pairs(piece)? {
            self.insert(key, value)?;
        }
        if !is_last {
            return Ok(Vec::new());
        }
        self.is_exchanging = false;
        Ok(self.open_fence())
    }

    fn insert(&mut self, key: String, value: String) -> Result<(), String> {
        let before = self.pairs.get(&key).map_or(0, |old| key.len() + old.len());
        self.take_room(key.len() + value.len(), before)?;
        self.pairs.insert(key, value);
        Ok(())
    }

    /// In place of what the same key had before.
    fn take_room(&mut self, bytes: usize, before: usize) -> Result<(), String> {
        let all = self.pair_bytes + bytes - before;
        if all > MAX_KEY_SPACE_BYTES {
            return Err(format!(
                "the keys of the step have more than {} MiB",
                MAX_KEY_SPACE_BYTES >> 20
            ));
        }
        self.pair_bytes = all;
        Ok(())
    }

    fn take_one(&mut self, local: usize, request: &PmiRequest) -> Vec<PmiEffect> {
        let answer = |name: &str| PmiAnswer::new(PmiVersion::One, name, request).with("rc", 0);
        let refused = |name: &str| {
            let answer = PmiAnswer::new(PmiVersion::One, name, request).with("rc", -1);
            answer.with("msg", "not_offered")
        };
        let field = |name: &str| request.field(name).unwrap_or_default();
        let given = match request.name.as_str() {
            "init" => return self.begin(local, request),
            "get_maxes" => answer("maxes")
                .with("kvsname_max", 256)
                .with("keylen_max", MAX_KEY_BYTES)
                .with("vallen_max", MAX_VALUE_BYTES),
            "get_appnum" => answer("appnum").with("appnum", 0),
            "get_universe_size" => answer("universe_size").with("size", self.step.size),
            "get_my_kvsname" => answer("my_kvsname").with("kvsname", &self.step.name),
            "put" => match self.put(request) {
                Ok(()) => answer("put_result").with("msg", "success"),
                Err(text) => {
                    let answer = PmiAnswer::new(PmiVersion::One, "put_result", request);
                    let bytes = answer.with("rc", -1).with("msg", "refused").bytes();
                    return vec![
                        PmiEffect::Tell { local, text },
                        PmiEffect::Answer { local, bytes },
                    ];
                }
            },
            "get" => match self.get(field("key")) {
                Some(value) => answer("get_result")
                    .with("msg", "success")
                    .with("value", value),
                None => PmiAnswer::new(PmiVersion::One, "get_result", request)
                    .with("rc", -1)
                    .with("msg", "key_not_found")
                    .with("value", "unknown"),
            },
            "barrier_in" => return self.wait_at_fence(local, request),
            "finalize" => {
                self.clients[local].phase = ClientPhase::Finalized;
                answer("finalize_ack")
            }
            "abort" => return vec![self.abort(local, field("exitcode"), field("message"))],
            "spawn" => {
                self.clients[local].spawns += 1;
                let so_far = self.clients[local].spawns;
                if request.field("totspawns").and_then(|n| n.parse().ok()) > Some(so_far) {
                    return Vec::new();
                }
                self.clients[local].spawns = 0;
                return self.refuse_spawn(local, refused("spawn_result"));
            }
            "publish_name" => refused("publish_result"),
            "unpublish_name" => refused("unpublish_result"),
            "lookup_name" => refused("lookup_result"),
            other => return vec![unknown(local, other)],
        };
        let bytes = given.bytes();
        vec![PmiEffect::Answer { local, bytes }]
    }

    fn take_two(&mut self, local: usize, request: &PmiRequest) -> Vec<PmiEffect> {
        let name = format!("{}-response", request.name);
        let answer = || PmiAnswer::new(PmiVersion::Two, &name, request);
        let field = |name: &str| request.field(name).unwrap_or_default();
        let found = |value: Option<&str>| match value {
            Some(value) => answer()
                .with("found", "TRUE")
                .with("value", value)
                .with("rc", 0),
            None => answer().with("found", "FALSE").with("rc", 0),
        };
        let refused = || answer().with("rc", 1).with("errmsg", "it is not offered");
        let given = match request.name.as_str() {
            "fullinit" => answer()
                .with("pmi-version", 2)
                .with("pmi-subversion", 0)
                .with("rank", self.step.ranks[local])
                .with("size", self.step.size)
                .with("appnum", 0)
                .with("debugged", "FALSE")
                .with("pmiverbose", "FALSE")
                .with("rc", 0),
            "job-getid" => answer().with("jobid", &self.step.name).with("rc", 0),
            "info-getjobattr" => match field("key") {
                "universeSize" => found(Some(&self.step.size.to_string())),
                key => found(self.attribute(key)),
            },
            "info-putnodeattr" => return self.put_of_node(local, request),
            "info-getnodeattr" => match self.of_node.get(field("key")) {
                None if field("wait") == "TRUE" => {
                    self.clients[local].of_node = Some(request.clone());
                    return Vec::new();
                }
                value => found(value.map(String::as_str)),
            },
            "kvs-put" => match self.put(request) {
                Ok(()) => answer().with("rc", 0),
                Err(text) => answer().with("rc", 1).with("errmsg", text),
            },
            "kvs-get" => found(self.get(field("key"))),
            "kvs-fence" => return self.wait_at_fence(local, request),
            "finalize" => {
                self.clients[local].phase = ClientPhase::Finalized;
                answer().with("rc", 0)
            }
            "abort" => {
                let text = [field("msg"), field("message")].concat();
                return vec![self.abort(local, field("exitcode"), &text)];
            }
            "spawn" => return self.refuse_spawn(local, refused()),
            "name-publish" | "name-unpublish" | "name-lookup" | "job-connect"
            | "job-disconnect" => refused(),
            other => return vec![unknown(local, other)],
        };
        let bytes = given.bytes();
        vec![PmiEffect::Answer { local, bytes }]
    }

    /// The first request of each version is a line; what follows is as this node and the rank agree.
    fn begin(&mut self, local: usize, request: &PmiRequest) -> Vec<PmiEffect> {
        let wants_two = request.field("pmi_version") == Some("2");
        let (version, subversion) = if wants_two { (2, 0) } else { (1, 1) };
        let answer = PmiAnswer::new(PmiVersion::One, "response_to_init", request)
            .with("pmi_version", version)
            .with("pmi_subversion", subversion)
            .with("rc", 0);
        let client = &mut self.clients[local];
        client.phase = ClientPhase::Member;
        if wants_two {
            client.version = PmiVersion::Two;
        }
        let bytes = answer.bytes();
        vec![PmiEffect::Answer { local, bytes }]
    }

    fn attribute(&self, key: &str) -> Option<&str> {
        let mapping = Some(self.step.mapping.as_str()).filter(|text| !text.is_empty());
        mapping.filter(|_| key == MAPPING_KEY)
    }

    fn get(&self, key: &str) -> Option<&str> {
        let put = self.pairs.get(key).map(String::as_str);
        put.or_else(|| self.attribute(key))
    }

    fn put(&mut self, request: &PmiRequest) -> Result<(), String> {
        let (key, value) = pair_of(request)?;
        self.insert(key.clone(), value.clone())?;
        if !self.step.is_alone {
            self.fresh.push((key, value));
        }
        Ok(())
    }

    fn put_of_node(&mut self, local: usize, request: &PmiRequest) -> Vec<PmiEffect> {
        let name = "info-putnodeattr-response";
        let answer = PmiAnswer::new(PmiVersion::Two, name, request);
        let put = pair_of(request).and_then(|(key, value)| {
            let before = self
                .of_node
                .get(&key)
                .map_or(0, |old| key.len() + old.len());
            self.take_room(key.len() + value.len(), before)?;
            self.of_node.insert(key, value);
            Ok(())
        });
        let bytes = match put {
            Ok(()) => answer.with("rc", 0),
            Err(text) => answer.with("rc", 1).with("errmsg", text),
        }
        .bytes();
        let mut effects = vec![PmiEffect::Answer { local, bytes }];
        for waiting in 0..self.clients.len() {
            let is_there = |ask: &mut PmiRequest| {
                ask.field("key")
                    .is_some_and(|key| self.of_node.contains_key(key))
            };
            if let Some(ask) = self.clients[waiting].of_node.take_if(is_there) {
                effects.extend(self.take_two(waiting, &ask));
            }
        }
        effects
    }

    /// When all ranks of this node wait, the other nodes hear what is new here; a step of one node goes on.
    fn wait_at_fence(&mut self, local: usize, request: &PmiRequest) -> Vec<PmiEffect> {
        if self.clients[local].fence.replace(request.clone()).is_some() {
            let text = "it waits at a fence already".to_owned();
            return vec![PmiEffect::Abort { local, text }];
        }
        if let Some(gone) = self.clients.iter().position(|client| client.is_gone) {
            let text = "it has ended, and others wait for it".to_owned();
            return vec![PmiEffect::Abort { local: gone, text }];
        }
        if self.clients.iter().any(|client| client.fence.is_none()) {
            return Vec::new();
        }
        if self.step.is_alone {
            return self.open_fence();
        }
        self.is_exchanging = true;
        vec![PmiEffect::Exchange(pieces(std::mem::take(&mut self.fresh)))]
    }

    fn open_fence(&mut self) -> Vec<PmiEffect> {
        let mut effects = Vec::new();
        for (local, client) in self.clients.iter_mut().enumerate() {
            let Some(request) = client.fence.take() else {
                continue;
            };
            let name = match client.version {
                PmiVersion::One => "barrier_out",
                PmiVersion::Two => "kvs-fence-response",
            };
            let bytes = PmiAnswer::new(client.version, name, &request)
                .with("rc", 0)
                .bytes();
            effects.push(PmiEffect::Answer { local, bytes });
        }
        effects
    }

    fn abort(&mut self, local: usize, exit_code: &str, message: &str) -> PmiEffect {
        self.clients[local].phase = ClientPhase::Finalized;
        let code: String = exit_code.chars().take(12).collect();
        let message: String = message.chars().take(400).collect();
        let text = match (code.as_str(), message.trim()) {
            ("", "") => "it called MPI_Abort".to_owned(),
            (code, "") => format!("it called MPI_Abort, exit code {code}"),
            (_, message) => format!("it called MPI_Abort: {message}"),
        };
        PmiEffect::Abort { local, text }
    }

    fn refuse_spawn(&self, local: usize, answer: PmiAnswer) -> Vec<PmiEffect> {
        let text = SPAWN_REFUSED.to_owned();
        let bytes = answer.bytes();
        vec![
            PmiEffect::Tell { local, text },
            PmiEffect::Answer { local, bytes },
        ]
    }
}

/// A rank would wait for ever for an answer that nothing here can give.
fn unknown(local: usize, name: &str) -> PmiEffect {
    let name: String = name.chars().take(60).collect();
    let text = format!("PMI knows no request {name:?}");
    PmiEffect::Abort { local, text }
}

fn pair_of(request: &PmiRequest) -> Result<(String, String), String> {
    let [key, value] = ["key", "value"].map(|name| request.field(name).unwrap_or_default());
    if key.is_empty() || key.len() > MAX_KEY_BYTES || value.len() > MAX_VALUE_BYTES {
        return Err(format!(
            "a key of PMI has 1 to {MAX_KEY_BYTES} bytes and its value {MAX_VALUE_BYTES} at most, not {} and {}",
            key.len(),
            value.len()
        ));
    }
    Ok((key.to_owned(), value.to_owned()))
}

/// Each piece has whole pairs: two lengths of two bytes, key, value.
fn pieces(pairs: Vec<(String, String)>) -> Vec<Vec<u8>> {
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    for (key, value) in pairs {
        let bytes = 4 + key.len() + value.len();
        match pieces.last() {
            Some(last) if last.len() + bytes <= MAX_EXCHANGE_PIECE_BYTES => {}
            _ => pieces.push(Vec::new()),
        }
        if let Some(piece) = pieces.last_mut() {
            piece.extend((key.len() as u16).to_be_bytes());
            piece.extend((value.len() as u16).to_be_bytes());
            piece.extend_from_slice(key.as_bytes());
            piece.extend_from_slice(value.as_bytes());
        }
    }
    pieces
}

fn read_pairs(mut piece: &[u8]) -> Result<Vec<(String, String)>, String> {
    let bad = || "a piece of a fence that no node sent".to_owned();
    let mut pairs = Vec::new();
    while !piece.is_empty() {
        let ([a, b, c, d], rest) = piece.split_first_chunk::<4>().ok_or_else(bad)?;
        let key_bytes = usize::from(u16::from_be_bytes([*a, *b]));
        let value_bytes = usize::from(u16::from_be_bytes([*c, *d]));
        let (key, rest) = rest.split_at_checked(key_bytes).ok_or_else(bad)?;
        let (value, rest) = rest.split_at_checked(value_bytes).ok_or_else(bad)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| bad());
        pairs.push((text(key)?, text(value)?));
        piece = rest;
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests;
