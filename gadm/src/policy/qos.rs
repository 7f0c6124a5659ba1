//! `gadm qos`: qualities of service.

use super::key_value::{self, Form, Key};
use super::listing::{gpus_text, limits_text};
use super::{
    Listing, Name, NameAndWords, Removal, edit, print_json, print_record, records, remove, rows,
};
use gcli::Outcome;
use gcli::table::{Column, Screen, TableWriter, stdout};
use gmodel::duration::squeue_time;
use gwire::api::QosRow;
use gwire::client::{Client, escape};

const KEYS: [Key; 66] = [
    ("description", "description", Form::Text),
    ("priority", "priority", Form::Count),
    ("usage_factor", "usage_factor", Form::Decimal),
    ("preempt", "preempt", Form::Names),
    ("preempt_mode", "preempt_mode", Form::Name),
    ("min_run", "min_run_secs", Form::Secs),
    ("preemptexempttime", "min_run_secs", Form::Secs),
    ("headroom", "headroom", Form::Gpus),
    ("outside_quota", "outside_quota", Form::Flag),
    ("idle.action", "idle.action", Form::Text),
    ("idle.warn_after", "idle.warn_after_secs", Form::Secs),
    ("idle.act_after", "idle.act_after_secs", Form::Secs),
    ("idle.grace", "idle.grace_secs", Form::Secs),
    ("idle.gpus_percent", "idle.gpus_percent", Form::Count),
    ("idle.max_requeues", "idle.max_requeues", Form::Count),
    ("group.running_jobs", "group.running_jobs", Form::Count),
    ("grpjobs", "group.running_jobs", Form::Count),
    ("group.submitted_jobs", "group.submitted_jobs", Form::Count),
    ("grpsubmitjobs", "group.submitted_jobs", Form::Count),
    ("grpsubmit", "group.submitted_jobs", Form::Count),
    ("group.gpus", "group.gpus", Form::Gpus),
    ("grptres", "group.gpus", Form::Gpus),
    ("group.cpus", "group.cpus", Form::Count),
    ("group.nodes", "group.nodes", Form::Count),
    (
        "group.running_gpu_hours",
        "group.running_gpu_hours",
        Form::Count,
    ),
    (
        "group.submits_per_minute",
        "group.submits_per_minute",
        Form::Count,
    ),
    (
        "per_user.running_jobs",
        "per_user.running_jobs",
        Form::Count,
    ),
    ("maxjobsperuser", "per_user.running_jobs", Form::Count),
    ("maxjobspu", "per_user.running_jobs", Form::Count),
    (
        "per_user.submitted_jobs",
        "per_user.submitted_jobs",
        Form::Count,
    ),
    (
        "maxsubmitjobsperuser",
        "per_user.submitted_jobs",
        Form::Count,
    ),
    ("maxsubmitpu", "per_user.submitted_jobs", Form::Count),
    ("maxsubmitjobspu", "per_user.submitted_jobs", Form::Count),
    ("per_user.gpus", "per_user.gpus", Form::Gpus),
    ("maxtresperuser", "per_user.gpus", Form::Gpus),
    ("maxtrespu", "per_user.gpus", Form::Gpus),
    ("per_user.cpus", "per_user.cpus", Form::Count),
    ("per_user.nodes", "per_user.nodes", Form::Count),
    (
        "per_user.running_gpu_hours",
        "per_user.running_gpu_hours",
        Form::Count,
    ),
    ("per_user.array_tasks", "per_user.array_tasks", Form::Count),
    (
        "per_user.submits_per_minute",
        "per_user.submits_per_minute",
        Form::Count,
    ),
    (
        "per_account.running_jobs",
        "per_account.running_jobs",
        Form::Count,
    ),
    ("maxjobsperaccount", "per_account.running_jobs", Form::Count),
    ("maxjobspa", "per_account.running_jobs", Form::Count),
    (
        "per_account.submitted_jobs",
        "per_account.submitted_jobs",
        Form::Count,
    ),
    (
        "maxsubmitjobsperaccount",
        "per_account.submitted_jobs",
        Form::Count,
    ),
    ("maxsubmitjobspa", "per_account.submitted_jobs", Form::Count),
    ("maxsubmitpa", "per_account.submitted_jobs", Form::Count),
    ("per_account.gpus", "per_account.gpus", Form::Gpus),
    ("maxtresperaccount", "per_account.gpus", Form::Gpus),
    ("maxtrespa", "per_account.gpus", Form::Gpus),
    ("per_account.cpus", "per_account.cpus", Form::Count),
    ("per_account.nodes", "per_account.nodes", Form::Count),
    ("per_job.max_time", "per_job.max_time_secs", Form::Secs),
    ("maxwall", "per_job.max_time_secs", Form::Secs),
    ("maxwalldurationperjob", "per_job.max_time_secs", Form::Secs),
    ("per_job.gpus", "per_job.gpus", Form::Gpus),
    ("maxtresperjob", "per_job.gpus", Form::Gpus),
    ("maxtrespj", "per_job.gpus", Form::Gpus),
    ("maxtres", "per_job.gpus", Form::Gpus),
    ("per_job.min_gpus", "per_job.min_gpus", Form::Gpus),
    ("mintresperjob", "per_job.min_gpus", Form::Gpus),
    ("mintrespj", "per_job.min_gpus", Form::Gpus),
    ("mintres", "per_job.min_gpus", Form::Gpus),
    ("per_job.cpus", "per_job.cpus", Form::Count),
    ("per_job.nodes", "per_job.nodes", Form::Count),
];

/// What to do to QOS.
#[derive(clap::Subcommand)]
pub enum QosAct {
    /// Make a QOS: gadm qos add urgent priority=100 preempt=scavenger maxjobspu=2
    Add(NameAndWords),
    /// Change a QOS
    #[command(visible_alias = "modify")]
    Set(NameAndWords),
    /// Remove QOS that nothing names
    #[command(visible_alias = "delete")]
    Del(Removal),
    /// List QOS
    List(Listing),
    /// One QOS with all that is set for it
    Show(Name),
}

pub fn run(client: &mut Client, act: QosAct) -> Outcome {
    match act {
        QosAct::Add(args) => {
            let change = key_value::read(&args.words, &KEYS, "QOS")?;
            edit(
                client,
                &format!("/v1/qos/{}", escape(&args.name)),
                true,
                change,
            )
        }
        QosAct::Set(args) => {
            super::must_change(&args.words, "gadm qos set urgent priority=100")?;
            let change = key_value::read(&args.words, &KEYS, "QOS")?;
            edit(
                client,
                &format!("/v1/qos/{}", escape(&args.name)),
                false,
                change,
            )
        }
        QosAct::Del(removal) => remove(client, "qos", "qos", &removal),
        QosAct::List(listing) => list(client, listing.json),
        QosAct::Show(name) => {
            let (answer, rows) =
                records(client, &format!("/v1/qos/{}", escape(&name.name)), "qos")?;
            if name.json {
                print_json(&answer)
            } else {
                rows.first().map_or(Ok(0), print_record)
            }
        }
    }
}

fn list(client: &mut Client, json: bool) -> Outcome {
    let (answer, values) = records(client, "/v1/qos", "qos")?;
    if json {
        return print_json(&answer);
    }
    let columns = vec![
        Column::whole("NAME"),
        Column::number("PRIORITY"),
        Column::number("FACTOR"),
        Column::text("PREEMPTS"),
        Column::whole("MODE"),
        Column::whole("MAXWALL"),
        Column::whole("MIN_RUN"),
        Column::whole("HEADROOM"),
        Column::whole("QUOTA"),
        Column::text("PER_USER"),
        Column::text("GROUP"),
        Column::text("DESCRIPTION"),
    ];
    let mut table = TableWriter::new(stdout()?, columns, Screen::of_stdout(), true);
    for qos in rows::<QosRow>(values)? {
        table.row(vec![
            qos.name.into(),
            qos.priority.to_string().into(),
            qos.usage_factor.to_string().into(),
            qos.preempt.into_iter().collect::<Vec<_>>().join(",").into(),
            qos.preempt_mode.unwrap_or_else(|| "-".into()).into(),
            qos.per_job
                .max_time_secs
                .map_or_else(|| "-".into(), |secs| squeue_time(u64::from(secs)))
                .into(),
            if qos.min_run_secs == 0 {
                "-".into()
            } else {
                squeue_time(u64::from(qos.min_run_secs)).into()
            },
            gpus_text(qos.headroom.as_ref()).into(),
            if qos.outside_quota {
                "outside".into()
            } else {
                "-".into()
            },
            limits_text(&qos.per_user).into(),
            limits_text(&qos.group).into(),
            qos.description.into(),
        ])?;
    }
    table.finish()?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_spellings_of_sacctmgr_are_known() {
        let words = "GrpSubmit=7 MaxSubmitPU=4 MaxSubmitPA=9 MaxJobsPA=2 MaxTRESPJ=gres/gpu=3 MaxWallDurationPerJob=30:00 MinTRESPJ=gres/gpu:h100=1";
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let change = key_value::read(&words, &KEYS, "QOS").ok();
        assert_eq!(
            serde_json::to_string(&change).unwrap(),
            r#"{"group":{"submitted_jobs":7},"per_account":{"running_jobs":2,"submitted_jobs":9},"per_job":{"gpus":{"gpu":3.0},"max_time_secs":1800,"min_gpus":{"h100":1.0}},"per_user":{"submitted_jobs":4}}"#
        );
    }
}
