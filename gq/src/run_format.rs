//! The forms in which accounting prints times, sizes, energy and users. Source: sacct(1).

use gcli::local_time::TimeFormat;
use gmodel::duration::sacct_time;
use nix::unistd::{Gid, Group, User};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The forms of times, sizes and users.
#[derive(Debug, Default)]
pub(crate) struct RunFormat {
    pub times: TimeFormat,
    pub units: Units,
    /// Uids that were looked up: a few users cancel thousands of jobs.
    uids: RefCell<BTreeMap<String, String>>,
    groups: RefCell<BTreeMap<u32, String>>,
}

impl RunFormat {
    pub(crate) fn new(times: TimeFormat, units: Units) -> Self {
        Self {
            times,
            units,
            ..Self::default()
        }
    }

    /// The uid of a user; the name where this machine does not know it.
    pub(crate) fn uid(&self, name: &str) -> String {
        let look_up = || match User::from_name(name) {
            Ok(Some(user)) => user.uid.to_string(),
            _ => name.to_owned(),
        };
        self.uids
            .borrow_mut()
            .entry(name.to_owned())
            .or_insert_with(look_up)
            .clone()
    }

    /// The name of a group; its number where this machine does not know it.
    pub(crate) fn group(&self, gid: u32) -> String {
        let look_up = || match Group::from_gid(Gid::from_raw(gid)) {
            Ok(Some(group)) => group.name,
            _ => gid.to_string(),
        };
        self.groups
            .borrow_mut()
            .entry(gid)
            .or_insert_with(look_up)
            .clone()
    }
}

/// In which unit sizes are shown: that of `--units`, else each as it is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Units(Option<(char, u64)>);

impl Units {
    /// Reads `--units`: K, M, G, T or P.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let unit = text.trim().to_ascii_uppercase();
        let at = ["K", "M", "G", "T", "P"]
            .iter()
            .position(|known| *known == unit);
        at.map(|at| Self(Some((char::from(b"KMGTP"[at]), 1 << (10 * (at + 1))))))
            .ok_or_else(|| format!("{text:?} is none of the units K, M, G, T and P"))
    }

    pub(crate) fn size(self, bytes: u64, usual: impl Fn(u64) -> String) -> String {
        match self.0 {
            None => usual(bytes),
            Some((unit, size)) if bytes.is_multiple_of(size) => format!("{}{unit}", bytes / size),
            Some((unit, size)) => format!("{:.2}{unit}", bytes as f64 / size as f64),
        }
    }
}

pub(crate) fn kibibytes(bytes: u64) -> String {
    format!("{}K", bytes.div_ceil(1024))
}

pub(crate) fn mebibytes(bytes: u64) -> String {
    format!("{}M", bytes.div_ceil(1 << 20))
}

/// Joules as sacct shortens them: `1.80M`, `999`, `2K`.
pub(crate) fn large(number: u64) -> String {
    let (mut size, mut unit) = (number as f64, "");
    for next in ["K", "M", "G", "T"] {
        if size < 1000.0 {
            break;
        }
        (size, unit) = (size / 1000.0, next);
    }
    if size.fract() == 0.0 {
        format!("{size:.0}{unit}")
    } else {
        format!("{size:.2}{unit}")
    }
}

/// `01:02.345`, from an hour `01:02:03`.
pub(crate) fn cpu_time(secs: f64) -> String {
    let millis = (secs.max(0.0) * 1000.0).round() as u64;
    match millis / 1000 {
        secs if secs >= 3600 => sacct_time(secs),
        secs => format!("{:02}:{:02}.{:03}", secs / 60, secs % 60, millis % 1000),
    }
}
