//! One line of accounting as `gacct` prints it: a row of the API, borrowed from its text, or a step of it.

use gwire::api::{RunRow, StepRow};
use gwire::row::RowText;

/// A row of `GET /v1/runs`. Keys that were not asked for have their defaults.
pub(crate) type AccountingRow<'a> = RunRow<RowText<'a>>;

/// A row, or a step of one.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunLine<'a> {
    /// Of a step its own values.
    pub row: AccountingRow<'a>,
    pub step: Option<&'a StepRow>,
}

impl RunLine<'_> {
    /// `17.0`; ids of jobs have no dot.
    pub fn is_step(&self) -> bool {
        self.row.shown_id.contains('.')
    }

    /// Of a step: the job's own are in no row.
    pub fn ntasks(&self) -> Option<u32> {
        self.step.map(|step| step.ntasks.max(1))
    }

    /// A step as a line of its own. One that shared its job had all of it.
    pub fn of_step<'s>(&self, step: &'s StepRow) -> RunLine<'s> {
        let own_cpus = step.own.map(|own| own.cpus).filter(|cpus| *cpus > 0);
        let row = RunRow {
            id: self.row.id,
            attempt: self.row.attempt,
            shown_id: step.shown_id.as_str().into(),
            name: step.name.as_str().into(),
            account: step.account.as_str().into(),
            state: step.state,
            exit_code: step.exit_code,
            submit_time: step.start_time,
            start_time: step.start_time,
            end_time: step.end_time,
            elapsed_secs: step.elapsed_secs,
            nodes: step.nodes,
            nodelist: step.nodelist.as_str().into(),
            cpus: own_cpus.unwrap_or(self.row.cpus),
            cpu_time_secs: step.cpu_time_secs.unwrap_or(0.0),
            peak_memory_bytes: step.peak_memory_bytes.unwrap_or(0),
            detail: self.row.detail.clone(),
            ..RunRow::default()
        };
        RunLine {
            row,
            step: Some(step),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::Instant;
    use gwire::api::{GpuUseRow, RunRowKey};
    use gwire::row::read;

    #[test]
    fn every_key_of_the_contract_fits_with_its_name_and_without() {
        let full: RunRow = RunRow {
            id: 7,
            shown_id: "5_2".into(),
            array_id: Some(5),
            name: "a\tb".into(),
            start_time: Some(Instant(gmodel::Timestamp::from_secs(1))),
            time_limit_secs: Some(60),
            cpu_percent: Some(12.5),
            mem_percent: Some(1.0),
            class: Some("borrowed".into()),
            gpu_use: Some(GpuUseRow::default()),
            gpu_uuids: vec!["node1:GPU-1".into()],
            gpu_events: vec!["x".into()],
            image: Some("x".into()),
            cancelled_by: Some("root".into()),
            tags: vec!["x".into()],
            steps: vec![StepRow::default()],
            detail: Some(Box::default()),
            ..RunRow::default()
        };
        let keyed = serde_json::to_value(&full).unwrap();
        let (names, values): (Vec<&String>, Vec<&serde_json::Value>) =
            keyed.as_object().unwrap().iter().unzip();
        let keys: Vec<RunRowKey> = names.iter().map(|name| RunRowKey::of(name)).collect();
        assert!(!keys.contains(&RunRowKey::other), "{names:?}");
        let (keyed, bare) = (
            serde_json::to_vec(&keyed).unwrap(),
            serde_json::to_vec(&values).unwrap(),
        );
        let (keyed, bare) = (
            read::<AccountingRow>(&keyed, &[]).unwrap(),
            read::<AccountingRow>(&bare, &keys).unwrap(),
        );
        assert_eq!(format!("{keyed:?}"), format!("{bare:?}"));
        assert_eq!(
            (&*bare.name, bare.steps.len(), bare.class.as_deref()),
            ("a\tb", 1, Some("borrowed"))
        );
    }
}
