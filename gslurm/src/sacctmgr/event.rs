//! `sacctmgr show events`: when nodes took no work, in sacctmgr's columns. What happened to the controller is in its log.

use super::event_span::EventSpan;
use crate::ruled_table::Column;
use gcli::Failure;
use gcli::answer::list;
use gcli::local_time::{self, TimeFormat};
use gmodel::Instant;
use gwire::api::NodeEventRow;
use gwire::client::Client;
use nix::unistd::User;

pub(super) const USUAL: &str = "Cluster,NodeName,TimeStart,TimeEnd,State,Reason,User";

pub(super) struct NodeEvent {
    cluster: String,
    row: NodeEventRow,
}

fn time(at: Option<Instant>) -> String {
    at.map_or_else(
        || "Unknown".to_owned(),
        |at| TimeFormat::from_env().print(at.0),
    )
}

impl NodeEvent {
    fn secs(&self) -> i64 {
        let until = self.row.end.map_or_else(local_time::now, |at| at.0);
        self.row.start.map_or(0, |at| until.since_secs(at.0).max(0))
    }

    /// `root(0)`, as sacctmgr has it.
    fn user(&self) -> String {
        let name = self
            .row
            .by
            .split_once(':')
            .map_or(self.row.by.as_str(), |(_, name)| name);
        match User::from_name(name) {
            Ok(Some(user)) => format!("{name}({})", user.uid),
            _ => name.to_owned(),
        }
    }
}

pub(super) const COLUMNS: &[Column<NodeEvent>] = &[
    Column::right("cluster", "Cluster", 10, |event| event.cluster.clone()),
    Column {
        word: "nodename",
        title: "NodeName",
        width: 15,
        left: true,
        text: |event| event.row.node.clone(),
    },
    Column::right("timestart", "TimeStart", 19, |event| time(event.row.start)),
    Column::right("start", "TimeStart", 19, |event| time(event.row.start)),
    Column::right("timeend", "TimeEnd", 19, |event| time(event.row.end)),
    Column::right("end", "TimeEnd", 19, |event| time(event.row.end)),
    Column::right("duration", "Duration", 13, |event| {
        gmodel::duration::sacct_time(event.secs().cast_unsigned())
    }),
    Column {
        word: "state",
        title: "State",
        width: 6,
        left: true,
        text: |event| event.row.state.clone(),
    },
    Column::right("reason", "Reason", 30, |event| event.row.reason.clone()),
    Column::right("user", "User", 10, NodeEvent::user),
];

/// Which events; all where nothing is said.
#[derive(Debug, Default)]
pub(super) struct EventFilter {
    pub nodes: Vec<String>,
    pub states: Vec<String>,
}

pub(super) fn rows(
    client: &mut Client,
    chosen: &EventFilter,
    span: &EventSpan,
    cluster: &str,
) -> Result<Vec<NodeEvent>, Failure> {
    // A month is as much as sacctmgr shows of nodes that came back.
    let events = list::<NodeEventRow>(client, &span.on("/v1/node-events")?)?;
    let meant = |row: &NodeEventRow| {
        let of_node = chosen.nodes.is_empty() || chosen.nodes.contains(&row.node);
        of_node
            && (chosen.states.is_empty()
                || chosen
                    .states
                    .iter()
                    .any(|state| row.state.to_ascii_lowercase().starts_with(state.as_str())))
    };
    Ok(events
        .into_iter()
        .filter(meant)
        .map(|row| NodeEvent {
            cluster: cluster.to_owned(),
            row,
        })
        .collect())
}
