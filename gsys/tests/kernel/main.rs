//! gsys against the real kernel: cgroups, the device fence, spawning. Needs root and a cgroup tree; a test that cannot run
//! here says `NOT RUN` on its own line. `tests/uml.sh` runs the same program on pure v2.

mod cgroup;
mod device_fence;
mod full_disk;
mod launch;
mod pam;
mod scratch;
mod step;
