//! The size of a request. It stays in memory as long as its job, in the state and in each view, and is read at
//! each boot. Script, environment and long arguments are blobs, outside of it.

use crate::ctl::command::Refusal;
use crate::ctl::state::State;
use gmodel::JobSpec;
use serde_json::Value;

/// A request as JSON, bytes.
pub const MAX_REQUEST_BYTES: usize = 64 << 10;
/// Fields of a request that are measured field by field.
const WITHIN: [&str; 2] = ["launch", "request"];

/// Names in a list of nodes beyond the nodes that exist. As text a range costs nothing; in memory each name
/// does.
const SPARE_NAMES: usize = 256;

/// # Errors
/// The request is larger (the text names its largest field), or it names far more nodes than there are.
pub(crate) fn check(state: &State, spec: &JobSpec) -> Result<(), Refusal> {
    let bytes = serde_json::to_vec(spec).map_or(0, |text| text.len());
    if bytes > MAX_REQUEST_BYTES {
        let (field, of_field) = largest(spec);
        return Err(Refusal::limit(format!(
            "the request takes {bytes} bytes without script, environment and arguments, and {MAX_REQUEST_BYTES} are the most. Its largest field is {field} with {of_field}: shorten that."
        )));
    }
    let lists = [
        ("--nodelist", &spec.request.nodelist),
        ("--exclude", &spec.request.exclude),
    ];
    let (has, most) = (state.nodes.len(), state.nodes.len() + SPARE_NAMES);
    match lists
        .iter()
        .filter_map(|(option, list)| Some((option, list.as_ref()?.len())))
        .find(|(_, len)| *len > most)
    {
        Some((option, len)) => Err(Refusal::limit(format!(
            "{option} names {len} nodes and the cluster has {has}: {most} names are the most. Use a smaller range."
        ))),
        None => Ok(()),
    }
}

fn largest(spec: &JobSpec) -> (String, usize) {
    let Ok(Value::Object(fields)) = serde_json::to_value(spec) else {
        return Default::default();
    };
    let bytes = |value: &Value| value.to_string().len();
    let mut all: Vec<(String, usize)> = Vec::new();
    for (name, value) in fields {
        match value {
            Value::Object(parts) if WITHIN.contains(&name.as_str()) => {
                all.extend(
                    parts
                        .iter()
                        .map(|(part, value)| (format!("{name}.{part}"), bytes(value))),
                );
            }
            value => all.push((name, bytes(&value))),
        }
    }
    all.into_iter()
        .max_by_key(|(_, bytes)| *bytes)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctl::{Actor, Command, Input, Target, handle};
    use gmodel::config::{ClusterConfig, Partition};
    use gmodel::hostlist::Hostlist;
    use gmodel::{JobId, Timestamp};
    use std::sync::Arc;

    const LONG: usize = 7 << 20;

    fn give(state: &mut State, input: Input) -> Result<crate::ctl::Reply, Refusal> {
        handle(state, &mut Vec::new(), input, Timestamp::from_secs(1000))
    }

    fn command(state: &mut State, command: Command) -> Result<crate::ctl::Reply, Refusal> {
        let actor = Actor {
            user: "ada".into(),
            uid: 1000,
            gid: 1000,
            ..Actor::default()
        };
        give(state, Input::Command { actor, command })
    }

    fn cluster() -> State {
        let mut state = State::from_rows(Default::default());
        let partitions = vec![Partition {
            name: "main".into(),
            ..Partition::default()
        }];
        let config = Arc::new(ClusterConfig {
            partitions,
            ..ClusterConfig::default()
        });
        give(&mut state, Input::Configure { config }).unwrap();
        state
    }

    fn spec(change: impl FnOnce(&mut JobSpec)) -> Box<JobSpec> {
        let mut spec = JobSpec::default();
        (spec.partition, spec.launch.work_dir, spec.hold) =
            ("main".into(), "/home/ada".into(), true);
        change(&mut spec);
        Box::new(spec)
    }

    #[test]
    fn a_request_is_refused_by_the_field_that_fills_it_whichever_that_is() {
        let long = || "x".repeat(LONG);
        let cases: [(&str, Box<JobSpec>); 6] = [
            (
                "later",
                spec(|spec| drop(spec.later.insert("--mcs-label".into(), long()))),
            ),
            (
                "launch.mail_user",
                spec(|spec| spec.launch.mail_user = Some(long())),
            ),
            (
                "launch.mail_type",
                spec(|spec| spec.launch.mail_type = Some(long())),
            ),
            (
                "launch.submit_dir",
                spec(|spec| spec.launch.submit_dir = long()),
            ),
            (
                "request.constraint",
                spec(|spec| spec.request.constraint = Some(long())),
            ),
            (
                "request.prefer",
                spec(|spec| spec.request.prefer = Some(long())),
            ),
        ];
        let mut state = cluster();
        for (field, spec) in cases {
            let refusal = command(
                &mut state,
                Command::Submit {
                    spec,
                    client_key: None,
                },
            )
            .unwrap_err();
            assert!(
                refusal
                    .text
                    .contains(&format!("Its largest field is {field} with 734")),
                "{field}: {}",
                refusal.text
            );
        }
        assert!(state.jobs.is_empty() && state.index.client_keys.is_empty());
        command(
            &mut state,
            Command::Submit {
                spec: spec(|spec| spec.launch.submit_dir = "x".repeat(60_000)),
                client_key: None,
            },
        )
        .unwrap();
    }

    /// `n[1-131072]` is ten bytes as text and megabytes as names.
    #[test]
    fn a_range_of_nodes_that_are_not_there_is_refused() {
        let mut state = cluster();
        let mut exclude = |list: &str| {
            let exclude = Some(Hostlist::parse(list).unwrap());
            command(
                &mut state,
                Command::Submit {
                    spec: spec(|spec| spec.request.exclude = exclude),
                    client_key: None,
                },
            )
            .map_err(|refusal| refusal.text)
        };
        let words = "--exclude names 131072 nodes and the cluster has 0: 256 names are the most. Use a smaller range.";
        assert_eq!(exclude("n[1-131072]").unwrap_err(), words);
        assert!(exclude("n[1-257]").is_err());
        exclude("n[1-256]").unwrap();
    }

    #[test]
    fn a_request_does_not_grow_by_changes_either() {
        let mut state = cluster();
        command(
            &mut state,
            Command::Submit {
                spec: spec(|spec| spec.launch.submit_dir = "x".repeat(60_000)),
                client_key: None,
            },
        )
        .unwrap();
        let change = |state: &mut State, change: crate::ctl::JobChange| {
            command(
                state,
                Command::Update {
                    target: Target::Job(JobId(1)),
                    change,
                },
            )
        };
        let mut exclude = crate::ctl::JobChange::default();
        let names: Vec<String> = (0..900).map(|at| format!("n{}", at * 2)).collect();
        exclude.request.set("exclude", &names.join(",")).unwrap();
        assert!(Hostlist::parse(&names.join(",")).is_ok());
        let comment = |bytes: usize| crate::ctl::JobChange {
            comment: Some("y".repeat(bytes)),
            ..Default::default()
        };
        change(&mut state, comment(4000)).unwrap();
        let refusal = change(&mut state, exclude).unwrap_err();
        assert!(
            refusal
                .text
                .contains("Its largest field is launch.submit_dir with 60002"),
            "{}",
            refusal.text
        );
        change(
            &mut state,
            crate::ctl::JobChange {
                nice: Some(5),
                ..Default::default()
            },
        )
        .unwrap();
    }
}
