//! A simulated host for one test: a directory with a state and a copy of the library of its own, because copies of one file
//! share nothing while two opens of the same file are one library.

#![allow(dead_code)] // each test binary uses its part

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nvidia_ml_sim::{Fault, State, apply_fault, host};

pub struct SimulatedHost {
    pub dir: tempfile::TempDir,
}

impl SimulatedHost {
    pub fn with(gpus: &[(&str, usize)]) -> SimulatedHost {
        let dir = tempfile::tempdir().expect("a temporary directory");
        host(gpus, "testhost", 40)
            .expect("a host")
            .write(dir.path())
            .expect("its state");
        std::fs::copy(built_library(), dir.path().join("libnvidia-ml.so.1"))
            .expect("a copy of the library");
        SimulatedHost { dir }
    }

    pub fn library(&self) -> PathBuf {
        self.dir.path().join("libnvidia-ml.so.1")
    }

    pub fn state(&self) -> State {
        State::read(self.dir.path()).expect("the state")
    }

    pub fn edit(&self, change: impl FnOnce(&mut State)) {
        State::edit(self.dir.path(), change).expect("a changed state");
    }

    pub fn inject(&self, slot: usize, fault: &str) {
        let fault: Fault = fault.parse().expect("a fault");
        self.edit(|state| apply_fault(state, slot, fault).expect("a GPU in that slot"));
    }

    pub fn uuid(&self, slot: usize) -> String {
        self.state().gpus[slot].uuid.clone()
    }
}

/// The library that cargo built for this test: beside the command, or among its dependencies.
pub fn built_library() -> PathBuf {
    let beside = Path::new(env!("CARGO_BIN_EXE_nvml-sim"))
        .parent()
        .expect("a directory");
    let places = [
        beside.join("deps/libnvidia_ml_sim.so"),
        beside.join("libnvidia_ml_sim.so"),
    ];
    let age = |path: &PathBuf| path.metadata().and_then(|data| data.modified()).ok();
    let newest = places
        .iter()
        .filter(|path| path.exists())
        .max_by_key(|path| age(path));
    newest
        .unwrap_or_else(|| panic!("libnvidia_ml_sim.so is in neither of {places:?}"))
        .clone()
}

/// Waits for something to become true, or fails saying what did not.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "did not happen in 20 s: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
