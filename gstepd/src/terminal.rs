//! The terminal of a step's first task: gstepd holds its master side, so it outlives every client. Source: pty(7).

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use anyhow::Context;
use gmodel::supervise::TerminalSize;
use rustix::fs::{Gid, Mode, OFlags, Uid, fchmod, fchown, fcntl_setfl};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcgetpgrp, tcsetwinsize};

/// What a client that comes later is shown of the output before.
const SCREEN_BYTES: usize = 64 << 10;

/// The master side.
pub struct Terminal {
    master: File,
    /// The newest output.
    screen: VecDeque<u8>,
}

impl Terminal {
    /// A new terminal of the user's, and the side for the task.
    ///
    /// # Errors
    /// In words.
    pub fn open(size: TerminalSize, uid: u32, gid: u32) -> anyhow::Result<(Terminal, OwnedFd)> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).context("making a terminal")?;
        unlockpt(&master).context("unlocking a terminal")?;
        let slave = ioctl_tiocgptpeer(&master, flags).context("opening a terminal")?;
        // A gstepd that is not root is the user.
        if nix::unistd::geteuid().is_root() {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            fchown(&slave, Some(uid), Some(gid)).context("giving a terminal to the user")?;
        }
        fchmod(&slave, Mode::RUSR | Mode::WUSR).context("closing a terminal to other users")?;
        fcntl_setfl(&master, OFlags::NONBLOCK | OFlags::RDWR).context("making a terminal")?;
        let terminal = Terminal {
            master: File::from(master),
            screen: VecDeque::new(),
        };
        terminal.resize(size);
        Ok((terminal, slave))
    }

    /// Another descriptor of the master side, for reading or for writing.
    ///
    /// # Errors
    /// Out of descriptors.
    pub fn side(&self) -> io::Result<File> {
        self.master.try_clone()
    }

    pub fn resize(&self, size: TerminalSize) {
        let size = Winsize {
            ws_row: size.rows,
            ws_col: size.columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // A terminal whose task is gone needs none.
        let _ = tcsetwinsize(&self.master, size);
    }

    /// Programs that fill the screen draw it anew.
    pub fn ask_to_redraw(&self) {
        if let Ok(group) = tcgetpgrp(&self.master) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::WINCH);
        }
    }

    /// Keeps the end of what was written.
    pub fn show(&mut self, bytes: &[u8]) {
        self.screen.extend(bytes);
        let over = self.screen.len().saturating_sub(SCREEN_BYTES);
        self.screen.drain(..over);
    }

    /// What a new client is shown: whole lines where the beginning is cut off.
    pub fn screen(&self) -> Vec<u8> {
        let from = match self.screen.len() < SCREEN_BYTES {
            true => 0,
            false => self
                .screen
                .iter()
                .position(|b| *b == b'\n')
                .map_or(0, |at| at + 1),
        };
        self.screen.iter().skip(from).copied().collect()
    }
}
