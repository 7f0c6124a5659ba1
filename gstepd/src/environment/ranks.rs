//! Variables by which the ranks of a step find each other, beside `SLURM_*`. What a user has set stays; what an outer job or step gave
//! is taken away.
//! Source: "Environment variables" of torchrun, and jax/_src/distributed.py and clusters/slurm_cluster.py of JAX 0.10.

use gmodel::parallel::{COORDINATOR_ADDRESS, COORDINATOR_PORT, Rendezvous};
use gmodel::supervise::StepOrder;

use super::{TaskPlace, Variables};
use crate::task_binding::TaskBinding;

/// `HOST:PORT` as its parts; none where the node has no port for the job.
fn parts(address: &str) -> Option<(&str, &str)> {
    address
        .rsplit_once(':')
        .filter(|(host, _)| !host.is_empty())
}

fn set_master(env: &mut Variables, address: &str) {
    if let Some((host, port)) = parts(address) {
        env.set("GSUB_MASTER_ADDR", host);
        env.set("GSUB_MASTER_PORT", port);
        env.set_if_absent("MASTER_ADDR", host);
        env.set_if_absent("MASTER_PORT", port);
    }
}

/// A batch script is no rank. It may start a program that makes ranks, and that needs a port.
pub(super) fn of_batch(env: &mut Variables, address: &str) {
    set_master(env, address);
}

pub(super) fn of_task(
    env: &mut Variables,
    step: &StepOrder,
    place: &TaskPlace<'_>,
    bound: &TaskBinding,
) {
    let address = step.parallel.address.as_str();
    match step.parallel.rendezvous {
        Rendezvous::None => {}
        Rendezvous::Torch => {
            set_master(env, address);
            for (name, number) in [
                ("RANK", place.rank),
                ("WORLD_SIZE", step.ntasks),
                ("LOCAL_RANK", place.local),
                ("LOCAL_WORLD_SIZE", step.ranks.len() as u32),
                ("NODE_RANK", place.node_index),
            ] {
                env.set_if_absent(name, &number.to_string());
            }
        }
        Rendezvous::Jax => {
            if let Some((host, port)) = parts(address) {
                env.set("GSUB_MASTER_ADDR", host);
                env.set("GSUB_MASTER_PORT", port);
                let shown = match host.contains(':') {
                    true => format!("[{host}]:{port}"),
                    false => address.to_owned(),
                };
                env.set_if_absent(COORDINATOR_ADDRESS, &shown);
                env.set_if_absent(COORDINATOR_PORT, port);
            }
            // JAX takes the GPU with the task's local number, and a bound task counts its own from 0.
            if let Some(gpus) = &bound.gpus {
                let own: Vec<String> = (0..gpus.len()).map(|at| at.to_string()).collect();
                env.set_if_absent("JAX_LOCAL_DEVICE_IDS", &own.join(","));
            }
        }
    }
}
