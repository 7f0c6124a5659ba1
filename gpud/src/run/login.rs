//! Logins of users by the node's own sshd: which job of theirs is here, and the move of the session's process into its cgroup.
//!
//! Only root asks (sshd, by pam_gpupool), and only the asking process is moved, as the kernel names it. From then on it ends with the job.

use crate::clock::wall_clock;
use crate::site::Site;
use gmodel::RunId;
use gmodel::job_environment::login_lines;
use gmodel::node_login::{LoginAnswer, LoginQuestion};
use gsys::peer::Peer;
use gsys::process::{ends_by, pidfd_open};
use nix::libc::{ENODEV, ENOENT};
use std::io;
use std::os::fd::AsFd;
use std::time::{Instant, SystemTime};

/// The answer in JSON, or why the question gets none. Blocking.
pub fn answer(site: &Site, peer: Peer, question: &[u8]) -> Result<Vec<u8>, String> {
    let question: LoginQuestion = serde_json::from_slice(question)
        .map_err(|e| format!("what is asked about a login: {e}"))?;
    let is_inside = |root: &gsys::cgroup::CgroupRoot| root.holds(peer.pid);
    if peer.pid <= 0 || site.cgroups.as_ref().is_some_and(is_inside) {
        return Err(format!(
            "process {} is in a job itself, or in a namespace of its own, and is moved nowhere",
            peer.pid
        ));
    }
    serde_json::to_vec(&decide(site, peer, &question)).map_err(|e| e.to_string())
}

fn decide(site: &Site, peer: Peer, question: &LoginQuestion) -> LoginAnswer {
    let node = site.name.clone();
    let runs = runs_of(site, question.uid);
    let goes_on = |run: &&RunId| {
        let cgroup = site.cgroup_of(**run).ok().flatten();
        !cgroup.is_some_and(|cgroup| cgroup.is_frozen().unwrap_or(false))
    };
    let newest = match (runs.iter().find(goes_on), runs.first()) {
        (_, Some(_)) if question.refuse_several && runs.len() > 1 => {
            return LoginAnswer::SeveralJobs { node, runs };
        }
        (Some(newest), _) => *newest,
        (None, Some(run)) => return LoginAnswer::JobSuspended { node, run: *run },
        (None, None) => return LoginAnswer::NoJob { node },
    };
    if !question.enter {
        return LoginAnswer::Admitted { run: newest };
    }
    match enter(site, peer.pid, newest) {
        Ok(environment) => {
            let text = format!("a login of its user is in it, process {}", peer.pid);
            site.spool.log(newest, wall_clock(), &text);
            LoginAnswer::Moved {
                run: newest,
                environment,
            }
        }
        Err(e) => LoginAnswer::NotMoved {
            run: newest,
            text: format!("{e:#}"),
        },
    }
}

/// Live runs of a user, the newest first.
fn runs_of(site: &Site, uid: u32) -> Vec<RunId> {
    let mut runs: Vec<(SystemTime, RunId)> = site
        .spool
        .live()
        .into_iter()
        .filter(|run| matches!(site.spool.setup(*run), Ok(Some(setup)) if setup.uid == uid))
        .map(|run| (site.spool.ready_since(run), run))
        .collect();
    runs.sort_unstable_by(|one, other| other.cmp(one));
    runs.into_iter().map(|(_, run)| run).collect()
}

/// Cleaning a run kills what is in its cgroup before it removes that: a process that comes in the last moment ends with the other processes.
fn enter(site: &Site, pid: i32, run: RunId) -> anyhow::Result<Vec<String>> {
    let (order, setup) = (site.spool.order(run)?, site.spool.setup(run)?);
    let ended = || anyhow::anyhow!("the job has just ended");
    let (setup, cgroup) = match (setup, site.cgroup_of(run)?) {
        (Some(setup), Some(cgroup)) => (setup, cgroup),
        _ if site.cgroups.is_none() => anyhow::bail!("this node runs jobs without cgroups"),
        _ => return Err(ended()),
    };
    let pidfd = pidfd_open(pid)?;
    match cgroup.attach_job(pid) {
        Err(e) if matches!(e.errno(), Some(ENOENT | ENODEV)) => return Err(ended()),
        moved => moved?,
    }
    // Then the number was this process's all the time.
    if ends_by(pidfd.as_fd(), Instant::now()) {
        return Err(io::Error::other("the process that asked has ended").into());
    }
    if !site.spool.live().contains(&run) {
        return Err(ended());
    }
    Ok(login_lines(&order, &setup))
}
