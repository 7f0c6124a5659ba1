//! `scontrol show step`: the steps under way, each as the record that scontrol prints of it. Source: what scontrol 22.05.8 printed.

use gcli::Failure;
use gcli::answer::list;
use gcli::local_time::TimeFormat;
use gcli::printable::printable;
use gmodel::duration::sacct_time;
use gwire::api::StepRow;
use gwire::client::Client;

/// Records of these steps, `17.0`, or of those of a job, `17`; without names of all.
///
/// # Errors
/// A name of none.
pub fn steps(client: &mut Client, names: &[String]) -> Result<Vec<String>, Failure> {
    let times = TimeFormat::from_env();
    let rows = step_rows(client, names)?;
    Ok(rows.iter().map(|row| text(row, &times)).collect())
}

pub fn step_rows(client: &mut Client, names: &[String]) -> Result<Vec<StepRow>, Failure> {
    let mut rows: Vec<StepRow> = list(client, "/v1/steps")?;
    let is_named = |row: &StepRow, name: &str| {
        row.shown_id == name
            || row
                .shown_id
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('.'))
    };
    if let Some(missing) = names
        .iter()
        .find(|name| !rows.iter().any(|row| is_named(row, name)))
    {
        return Err(Failure::new(format_args!(
            "Job step {missing} not found: it is not under way. sacct -j JOB shows steps that are over"
        )));
    }
    rows.retain(|row| names.is_empty() || names.iter().any(|name| is_named(row, name)));
    Ok(rows)
}

fn text(row: &StepRow, times: &TimeFormat) -> String {
    let own = row.own.unwrap_or_default();
    let tres = match row.own {
        None => "(null)".to_owned(),
        Some(_) => {
            let parts = [
                ("cpu", own.cpus.into(), ""),
                ("mem", own.mem_bytes >> 20, "M"),
                ("node", row.nodes.into(), ""),
                ("gres/gpu", u64::from(own.gpus), ""),
            ];
            let parts = parts.into_iter().filter(|(_, count, _)| *count > 0);
            let parts: Vec<String> = parts
                .map(|(name, count, unit)| format!("{name}={count}{unit}"))
                .collect();
            parts.join(",")
        }
    };
    format!(
        "StepId={} UserId={} StartTime={} TimeLimit={}\n   \
         State={} Partition={} NodeList={}\n   \
         Nodes={} CPUs={} Tasks={} Name={} Network=(null)\n   \
         TRES={tres}\n   ResvPorts=(null)\n   CPUFreqReq=Default\n   SrunHost:Pid=(null):0\n",
        row.shown_id,
        user_id(&row.user),
        row.start_time
            .map_or("Unknown".to_owned(), |at| times.print(at.0)),
        row.time_limit_secs
            .map_or("UNLIMITED".to_owned(), |secs| sacct_time(secs.into())),
        row.state,
        row.partition,
        row.nodelist,
        row.nodes,
        own.cpus,
        row.ntasks,
        printable(&row.name),
    )
}

/// The number, where this machine knows the name.
fn user_id(name: &str) -> String {
    let user = nix::unistd::User::from_name(name).ok().flatten();
    user.map_or_else(|| name.to_owned(), |user| user.uid.to_string())
}
