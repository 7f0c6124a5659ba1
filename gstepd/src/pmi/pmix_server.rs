//! `gstepd --pmix`: the PMIx server of a step on one node, as the job's user in the step's cgroup. Stdin is a socket of the supervisor's:
//! when it closes, the step is over.

use std::fs::{self, DirBuilder};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, bail};
use gmodel::parallel::ranks_of_mapping;
use gsys::pmix::{PmixEvent, PmixNode, PmixReply, PmixServer, PmixStep};

use super::pmix_message::{PmixMessage, PmixOrder};
use super::pmix_state::{PmixEffect, PmixState};
use super::server::SPAWN_REFUSED;

/// Between the library's thread and the supervisor's messages.
struct Shared {
    state: Mutex<PmixState<PmixReply>>,
    supervisor: UnixStream,
}

/// Returns when the step is over.
///
/// # Errors
/// No supervisor is on stdin.
pub fn serve() -> anyhow::Result<()> {
    let supervisor = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut incoming = Incoming {
        socket: supervisor.try_clone()?,
        buffer: Vec::new(),
    };
    let Some(PmixMessage::Start(order)) = incoming.next()? else {
        bail!("no order came from the supervisor");
    };
    let dir = order.dir.clone();
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    let served = made
        .map_err(|e| format!("making {dir}: {e}"))
        .and_then(|()| begin(&order, supervisor.try_clone()));
    let done = match served {
        Ok((server, shared)) => attend(server, &shared, &mut incoming),
        Err(text) => {
            let text = format!("its node cannot serve PMIx: {text}");
            write(&supervisor, &PmixMessage::Abort { local: 0, text });
            Ok(())
        }
    };
    remove(&dir);
    done
}

/// What the supervisor says.
struct Incoming {
    socket: UnixStream,
    buffer: Vec<u8>,
}

impl Incoming {
    /// None when it has closed.
    fn next(&mut self) -> anyhow::Result<Option<PmixMessage>> {
        loop {
            let read = PmixMessage::read(&self.buffer).map_err(anyhow::Error::msg)?;
            if let Some((message, used)) = read {
                self.buffer.drain(..used);
                return Ok(Some(message));
            }
            let mut piece = [0; 64 << 10];
            let count = self.socket.read(&mut piece).context("the supervisor")?;
            if count == 0 {
                return Ok(None);
            }
            self.buffer.extend_from_slice(&piece[..count]);
        }
    }
}

/// Starts the library, and gives each rank its variables.
fn begin(
    order: &PmixOrder,
    supervisor: io::Result<UnixStream>,
) -> Result<(PmixServer, Arc<Shared>), String> {
    let (nodes, own) = (order.nodes.len(), order.node as usize);
    let ranks = ranks_of_mapping(&order.mapping, nodes)
        .filter(|_| own < nodes)
        .ok_or("its order does not say which ranks are where")?;
    let shared = Arc::new(Shared {
        state: Mutex::new(PmixState::new(&ranks, own)),
        supervisor: supervisor.map_err(|e| e.to_string())?,
    });
    let nodes = order.nodes.iter().zip(&ranks);
    let step = PmixStep {
        name: order.name.clone(),
        dir: order.dir.clone(),
        rank_dir: match order.has_rank_dir {
            true => order.dir.clone(),
            false => String::new(),
        },
        uid: order.uid,
        gid: order.gid,
        nodes: nodes
            .map(|(name, ranks)| PmixNode {
                name: name.clone(),
                ranks: ranks.clone(),
            })
            .collect(),
        node: own,
    };
    let host = Arc::clone(&shared);
    let server = PmixServer::start(&step, Box::new(move |event| host.take(event)))?;
    for (local, rank) in (0..).zip(&ranks[own]) {
        let mut variables = server.variables(*rank)?;
        variables.iter_mut().for_each(|line| line.push(0));
        let bytes = variables.concat();
        write(&shared.supervisor, &PmixMessage::Variables { local, bytes });
    }
    Ok((server, shared))
}

fn attend(server: PmixServer, shared: &Shared, incoming: &mut Incoming) -> anyhow::Result<()> {
    while let Some(message) = incoming.next()? {
        let mut state = shared.state();
        let mut ended = None;
        let effects = match message {
            PmixMessage::Fence { is_last, piece } => state.exchanged(is_last, &piece),
            PmixMessage::Direct { node, bytes } => state.directed(node, &bytes),
            PmixMessage::Left { local } => {
                ended = Some(local);
                state.left(local)
            }
            _ => Vec::new(),
        };
        let asked = shared.carry_out(effects);
        let is_over = state.is_over();
        drop(state);
        for (rank, request) in asked {
            server.look_up(rank, request);
        }
        if let Some(local) = ended.filter(|_| !is_over) {
            write(&shared.supervisor, &PmixMessage::Left { local });
        }
        if is_over {
            break;
        }
    }
    server.finish();
    Ok(())
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, PmixState<PmixReply>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// In the library's thread.
    fn take(&self, event: PmixEvent) {
        let mut state = self.state();
        let tell =
            |local: u32, text: String| vec![PmixEffect::Send(PmixMessage::Tell { local, text })];
        let effects = match event {
            PmixEvent::Connected { rank } => state.connected(rank),
            PmixEvent::Finalized { rank } => {
                state.finalized(rank);
                Vec::new()
            }
            PmixEvent::Aborted {
                rank,
                code,
                message,
            } => state.aborted(rank, code, &message),
            PmixEvent::Fence { data, reply } => state.fence(data, reply),
            PmixEvent::Wanted { rank, reply } => state.want(rank, reply),
            PmixEvent::Found { request, data } => state.found(request, data),
            PmixEvent::Spawn { rank } => tell(state.local(rank), SPAWN_REFUSED.to_owned()),
            PmixEvent::Unsupported { rank, what } => {
                tell(state.local(rank), format!("{what} is not offered"))
            }
        };
        self.carry_out(effects);
    }

    /// What the library is to be asked, once the state is free: rank and number of the question. Under its lock, so that messages leave in
    /// the order of their events.
    fn carry_out(&self, effects: Vec<PmixEffect<PmixReply>>) -> Vec<(u32, u64)> {
        let mut asked = Vec::new();
        for effect in effects {
            match effect {
                PmixEffect::Send(message) => write(&self.supervisor, &message),
                PmixEffect::Answer(reply, Some(data)) => reply.answer(data),
                PmixEffect::Answer(reply, None) => reply.refuse(),
                PmixEffect::LookUp { rank, request } => asked.push((rank, request)),
            }
        }
        asked
    }
}

/// A supervisor that is gone is found out by reading.
fn write(mut supervisor: &UnixStream, message: &PmixMessage) {
    let _ = supervisor.write_all(&message.frame());
}

/// What remains, gpud removes with the run.
fn remove(dir: &str) {
    let _ = fs::remove_dir_all(Path::new(dir));
}
