//! `--json` and `--yaml` under Slurm's names: prints the documents of `gslurm_json`.

use crate::sshare::ShareLine;
use gcli::table::stdout;
use gcli::{Failure, Outcome, local_time};
use gslurm_json::controller::{self, Diagnosis};
use gslurm_json::datum::{Field, record, write_yaml};
use gslurm_json::document::{DATA_PARSER, Meta, write_list, write_yaml_list};
use gslurm_json::job::{COLUMNS, Groups, JOB};
use gslurm_json::node::{ALIKE, NODE, NodeCell, alike};
use gslurm_json::partition::{PARTITION, PartitionCell};
use gslurm_json::reservation::{RESERVATION, ReservationCell};
use gslurm_json::run::RUN;
use gslurm_json::step::{STEP, StepCell};
use gwire::api::{
    ClusterInfo, JobQuery, JobRow, LicenceRow, NodeRow, PartitionRow, ReservationRow, RunQuery,
    RunRow, StepRow,
};
use gwire::client::{Client, path_with_query};
use gwire::row::{self, BareRow};
use nix::unistd::{Gid, Group, Uid, User};
use serde_json::Value;
use std::ffi::OsString;
use std::io::Write;
use std::sync::{Arc, OnceLock};

/// Times beside a list of jobs.
const JOB_TIMES: [&str; 2] = ["last_backfill", "last_update"];

/// What the command line asked for.
#[derive(Debug, Default)]
struct JsonRequest {
    yaml: bool,
    command: Vec<String>,
}

static ASKED: OnceLock<JsonRequest> = OnceLock::new();

/// Keeps what `meta` tells of the command line, before the words of it are read.
pub(crate) fn remember(words: &[OsString], yaml: bool) {
    let command = words.iter().map(|word| word.to_string_lossy().into_owned());
    let _ = ASKED.set(JsonRequest {
        yaml,
        command: command.collect(),
    });
}

/// A document with a list of records under `key`.
pub(crate) fn print<R>(
    cluster: &str,
    key: &str,
    table: &[Field<R>],
    rows: impl Iterator<Item = R>,
    times: &[&str],
) -> Outcome {
    print_coming(cluster, key, table, rows.map(Ok), times)
}

/// The same of rows that are still on their way.
fn print_coming<R>(
    cluster: &str,
    key: &str,
    table: &[Field<R>],
    rows: impl Iterator<Item = Result<R, Failure>>,
    times: &[&str],
) -> Outcome {
    let (tail, yaml) = tail(cluster, times);
    let mut out = stdout()?;
    match yaml {
        true => write_yaml_list(&mut out, key, table, rows, &tail)?,
        false => write_list(&mut out, key, table, rows, &tail)?,
    }
    out.flush()?;
    Ok(0)
}

/// A document of one value under `key`.
fn print_value(cluster: &str, key: &str, value: Value) -> Outcome {
    let (mut whole, yaml) = tail(cluster, &[]);
    whole[key] = value;
    let mut out = stdout()?;
    match yaml {
        true => {
            out.write_all(b"---\n")?;
            write_yaml(&mut out, &whole, 0)?;
        }
        false => writeln!(out, "{whole}")?,
    }
    out.flush()?;
    Ok(0)
}

/// All but the records, and whether YAML was asked for.
fn tail(cluster: &str, times: &[&str]) -> (Value, bool) {
    let asked = ASKED.get_or_init(JsonRequest::default);
    let user = User::from_uid(Uid::current()).ok().flatten();
    let group = Group::from_gid(Gid::current()).ok().flatten();
    let meta = Meta {
        cluster,
        data_parser: DATA_PARSER,
        command: asked.command.clone(),
        source: "",
        user: user.map_or_else(|| Uid::current().to_string(), |user| user.name),
        group: group.map_or_else(|| Gid::current().to_string(), |group| group.name),
    };
    (meta.tail(times, local_time::now()), asked.yaml)
}

/// What is asked of the cluster for all documents.
pub(crate) fn cluster_name(client: &mut Client) -> Result<String, Failure> {
    Ok(client.get::<ClusterInfo>("/v1/cluster")?.name)
}

/// The rows of a listing while they come: bare ones with the values of `keys`, or all with their keys.
fn coming<'c, R: for<'de> BareRow<'de, Key = K>, K: Copy + 'static>(
    client: &'c mut Client,
    path: &str,
    keys: &'static [K],
) -> Result<impl Iterator<Item = Result<R, Failure>> + 'c, Failure> {
    let mut rows = client.rows(path)?;
    let next = move || match rows.next_row() {
        Ok(None) => None,
        Ok(Some(text)) => Some(row::read(text, keys).map_err(Failure::new)),
        Err(error) => Some(Err(error.into())),
    };
    Ok(std::iter::from_fn(next))
}

/// `squeue --json`.
pub(crate) fn print_queue(client: &mut Client, query: &JobQuery) -> Outcome {
    let cluster = cluster_name(client)?;
    let mut groups = Groups::new(&cluster);
    let names: Vec<&str> = COLUMNS.iter().map(|key| key.name()).collect();
    let query = JobQuery {
        columns: names.join(","),
        bare: true,
        ..query.clone()
    };
    let path = path_with_query("/v1/jobs", &query);
    let rows = coming::<JobRow, _>(client, &path, COLUMNS)?;
    let cells = rows.map(|row| row.map(|row| groups.cell(row)));
    print_coming(&cluster, "jobs", JOB, cells, &JOB_TIMES)
}

/// `scontrol show job --json`, `squeue --json` of one job.
pub(crate) fn print_jobs(client: &mut Client, rows: Vec<JobRow>) -> Outcome {
    let cluster = cluster_name(client)?;
    let mut groups = Groups::new(&cluster);
    let cells = rows.into_iter().map(|row| groups.cell(row));
    print(&cluster, "jobs", JOB, cells, &JOB_TIMES)
}

/// `scontrol show node --json`.
pub(crate) fn print_nodes(cluster: &str, rows: Vec<NodeRow>) -> Outcome {
    let of_cluster: Arc<str> = cluster.into();
    let cells = rows
        .into_iter()
        .map(|row| NodeCell::of(row, of_cluster.clone()));
    print(cluster, "nodes", NODE, cells, &["last_update"])
}

/// `sinfo --json`.
pub(crate) fn print_alike(
    client: &mut Client,
    partitions: Vec<PartitionRow>,
    nodes: Vec<NodeRow>,
) -> Outcome {
    let cluster: Arc<str> = cluster_name(client)?.into();
    let cells = alike(partitions, nodes, &cluster);
    print(&cluster, "sinfo", ALIKE, cells.into_iter(), &[])
}

/// `scontrol show partition --json`.
pub(crate) fn print_partitions(
    cluster: &str,
    rows: Vec<PartitionRow>,
    nodes: &[NodeRow],
) -> Outcome {
    let of_cluster: Arc<str> = cluster.into();
    let cells = rows
        .into_iter()
        .map(|row| PartitionCell::of(row, nodes, of_cluster.clone()));
    print(cluster, "partitions", PARTITION, cells, &["last_update"])
}

/// `scontrol show reservation --json`.
pub(crate) fn print_reservations(
    cluster: &str,
    rows: Vec<ReservationRow>,
    nodes: &[NodeRow],
) -> Outcome {
    let cells = rows.into_iter().map(|row| ReservationCell::of(row, nodes));
    let times = ["last_update"];
    print(cluster, "reservations", RESERVATION, cells, &times)
}

/// `scontrol show step --json`.
pub(crate) fn print_steps(cluster: &str, rows: Vec<StepRow>) -> Outcome {
    let of_cluster: Arc<str> = cluster.into();
    let cells = rows.into_iter().map(|row| StepCell {
        row,
        cluster: of_cluster.clone(),
    });
    print(cluster, "steps", STEP, cells, &["last_update"])
}

/// `sacct --json`.
pub(crate) fn print_runs(client: &mut Client, query: &RunQuery) -> Outcome {
    let cluster = cluster_name(client)?;
    let query = RunQuery {
        columns: String::new(),
        bare: false,
        steps: true,
        detail: true,
        ..query.clone()
    };
    let mut groups = Groups::new(&cluster);
    let rows = coming::<RunRow, _>(client, &path_with_query("/v1/runs", &query), &[])?;
    let cells = rows.map(|row| row.map(|row| groups.run(row)));
    print_coming(&cluster, "jobs", RUN, cells, &[])
}

/// `sdiag --json`.
pub(crate) fn print_diagnosis(client: &mut Client, diagnosis: &Diagnosis) -> Outcome {
    let cluster = cluster_name(client)?;
    let value = record(controller::STATISTICS, diagnosis);
    print_value(&cluster, "statistics", value)
}

/// `scontrol ping --json`.
pub(crate) fn print_ping(client: &mut Client) -> Outcome {
    let asked = std::time::Instant::now();
    let cluster: ClusterInfo = client.get("/v1/cluster")?;
    let pings = controller::pings(&cluster, asked.elapsed());
    print_value(&cluster.name, "pings", pings)
}

/// `scontrol show licenses --json`.
pub(crate) fn print_licences(cluster: &str, rows: Vec<LicenceRow>) -> Outcome {
    let times = ["last_update"];
    print(
        cluster,
        "licenses",
        controller::LICENCE,
        rows.into_iter(),
        &times,
    )
}

/// `sshare --json`.
pub(crate) fn print_shares(client: &mut Client, lines: Vec<ShareLine>) -> Outcome {
    let cluster = cluster_name(client)?;
    let rows = lines.into_iter().map(|line| line.share);
    let shares = controller::shares(rows.collect(), &cluster);
    print_value(&cluster, "shares", shares)
}
