//! `grun --forward`: ports of a job brought to this machine's loopback address.

use crate::helper_step::{HelperPlace, HelperStep};
use crate::step_gathering::own_name;
use gcli::printable::printable;
use gcli::{Failure, Outcome};
use gmodel::supervise::StepHelper;
use gwire::port_relay::{ForwardListener, ForwardSide, serve};
use nix::sys::signal::SigSet;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::str::FromStr;

/// `8888`, `8888:HOST:PORT`: a port here, and what it stands for there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardedPort {
    port: u16,
    target: String,
}

impl FromStr for ForwardedPort {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, &'static str> {
        const FORM: &str = "a port, or PORT:HOST:PORT with the host and port that the job sees: 8888, 9000:localhost:8888";
        let (port, target) = match text.split_once(':') {
            None => (text, format!("localhost:{text}")),
            Some((port, target)) => (port, target.to_owned()),
        };
        let is_plain = |host: &str| {
            !host.is_empty() && host.len() < 256 && host.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let (host, there) = target.rsplit_once(':').ok_or(FORM)?;
        if !is_plain(host) || !there.parse().is_ok_and(|there: u16| there > 0) {
            return Err(FORM);
        }
        Ok(Self {
            port: port.parse().map_err(|_| FORM)?,
            target,
        })
    }
}

/// Until the job, or a signal, ends it.
///
/// # Errors
/// A port here is taken; as [`HelperStep`].
pub(crate) fn forward(ports: &[ForwardedPort], place: HelperPlace, signals: SigSet) -> Outcome {
    let listeners = ports.iter().map(listen).collect::<Result<Vec<_>, _>>()?;
    let job = place.job.clone();
    let step = HelperStep::start(place, StepHelper::Forward, "forward", &signals)?;
    for one in &listeners {
        let here = one.listener.local_addr()?;
        eprintln!(
            "{}: {here} is {} of job {job} on {}; Ctrl-C ends it",
            own_name(),
            one.target,
            step.node()
        );
    }
    let (near, far) = UnixStream::pair()?;
    near.set_nonblocking(true)?;
    let near_input = near.try_clone()?;
    std::thread::spawn(move || {
        let tell = |text: &str| eprintln!("{}: {}", own_name(), printable(text));
        // The far end closes with it.
        if let Err(e) = serve(near_input, near, ForwardSide::Listens(listeners, tell)) {
            tell(&e.to_string());
        }
    });
    step.carry(signals, far.try_clone()?, far)
}

fn listen(port: &ForwardedPort) -> Result<ForwardListener, Failure> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port.port)).map_err(|e| {
        let other = match e.kind() {
            ErrorKind::AddrInUse => {
                format!(". Another: --forward 0:{} takes a free one", port.target)
            }
            _ => String::new(),
        };
        Failure::new(format_args!("port {} here: {e}{other}", port.port))
    })?;
    listener.set_nonblocking(true)?;
    Ok(ForwardListener {
        listener,
        target: port.target.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_stands_for_the_same_one_there_or_for_what_is_named() {
        let port = |port, target: &str| {
            Ok(ForwardedPort {
                port,
                target: target.to_owned(),
            })
        };
        assert_eq!("8888".parse(), port(8888, "localhost:8888"));
        assert_eq!("9000:node2:22".parse(), port(9000, "node2:22"));
        assert_eq!("0:[::1]:80".parse(), port(0, "[::1]:80"));
        for wrong in [
            "", "0", "70000", "1:2", "1:h:", "1::2", "h:1:2", "1:h:0", "1:a b:2",
        ] {
            assert!(wrong.parse::<ForwardedPort>().is_err(), "{wrong}");
        }
    }
}
