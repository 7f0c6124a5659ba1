//! `sacctmgr -P show qos`: a line of names, then a line for each QOS, with bars between.

use crate::association::{FieldMistake, INSTEAD, count, limit_tres};
use crate::flat_file::MOST_BYTES;
use crate::report::Fate;
use crate::site_draft::{NamedText, SiteDraft};
use crate::tres;
use gconfig::name::is_name;
use gmodel::duration::TimeLimit;
use gmodel::policy::{PreemptMode, Qos};
use std::collections::BTreeMap;

pub(crate) fn read(draft: &mut SiteDraft, file: &NamedText) {
    let source = draft.conf.text.add_source(&file.path, &file.text);
    if file.text.len() as u64 > MOST_BYTES {
        return draft
            .conf
            .text
            .errors
            .unreadable(&file.path, &"it is too long");
    }
    let mut lines = file
        .text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    let head: Vec<&str> = lines
        .next()
        .map(|(_, line)| line.split('|').collect())
        .unwrap_or_default();
    if head.first() != Some(&"Name") || head.len() < 2 {
        let why = "its first line does not begin with Name|: sacctmgr -P show qos prints it so";
        return draft.conf.text.errors.unreadable(&file.path, &why);
    }
    let mut rows = QosRows {
        head,
        left_out: BTreeMap::new(),
        names: Vec::new(),
    };
    for (at, line) in lines {
        let place = draft.conf.text.line_place(source, at + 1);
        if let Err((message, hint)) = rows.add(draft, line) {
            draft.conf.text.wrong(&place, message, hint);
        }
    }
    let first = file.path.display().to_string();
    let said = format!("{} QOS: {}", rows.names.len(), rows.names.join(", "));
    draft
        .report
        .add(Fate::Understood, first.clone(), said, "policy.d/qos.toml");
    for (text, said) in rows.left_out {
        draft
            .report
            .add(Fate::Counterpart, first.clone(), said, text);
    }
}

/// The columns, and what was found in the lines so far.
struct QosRows<'t> {
    head: Vec<&'t str>,
    /// What is said of keys that are not taken, with the first of them.
    left_out: BTreeMap<&'static str, String>,
    names: Vec<String>,
}

impl QosRows<'_> {
    fn add(&mut self, draft: &mut SiteDraft, line: &str) -> Result<(), FieldMistake> {
        let cells: Vec<&str> = line.split('|').collect();
        if cells.len() != self.head.len() {
            let (found, wanted) = (cells.len(), self.head.len());
            let message = format!("the line has {found} columns, the first line {wanted}");
            return Err((message, "sacctmgr -P show qos prints as many"));
        }
        self.names.push(cells[0].to_ascii_lowercase());
        let said = self.head.iter().zip(&cells).skip(1);
        for (key, value) in said.filter(|(_, value)| !value.is_empty()) {
            if let Some(text) = set(draft, cells[0], key, value)? {
                let first = || format!("{}: {key}={value}", cells[0]);
                self.left_out.entry(text).or_insert_with(first);
            }
        }
        Ok(())
    }
}

/// Sets a key of a QOS, which is made if it is not there. Gives what is to be said of a key that is not taken.
pub(crate) fn set(
    draft: &mut SiteDraft,
    name: &str,
    key: &str,
    value: &str,
) -> Result<Option<&'static str>, FieldMistake> {
    let name = name.to_ascii_lowercase();
    if !is_name(&name) {
        return Err((
            format!("{name:?} is no name of a QOS here"),
            "letters, digits, '_', '-' and '.'",
        ));
    }
    draft.know_qos(&name);
    let lower = key.to_ascii_lowercase();
    if lower == "preempt" {
        let others: Vec<String> = value
            .split(',')
            .map(str::to_ascii_lowercase)
            .filter(|one| is_name(one) && *one != name)
            .collect();
        others.iter().for_each(|other| draft.know_qos(other));
        if let Some(qos) = draft.policy.qos.get_mut(&name) {
            qos.preempt = others.into_iter().collect();
        }
        return Ok(None);
    }
    match draft.policy.qos.get_mut(&name) {
        Some(qos) => set_key(qos, &lower, value),
        None => Ok(None),
    }
}

fn set_key(qos: &mut Qos, key: &str, value: &str) -> Result<Option<&'static str>, FieldMistake> {
    match key {
        "description" | "descr" => {
            qos.description = value.replace(|sign: char| sign.is_control(), " ")
        }
        "priority" => qos.priority = count(value)?.unwrap_or(0),
        "usagefactor" => {
            let weights = tres::weights(&format!("cpu={value}"));
            let weights = weights.ok_or((format!("{value:?} is no factor"), "as 1.5"))?;
            qos.usage_factor_milli = u32::try_from(weights.cpu_milli)
                .unwrap_or(u32::MAX)
                .min(1_000_000);
        }
        "preemptmode" => match value.to_ascii_lowercase().as_str() {
            "off" => qos.preempt_mode = Some(PreemptMode::Off),
            "requeue" => qos.preempt_mode = Some(PreemptMode::Requeue),
            "cancel" => qos.preempt_mode = Some(PreemptMode::Cancel),
            "suspend" => qos.preempt_mode = Some(PreemptMode::Suspend),
            _ => {}
        },
        "preemptexempttime" => qos.min_run_secs = secs(value)?.unwrap_or(0).min(31_622_400),
        "grptres" => return limit_tres(value, &mut qos.group),
        "grpjobs" => qos.group.running_jobs = count(value)?,
        "grpsubmit" | "grpsubmitjobs" => qos.group.submitted_jobs = count(value)?,
        "maxtrespu" | "maxtresperuser" => return limit_tres(value, &mut qos.per_user),
        "maxjobspu" | "maxjobsperuser" => qos.per_user.running_jobs = count(value)?,
        "maxsubmitpu" | "maxsubmitjobspu" | "maxsubmitjobsperuser" => {
            qos.per_user.submitted_jobs = count(value)?
        }
        "maxtrespa" | "maxtresperaccount" => return limit_tres(value, &mut qos.per_account),
        "maxjobspa" | "maxjobsperaccount" => qos.per_account.running_jobs = count(value)?,
        "maxsubmitpa" | "maxsubmitjobspa" | "maxsubmitjobsperaccount" => {
            qos.per_account.submitted_jobs = count(value)?
        }
        "maxwall" | "maxwalldurationperjob" => qos.per_job.time_secs = secs(value)?,
        "maxtres" | "maxtrespj" | "maxtresperjob" => {
            let list = tres::amounts(value).ok_or((
                format!("{value:?} is no list of resources"),
                "as cpu=64,gres/gpu=8",
            ))?;
            qos.per_job.cpus = list.cpus.filter(|count| *count > 0);
            qos.per_job.nodes = list.nodes.filter(|count| *count > 0);
            qos.per_job.gpus = list.gpus;
        }
        "mintres" | "mintrespj" | "mintresperjob" => {
            qos.per_job.min_gpus = tres::amounts(value).and_then(|list| list.gpus);
        }
        "gracetime" if value == "00:00:00" || value == "0" => {}
        _ => return Ok(Some(instead(key))),
    }
    Ok(None)
}

fn instead(key: &str) -> &'static str {
    let known = INSTEAD.iter().find(|(known, _)| *known == key);
    known.map_or(
        "it has no counterpart: gpuctld.toml(5) has the keys of a QOS",
        |(_, text)| text,
    )
}

fn secs(value: &str) -> Result<Option<u32>, FieldMistake> {
    let limit =
        TimeLimit::parse(value).map_err(|_| (format!("{value:?} is no time"), "as 2-00:00:00"))?;
    Ok(limit
        .secs()
        .map(|secs| u32::try_from(secs).unwrap_or(u32::MAX)))
}
