//! `gq --prio`: the waiting jobs in their order, with what their priorities are made of. Source: sprio(1).

use gcli::Outcome;
use gcli::answer::print_json;
use gcli::table::{Cell, Column, Screen, TableWriter, stdout};
use gwire::api::{FactorsRow, JobQuery, PriorityRow, PriorityWeightsRow};
use gwire::client::{Client, path_with_query};
use serde::Deserialize;

/// How it is printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PriorityForm {
    pub long: bool,
    pub normalized: bool,
    pub header: bool,
    pub json: bool,
}

#[derive(Deserialize)]
struct PriorityList {
    weights: PriorityWeightsRow,
    jobs: Vec<PriorityRow>,
}

pub(crate) fn print(client: &mut Client, query: &JobQuery, shape: PriorityForm) -> Outcome {
    let path = path_with_query("/v1/priorities", query);
    if shape.json {
        return print_json(client, &path);
    }
    let PriorityList { weights, jobs } = client.get(&path)?;
    let classes = jobs.iter().any(|job| job.class.is_some());
    let sites = jobs.iter().any(|job| job.normalized.site > 0.0);
    let mut columns = vec![
        Column::number("JOBID"),
        Column::text("PARTITION"),
        Column::text("USER"),
    ];
    if shape.long {
        columns.extend([Column::text("ACCOUNT"), Column::text("QOSNAME")]);
    }
    if classes {
        columns.push(Column::whole("CLASS"));
    }
    columns.extend(["POS", "PRIORITY"].map(Column::number));
    if sites {
        columns.push(Column::number("SITE"));
    }
    columns.extend(["AGE", "FAIRSHARE", "JOBSIZE", "PARTITION", "QOS", "NICE"].map(Column::number));
    let mut table = TableWriter::new(stdout()?, columns, Screen::of_stdout(), shape.header);
    if shape.long && !shape.normalized {
        table.row(weights_line(&weights, classes, sites))?;
    }
    for job in &jobs {
        table.row(line(job, shape, classes, sites))?;
    }
    table.finish()?;
    if jobs.is_empty() {
        gcli::failure::note("gq", "no job waits")?;
    }
    Ok(0)
}

/// The row of weights that sprio -w prints.
fn weights_line(weights: &PriorityWeightsRow, classes: bool, sites: bool) -> Vec<Cell> {
    let mut cells: Vec<Cell> = vec!["Weights".into()];
    cells.extend((0..4 + usize::from(classes) + 2).map(|_| Cell::from("")));
    cells.extend(sites.then(|| weights.site.to_string().into()));
    cells.extend(
        [
            weights.age,
            weights.fair_share,
            weights.size,
            weights.partition,
            weights.qos,
        ]
        .map(|weight| weight.to_string().into()),
    );
    cells.push("".into());
    cells
}

fn line(job: &PriorityRow, shape: PriorityForm, classes: bool, sites: bool) -> Vec<Cell> {
    let mut cells: Vec<Cell> = vec![
        job.shown_id.as_str().into(),
        job.partition.as_str().into(),
        job.user.as_str().into(),
    ];
    if shape.long {
        cells.extend([Cell::from(job.account.as_str()), job.qos.as_str().into()]);
    }
    if classes {
        cells.push(job.class.as_deref().unwrap_or("-").into());
    }
    cells.push(job.position.to_string().into());
    let set = if job.is_set { "!" } else { "" };
    cells.push(format!("{}{set}", job.priority).into());
    let FactorsRow {
        site,
        age,
        fair_share,
        size,
        partition,
        qos,
        ..
    } = if shape.normalized {
        &job.normalized
    } else {
        &job.weighted
    };
    let digits = if shape.normalized { 7 } else { 0 };
    cells.extend(sites.then(|| format!("{site:.digits$}").into()));
    cells.extend(
        [age, fair_share, size, partition, qos].map(|factor| format!("{factor:.digits$}").into()),
    );
    cells.push(job.weighted.nice.to_string().into());
    cells
}
