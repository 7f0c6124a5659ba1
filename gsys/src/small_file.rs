//! Files that an administrator writes, read as a whole: regular files up to a bound. Reading a FIFO of such a name would wait, and
//! reading a device would never end.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The text of a regular file of `most_bytes` at most.
pub fn read_text(path: &Path, most_bytes: u64) -> io::Result<String> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut text = String::new();
    file.take(most_bytes + 1).read_to_string(&mut text)?;
    match text.len() as u64 {
        bytes if bytes > most_bytes => {
            Err(io::Error::other(format!("more than {most_bytes} bytes")))
        }
        _ => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_of_bounded_size_is_read() {
        let dir = std::env::temp_dir().join(format!("gsys-small-file-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let (file, fifo) = (dir.join("file"), dir.join("fifo"));
        std::fs::write(&file, "abc").unwrap();
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read_text(&file, 3).unwrap(), "abc");
        assert_eq!(
            read_text(&file, 2).unwrap_err().to_string(),
            "more than 2 bytes"
        );
        for odd in [fifo.as_path(), Path::new("/dev/zero"), dir.as_path()] {
            assert_eq!(
                read_text(odd, 3).unwrap_err().to_string(),
                "it is no regular file",
                "{}",
                odd.display()
            );
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
