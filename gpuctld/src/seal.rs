//! The controller's seal on launch orders: HMAC-SHA256 over all that an adoption relies on. A node keeps it with the order and brings
//! it back after a restore; what bears none, or another node's, is not adopted.
//!
//! The key follows from the authority's, so that a copy of `state_dir/pki` keeps it. Decides nothing about runs.

use crate::hex::{hex, unhex};
use gmodel::launch_order::LaunchOrder;
use ring::hmac;

/// What the key is for; another number is another seal.
const PURPOSE: &[u8] = b"gpupool launch order 1";

/// Seals orders and knows its own seals again. Cheap to clone.
#[derive(Clone, Debug)]
pub struct OrderSeal {
    key: hmac::Key,
}

impl OrderSeal {
    /// `authority`: the private key of the cluster's authority.
    pub fn of_authority(authority: &[u8]) -> Self {
        let from = hmac::Key::new(hmac::HMAC_SHA256, authority);
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&from, PURPOSE).as_ref()),
        }
    }

    pub fn put_on(&self, order: &mut LaunchOrder) {
        order.seal = hex(hmac::sign(&self.key, &sealed_part(order)).as_ref());
    }

    /// Whether the order bears the seal and was made for the node of this name.
    pub fn is_on(&self, order: &LaunchOrder, node: &str) -> bool {
        let here = order
            .nodes
            .get(order.node_index as usize)
            .is_some_and(|here| here.name == node);
        here && unhex(&order.seal)
            .is_some_and(|seal| hmac::verify(&self.key, &sealed_part(order), &seal).is_ok())
    }
}

/// Each field on its own, in this order: fields that later releases add to an order do not break the seals of older ones.
fn sealed_part(order: &LaunchOrder) -> Vec<u8> {
    let nodes: Vec<_> = order
        .nodes
        .iter()
        .map(|node| (&node.name, node.cpus, node.tasks, node.gpus))
        .collect();
    let gpus: Vec<_> = order
        .gpus
        .iter()
        .map(|gpu| (&gpu.uuid, &gpu.gpu_type, &gpu.part))
        .collect();
    let user = (&order.user.name, order.user.uid, order.user.gid);
    let place = (
        &order.cluster,
        order.run,
        (order.made_at.incarnation, order.made_at.generation),
    );
    let policy = (
        &order.account,
        &order.qos,
        &order.partition,
        &order.job_name,
    );
    let share = (
        order.node_index,
        nodes,
        gpus,
        order.imex_channel,
        order.cpus,
        order.mem_bytes,
    );
    let size = (order.ntasks, order.cpus_per_task, order.limit_secs);
    let files = (
        &order.work_dir,
        &order.submit_host,
        &order.stdout,
        &order.stderr,
        &order.stdin,
        order.umask,
    );
    serde_json::to_vec(&(place, user, policy, share, size, files, &order.argv))
        .expect("texts and numbers are JSON")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::launch_order::{OrderGpu, OrderNode};
    use gmodel::{Fence, GpuPart, GpuSlot, JobId, RunId};

    fn order() -> LaunchOrder {
        let mut order = LaunchOrder {
            run: Some(RunId::new(JobId(17), 1)),
            nodes: vec![OrderNode {
                name: "node1".into(),
                cpus: 2,
                tasks: 1,
                gpus: 1,
            }],
            cpus: 2,
            made_at: Fence {
                incarnation: 1,
                generation: 9,
            },
            ..LaunchOrder::default()
        };
        order.user.name = "ada".into();
        order.user.uid = 1000;
        order.user.gid = 1000;
        order
    }

    #[test]
    fn a_seal_holds_for_one_node_one_cluster_and_what_was_ordered() {
        let (seal, other) = (
            OrderSeal::of_authority(b"ours"),
            OrderSeal::of_authority(b"theirs"),
        );
        let mut sealed = order();
        assert!(!seal.is_on(&sealed, "node1"), "no seal is none");
        seal.put_on(&mut sealed);
        assert!(
            seal.is_on(&sealed, "node1")
                && seal.is_on(
                    &LaunchOrder {
                        script: "gone".into(),
                        ..sealed.clone()
                    },
                    "node1"
                )
        );
        assert!(!seal.is_on(&sealed, "node2") && !other.is_on(&sealed, "node1"));
        let gpu = OrderGpu {
            slot: GpuSlot(0),
            uuid: "GPU-1".into(),
            gpu_type: "h100".into(),
            part: GpuPart::Whole,
        };
        let changes: [fn(&mut LaunchOrder); 12] = [
            |order| order.user.name = "root".into(),
            |order| order.user.uid = 0,
            |order| order.user.gid = 0,
            |order| order.run = Some(RunId::new(JobId(17), 2)),
            |order| order.account = "rich".into(),
            |order| order.partition = "other".into(),
            |order| order.qos = "urgent".into(),
            |order| order.limit_secs = Some(1),
            |order| order.cpus = 64,
            |order| order.made_at.generation = 1 << 40,
            |order| order.cluster = "elsewhere".into(),
            |order| order.argv = vec!["/bin/sh".into()],
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut forged = sealed.clone();
            change(&mut forged);
            assert!(
                !seal.is_on(&forged, "node1"),
                "change {number} went unnoticed"
            );
        }
        assert!(!seal.is_on(
            &LaunchOrder {
                gpus: vec![gpu],
                ..sealed.clone()
            },
            "node1"
        ));
        for text in ["", "00", "zz", &sealed.seal[2..]] {
            assert!(
                !seal.is_on(
                    &LaunchOrder {
                        seal: text.into(),
                        ..sealed.clone()
                    },
                    "node1"
                ),
                "{text:?}"
            );
        }
    }
}
