//! `scontrol show ... --json` and `--yaml`: the same records as without.

use super::{ShowRequest, record, split, step_record};
use crate::json;
use gcli::{Failure, Outcome};
use gwire::client::Client;

/// Prints the records that were asked for.
///
/// # Errors
/// What has no JSON; a name of none.
pub(super) fn print(client: &mut Client, request: &ShowRequest<'_>) -> Outcome {
    let names = split(&request.names);
    if request.found == Some("jobs") {
        let jobs = record::job_rows(client, &request.jobs())?;
        return json::print_jobs(client, jobs);
    }
    let cluster = json::cluster_name(client)?;
    match request.found {
        Some("nodes") => json::print_nodes(&cluster, record::node_rows(client, &request.names)?),
        Some("partitions") => {
            let (rows, nodes) = record::partition_rows(client, &names)?;
            json::print_partitions(&cluster, rows, &nodes)
        }
        Some("reservations") => {
            let (rows, nodes) = record::reservation_rows(client, &names)?;
            json::print_reservations(&cluster, rows, &nodes)
        }
        Some("licenses") => json::print_licences(&cluster, record::licence_rows(client, &names)?),
        Some("steps") => json::print_steps(&cluster, step_record::step_rows(client, &names)?),
        Some(other) => Err(Failure::usage(format_args!(
            "{other} has no JSON: jobs, nodes, partitions, reservations, licenses and steps have"
        ))),
        None => Err(request.refusal()),
    }
}
