//! The cluster in sacctmgr's columns, and why no other is added: each controller keeps the accounting of its own cluster.

use super::entity::{Entity, entity_of, words_of};
use crate::ruled_table::Column;
use gcli::Failure;
use gslurm_json::association::NORMAL;
use gwire::api::ClusterInfo;
use gwire::client::Client;
use std::io::Write;

pub(super) const USUAL: &str = "Cluster,ControlHost,ControlPort,RPC,Share,GrpJobs,GrpTRES,GrpSubmit,MaxJobs,MaxTRES,MaxSubmit,MaxWall,QOS,DefaultQOS";

pub(super) const COLUMNS: &[Column<ClusterInfo>] = &[
    Column::right("cluster", "Cluster", 10, |row| row.name.clone()),
    Column::right("controlhost", "ControlHost", 15, |row| row.host.clone()),
    // Commands reach it by a socket, and its nodes by a port that only they need.
    Column::right("controlport", "ControlPort", 12, |_| "0".to_owned()),
    Column::right("rpc", "RPC", 5, |_| "0".to_owned()),
    Column::right("share", "Share", 9, |_| "1".to_owned()),
    Column::right("fairshare", "Share", 9, |_| "1".to_owned()),
    Column::blank("grpjobs", "GrpJobs", 7),
    Column::blank("grptres", "GrpTRES", 13),
    Column::blank("grpsubmit", "GrpSubmit", 9),
    Column::blank("maxjobs", "MaxJobs", 7),
    Column::blank("maxtres", "MaxTRES", 13),
    Column::blank("maxsubmit", "MaxSubmit", 9),
    Column::blank("maxwall", "MaxWall", 11),
    Column::right("qos", "QOS", 20, |_| NORMAL.to_owned()),
    Column::blank("defaultqos", "Def QOS", 9),
    Column::blank("federation", "Federation", 10),
    Column::blank("features", "Features", 20),
    Column::right("classification", "Classification", 15, |_| {
        "none".to_owned()
    }),
];

pub(super) fn row(client: &mut Client) -> Result<ClusterInfo, Failure> {
    Ok(client.get("/v1/cluster")?)
}

/// Why clusters and federations are not changed; `None` of what is.
///
/// # Errors
/// No controller answers.
pub(super) fn refusal(words: &[String]) -> Result<Option<Failure>, Failure> {
    let Some((entity, names)) = words.split_first() else {
        return Ok(None);
    };
    let lower = entity.to_ascii_lowercase();
    if lower.len() > 2 && "federations".starts_with(&lower) {
        return Ok(Some(Failure::usage(
            "there are no federations: each cluster has a queue of its own, and -M names one to ask",
        )));
    }
    if !matches!(entity_of(entity), Ok(Entity::Cluster)) {
        return Ok(None);
    }
    let own = row(&mut gcli::connect("sacctmgr")?)?.name;
    let mut asked = names.iter().flat_map(|word| {
        let (key, value) = word.split_once('=').unwrap_or(("name", word));
        let is_name = ["name", "names"]
            .iter()
            .any(|known| key.eq_ignore_ascii_case(known));
        words_of(if is_name { value } else { "" })
    });
    // Scripts that set up a cluster add it first.
    if asked.any(|name| name == own) {
        writeln!(
            std::io::stdout(),
            " This cluster {own} already exists.  Not adding."
        )?;
    }
    Ok(Some(Failure::new(format_args!(
        "this controller keeps the accounting of {own} alone, and {own} is there as long as the controller is. Limits are those of accounts and QOS; another cluster has a controller of its own"
    ))))
}
