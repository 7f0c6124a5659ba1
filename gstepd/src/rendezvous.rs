//! Where the ranks of a step meet: a port of the step's first node that no other job is given. The first node chooses it, since it
//! alone knows which ports are free; the other nodes hear of it by the step's client.
//!
//! A port is taken by the name of an abstract socket. Names are by network namespace, as ports are, and the kernel gives one back
//! with the supervisor that held it, however that ended.

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use gmodel::launch_order::LaunchOrder;
use gmodel::parallel::{RENDEZVOUS_VARIABLE, Rendezvous};
use gmodel::supervise::{MeetingSetup, RunSetup, StepOrder};

/// Longest address that is taken over from a client.
const MAX_ADDRESS_BYTES: usize = 512;

/// A port that is this job's while this lives.
pub struct PortLease {
    _name: UnixDatagram,
    port: u16,
}

impl PortLease {
    /// A port of the range that no process listens on and no other job was given. `number` says where the search begins, so that
    /// jobs which start together look at different ports.
    pub fn take(meeting: &MeetingSetup, number: u64) -> Option<PortLease> {
        meeting.ports.rotated(number).find_map(|port| {
            let name = SocketAddr::from_abstract_name(format!("gpupool/port/{port}")).ok()?;
            let lease = PortLease {
                _name: UnixDatagram::bind_addr(&name).ok()?,
                port,
            };
            is_free(port).then_some(lease)
        })
    }

    /// `HOST:PORT`
    fn address(&self, meeting: &MeetingSetup) -> String {
        format!("{}:{}", meeting.host, self.port)
    }
}

/// Without IPv6 on this machine there is only the other kind of port.
fn is_free(port: u16) -> bool {
    let listens = |e: &std::io::Error| e.kind() == std::io::ErrorKind::AddrInUse;
    !TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).is_err_and(|e| listens(&e))
        && TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok()
}

/// The port of a batch script, for programs that are not started by grun; its address goes into the setup.
pub fn of_batch(order: &LaunchOrder, setup: &mut RunSetup) -> Option<PortLease> {
    let name = |line: &String| {
        let value = line.strip_prefix(RENDEZVOUS_VARIABLE)?.strip_prefix('=')?;
        Rendezvous::parse(value).ok()
    };
    let style = order.environment.iter().find_map(name);
    if order.holds_steps_only() || style == Some(Rendezvous::None) || setup.meeting.host.is_empty()
    {
        return None;
    }
    let lease = PortLease::take(&setup.meeting, number_of(order, 0))?;
    setup.meeting.batch = lease.address(&setup.meeting);
    Some(lease)
}

fn number_of(order: &LaunchOrder, step: u32) -> u64 {
    let job = order.run.map_or(0, |run| run.job.0);
    // Apart by a prime, so that neighbours in number are none in the range.
    job.wrapping_mul(61).wrapping_add(u64::from(step) * 7)
}

/// How far a step is in knowing where its ranks meet.
#[derive(Default)]
pub enum MeetingPlace {
    #[default]
    Unasked,
    /// The first node has not been heard.
    Waits,
    /// The tasks can start: with a port of this node's, or an address in the order, or none.
    Known(#[expect(dead_code, reason = "held until the step ends")] Option<PortLease>),
}

impl MeetingPlace {
    /// What the other nodes are to be told, on the first of several.
    pub fn ask(
        &mut self,
        order: &mut StepOrder,
        of_job: &LaunchOrder,
        setup: &RunSetup,
    ) -> Option<String> {
        if !matches!(self, MeetingPlace::Unasked) {
            return None;
        }
        let is_alone = order.nodes.len() < 2;
        order.parallel.address.clear();
        if order.parallel.rendezvous == Rendezvous::None {
            *self = MeetingPlace::Known(None);
            return None;
        }
        if order.node_index != 0 {
            *self = MeetingPlace::Waits;
            return None;
        }
        let lease = match setup.meeting.host.is_empty() {
            true => None,
            false => PortLease::take(&setup.meeting, number_of(of_job, order.step + 1)),
        };
        if let Some(lease) = &lease {
            order.parallel.address = lease.address(&setup.meeting);
        }
        *self = MeetingPlace::Known(lease);
        (!is_alone).then(|| order.parallel.address.clone())
    }

    /// The first node's word, by the client.
    pub fn told(&mut self, order: &mut StepOrder, address: String) {
        if matches!(self, MeetingPlace::Waits) && address.len() <= MAX_ADDRESS_BYTES {
            order.parallel.address = address;
            *self = MeetingPlace::Known(None);
        }
    }

    pub fn is_known(&self) -> bool {
        matches!(self, MeetingPlace::Known(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::parallel::{ParallelSpec, PortRange};

    fn meeting(ports: &str) -> MeetingSetup {
        MeetingSetup {
            host: "n1".into(),
            ports: PortRange::parse(ports).unwrap(),
            ..MeetingSetup::default()
        }
    }

    #[test]
    fn a_port_has_one_holder_and_none_that_listens() {
        let three = meeting("27200-27202");
        let listener = TcpListener::bind("127.0.0.1:27201").unwrap();
        let (first, second) = (PortLease::take(&three, 1), PortLease::take(&three, 1));
        let ports = [&first, &second].map(|lease| lease.as_ref().map(|lease| lease.port));
        assert_eq!(
            ports,
            [Some(27202), Some(27200)],
            "27201 has a listener on one address"
        );
        assert!(PortLease::take(&three, 1).is_none(), "all are taken");
        drop((first, listener));
        assert!(PortLease::take(&three, 5).is_some());
    }

    #[test]
    fn the_first_node_chooses_and_the_others_wait_for_its_word() {
        let order = |node_index, nodes: usize| StepOrder {
            node_index,
            nodes: vec!["n".into(); nodes],
            parallel: ParallelSpec {
                rendezvous: Rendezvous::Torch,
                address: "forged:1".into(),
                ..ParallelSpec::default()
            },
            ..StepOrder::default()
        };
        let setup = RunSetup {
            meeting: meeting("27210-27211"),
            ..RunSetup::default()
        };
        let job = LaunchOrder::default();
        let ask = |order: &mut StepOrder| {
            let mut meeting = MeetingPlace::default();
            let told = meeting.ask(order, &job, &setup);
            (meeting, told)
        };
        let mut first = order(0, 2);
        let (_held, told) = ask(&mut first);
        assert_eq!(told.as_ref(), Some(&first.parallel.address));
        assert!(first.parallel.address.starts_with("n1:2721"));
        let mut second = order(1, 2);
        let (mut meeting, told) = ask(&mut second);
        assert!(told.is_none() && !meeting.is_known());
        meeting.told(&mut second, "x".repeat(MAX_ADDRESS_BYTES + 1));
        assert!(!meeting.is_known(), "too long to be an address");
        meeting.told(&mut second, "n1:27210".into());
        assert!(meeting.is_known());
        meeting.told(&mut second, "n1:1".into());
        assert_eq!(second.parallel.address, "n1:27210", "the first word counts");
        let (alone, told) = ask(&mut order(0, 1));
        assert!(told.is_none() && alone.is_known());
        let mut without = order(0, 2);
        without.parallel.rendezvous = Rendezvous::None;
        assert!(ask(&mut without).0.is_known() && without.parallel.address.is_empty());
    }
}
