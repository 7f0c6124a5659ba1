//! The record of a node, with its strikes and its fencing, and the tokens by which machines join.

use gmodel::gpu_health::RepairStage;
use gmodel::gpu_order::{GpuAction, GpuOrder};
use gmodel::node::{DOWN_BY, GpuEntry, HoldMark, Inventory, Link, Role};
use gmodel::run::LaunchFailureSubject;
use gmodel::{GpuSlot, NodeId, NodeLife, RunId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A node of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub id: NodeId,
    pub name: String,
    pub role: Role,
    #[serde(flatten)]
    pub certificate: NodeCertificate,
    pub link: Link,
    /// When the link last changed.
    pub link_since: Timestamp,
    pub life: Arc<NodeLife>,
    /// Inventory without GPUs, and the GPUs by slot. Both are shared: a node's runs change all the time, and
    /// each change after a pass copies its record.
    pub inventory: Arc<Inventory>,
    pub gpus: Arc<Vec<GpuEntry>>,
    pub drains: Vec<HoldMark>,
    /// Runs with a share here, or to be stopped here.
    pub runs: BTreeSet<RunId>,
    /// Number of the last event that changed the node's orders.
    pub generation: u64,
    /// The newest generation that the node obeys.
    pub obeyed: u64,
    /// Launch failures by the node's fault since the last success.
    pub strikes: Vec<Strike>,
    /// When it was last resumed, or came with another life: earlier launch failures count no more.
    #[serde(default, skip_serializing_if = "is_beginning")]
    pub well_since: Timestamp,
    pub joined: Timestamp,
    #[serde(flatten)]
    pub gpu_work: GpuWork,
    /// The node is lost and its runs wait until it is known to be off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fencing: Option<Fencing>,
    #[serde(flatten)]
    pub ordered: NodeOrders,
    /// The last adoption window in which it said hello: closed to it since.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub adopted_in: u64,
}

/// What operators ordered of a node besides its drains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeOrders {
    /// Drained with a deadline: remaining runs are then asked for a checkpoint and stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub empty_by: Option<Timestamp>,
    /// In place of the features that it reports; the inventory has the active ones then.
    #[serde(rename = "features_set", skip_serializing_if = "Option::is_none")]
    pub features: Option<Box<SetFeatures>>,
}

/// Features of a node that an operator set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SetFeatures {
    /// What its gpud reported then: with another report these are void.
    pub reported: Vec<String>,
    pub available: Vec<String>,
    /// Those that jobs may ask for.
    pub active: Vec<String>,
    pub by: String,
}

impl Node {
    /// What its gpud says that it has.
    pub fn features_reported(&self) -> &[String] {
        match &self.ordered.features {
            Some(set) => &set.reported,
            None => &self.inventory.features,
        }
    }

    /// What it may have; `inventory.features` is what it has.
    pub fn features_available(&self) -> &[String] {
        match &self.ordered.features {
            Some(set) => &set.available,
            None => &self.inventory.features,
        }
    }
}

/// What the controller knows of a node's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCertificate {
    /// Operators may administer from the node; its certificate must say so too.
    #[serde(default)]
    pub admin: bool,
    /// Raised by each further join and by `gadm node revoke`: certificates of older epochs are void.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub epoch: u32,
    /// Its last renewal under this epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renewed: Option<Box<CertificateRenewal>>,
}

/// What the controller ordered of a node's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuWork {
    /// Open orders, one a GPU.
    #[serde(default, rename = "gpu_orders", skip_serializing_if = "Vec::is_empty")]
    pub orders: Vec<GpuOrder>,
    /// The newest MIG cut ordered of each GPU, by UUID.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cuts: BTreeMap<String, gsched::snapshot::CutRecord>,
    /// When each GPU was last freed, if checks are configured. A memo of the running controller.
    #[serde(skip)]
    pub freed: BTreeMap<GpuSlot, Timestamp>,
}

/// The newest renewal of a node's certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateRenewal {
    pub at: Timestamp,
    /// Address of the machine that asked.
    pub from: String,
    /// Renewals under this epoch.
    pub count: u32,
}

/// A lost node that the site's fence program is to power off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fencing {
    /// Why it counts as lost.
    pub lost: String,
    /// Number of the event of the last call; answers to other calls are ignored.
    pub number: u64,
    /// Calls so far.
    pub attempts: u32,
    /// When the program was last called, or failed.
    pub asked: Timestamp,
    /// `None`: the call is under way.
    pub failed: Option<FenceFailure>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceFailure {
    pub text: String,
    pub retry: Timestamp,
}

/// A one-time token with which a machine joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinToken {
    /// SHA-256 of the secret, hex; the secret itself is never stored.
    pub hash: String,
    pub role: Role,
    /// The node's name, when fixed by the administrator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub expires: Timestamp,
    pub minted_by: String,
    /// Operators may administer from the login node.
    #[serde(default)]
    pub admin: bool,
}

impl Node {
    /// It has a deadline.
    pub(crate) fn has_deadline(&self) -> bool {
        self.link == Link::Silent
            || self.ordered.empty_by.is_some()
            || self.fencing.is_some()
            || self.has_step_waiting()
    }
    /// Declared down, or put down by an administrator while it is connected.
    pub fn is_down(&self) -> bool {
        self.link == Link::Down
            || self
                .drains
                .iter()
                .any(|mark| mark.owner.starts_with(DOWN_BY))
    }
    /// Takes new work, as far as the node's own state goes.
    pub fn is_available(&self) -> bool {
        self.role == Role::Compute
            && self.link == Link::Up
            && self.drains.is_empty()
            && self.inventory.unfit.is_empty()
    }
}

impl Node {
    /// The next step of the GPU's repair waits for the controller's word.
    pub(crate) fn awaits_step(&self, gpu: &GpuEntry) -> bool {
        gpu.present
            && !gpu.info.wants.is_empty()
            && gpu.refused.is_empty()
            && self.gpu_work.orders.iter().all(|order| {
                order.uuid != gpu.info.uuid || matches!(order.what, GpuAction::Check(_))
            })
    }

    /// A repair step of one of its GPUs waits for the controller.
    pub(crate) fn has_step_waiting(&self) -> bool {
        self.gpus.iter().any(|gpu| self.awaits_step(gpu))
    }
}

impl Node {
    /// The GPU, or the GPU of the slice, at a slot.
    pub(crate) fn board_at(&self, slot: GpuSlot) -> Option<&str> {
        self.gpus
            .get(usize::from(slot.0))
            .map(|gpu| gpu.info.board())
    }

    /// The GPU is to be cut and the node has not answered: no job gets any of it.
    pub fn is_being_cut(&self, gpu: &GpuEntry) -> bool {
        let cut = |what: &GpuAction| matches!(what, GpuAction::Cut { .. });
        self.gpu_work
            .orders
            .iter()
            .any(|order| cut(&order.what) && order.uuid == gpu.info.board())
    }
}

/// A launch that failed by a node's fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strike {
    pub run: RunId,
    pub user: String,
    pub at: Timestamp,
    pub text: String,
    /// What failed, if less than the node.
    #[serde(default, skip_serializing_if = "LaunchFailureSubject::is_node")]
    pub about: LaunchFailureSubject,
    /// One is enough: a prolog failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub enough: bool,
}

/// The resources of a node that no run holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeResources {
    pub cpus: u32,
    pub mem_bytes: u64,
    /// By slot; 0 for a GPU that is missing or sick.
    pub gpu_milli: Vec<u32>,
    /// Runs with a share here.
    pub runs: u32,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_beginning(at: &Timestamp) -> bool {
    at.0 == 0
}

fn is_none_yet(number: &u32) -> bool {
    *number == 0
}

pub(crate) fn is_out_of_service(gpu: &GpuEntry) -> bool {
    gpu.info
        .standing
        .as_ref()
        .is_some_and(|standing| standing.stage != RepairStage::InService || standing.held)
}
