//! A PMIx server for the ranks of one step on this node: libpmix, opened at run time, so that a node without it lacks only this.
//! It has threads of its own and reads what programs of the user send: a process of the user's runs it, never a daemon.
//! Source: the PMIx standard 4.1, chapters on servers and on reserved keys.

mod info;
mod library;
mod upcalls;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::mpsc;

use info::{InfoList, c_text, proc_of};
use library::{ModexCallback, OPERATION_SUCCEEDED, PmixLibrary, Proc, SUCCESS, Status};
use upcalls::{HOST, Host, MODULE};

/// What libpmix asks of its host. Comes from a thread of the library, in order.
pub enum PmixEvent {
    Connected {
        rank: u32,
    },
    Finalized {
        rank: u32,
    },
    Aborted {
        rank: u32,
        code: i32,
        message: String,
    },
    /// All ranks here wait; the answer is what the servers of all nodes had.
    Fence {
        data: Vec<u8>,
        reply: PmixReply,
    },
    /// The data of a rank of another node.
    Wanted {
        rank: u32,
        reply: PmixReply,
    },
    /// What [`PmixServer::look_up`] found.
    Found {
        request: u64,
        data: Option<Vec<u8>>,
    },
    Spawn {
        rank: u32,
    },
    /// Was refused.
    Unsupported {
        rank: u32,
        what: &'static str,
    },
}

/// The library's way to get one answer.
pub struct PmixReply {
    callback: ModexCallback,
    word: *mut c_void,
}

// SAFETY: the library takes the answer in any thread, and passes it to its own.
unsafe impl Send for PmixReply {}

/// The step as the server tells its ranks of it.
pub struct PmixStep {
    pub name: String,
    /// The user's own, for the server's files.
    pub dir: String,
    /// For files of the ranks; empty: where they like.
    pub rank_dir: String,
    pub uid: u32,
    pub gid: u32,
    pub nodes: Vec<PmixNode>,
    /// Position of this one.
    pub node: usize,
}

pub struct PmixNode {
    pub name: String,
    pub ranks: Vec<u32>,
}

/// The one server of this process.
pub struct PmixServer {
    library: PmixLibrary,
    name: String,
}

impl PmixServer {
    /// # Errors
    /// No library, or it says no.
    pub fn start(
        step: &PmixStep,
        take: Box<dyn Fn(PmixEvent) + Send + Sync>,
    ) -> Result<Self, String> {
        let library = PmixLibrary::load()?;
        let host = Host {
            name: step.name.clone(),
            size: step.nodes.iter().map(|node| node.ranks.len() as u32).sum(),
            take,
        };
        if HOST.set(host).is_err() {
            return Err("this process serves a step already".to_owned());
        }
        let server = Self {
            library,
            name: step.name.clone(),
        };
        let infos = InfoList::default()
            .text("pmix.srvr.tmpdir", &step.dir)
            .text("pmix.sys.tmpdir", &step.dir)
            .text("pmix.srv.nspace", &format!("{}.servers", step.name))
            .rank("pmix.srv.rank", step.node as u32)
            .text("pmix.hname", &step.nodes[step.node].name);
        let infos = infos.infos();
        // SAFETY: the module is static, and the library copies the list.
        let status = unsafe { (library.init)(&MODULE, infos.as_ptr(), infos.len()) };
        server.check("starting", status)?;
        server.register(step)?;
        Ok(server)
    }

    fn register(&self, step: &PmixStep) -> Result<(), String> {
        let (list, name) = (facts(step), c_text(&step.name));
        let (infos, ranks) = (list.infos(), &step.nodes[step.node].ranks);
        self.wait("the step", |callback, word| {
            // SAFETY: the list and the name live until the callback was called, which `wait` waits for.
            unsafe {
                (self.library.register_nspace)(
                    name.as_ptr(),
                    ranks.len() as c_int,
                    infos.as_ptr(),
                    infos.len(),
                    callback,
                    word,
                )
            }
        })?;
        for rank in ranks {
            let process = proc_of(&step.name, *rank);
            self.wait("a rank", |callback, word| {
                // SAFETY: as above.
                unsafe {
                    (self.library.register_client)(
                        &process,
                        step.uid,
                        step.gid,
                        ptr::null_mut(),
                        callback,
                        word,
                    )
                }
            })?;
        }
        Ok(())
    }

    /// `NAME=value` that a rank of this node is started with.
    ///
    /// # Errors
    /// The library says no.
    pub fn variables(&self, rank: u32) -> Result<Vec<Vec<u8>>, String> {
        let process = proc_of(&self.name, rank);
        let mut list: *mut *mut c_char = ptr::null_mut();
        // SAFETY: the library makes the list, malloc'ed and with a null at its end.
        let status = unsafe { (self.library.setup_fork)(&process, &mut list) };
        self.check("the variables of a rank", status)?;
        let mut variables = Vec::new();
        if list.is_null() {
            return Ok(variables);
        }
        // SAFETY: as above. It is freed here, string by string.
        unsafe {
            let mut at = list;
            while !(*at).is_null() {
                variables.push(CStr::from_ptr(*at).to_bytes().to_vec());
                libc::free((*at).cast());
                at = at.add(1);
            }
            libc::free(list.cast());
        }
        Ok(variables)
    }

    /// What a rank of this node has put, once it has; comes as [`PmixEvent::Found`].
    pub fn look_up(&self, rank: u32, request: u64) {
        let process: Proc = proc_of(&self.name, rank);
        let word = Box::into_raw(Box::new(request));
        // SAFETY: the library copies the process; the word comes back once, to `found`, unless the call is refused.
        let status = unsafe { (self.library.dmodex_request)(&process, found, word.cast()) };
        if status != SUCCESS {
            // SAFETY: the call was refused, so the word is this function's again.
            drop(unsafe { Box::from_raw(word) });
            if let Some(host) = HOST.get() {
                (host.take)(PmixEvent::Found {
                    request,
                    data: None,
                });
            }
        }
    }

    /// The files of the server go.
    pub fn finish(self) {
        // SAFETY: started once, and ended once: self is consumed.
        unsafe { (self.library.finalize)() };
    }

    fn check(&self, doing: &str, status: Status) -> Result<(), String> {
        match status {
            SUCCESS | OPERATION_SUCCEEDED => Ok(()),
            status => Err(format!(
                "libpmix refuses {doing}: {}",
                self.library.words(status)
            )),
        }
    }

    /// For a call that calls back when it is done.
    fn wait(
        &self,
        doing: &str,
        call: impl FnOnce(library::OpCallback, *mut c_void) -> Status,
    ) -> Result<(), String> {
        let (sender, done) = mpsc::channel::<Status>();
        let word = Box::into_raw(Box::new(sender));
        let status = match call(Some(complete), word.cast()) {
            SUCCESS => done.recv().unwrap_or(library::ERROR),
            other => {
                // SAFETY: such a call never calls back, so the word is this function's again.
                drop(unsafe { Box::from_raw(word) });
                other
            }
        };
        self.check(doing, status)
    }
}

unsafe extern "C" fn complete(status: Status, word: *mut c_void) {
    // SAFETY: the word of `wait`, given back once.
    let sender = unsafe { Box::from_raw(word.cast::<mpsc::Sender<Status>>()) };
    let _ = sender.send(status);
}

unsafe extern "C" fn found(status: Status, data: *mut c_char, count: usize, word: *mut c_void) {
    // SAFETY: the word of `look_up`, given back once.
    let request = *unsafe { Box::from_raw(word.cast::<u64>()) };
    let bytes = match data.is_null() {
        true => Vec::new(),
        // SAFETY: the library's bytes, for the time of the call.
        false => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), count) }.to_vec(),
    };
    if let Some(host) = HOST.get() {
        (host.take)(PmixEvent::Found {
            request,
            data: (status == SUCCESS).then_some(bytes),
        });
    }
}

/// All that ranks can ask of their step without asking a rank.
fn facts(step: &PmixStep) -> InfoList {
    let joined = |ranks: &[u32]| {
        let words: Vec<String> = ranks.iter().map(u32::to_string).collect();
        words.join(",")
    };
    let own = &step.nodes[step.node];
    let size: u32 = step.nodes.iter().map(|node| node.ranks.len() as u32).sum();
    let with_ranks = || step.nodes.iter().filter(|node| !node.ranks.is_empty());
    let names: Vec<&str> = with_ranks().map(|node| node.name.as_str()).collect();
    let maps: Vec<String> = with_ranks().map(|node| joined(&node.ranks)).collect();
    let mut list = InfoList::default()
        .text("pmix.jobid", &step.name)
        .uint32("pmix.univ.size", size)
        .uint32("pmix.job.size", size)
        .uint32("pmix.max.size", size)
        .uint32("pmix.job.napps", 1)
        .uint32("pmix.app.size", size)
        .uint32("pmix.num.nodes", names.len() as u32)
        .uint32("pmix.local.size", own.ranks.len() as u32)
        .uint32("pmix.node.size", own.ranks.len() as u32)
        .text("pmix.nmap", &names.join(","))
        .text("pmix.pmap", &maps.join(";"))
        .text("pmix.lpeers", &joined(&own.ranks))
        .rank("pmix.lldr", own.ranks.iter().copied().min().unwrap_or(0))
        .uint32("pmix.nodeid", step.node as u32)
        .text("pmix.hname", &own.name);
    if !step.rank_dir.is_empty() {
        list = list
            .text("pmix.tmpdir", &step.rank_dir)
            .text("pmix.nsdir", &step.rank_dir)
            .flag("pmix.tdir.rmclean", true);
    }
    for (at, node) in step.nodes.iter().enumerate() {
        for (local, rank) in (0_u16..).zip(&node.ranks) {
            let of_rank = InfoList::default()
                .rank("pmix.rank", *rank)
                .uint32("pmix.appnum", 0)
                .rank("pmix.aldr", 0)
                .rank("pmix.grank", *rank)
                .rank("pmix.apprank", *rank)
                .uint16("pmix.lrank", local)
                .uint16("pmix.nrank", local)
                .uint32("pmix.nodeid", at as u32)
                .text("pmix.hname", &node.name);
            list = list.list("pmix.pdata", of_rank);
        }
    }
    list
}
