//! `gadm qos`: qualities of service.

use super::key_value::{self, words_of};
use super::listing::{gpus_text, limits_text};
use super::{
    Listing, Name, NameAndWords, Removal, edit, print_json, print_record, records, remove, rows,
};
use gcli::Outcome;
use gcli::table::{Column, Screen, TableWriter, stdout};
use gmodel::duration::squeue_time;
use gmodel::gpu_amounts::milli_text;
use gmodel::policy::{PreemptMode, Qos};
use gwire::api::QosRow;
use gwire::client::{Client, escape};

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

/// Whether these words can be set; the controller is not asked.
///
/// # Errors
/// A key that does not exist, a value that cannot be read.
pub fn check(words: &[String]) -> Result<(), gcli::Failure> {
    key_value::read(words, &words_of::<Qos>(), "QOS").map(drop)
}

pub fn run(client: &mut Client, act: QosAct) -> Outcome {
    match act {
        QosAct::Add(args) => {
            let change = key_value::read(&args.words, &words_of::<Qos>(), "QOS")?;
            edit(
                client,
                &format!("/v1/qos/{}", escape(&args.name)),
                true,
                change,
            )
        }
        QosAct::Set(args) => {
            super::must_change(&args.words, "gadm qos set urgent priority=100")?;
            let change = key_value::read(&args.words, &words_of::<Qos>(), "QOS")?;
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
    for QosRow { qos, .. } in rows::<QosRow>(values)? {
        table.row(vec![
            qos.name.into(),
            qos.priority.to_string().into(),
            milli_text(qos.usage_factor_milli.into()).into(),
            qos.preempt.into_iter().collect::<Vec<_>>().join(",").into(),
            qos.preempt_mode.map_or("-", PreemptMode::word).into(),
            qos.per_job
                .time_secs
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
        let change = key_value::read(&words, &words_of::<Qos>(), "QOS").ok();
        assert_eq!(
            serde_json::to_string(&change).unwrap(),
            r#"{"group":{"submitted_jobs":7},"per_account":{"running_jobs":2,"submitted_jobs":9},"per_job":{"gpus":{"gpu":3.0},"max_time_secs":1800,"min_gpus":{"h100":1.0}},"per_user":{"submitted_jobs":4}}"#
        );
    }
}
