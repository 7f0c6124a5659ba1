//! Whether a partition takes a job: its state, its users and accounts, its most nodes.

use crate::ctl::command::{Actor, Refusal};
use crate::ctl::state::State;
use gmodel::RefusalKind;
use gmodel::config::{ClusterConfig, Partition, PartitionState};

pub(crate) fn no_default(config: &ClusterConfig) -> Refusal {
    let names: Vec<_> = config.partitions.iter().map(|p| p.name.as_str()).collect();
    let text = if names.is_empty() {
        "no partition is configured".into()
    } else {
        format!(
            "no default partition is set; name one with -p: {}",
            names.join(", ")
        )
    };
    Refusal::invalid(text).about(RefusalKind::NoPartition)
}

pub(crate) fn partition_or_refusal<'a>(
    config: &'a ClusterConfig,
    name: &str,
) -> Result<&'a Partition, Refusal> {
    config.partition(name).ok_or_else(|| {
        let names: Vec<_> = config.partitions.iter().map(|p| p.name.as_str()).collect();
        let hint = gmodel::suggest::did_you_mean(name, names.iter().copied());
        let text = format!(
            "no partition {name:?}.{hint} There are: {}.",
            names.join(", ")
        );
        Refusal::invalid(text)
            .about(RefusalKind::Partition)
            .naming(name)
    })
}

pub(crate) fn takes_submissions(partition: &Partition) -> Result<(), Refusal> {
    match partition.state {
        PartitionState::Drain | PartitionState::Inactive => {
            let text = format!("partition {:?} takes no submissions now.", partition.name);
            Err(Refusal::unavailable(text).about(RefusalKind::PartitionClosed))
        }
        _ => Ok(()),
    }
}

/// How many nodes the partition gives to one job.
pub(crate) fn check_size(partition: &Partition, request: &gmodel::Request) -> Result<(), Refusal> {
    match partition.max_nodes {
        Some(most) if request.nodes_min > most => {
            let text = format!(
                "--nodes {}: partition {:?} allows {most} a job.",
                request.nodes_min, partition.name
            );
            Err(Refusal::invalid(text).about(RefusalKind::NodeCount))
        }
        _ => Ok(()),
    }
}

/// Whether the partition is open to the actor, whose job it is, and an account.
pub(crate) fn may_use(
    state: &State,
    partition: &Partition,
    actor: &Actor,
    account: &str,
) -> Result<(), Refusal> {
    let name = &partition.name;
    let denied = |text, about| Err(Refusal::denied(text).about(about));
    if !partition.takes_account(&state.policy, account) {
        let allowed = partition.accounts_text();
        let text = format!(
            "partition {name:?} is for the accounts {allowed}; this job is charged to {account}. Choose with -A."
        );
        return denied(text, RefusalKind::Account);
    }
    let user = &actor.user;
    if !partition.is_open_to_user(user) {
        return denied(
            format!("partition {name:?} is not open to {user}."),
            RefusalKind::PartitionAccess,
        );
    }
    is_in_a_group(partition, actor)
}

/// Groups are asked at submission and when a job's owner moves it, as in Slurm; root's own jobs may go anywhere.
fn is_in_a_group(partition: &Partition, actor: &Actor) -> Result<(), Refusal> {
    let groups = &partition.allow_groups;
    let is_in = |group: &String| actor.groups.get(group).copied();
    if groups.is_empty() || actor.uid == 0 || groups.iter().any(|one| is_in(one) == Some(true)) {
        return Ok(());
    }
    let (name, user) = (&partition.name, &actor.user);
    let what = match &groups[..] {
        [one] => format!("the group {one}"),
        several => format!("the groups {}", several.join(", ")),
    };
    if groups.iter().any(|one| is_in(one).is_none()) {
        let text = format!(
            "partition {name:?} is for {what}, and the controller's host does not say now which groups {user} is in. Try again in a moment."
        );
        return Err(Refusal::unavailable(text));
    }
    let none = if groups.len() == 1 {
        "not in it"
    } else {
        "in none of them"
    };
    let text = format!(
        "partition {name:?} is for {what}, and {user} is {none} on the controller's host. Choose another with -p."
    );
    Err(Refusal::denied(text).about(RefusalKind::PartitionAccess))
}
