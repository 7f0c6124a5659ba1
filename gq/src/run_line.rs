//! One line of accounting as `gacct` reads it: the keys of `gwire::api::RunRow`, borrowed from the row's text.
//!
//! A listing of ten thousand jobs is printed while it is read, so a row costs no allocation where none is needed.

use crate::bare_row::bare_row;
use gmodel::{ExitCode, Instant, JobState};
use gwire::api::{GpuUseRow, RunDetail, StepOwn, StepRow};
use serde::Deserialize;
use std::borrow::Cow;

/// A row of `GET /v1/runs`. Keys that were not asked for have their defaults.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RunLine<'a> {
    pub id: u64,
    #[serde(borrow)]
    pub shown_id: Cow<'a, str>,
    pub attempt: u32,
    pub array_id: Option<u64>,
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    #[serde(borrow)]
    pub user: Cow<'a, str>,
    #[serde(borrow)]
    pub account: Cow<'a, str>,
    #[serde(borrow)]
    pub partition: Cow<'a, str>,
    #[serde(borrow)]
    pub qos: Cow<'a, str>,
    pub state: JobState,
    pub exit_code: ExitCode,
    #[serde(borrow)]
    pub end_text: Cow<'a, str>,
    pub submit_time: Option<Instant>,
    pub start_time: Option<Instant>,
    pub end_time: Option<Instant>,
    pub elapsed_secs: i64,
    pub suspended_secs: i64,
    pub time_limit_secs: Option<u32>,
    pub nodes: u32,
    #[serde(borrow)]
    pub nodelist: Cow<'a, str>,
    pub cpus: u32,
    pub mem_bytes: u64,
    #[serde(borrow)]
    pub gpus: Cow<'a, str>,
    pub gpu_count: f64,
    pub cpu_time_secs: f64,
    pub peak_memory_bytes: u64,
    pub cpu_percent: Option<f64>,
    pub mem_percent: Option<f64>,
    #[serde(borrow)]
    pub work_dir: Cow<'a, str>,
    #[serde(borrow)]
    pub comment: Cow<'a, str>,
    pub tags: Vec<String>,
    #[serde(borrow)]
    pub class: Option<Cow<'a, str>>,
    pub lost_gpu_secs: u64,
    pub gpu_use: Option<GpuUseRow>,
    pub gpu_uuids: Vec<String>,
    pub gpu_events: Vec<String>,
    #[serde(borrow)]
    pub cancelled_by: Option<Cow<'a, str>>,
    pub steps: Vec<StepRow>,
    /// Of a step: the job's own are in no row.
    #[serde(skip)]
    pub ntasks: Option<u32>,
    pub detail: Option<Box<RunDetail>>,
    /// Of a step.
    pub own: Option<StepOwn>,
}

bare_row! { RunLine, Key:
    id shown_id attempt array_id name user account partition qos state exit_code end_text submit_time start_time end_time
    elapsed_secs suspended_secs time_limit_secs nodes nodelist cpus mem_bytes gpus gpu_count cpu_time_secs peak_memory_bytes
    cpu_percent mem_percent work_dir comment tags class lost_gpu_secs gpu_use gpu_uuids gpu_events cancelled_by steps detail
}

impl RunLine<'_> {
    /// `17.0`; ids of jobs have no dot.
    pub fn is_step(&self) -> bool {
        self.shown_id.contains('.')
    }

    /// A step as a line of its own. One that shared its job had all of it.
    pub fn of_step<'s>(&self, step: &'s StepRow) -> RunLine<'s> {
        RunLine {
            id: self.id,
            attempt: self.attempt,
            shown_id: Cow::Borrowed(&step.shown_id),
            name: Cow::Borrowed(&step.name),
            account: Cow::Borrowed(&step.account),
            state: step.state,
            exit_code: step.exit_code,
            submit_time: step.start_time,
            start_time: step.start_time,
            end_time: step.end_time,
            elapsed_secs: step.elapsed_secs,
            nodes: step.nodes,
            nodelist: Cow::Borrowed(&step.nodelist),
            cpus: step
                .own
                .map(|own| own.cpus)
                .filter(|cpus| *cpus > 0)
                .unwrap_or(self.cpus),
            own: step.own,
            cpu_time_secs: step.cpu_time_secs.unwrap_or(0.0),
            peak_memory_bytes: step.peak_memory_bytes.unwrap_or(0),
            ntasks: Some(step.ntasks.max(1)),
            detail: self.detail.clone(),
            ..RunLine::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bare_row::read;
    use gwire::api::RunRow;

    #[test]
    fn every_key_of_the_contract_fits_with_its_name_and_without() {
        let full = RunRow {
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
            cancelled_by: Some("root".into()),
            tags: vec!["x".into()],
            steps: vec![StepRow::default()],
            detail: Some(Box::default()),
            ..RunRow::default()
        };
        let keyed = serde_json::to_value(&full).unwrap();
        let (names, values): (Vec<&String>, Vec<&serde_json::Value>) =
            keyed.as_object().unwrap().iter().unzip();
        let keys: Vec<Key> = names.iter().map(|name| Key::of(name)).collect();
        assert!(!keys.contains(&Key::other), "{names:?}");
        let (keyed, bare) = (
            serde_json::to_vec(&keyed).unwrap(),
            serde_json::to_vec(&values).unwrap(),
        );
        let (keyed, bare) = (
            read::<RunLine>(&keyed, &[]).unwrap(),
            read::<RunLine>(&bare, &keys).unwrap(),
        );
        assert_eq!(format!("{keyed:?}"), format!("{bare:?}"));
        assert_eq!(
            (bare.name.as_ref(), bare.steps.len(), bare.class.as_deref()),
            ("a\tb", 1, Some("borrowed"))
        );
    }
}
