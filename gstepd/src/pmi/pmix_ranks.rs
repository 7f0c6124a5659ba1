//! The supervisor's side of a step's PMIx server: starts it, passes on between it, the tasks and the step's client.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use gmodel::parallel::{MAX_EXCHANGE_PIECE_BYTES, MAX_KEY_SPACE_BYTES};
use gmodel::supervise::StepOrder;
use gsys::launch::{self, Identity, LaunchSpec, Stdio};
use nix::fcntl::OFlag;
use nix::poll::PollFlags;
use nix::unistd::{fchown, pipe2};

use super::pmix_message::{PmixMessage, PmixOrder};
use super::words::RankWords;
use super::{RankEnd, known_as};
use crate::batch::{binds, identity, set_limits};
use crate::container::user_dir;
use crate::environment::PMIX_SPACE;
use crate::step_account::StepAccount;
use crate::step_link::StepLink;
use crate::step_task::Job;

/// Read of the server in one turn.
const TURN_BYTES: usize = 256 << 10;
/// While so much waits for the client, the server is read no further.
const MAX_WORDS: usize = 64;
/// For a server that does not read: what a fence may have, and questions beside it.
const MAX_UNREAD_BYTES: usize = MAX_KEY_SPACE_BYTES + (8 << 20);

pub struct PmixRanks {
    server: Option<UnixStream>,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    /// What each task is told before its program starts.
    pipes: Vec<Option<File>>,
    user: Identity,
    words: RankWords,
    ended: BTreeSet<usize>,
    /// The server has judged their end.
    judged: BTreeSet<usize>,
}

impl PmixRanks {
    pub fn open(order: &StepOrder, job: &Job<'_>, account: &StepAccount) -> Self {
        let mut ranks = Self {
            server: None,
            incoming: Vec::new(),
            outgoing: Vec::new(),
            pipes: order.ranks.iter().map(|_| None).collect(),
            user: identity(job.setup),
            words: RankWords::new(&order.ranks),
            ended: BTreeSet::new(),
            judged: BTreeSet::new(),
        };
        match start_server(job, account) {
            Ok(socket) => {
                ranks.server = Some(socket);
                ranks.send(&PmixMessage::Start(order_of(order, job)));
            }
            Err(e) => ranks.words.abort(0, format!("no PMIx server: {e:#}")),
        }
        ranks
    }

    pub fn connect(&mut self, local: usize) -> std::io::Result<RankEnd> {
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
        // The task opens it anew, by its number, as the user.
        let (uid, gid) = (self.user.uid.into(), self.user.gid.into());
        fchown(&reader, Some(uid), Some(gid))?;
        // Without a server nothing is ever written, and the task ends.
        self.pipes[local] = self.server.is_some().then(|| File::from(writer));
        Ok(RankEnd {
            // Above the standard files, where the task finds it by number.
            fd: reader.try_clone()?,
            variables: Vec::new(),
            waits: true,
        })
    }

    pub fn poll_fd(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let mut wants = PollFlags::empty();
        wants.set(PollFlags::POLLIN, self.words.len() < MAX_WORDS);
        wants.set(PollFlags::POLLOUT, !self.outgoing.is_empty());
        Some((self.server.as_ref()?.as_fd(), wants))
    }

    pub fn service(&mut self) {
        self.flush();
        let mut buffer = [0; 16 << 10];
        let mut read = 0;
        while let Some(server) = &mut self.server
            && read < TURN_BYTES
            && self.words.len() < MAX_WORDS
        {
            match server.read(&mut buffer) {
                Ok(count @ 1..) => {
                    read += count;
                    self.incoming.extend_from_slice(&buffer[..count]);
                    self.hear();
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                _ => self.lose("the PMIx server of its node has ended"),
            }
        }
    }

    pub fn ended(&mut self, local: usize) {
        if self.ended.insert(local) {
            self.pipes[local] = None;
            self.send(&PmixMessage::Left {
                local: local as u32,
            });
        }
    }

    pub fn exchanged(&mut self, piece: &[u8], is_last: bool) {
        let piece = piece.to_vec();
        self.send(&PmixMessage::Fence { is_last, piece });
    }

    pub fn directed(&mut self, node: u32, bytes: &[u8]) {
        let bytes = bytes.to_vec();
        self.send(&PmixMessage::Direct { node, bytes });
    }

    pub fn is_settled(&self) -> bool {
        self.server.is_none() || self.ended == self.judged
    }

    pub fn tell(&mut self, link: &mut StepLink) -> bool {
        self.words.tell(link)
    }

    fn hear(&mut self) {
        let incoming = std::mem::take(&mut self.incoming);
        let mut at = 0;
        loop {
            match PmixMessage::read(&incoming[at..]) {
                Ok(Some((message, used))) => {
                    at += used;
                    self.obey(message);
                }
                Ok(None) => break,
                Err(text) => return self.lose(&format!("its PMIx server sent {text}")),
            }
        }
        self.incoming = incoming[at..].to_vec();
    }

    fn obey(&mut self, message: PmixMessage) {
        match message {
            PmixMessage::Variables { local, bytes } => {
                let pipe = self.pipes.get_mut(local as usize).and_then(Option::take);
                // A pipe that is empty has room for them, and its end says that they are whole.
                if let Some(mut pipe) = pipe.filter(|_| bytes.len() <= MAX_EXCHANGE_PIECE_BYTES) {
                    let _ = pipe.write_all(&bytes);
                }
            }
            PmixMessage::Left { local } => drop(self.judged.insert(local as usize)),
            PmixMessage::Fence { is_last, piece } => self.words.fence(is_last, piece),
            PmixMessage::Direct { node, bytes } => self.words.direct(node, bytes),
            PmixMessage::Tell { local, text } => self.words.say(local as usize, &text),
            PmixMessage::Abort { local, text } => self.words.abort(local as usize, text),
            PmixMessage::Start(_) => {}
        }
    }

    fn send(&mut self, message: &PmixMessage) {
        if self.server.is_none() {
            return;
        }
        self.outgoing.extend(message.frame());
        self.flush();
        if self.outgoing.len() > MAX_UNREAD_BYTES {
            self.lose("the PMIx server of its node does not read");
        }
    }

    fn flush(&mut self) {
        while let (Some(server), false) = (&mut self.server, self.outgoing.is_empty()) {
            match server.write(&self.outgoing) {
                Ok(written) => drop(self.outgoing.drain(..written)),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                // What it still said is read.
                Err(_) => self.outgoing.clear(),
            }
        }
    }

    /// Without it no rank can go on. When all tasks have ended it is not needed any more.
    fn lose(&mut self, why: &str) {
        self.server = None;
        if let Some(local) = (0..self.pipes.len()).find(|local| !self.ended.contains(local)) {
            self.words.abort(local, why.to_owned());
        }
        self.pipes.iter_mut().for_each(|pipe| *pipe = None);
    }
}

fn server_dir(order: &StepOrder, job: &Job<'_>) -> PathBuf {
    Path::new(&job.setup.containers.boxes).join(format!("pmix-{}", order.step))
}

fn order_of(order: &StepOrder, job: &Job<'_>) -> PmixOrder {
    let (id, step) = known_as(order, job.order);
    let has_container = order.container.is_some() || job.order.container.is_some();
    PmixOrder {
        name: format!("{PMIX_SPACE}{id}.{step}"),
        dir: server_dir(order, job).display().to_string(),
        // A container has a /tmp of its own for them.
        has_rank_dir: !has_container,
        uid: job.setup.uid,
        gid: job.setup.gid,
        nodes: order.nodes.clone(),
        node: order.node_index,
        mapping: order.parallel.process_mapping.clone(),
    }
}

/// As the user, in the step's cgroup, with the fence and the limits of its tasks.
fn start_server(job: &Job<'_>, account: &StepAccount) -> anyhow::Result<UnixStream> {
    let (own, theirs) = UnixStream::pair()?;
    own.set_nonblocking(true)?;
    let boxes = Path::new(&job.setup.containers.boxes);
    user_dir(boxes, job.setup.uid, job.setup.gid)?;
    let join = account.join_fds(job.processes)?;
    let argv = ["gstepd", "--pmix"].map(Into::into).to_vec();
    let mut spec = LaunchSpec::new(argv, identity(job.setup));
    spec.program = Some("/proc/self/exe".into());
    // Of files and shared memory, only messages need none that a container would have to see.
    spec.env = [
        ("HOME", job.setup.home.as_str()),
        ("PATH", "/usr/bin:/bin"),
        ("PMIX_MCA_gds", "hash"),
    ]
    .map(|(name, value)| (name.into(), value.into()))
    .to_vec();
    set_limits(&mut spec, job.limits);
    spec.umask = 0o077;
    spec.join = join.as_ref();
    spec.confine_root = job.setup.restrict_root;
    spec.binds = binds(job.setup);
    spec.stdin = Stdio::Fd(theirs.as_fd());
    // Its end is seen by the socket, and whatever remains is reaped with the job's processes.
    launch::spawn(&spec)?;
    Ok(own)
}
