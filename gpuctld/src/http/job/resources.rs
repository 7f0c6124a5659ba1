//! What a row of the queue asks for or holds: nodes, tasks, CPUs, memory, GPUs.
//!
//! Of a row with a run it is the run's allocation, else the request.

use crate::http::job::row::{Row, View};
use gmodel::array_spec::RangeSet;
use gmodel::gpu_link::weakest;
use gmodel::gpu_request::GpuAmount;
use gmodel::job::{GpuScope, MemRequest};
use gmodel::node::GpuEntry;
use gmodel::run::NodeShare;
use gwire::api::HeldRow;
use std::collections::BTreeMap;

impl<'a> Row<'a> {
    /// Nodes held, or asked for.
    pub(crate) fn nodes(&self, view: View) -> u32 {
        match self.run(view) {
            Some(run) => run.allocation.len() as u32,
            None => {
                let request = &self.spec().request;
                let named = request
                    .nodelist
                    .as_ref()
                    .map_or(0, |list| list.len() as u32);
                request.nodes_min.max(named).max(1)
            }
        }
    }

    fn tasks_asked(&self, view: View) -> u32 {
        let request = &self.spec().request;
        let nodes = self.nodes(view);
        match request.ntasks_per_node {
            Some(per_node) if request.ntasks <= 1 => per_node.saturating_mul(nodes),
            _ => request.ntasks.max(nodes),
        }
    }

    pub(crate) fn ntasks(&self, view: View) -> u32 {
        match self.run(view) {
            Some(run) => run.allocation.iter().map(|share| share.tasks).sum(),
            None => self.tasks_asked(view),
        }
    }

    /// CPUs held, or asked for on all nodes.
    pub(crate) fn cpus(&self, view: View) -> u32 {
        if let Some(run) = self.run(view) {
            return run.allocation.iter().map(|share| share.cpus).sum();
        }
        let request = &self.spec().request;
        let nodes = self.nodes(view);
        let tasks = request.tasks_with_cpus(self.tasks_asked(view), nodes);
        let least = request.mincpus.map_or(1, |cpus| cpus.saturating_mul(nodes));
        let by_task = request.cpus_per_task.map(|cpus| cpus.saturating_mul(tasks));
        let usual = self
            .partition(view)
            .and_then(|p| p.cpus_per_gpu)
            .filter(|_| by_task.is_none());
        let gpus = self.gpu_milli(view).div_ceil(1000) as u32;
        let by_gpu = request
            .cpus_per_gpu
            .or(usual)
            .map_or(0, |cpus| cpus.saturating_mul(gpus));
        by_task.unwrap_or(tasks).max(by_gpu).max(least)
    }

    /// Thousandths of GPUs held, or asked for on all nodes.
    pub(crate) fn gpu_milli(&self, view: View) -> u64 {
        if let Some(run) = self.run(view) {
            return run.allocation.iter().map(|share| share.gpus.milli()).sum();
        }
        let request = &self.spec().request;
        let Some(first) = request.gpus.as_ref().and_then(|ask| ask.first()) else {
            return 0;
        };
        let each = match &first.amount {
            GpuAmount::Whole(count) => u64::from(*count) * 1000,
            GpuAmount::Mig { profile, count } => {
                u64::from(*count) * u64::from(gmodel::mig::least_milli(profile))
            }
            GpuAmount::Share { milli } => u64::from(*milli),
        };
        each * match request.gpu_scope {
            GpuScope::Job => 1,
            GpuScope::Node => u64::from(self.nodes(view)),
            GpuScope::Task => u64::from(self.tasks_asked(view)),
        }
    }

    /// The memory that was asked for, or is given by the partition.
    fn mem_ask(&self, view: View) -> MemRequest {
        let request = &self.spec().request;
        self.partition(view).map_or(request.mem, |partition| {
            partition.mem_ask(request.mem, request.has_gpus())
        })
    }

    /// What its first node gave a run without a request of its own.
    fn mem_given(&self, view: View<'a>) -> Option<u64> {
        let share = self.run(view)?.allocation.first()?;
        self.spec()
            .request
            .mem
            .is_default()
            .then_some(share.mem_bytes)
    }

    /// As `squeue %m`: the request as it was made; of a run without one, what its first node gave. `None` while
    /// it is not known.
    pub(crate) fn mem_bytes(&self, view: View<'a>) -> Option<u64> {
        self.mem_given(view).or(match self.mem_ask(view) {
            MemRequest::PerNode(bytes) | MemRequest::PerCpu(bytes) | MemRequest::PerGpu(bytes) => {
                Some(bytes)
            }
            MemRequest::Default => None,
        })
    }

    /// Memory held, or asked for, on all nodes; 0 of a request that leaves it to the node.
    pub(crate) fn mem_total_bytes(&self, view: View) -> u64 {
        if let Some(run) = self.run(view) {
            return run.allocation.iter().map(|share| share.mem_bytes).sum();
        }
        match self.mem_ask(view) {
            MemRequest::PerNode(bytes) => bytes.saturating_mul(self.nodes(view).into()),
            MemRequest::PerCpu(bytes) => bytes.saturating_mul(self.cpus(view).into()),
            MemRequest::PerGpu(bytes) => bytes.saturating_mul(self.gpu_milli(view).div_ceil(1000)),
            MemRequest::Default => 0,
        }
    }

    /// What one [`Self::mem_bytes`] is for.
    pub(crate) fn mem_per(&self, view: View<'a>) -> &'static str {
        match self.mem_ask(view) {
            _ if self.mem_given(view).is_some() => "node",
            MemRequest::PerCpu(_) => "cpu",
            MemRequest::PerGpu(_) => "gpu",
            MemRequest::PerNode(_) | MemRequest::Default => "node",
        }
    }

    /// Held GPUs by node and type: `node1:h100:0-3`, by the index that nvidia-smi shows; slices by GPU and first memory slice:
    /// `node1:a100:2g.20gb:0.4`.
    pub(crate) fn gpus_held(&self, view: View) -> Vec<String> {
        let Some(run) = self.run(view) else {
            return Vec::new();
        };
        let mut texts = Vec::new();
        for share in &run.allocation {
            let Some(node) = view.state.nodes.get(share.node) else {
                continue;
            };
            let mut held: Vec<(&str, u32)> = share
                .gpus
                .slots()
                .filter_map(|slot| node.gpus.iter().find(|gpu| gpu.slot == slot))
                .filter(|gpu| gpu.info.slice.is_none())
                .map(|gpu| (gpu.info.gpu_type.as_str(), gpu.info.index))
                .collect();
            held.sort_unstable();
            for of_type in held.chunk_by(|a, b| a.0 == b.0) {
                let indices: RangeSet = of_type.iter().map(|(_, index)| *index).collect();
                texts.push(format!("{}:{}:{indices}", node.name, of_type[0].0));
            }
            let slices = share
                .gpus
                .slots()
                .filter_map(|slot| node.gpus.get(usize::from(slot.0)));
            let mut by_kind: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for gpu in slices {
                if let Some(slice) = &gpu.info.slice {
                    by_kind
                        .entry(gpu.info.kind())
                        .or_default()
                        .push(format!("{}.{}", gpu.info.index, slice.placement));
                }
            }
            texts.extend(
                by_kind
                    .iter()
                    .map(|(kind, places)| format!("{}:{kind}:{}", node.name, places.join(","))),
            );
        }
        texts
    }

    /// CPUs and memory by node.
    pub(crate) fn held(&self, view: View) -> Vec<HeldRow> {
        let shares = self.run(view).into_iter().flat_map(|run| &run.allocation);
        let of_share = |share: &NodeShare| {
            let node = view.state.nodes.get(share.node)?;
            Some(HeldRow {
                node: node.name.clone(),
                cpus: share.cpus,
                mem_bytes: share.mem_bytes,
            })
        };
        shares.filter_map(of_share).collect()
    }

    /// The GPUs and slices held, by UUID: `node1:GPU-...`. An index may mean another one tomorrow.
    pub(crate) fn gpu_uuids(&self, view: View) -> Vec<String> {
        let shares = self.run(view).into_iter().flat_map(|run| &run.allocation);
        let of_share = |share: &NodeShare| {
            let node = view.state.nodes.get(share.node)?;
            let gpus = share
                .gpus
                .slots()
                .filter_map(|slot| node.gpus.get(usize::from(slot.0)));
            Some(
                gpus.map(|gpu| format!("{}:{}", node.name, gpu.info.uuid))
                    .collect::<Vec<_>>(),
            )
        };
        shares.filter_map(of_share).flatten().collect()
    }

    /// How the GPUs held of each node are joined, several whole ones: `node1:NV18`.
    pub(crate) fn gpu_links(&self, view: View) -> Vec<String> {
        let shares = self.run(view).into_iter().flat_map(|run| &run.allocation);
        let of_share = |share: &NodeShare| {
            let node = view.state.nodes.get(share.node)?;
            let held: Vec<&GpuEntry> = share
                .gpus
                .slots()
                .filter_map(|slot| node.gpus.get(usize::from(slot.0)))
                .collect();
            let whole = held.iter().filter(|gpu| gpu.info.slice.is_none());
            let link = weakest(whole.map(|gpu| (gpu.info.minor, &gpu.info.links)))?;
            Some(format!("{}:{link}", node.name))
        };
        shares.filter_map(of_share).collect()
    }
}
