//! Logs of runs that are forgotten, for `gq --log`: files of some MiB with each line behind the run's name, so that
//! `grep '^17-1 '` finds them too. The oldest file goes when all are too much, or when it is too old. A file for each run would
//! cost each short job an inode. Losing lines holds nothing up.

use gmodel::RunId;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Another file is begun when the newest has so much, or is so old.
const FILE_BYTES: u64 = 4 << 20;
const FILE_AGE: Duration = Duration::from_secs(86_400);
/// What is kept: so much, so long.
const MAX_BYTES: u64 = 256 << 20;
const MAX_AGE: Duration = Duration::from_secs(14 * 86_400);

/// The logs in one directory, in which only gpud writes and removes files.
#[derive(Debug)]
pub struct OldLogs {
    dir: PathBuf,
    newest: Mutex<Option<NewestFile>>,
}

#[derive(Debug)]
struct NewestFile {
    file: File,
    /// Milliseconds since 1970 when it was begun: its name.
    begun: u64,
    bytes: u64,
}

impl OldLogs {
    pub fn open(dir: PathBuf) -> OldLogs {
        let logs = OldLogs {
            dir,
            newest: Mutex::default(),
        };
        logs.prune(MAX_BYTES, SystemTime::now());
        logs
    }

    /// Adds the log of a run, which need not be UTF-8.
    pub fn keep(&self, run: RunId, log: &[u8]) -> io::Result<()> {
        let mut lines = Vec::with_capacity(log.len() * 2);
        for line in log
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            write!(lines, "{run} ")?;
            lines.extend_from_slice(line);
            lines.push(b'\n');
        }
        let mut newest = self.newest.lock().expect("no holder panics");
        if newest.as_ref().is_none_or(NewestFile::is_full) {
            *newest = Some(self.begin(newest.as_ref().map_or(0, |newest| newest.begun))?);
            self.prune(MAX_BYTES, SystemTime::now());
        }
        let Some(open) = newest.as_mut() else {
            return Ok(());
        };
        let written = open.file.write_all(&lines);
        open.bytes += lines.len() as u64;
        if written.is_err() {
            // What there is of it may end within a line.
            *newest = None;
        }
        written
    }

    /// The lines of a run, without the name at their beginning; empty where none is left.
    pub fn read(&self, run: RunId) -> io::Result<Vec<u8>> {
        let name = format!("{run} ");
        for (_, path) in self.files().into_iter().rev() {
            let file = match File::open(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                file => file?,
            };
            let mut log = Vec::new();
            for line in BufReader::with_capacity(64 << 10, file).split(b'\n') {
                if let Some(text) = line?.strip_prefix(name.as_bytes()) {
                    log.extend_from_slice(text);
                    log.push(b'\n');
                }
            }
            if !log.is_empty() {
                return Ok(log);
            }
        }
        Ok(Vec::new())
    }

    /// Another file with a later name than any before, whatever the clock says.
    fn begin(&self, last: u64) -> io::Result<NewestFile> {
        let on_disk = self.files().last().map_or(0, |(begun, _)| *begun);
        let begun = millis(SystemTime::now()).max(on_disk + 1).max(last + 1);
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(self.dir.join(begun.to_string()))?;
        Ok(NewestFile {
            file,
            begun,
            bytes: 0,
        })
    }

    /// The files in the order of their beginning. Files of other names are ignored.
    fn files(&self) -> Vec<(u64, PathBuf)> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut files: Vec<_> = entries
            .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
            .collect();
        files.sort();
        files
    }

    /// What cannot be removed is tried again. The newest file stays.
    fn prune(&self, max_bytes: u64, now: SystemTime) {
        let mut bytes = FILE_BYTES;
        for (_, path) in self.files().into_iter().rev().skip(1) {
            bytes += fs::metadata(&path).map_or(0, |meta| meta.len());
            if bytes > max_bytes || is_old(&path, now) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

impl NewestFile {
    fn is_full(&self) -> bool {
        let age = millis(SystemTime::now()).saturating_sub(self.begun);
        self.bytes >= FILE_BYTES || Duration::from_millis(age) >= FILE_AGE
    }
}

fn is_old(path: &Path, now: SystemTime) -> bool {
    let written = fs::metadata(path).and_then(|meta| meta.modified());
    written.is_ok_and(|at| now.duration_since(at).is_ok_and(|age| age > MAX_AGE))
}

fn millis(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);
    impl Scratch {
        fn new(name: &str) -> Self {
            let dir =
                std::env::temp_dir().join(format!("gpud-old-logs-{}-{name}", std::process::id()));
            fs::create_dir(&dir).unwrap();
            Self(dir)
        }
        fn written(&self, begun: u64, text: &str, days_ago: u64) {
            let file = File::create(self.0.join(begun.to_string())).unwrap();
            (&file).write_all(text.as_bytes()).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(days_ago * 86_400))
                .unwrap();
        }
    }
    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn run(text: &str) -> RunId {
        text.parse().unwrap()
    }
    fn text(logs: &OldLogs, id: &str) -> String {
        String::from_utf8(logs.read(run(id)).unwrap()).unwrap()
    }

    #[test]
    fn a_log_is_found_among_others_and_by_the_next_daemon() {
        let scratch = Scratch::new("found");
        let logs = OldLogs::open(scratch.0.clone());
        logs.keep(run("17-1"), b"\naccepted\nready\n").unwrap();
        logs.keep(
            run("117-1"),
            b"another\nnot 17-1 by any means\n17-1 this neither\n",
        )
        .unwrap();
        logs.keep(run("17-2"), b"no end of line").unwrap();
        assert_eq!(text(&logs, "17-1"), "accepted\nready\n");
        let logs = OldLogs::open(scratch.0.clone());
        logs.keep(run("18-1"), b"later\n").unwrap();
        assert_eq!(
            (text(&logs, "17-1"), text(&logs, "17-2")),
            ("accepted\nready\n".into(), "no end of line\n".into())
        );
        assert_eq!(
            (text(&logs, "18-1"), text(&logs, "1-1")),
            ("later\n".into(), String::new())
        );
        assert_eq!(logs.files().len(), 2, "one file a daemon and 4 MiB");
    }

    #[test]
    fn another_file_is_begun_when_one_is_full_and_old_ones_go() {
        let scratch = Scratch::new("old");
        let logs = OldLogs::open(scratch.0.clone());
        let long = [b'x'; 100]
            .repeat(FILE_BYTES as usize / 100)
            .into_iter()
            .chain([b'\n'])
            .collect::<Vec<u8>>();
        for number in 1..=3 {
            logs.keep(run(&format!("{number}-1")), &long).unwrap();
        }
        assert_eq!(logs.files().len(), 3);
        logs.prune(2 * FILE_BYTES + 1000, SystemTime::now());
        assert_eq!(logs.files().len(), 2, "too much");
        assert!(text(&logs, "1-1").is_empty() && !text(&logs, "2-1").is_empty());
        for (begun, days_ago) in [(1, 15), (2, 13)] {
            scratch.written(begun, &format!("{begun}0-1 line\n"), days_ago);
        }
        let logs = OldLogs::open(scratch.0.clone());
        assert!(text(&logs, "10-1").is_empty(), "too old");
        assert_eq!(text(&logs, "20-1"), "line\n");
    }

    #[test]
    fn a_clock_that_was_set_back_leaves_the_order() {
        let scratch = Scratch::new("clock");
        let ahead = millis(SystemTime::now()) + 1_000_000;
        scratch.written(ahead, "1-1 then\n", 0);
        let logs = OldLogs::open(scratch.0.clone());
        logs.keep(run("2-1"), b"now\n").unwrap();
        assert_eq!(logs.files().last().unwrap().0, ahead + 1);
        assert_eq!(
            (text(&logs, "1-1"), text(&logs, "2-1")),
            ("then\n".into(), "now\n".into())
        );
    }
}
