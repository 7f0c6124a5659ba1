//! QOS in sacctmgr's columns. What a QOS holds here and sacctmgr has no column for (`headroom`, `array_tasks`, ...) `gadm qos show` prints.

use super::limits::{count, tres};
use crate::ruled_table::Column;
use gcli::Failure;
use gcli::answer::list;
use gmodel::duration::sacct_time;
use gmodel::policy::{JobLimits, Limits, PreemptMode, Qos};
use gslurm_json::association::with_normal;
use gwire::api::QosRow;
use gwire::client::Client;

pub(super) const USUAL: &str = "Name,Priority,GraceTime,Preempt,PreemptExemptTime,PreemptMode,Flags%40,UsageThres,UsageFactor,GrpTRES,GrpTRESMins,GrpTRESRunMins,GrpJobs,\
    GrpSubmit,GrpWall,MaxTRES,MaxTRESPerNode,MaxTRESMins,MaxWall,MaxTRESPU,MaxJobsPU,MaxSubmitPU,MaxTRESPA,MaxJobsPA,MaxSubmitPA,MinTRES";

fn wall(limits: &JobLimits) -> String {
    limits
        .time_secs
        .map(|secs| sacct_time(secs.into()))
        .unwrap_or_default()
}

fn held(limits: &Limits) -> String {
    tres(limits.cpus, limits.nodes, limits.gpus.as_ref())
}

fn of_job(row: &Qos) -> String {
    tres(
        row.per_job.cpus,
        row.per_job.nodes,
        row.per_job.gpus.as_ref(),
    )
}

pub(super) const COLUMNS: &[Column<Qos>] = &[
    Column::right("name", "Name", 10, |row| row.name.clone()),
    Column::right("description", "Descr", 20, |row| row.description.clone()),
    Column::right("priority", "Priority", 10, |row| row.priority.to_string()),
    // A job says itself how long before its end it wants to know: gsub --checkpoint.
    Column::right("gracetime", "GraceTime", 10, |_| "00:00:00".to_owned()),
    Column::right("preempt", "Preempt", 10, |row| {
        row.preempt.iter().cloned().collect::<Vec<_>>().join(",")
    }),
    Column::right("preemptexempttime", "PreemptExemptTime", 19, |row| {
        if row.min_run_secs == 0 {
            String::new()
        } else {
            sacct_time(row.min_run_secs.into())
        }
    }),
    Column::right("preemptmode", "PreemptMode", 11, |row| {
        let mode = row.preempt_mode.map_or("cluster", PreemptMode::word);
        mode.to_owned()
    }),
    Column::blank("flags", "Flags", 20),
    Column::blank("usagethres", "UsageThres", 10),
    Column::blank("usagethreshold", "UsageThres", 10),
    Column::right("usagefactor", "UsageFactor", 11, |row| {
        format!("{:.6}", f64::from(row.usage_factor_milli) / 1000.0)
    }),
    Column::right("grptres", "GrpTRES", 13, |row| held(&row.group)),
    Column::blank("grptresmins", "GrpTRESMins", 13),
    Column::right("grptresrunmins", "GrpTRESRunMins", 13, |row| {
        running(&row.group)
    }),
    Column::right("grpjobs", "GrpJobs", 7, |row| count(row.group.running_jobs)),
    Column::right("grpsubmit", "GrpSubmit", 9, |row| {
        count(row.group.submitted_jobs)
    }),
    Column::right("grpsubmitjobs", "GrpSubmit", 9, |row| {
        count(row.group.submitted_jobs)
    }),
    Column::blank("grpwall", "GrpWall", 11),
    Column::right("maxtres", "MaxTRES", 13, of_job),
    Column::right("maxtresperjob", "MaxTRES", 13, of_job),
    Column::right("maxtrespj", "MaxTRES", 13, of_job),
    Column::blank("maxtrespernode", "MaxTRESPerNode", 14),
    Column::blank("maxtresmins", "MaxTRESMins", 13),
    Column::right("maxwall", "MaxWall", 11, |row| wall(&row.per_job)),
    Column::right("maxwalldurationperjob", "MaxWall", 11, |row| {
        wall(&row.per_job)
    }),
    Column::right("maxtrespu", "MaxTRESPU", 13, |row| held(&row.per_user)),
    Column::right("maxtresperuser", "MaxTRESPU", 13, |row| held(&row.per_user)),
    Column::right("maxjobspu", "MaxJobsPU", 9, |row| {
        count(row.per_user.running_jobs)
    }),
    Column::right("maxjobsperuser", "MaxJobsPU", 9, |row| {
        count(row.per_user.running_jobs)
    }),
    Column::right("maxsubmitpu", "MaxSubmitPU", 11, |row| {
        count(row.per_user.submitted_jobs)
    }),
    Column::right("maxsubmitjobspu", "MaxSubmitPU", 11, |row| {
        count(row.per_user.submitted_jobs)
    }),
    Column::right("maxsubmitjobsperuser", "MaxSubmitPU", 11, |row| {
        count(row.per_user.submitted_jobs)
    }),
    Column::right("maxtrespa", "MaxTRESPA", 13, |row| held(&row.per_account)),
    Column::right("maxtresperaccount", "MaxTRESPA", 13, |row| {
        held(&row.per_account)
    }),
    Column::right("maxjobspa", "MaxJobsPA", 9, |row| {
        count(row.per_account.running_jobs)
    }),
    Column::right("maxjobsperaccount", "MaxJobsPA", 9, |row| {
        count(row.per_account.running_jobs)
    }),
    Column::right("maxsubmitpa", "MaxSubmitPA", 11, |row| {
        count(row.per_account.submitted_jobs)
    }),
    Column::right("maxsubmitjobspa", "MaxSubmitPA", 11, |row| {
        count(row.per_account.submitted_jobs)
    }),
    Column::right("maxsubmitjobsperaccount", "MaxSubmitPA", 11, |row| {
        count(row.per_account.submitted_jobs)
    }),
    Column::right("mintres", "MinTRES", 13, |row| {
        tres(None, None, row.per_job.min_gpus.as_ref())
    }),
    Column::right("mintresperjob", "MinTRES", 13, |row| {
        tres(None, None, row.per_job.min_gpus.as_ref())
    }),
];

/// GPU-hours that running jobs may still use, as Slurm's minutes.
pub(super) fn running(limits: &Limits) -> String {
    limits
        .running_gpu_hours
        .map(|hours| format!("gres/gpu={}", hours * 60))
        .unwrap_or_default()
}

/// The QOS of these names, or all; with `normal`, which jobs have even where no such record was made.
pub(super) fn rows(client: &mut Client, names: &[String]) -> Result<Vec<Qos>, Failure> {
    let rows = list::<QosRow>(client, "/v1/qos")?;
    let mut rows = with_normal(rows.into_iter().map(|row| row.qos).collect());
    rows.retain(|row| names.is_empty() || names.contains(&row.name));
    Ok(rows)
}
