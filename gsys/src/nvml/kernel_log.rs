//! Xids in the kernel log, for what NVML's event set does not deliver: a GPU that died before the watch began, a library that
//! hangs. Reads `/dev/kmsg` from its end on, without waiting. Source: kernel documentation, `dev-kmsg`; NVIDIA's Xid document.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// One Xid line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelXid {
    /// As NVML writes it: `00000000:1B:00.0`.
    pub pci_bus_id: String,
    pub xid: u64,
    /// What the driver says besides.
    pub text: String,
}

/// The kernel's log from the moment it was opened.
#[derive(Debug)]
pub struct KernelLog {
    file: File,
    /// The beginning of a line that is not complete yet: only in a file that stands for the log.
    begun: Vec<u8>,
}

impl KernelLog {
    /// Opens `/dev/kmsg` (or a file that stands for it) at its end.
    pub fn open(path: &Path) -> io::Result<KernelLog> {
        let mut options = File::options();
        let mut file = options
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)?;
        file.seek(io::SeekFrom::End(0))?;
        Ok(KernelLog {
            file,
            begun: Vec::new(),
        })
    }

    /// Xids since the last call, at most `most` records read; the kernel drops old records by itself.
    pub fn new_xids(&mut self, most: usize) -> io::Result<Vec<KernelXid>> {
        /// The kernel gives one record a read, and none is longer.
        const MAX_RECORD: usize = 8192;
        let mut record = vec![0; MAX_RECORD];
        let mut found = Vec::new();
        for _ in 0..most {
            match self.file.read(&mut record) {
                // A file that stands for the log may have begun anew.
                Ok(0) if self.is_shorter()? => {
                    self.file.rewind()?;
                    self.begun.clear();
                }
                Ok(0) => break,
                Ok(length) => {
                    self.begun.extend_from_slice(&record[..length]);
                    let whole = self
                        .begun
                        .iter()
                        .rposition(|&byte| byte == b'\n')
                        .map_or(0, |end| end + 1);
                    let text = String::from_utf8_lossy(&self.begun[..whole]);
                    found.extend(text.lines().filter_map(kernel_xid));
                    self.begun.drain(..whole);
                    // No line is so long: it is nonsense, whatever comes.
                    if self.begun.len() > MAX_RECORD {
                        self.begun.clear();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Records were overwritten unread: reading goes on with the oldest that is left.
                Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    fn is_shorter(&mut self) -> io::Result<bool> {
        Ok(self.file.metadata()?.is_file()
            && self.file.metadata()?.len() < self.file.stream_position()?)
    }
}

/// The Xid of a line such as `NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, name=python, GPU has fallen off the bus.`
pub fn kernel_xid(line: &str) -> Option<KernelXid> {
    let (_, rest) = line.split_once("NVRM: Xid (PCI:")?;
    let (place, rest) = rest.split_once("): ")?;
    let digits = rest
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(rest.len());
    let (number, text) = rest.split_at(digits);
    Some(KernelXid {
        pci_bus_id: pci_bus_id(place)?,
        xid: number.parse().ok()?,
        text: text.trim_start_matches([',', ' ']).to_owned(),
    })
}

/// `0000:1b:00` (function left out) as NVML writes it.
fn pci_bus_id(place: &str) -> Option<String> {
    let place = place.split('.').next()?;
    let mut numbers = place
        .split(':')
        .map(|word| u32::from_str_radix(word, 16).ok());
    let (domain, bus, device) = (numbers.next()??, numbers.next()??, numbers.next()??);
    numbers
        .next()
        .is_none()
        .then(|| format!("{domain:08X}:{bus:02X}:{device:02X}.0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn xid_lines_are_read_as_drivers_write_them() {
        let lines = [
            (
                "6,1234,5678,-;NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
                Some((79, "00000000:1B:00.0")),
            ),
            (
                "NVRM: Xid (PCI:0001:c3:00): 31, pid=4242, name=python, Ch 00000008, MMU Fault",
                Some((31, "00000001:C3:00.0")),
            ),
            (
                "NVRM: Xid (PCI:0000:43:00): 119",
                Some((119, "00000000:43:00.0")),
            ),
            ("NVRM: Xid (PCI:0000:43): 13, x", None),
            ("NVRM: Xid (PCI:0000:43:00): unknown", None),
            (
                "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal",
                None,
            ),
            ("systemd[1]: Started.", None),
        ];
        for (line, wanted) in lines {
            let seen = kernel_xid(line);
            assert_eq!(
                seen.as_ref()
                    .map(|seen| (seen.xid, seen.pci_bus_id.as_str())),
                wanted,
                "{line}"
            );
        }
        assert_eq!(kernel_xid(lines[2].0).unwrap().text, "");
        assert!(kernel_xid(lines[1].0).unwrap().text.starts_with("pid=4242"));
    }

    #[test]
    fn only_what_was_logged_after_the_opening_is_told_and_once() {
        let path = std::env::temp_dir().join(format!("gsys-kmsg-{}", std::process::id()));
        let mut log = File::create(&path).unwrap();
        writeln!(log, "NVRM: Xid (PCI:0000:1b:00): 48, old").unwrap();
        let mut watched = KernelLog::open(&path).unwrap();
        assert!(watched.new_xids(10).unwrap().is_empty());
        writeln!(log, "something else\nNVRM: Xid (PCI:0000:1b:00): 79, new").unwrap();
        let found = watched.new_xids(10).unwrap();
        assert_eq!(found.iter().map(|xid| xid.xid).collect::<Vec<_>>(), [79]);
        assert!(watched.new_xids(10).unwrap().is_empty());
        std::fs::write(&path, "NVRM: Xid (PCI:0000:1b:00): 95, anew\n").unwrap();
        assert_eq!(watched.new_xids(10).unwrap()[0].xid, 95);
        std::fs::remove_file(&path).unwrap();
    }

    /// A storm is read in pieces that end anywhere: "Xid 31" is never an Xid 3.
    #[test]
    fn a_line_that_is_read_in_two_pieces_is_one_line() {
        let path = std::env::temp_dir().join(format!("gsys-kmsg-pieces-{}", std::process::id()));
        let mut log = File::create(&path).unwrap();
        let mut watched = KernelLog::open(&path).unwrap();
        write!(log, "NVRM: Xid (PCI:0000:1b:00): 3").unwrap();
        assert!(watched.new_xids(10).unwrap().is_empty());
        writeln!(log, "1, Ch 8").unwrap();
        let numbers = |found: Vec<KernelXid>| found.iter().map(|xid| xid.xid).collect::<Vec<_>>();
        assert_eq!(numbers(watched.new_xids(10).unwrap()), [31]);
        let line = "NVRM: Xid (PCI:0000:1b:00): 31, pid='<unknown>', name=<unknown>, Ch 00000008\n";
        log.write_all(line.repeat(10_000).as_bytes()).unwrap();
        assert_eq!(numbers(watched.new_xids(1000).unwrap()), vec![31; 10_000]);
        // What has no end is dropped, and the next line is read.
        log.write_all(&[b'x'; 20_000]).unwrap();
        writeln!(log, "\n{}", line.trim_end()).unwrap();
        assert_eq!(numbers(watched.new_xids(10).unwrap()), [31]);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_kernels_own_log_can_be_read_where_it_is_permitted() {
        match KernelLog::open(Path::new("/dev/kmsg")) {
            Ok(mut log) => assert!(log.new_xids(100_000).is_ok()),
            Err(error) => eprintln!("NOT RUN: /dev/kmsg: {error}"),
        }
    }
}
