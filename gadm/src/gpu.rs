//! `gadm gpu`: take one GPU out of service and put it back, and what became of one since it was first seen.

use gcli::failure::note;
use gcli::local_time::TimeFormat;
use gcli::printable::printable;
use gcli::table::{Column, Screen, TableWriter, stdout};
use gcli::{Failure, Outcome};
use gwire::api::{GpuActionRequest, GpuHealthRow, GpuHistoryRow, GpuList, GpuQuery};
use gwire::client::{Client, escape, path_with_query};
use std::io::Write;
use std::time::{Duration, Instant};

/// What to do to GPUs.
#[derive(clap::Subcommand)]
pub(crate) enum GpuAct {
    /// Take one GPU out of service until it is returned; the others of its node work on, its job may finish
    Quarantine {
        /// Node that has it; or node and GPU, as node1:3
        #[arg(value_name = "NODE[:GPU]")]
        node: String,
        /// Index, UUID, the beginning of a UUID, or slotN as gnodes --json has it
        gpu: Option<String>,
        /// The reason, shown to users
        #[arg(long, short, value_name = "TEXT", required = true)]
        reason: String,
    },
    /// Put one GPU back into service: what it showed is forgotten, and it has to look well
    Return {
        /// Node that has it; or node and GPU, as node1:3
        #[arg(value_name = "NODE[:GPU]")]
        node: String,
        /// Index, UUID, the beginning of a UUID, or slotN as gnodes --json has it
        gpu: Option<String>,
    },
    /// Cut an idle GPU by MIG, or make it whole
    Cut {
        /// Node that has it; or node and GPU, as node1:3
        #[arg(value_name = "NODE[:GPU]")]
        node: String,
        /// Index, UUID, the beginning of a UUID, or slotN as gnodes --json has it
        gpu: String,
        /// Profiles with commas between them, as 3g.40gb,2g.20gb; or whole
        profiles: Option<String>,
    },
    /// Check one GPU now, as [diagnostics] of gpuctld.toml has it in idle gaps, and print what was found
    Check {
        /// Node that has it; or node and GPU, as node1:3
        #[arg(value_name = "NODE[:GPU]")]
        node: String,
        /// Index, UUID, the beginning of a UUID, or slotN as gnodes --json has it
        gpu: Option<String>,
        /// Do not wait for the end of the check
        #[arg(long)]
        no_wait: bool,
    },
    /// Miss a GPU no more that is gone for good, as after its board was replaced; its history stays
    Forget {
        /// UUID or its beginning, as gnodes --health shows it
        #[arg(value_name = "UUID")]
        gpu: String,
    },
    /// What was seen of one GPU and done about it, in whichever node it was
    History {
        /// UUID or its beginning; or the node that has it; or both, as node1:3
        #[arg(value_name = "UUID|NODE[:GPU]")]
        first: String,
        /// Index, UUID or its beginning, or slotN, when a node is named first
        gpu: Option<String>,
        /// One line of JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(serde::Deserialize)]
struct History {
    history: Vec<GpuHistoryRow>,
}

/// A node that is connected answers in milliseconds; a look at the GPU takes a second.
const PATIENCE: Duration = Duration::from_secs(5);
/// Each slice takes a real board a second or two.
const CUT_PATIENCE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(crate) fn run(client: &mut Client, act: GpuAct) -> Outcome {
    let mut request = GpuActionRequest::default();
    let order = match act {
        GpuAct::Quarantine { reason, .. } if reason.trim().is_empty() => {
            return Err(Failure::usage("--reason is empty. Say why: users see it"));
        }
        GpuAct::Quarantine { node, gpu, reason } => {
            request.reason = reason;
            GpuOrder::of("quarantine", node, gpu)?
        }
        GpuAct::Return { node, gpu } => GpuOrder::of("return", node, gpu)?,
        GpuAct::Cut {
            node,
            gpu,
            profiles,
        } => {
            // The second word is the profiles where the first has both.
            let (gpu, profiles) = match profiles {
                Some(profiles) => (Some(gpu), profiles),
                None => (None, gpu),
            };
            let words = profiles
                .split(',')
                .map(|word| word.trim().to_ascii_lowercase());
            request.profiles = words
                .filter(|word| !word.is_empty() && word != "whole")
                .collect();
            GpuOrder::of("cut", node, gpu)?
        }
        GpuAct::Check { node, gpu, no_wait } => {
            return check(client, GpuOrder::of("check", node, gpu)?, no_wait);
        }
        GpuAct::Forget { gpu } => return forget(client, &gpu),
        GpuAct::History { first, gpu, json } => return history(client, first, gpu, json),
    };
    let ordered = order.post(client, &request)?;
    let row = order.settled(client, &ordered.uuid)?;
    order.report(&row)
}

/// An order for one GPU of a node.
struct GpuOrder {
    word: &'static str,
    node: String,
    gpu: String,
}

impl GpuOrder {
    /// From `node1 3`, or `node1:3`.
    fn of(word: &'static str, node: String, gpu: Option<String>) -> Result<Self, Failure> {
        let (node, gpu) = match (gpu, node.split_once(':')) {
            (Some(gpu), _) => (node, gpu),
            (None, Some((node, gpu))) => (node.to_owned(), gpu.to_owned()),
            (None, None) => {
                return Err(Failure::usage(format_args!(
                    "which GPU of {node}? As in gadm gpu {word} {node}:3"
                )));
            }
        };
        Ok(Self { word, node, gpu })
    }

    /// Gives the order; the GPU as the controller lists it.
    fn post(
        &self,
        client: &mut Client,
        request: &GpuActionRequest,
    ) -> Result<GpuHealthRow, Failure> {
        let Self { word, node, gpu } = self;
        let path = format!("/v1/nodes/{}/gpus/{}/{word}", escape(node), escape(gpu));
        let ordered: GpuList = client.post_repeatable(&path, request)?;
        let first = ordered.gpus.into_iter().next();
        first.ok_or_else(|| Failure::new("the controller names no GPU"))
    }

    fn row(&self, client: &mut Client, uuid: &str) -> Result<GpuHealthRow, Failure> {
        let node = &self.node;
        let row = gpus_of(client, node)?
            .into_iter()
            .find(|row| row.uuid == uuid);
        row.ok_or_else(|| Failure::new(format_args!("{node} has no GPU {uuid} any more")))
    }

    fn patience(&self) -> Duration {
        match self.word {
            "cut" => CUT_PATIENCE,
            _ => PATIENCE,
        }
    }

    /// The GPU as it is once its node has answered, and for a return once it was looked at.
    fn settled(&self, client: &mut Client, uuid: &str) -> Result<GpuHealthRow, Failure> {
        let deadline = Instant::now() + self.patience();
        loop {
            let row = self.row(client, uuid)?;
            let settled = row.ordered.is_empty()
                && (!row.refused.is_empty()
                    || self.word != "return"
                    || !row.state.starts_with("quarantined"));
            if settled || Instant::now() >= deadline {
                return Ok(row);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Says what came of the order.
    fn report(&self, row: &GpuHealthRow) -> Outcome {
        let node = &self.node;
        let name = format!("{node} gpu{} ({})", row.index, row.uuid);
        if !row.ordered.is_empty() {
            let secs = self.patience().as_secs();
            return Err(Failure::new(format_args!(
                "{name}: {node} has not answered within {secs} s. The order stands and is carried out when its gpud connects; gnodes --health {node} shows it"
            )));
        }
        if !row.refused.is_empty() {
            let refused = printable(&row.refused);
            return Err(Failure::new(format_args!(
                "{name}: {node} could not: {refused}"
            )));
        }
        let words = in_words(row);
        let state = printable(&words);
        if self.word == "return" && OUT.contains(&row.state.as_str()) {
            return Err(Failure::new(format_args!(
                "{name} stays out of service: {state}"
            )));
        }
        match self.word {
            "cut" => note(
                "gadm",
                format_args!("{name} is cut as ordered; gnodes {node} shows its slices"),
            )?,
            _ => note("gadm", format_args!("{name} is {state}"))?,
        }
        Ok(0)
    }
}

fn gpus_of(client: &mut Client, node: &str) -> Result<Vec<GpuHealthRow>, Failure> {
    let query = GpuQuery {
        node: node.to_owned(),
    };
    let list: GpuList = client.get(&path_with_query("/v1/gpus", &query))?;
    Ok(list.gpus)
}

/// States of a GPU that no step of its own ends.
const OUT: [&str; 4] = ["quarantined", "out", "missing", "to be replaced"];

/// What checks of a GPU have found, oldest first.
fn checks_of(client: &mut Client, uuid: &str) -> Result<Vec<GpuHistoryRow>, Failure> {
    let answer: History = client.get(&format!("/v1/gpus/{}/history", escape(uuid)))?;
    Ok(answer
        .history
        .into_iter()
        .filter(|line| line.kind == "checked")
        .collect())
}

/// Orders a check and waits for its end: as long as the site gives its program.
fn check(client: &mut Client, order: GpuOrder, no_wait: bool) -> Outcome {
    let known = uuid_of(client, &order.node, &order.gpu).ok();
    let before = known
        .map(|uuid| checks_of(client, &uuid))
        .transpose()?
        .unwrap_or_default();
    let gpu = order.post(client, &GpuActionRequest::default())?;
    let name = format!("{} gpu{} ({})", order.node, gpu.index, gpu.uuid);
    if no_wait {
        note(
            "gadm",
            format_args!(
                "{name} is checked; gadm gpu history {} will say what was found",
                gpu.uuid
            ),
        )?;
        return Ok(0);
    }
    let row = loop {
        let row = order.row(client, &gpu.uuid)?;
        if row.ordered != "check" {
            break row;
        }
        std::thread::sleep(LOOK_EVERY);
    };
    let checks = checks_of(client, &row.uuid)?;
    if checks == before {
        return Err(Failure::new(format_args!(
            "{name}: the check gave way, to a job or another order, and nothing was found out"
        )));
    }
    let found = checks.last().map_or("", |line| line.text.as_str());
    writeln!(stdout()?, "{name}: {}", printable(found))?;
    for odd in &row.odd {
        note("gadm", format_args!("out of line: {}", printable(odd)))?;
    }
    Ok(u8::from(
        !row.odd.is_empty() || found.starts_with("not run"),
    ))
}

fn forget(client: &mut Client, gpu: &str) -> Outcome {
    let missed: GpuList = client.post(
        &format!("/v1/gpus/{}/forget", escape(gpu)),
        &GpuActionRequest::default(),
    )?;
    for row in missed.gpus {
        let (node, index, uuid) = (&row.node, row.index, &row.uuid);
        note(
            "gadm",
            format_args!(
                "{node} misses gpu{index} ({uuid}) no more; gadm gpu history {uuid} has what became of it"
            ),
        )?;
    }
    Ok(0)
}

fn history(client: &mut Client, first: String, gpu: Option<String>, json: bool) -> Outcome {
    let uuid = match (gpu, first.split_once(':')) {
        (Some(gpu), _) => uuid_of(client, &first, &gpu)?,
        (None, Some((node, gpu))) => uuid_of(client, node, gpu)?,
        (None, None) => first,
    };
    let path = format!("/v1/gpus/{}/history", escape(&uuid));
    let mut out = stdout()?;
    if json {
        let answer: serde_json::Value = client.get(&path)?;
        writeln!(out, "{answer}")?;
        out.flush()?;
        return Ok(0);
    }
    let answer: History = client.get(&path)?;
    let times = TimeFormat::from_env();
    let columns = vec![
        Column::whole("TIME"),
        Column::whole("NODE"),
        Column::whole("WHAT"),
        Column::text("WORDS"),
    ];
    let mut table = TableWriter::new(out, columns, Screen::of_stdout(), true);
    for row in answer.history {
        let at = row.at.map_or_else(String::new, |at| times.print(at.0));
        table.row(vec![
            at.into(),
            row.node.into(),
            row.kind.replace('_', " ").into(),
            row.text.into(),
        ])?;
    }
    table.finish()?;
    Ok(0)
}

/// By the node's listing: the same words as for an order.
fn uuid_of(client: &mut Client, node: &str, gpu: &str) -> Result<String, Failure> {
    let gpus = gpus_of(client, node)?;
    let index: Option<u32> = gpu.strip_prefix("gpu").unwrap_or(gpu).parse().ok();
    let slot: Option<u16> = gpu.strip_prefix("slot").and_then(|slot| slot.parse().ok());
    let is_it = |row: &&GpuHealthRow| match (slot, index) {
        (Some(slot), _) => row.slot == slot,
        (None, Some(index)) => {
            row.index == index && row.state != "moved" && !row.gpu_type.contains(':')
        }
        (None, None) => row.uuid.starts_with(gpu),
    };
    let found: Vec<&GpuHealthRow> = gpus.iter().filter(is_it).collect();
    match found[..] {
        [row] => Ok(row.uuid.clone()),
        [] => Err(Failure::new(format_args!(
            "{node} has no GPU {gpu:?}; gnodes --health {node} lists those it has"
        ))),
        _ => {
            let all: Vec<String> = found
                .iter()
                .map(|row| format!("{} ({})", row.uuid, row.state))
                .collect();
            Err(Failure::new(format_args!(
                "{gpu:?} means {} GPUs of {node}: {}. Write the UUID",
                found.len(),
                all.join(", ")
            )))
        }
    }
}

/// `ok`; `quarantined: fan noise; next: waits for gadm gpu return; job 17 is on it`.
fn in_words(row: &GpuHealthRow) -> String {
    let mut words = row.state.clone();
    if !row.reason.is_empty() {
        // A quarantine by hand has the word in its reason too.
        let reason = row
            .reason
            .strip_prefix(&row.state)
            .and_then(|rest| rest.strip_prefix(": "))
            .unwrap_or(&row.reason);
        words += &format!(": {reason}");
    }
    if !row.next.is_empty() {
        words += &format!("; next: {}", row.next);
    }
    if !row.jobs.is_empty() && !row.reason.is_empty() {
        words += &format!("; held by {}", row.jobs.join(", "));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_named_with_its_node_in_one_word_or_two() {
        let named = |node: &str, gpu: Option<&str>| {
            GpuOrder::of("return", node.into(), gpu.map(str::to_owned))
                .map(|order| (order.node, order.gpu))
        };
        assert_eq!(named("node1", Some("3")).ok(), named("node1:3", None).ok());
        assert!(named("node1", None).is_err());
    }

    #[test]
    fn a_gpu_in_words_says_why_what_is_next_and_who_holds_it() {
        let well = GpuHealthRow {
            state: "ok".into(),
            jobs: vec!["17".into()],
            ..GpuHealthRow::default()
        };
        assert_eq!(in_words(&well), "ok");
        let out = GpuHealthRow {
            state: "quarantined".into(),
            reason: "hot".into(),
            next: "its job may finish first".into(),
            ..well
        };
        assert_eq!(
            in_words(&out),
            "quarantined: hot; next: its job may finish first; held by 17"
        );
        let by_hand = GpuHealthRow {
            state: "quarantined".into(),
            reason: "quarantined: fan noise".into(),
            ..GpuHealthRow::default()
        };
        assert_eq!(in_words(&by_hand), "quarantined: fan noise");
    }
}
