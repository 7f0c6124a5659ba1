//! The dump of sacctmgr as accounts with their users: the tree, shares, limits and QOS.
//!
//! Lines of one kind are reported together: a site has thousands of users. Source of the words: sacctmgr(1).

use crate::conf_text::TextPlace;
use crate::flat_file::{self, FlatLine, FlatTitle, MOST_BYTES, ROOT};
use crate::qos_table;
use crate::report::Fate;
use crate::site_draft::{NamedText, SiteDraft};
use crate::tres;
use gconfig::name::{is_name, is_user};
use gmodel::policy::{Account, AccountUser, Limits};
use std::collections::BTreeMap;

/// Keys of sacctmgr that a record here does not have, and what there is instead. Some records have some of them.
pub const INSTEAD: [(&str, &str); 20] = [
    (
        "adminlevel",
        "operators are listed in gpuctld.toml (operators), coordinators are made with add coordinator",
    ),
    ("defaultwckey", "jobs have tags instead: gsub --tag"),
    ("wckeys", "jobs have tags instead: gsub --tag"),
    (
        "partition",
        "a partition says itself which jobs it takes: allow_accounts, allow_users and allow_qos in partitions.d",
    ),
    (
        "maxwall",
        "a job's time is bounded by its QOS (modify qos NAME set MaxWall=) and its partition (max_time)",
    ),
    (
        "maxwalldurationperjob",
        "a job's time is bounded by its QOS (modify qos NAME set MaxWall=) and its partition (max_time)",
    ),
    (
        "maxtres",
        "a job's size is bounded by its QOS: modify qos NAME set MaxTRES=",
    ),
    (
        "maxtresperjob",
        "a job's size is bounded by its QOS: modify qos NAME set MaxTRES=",
    ),
    (
        "maxtrespernode",
        "a node's share is not bounded here; MaxTRES of a QOS bounds a job",
    ),
    (
        "maxtresmins",
        "running_gpu_hours bounds what running jobs may still use; MaxTRES and MaxWall of a QOS a job",
    ),
    (
        "grptresmins",
        "GPU-hours are budgets: gadm quota set ACCOUNT budget=cap:10000/month",
    ),
    (
        "grptresrunmins",
        "it is running_gpu_hours here: group.running_gpu_hours=100 of an account or QOS",
    ),
    (
        "grpwall",
        "GPU-hours are budgets: gadm quota set ACCOUNT budget=cap:10000/month",
    ),
    (
        "priority",
        "a QOS has a priority, an account shares: modify account NAME set fairshare=",
    ),
    (
        "qos",
        "QOS are allowed to accounts: modify account NAME set qos+=high",
    ),
    (
        "qoslevel",
        "QOS are allowed to accounts: modify account NAME set qos+=high",
    ),
    (
        "defaultqos",
        "an account has a default QOS: modify account NAME set defaultqos=",
    ),
    (
        "gracetime",
        "a job says how long it needs for its checkpoint: gsub --checkpoint USR1@120",
    ),
    (
        "flags",
        "no QOS has flags; gadm qos set --help and gpuctld.toml(5) tell its keys",
    ),
    (
        "usagethreshold",
        "an account over its share comes later, not never: fair share orders the queue",
    ),
];

/// Specifications that are not taken, by what is said of them: the first place, the first of them, how many.
#[derive(Default)]
struct LeftOut(BTreeMap<String, (usize, String, usize)>);

impl LeftOut {
    fn add(&mut self, line: &FlatLine, spec: &str, text: &str) {
        let first = || (line.number, format!("{}: {spec}", line.name), 0);
        self.0.entry(text.to_owned()).or_insert_with(first).2 += 1;
    }
}

struct DumpReader<'d> {
    draft: &'d mut SiteDraft,
    parent: String,
    left_out: LeftOut,
}

pub(crate) fn read(draft: &mut SiteDraft, file: &NamedText) {
    let source = draft.conf.text.add_source(&file.path, &file.text);
    if file.text.len() as u64 > MOST_BYTES {
        let message = format!(
            "it has {} bytes, {MOST_BYTES} are the most",
            file.text.len()
        );
        return draft.conf.text.errors.unreadable(&file.path, &message);
    }
    let lines = match flat_file::read(&file.text) {
        Ok(lines) => lines,
        Err(why) => return draft.conf.text.errors.unreadable(&file.path, &why),
    };
    let mut reader = DumpReader {
        draft,
        parent: ROOT.to_owned(),
        left_out: LeftOut::default(),
    };
    for line in &lines {
        if let Err(wrong) = reader.line(line) {
            let place = reader.draft.conf.text.line_place(source, line.number);
            reader.draft.conf.text.wrong(&place, wrong.0, wrong.1);
        }
    }
    let left_out = std::mem::take(&mut reader.left_out);
    report(draft, source, left_out);
}

fn report(draft: &mut SiteDraft, source: usize, left_out: LeftOut) {
    let accounts = &mut draft.policy.accounts;
    for account in accounts.values_mut() {
        // Without an association a user is no user of it in Slurm.
        account.users_only = account.users.is_empty();
    }
    let users: usize = accounts.values().map(|account| account.users.len()).sum();
    let said = format!("{} accounts, {users} users in them", accounts.len());
    let first = draft.conf.text.shown(&TextPlace {
        file: source,
        span: 0..0,
    });
    draft.report.add(
        Fate::Understood,
        first,
        said,
        "accounts.toml: gadm policy import accounts.toml",
    );
    for (text, (number, said, count)) in left_out.0 {
        let place = draft.conf.text.line_place(source, number);
        let place = draft.conf.text.shown(&place);
        let said = match count {
            1 => said,
            more => format!("{said} (and {} more)", more - 1),
        };
        draft.report.add(Fate::Counterpart, place, said, text);
    }
}

/// What is wrong with a value, and what would work.
pub(crate) type FieldMistake = (String, &'static str);

impl DumpReader<'_> {
    fn line(&mut self, line: &FlatLine) -> Result<(), FieldMistake> {
        match line.title {
            FlatTitle::Parent => self.parent = line.name.to_ascii_lowercase(),
            FlatTitle::Cluster => {
                for spec in &line.specs {
                    self.left_out.add(
                        line,
                        spec,
                        "limits of a cluster are those of its accounts and QOS",
                    );
                }
            }
            FlatTitle::Account if line.name == ROOT => {}
            FlatTitle::User if line.name == ROOT => {}
            FlatTitle::Account => self.account(line)?,
            FlatTitle::User => self.user(line)?,
            FlatTitle::Qos => self.qos(line)?,
        }
        Ok(())
    }

    fn qos(&mut self, line: &FlatLine) -> Result<(), FieldMistake> {
        for spec in &line.specs {
            let (key, value) = spec.split_once('=').unwrap_or((spec, ""));
            if let Some(text) = qos_table::set(self.draft, &line.name, key, value)? {
                self.left_out.add(line, spec, text);
            }
        }
        Ok(())
    }

    fn account(&mut self, line: &FlatLine) -> Result<(), FieldMistake> {
        let name = line.name.to_ascii_lowercase();
        if !is_name(&name) {
            return Err((
                format!("{:?} is no name of an account here", line.name),
                "letters, digits, '_', '-' and '.'",
            ));
        }
        let parent = (self.parent != ROOT).then(|| self.parent.clone());
        if let Some(parent) = parent
            .as_ref()
            .filter(|parent| !self.draft.policy.accounts.contains_key(*parent))
        {
            return Err((
                format!("the account {parent:?} above it is not there"),
                "its line comes first",
            ));
        }
        let mut account = Account {
            name: name.clone(),
            parent,
            ..Account::default()
        };
        for spec in &line.specs {
            let (key, value) = spec.split_once('=').unwrap_or((spec, ""));
            let taken = self.account_key(&mut account, key, value)?;
            if let Some(text) = taken {
                self.left_out.add(line, spec, text);
            }
        }
        if let Some(usual) = account.default_qos.clone()
            && !account.allow_qos.is_empty()
            && !account.allow_qos.contains(&usual)
        {
            account.allow_qos.push(usual);
        }
        match self.draft.policy.accounts.contains_key(&name) {
            true => Err((
                format!("account {name:?} is there twice"),
                "an account has one parent",
            )),
            false => {
                self.draft.policy.accounts.insert(name, account);
                Ok(())
            }
        }
    }

    /// What is to be said of a key that is not taken.
    fn account_key(
        &mut self,
        account: &mut Account,
        key: &str,
        value: &str,
    ) -> Result<Option<&'static str>, FieldMistake> {
        let lower = key.to_ascii_lowercase();
        match lower.as_str() {
            "description" => {
                account.description = value.replace(|sign: char| sign.is_control(), " ")
            }
            "organization" | "" => {}
            "fairshare" | "share" => return Ok(shares(value, &mut account.shares)),
            "grptres" => return limit_tres(value, &mut account.group),
            "grpjobs" => account.group.running_jobs = count(value)?,
            "grpsubmitjobs" | "grpsubmit" => account.group.submitted_jobs = count(value)?,
            "grpcpus" => account.group.cpus = count(value)?,
            "grpnodes" => account.group.nodes = count(value)?,
            "maxjobs" => account.per_user.running_jobs = count(value)?,
            "maxsubmitjobs" | "maxsubmit" => account.per_user.submitted_jobs = count(value)?,
            "qos" | "qoslevel" => account.allow_qos = self.qos_names(value),
            "defaultqos" => account.default_qos = self.qos_names(value).into_iter().next(),
            _ => return Ok(Some(instead(&lower))),
        }
        Ok(None)
    }

    /// `normal,+high,-low`: what is taken away from a parent's list is no list here.
    fn qos_names(&mut self, value: &str) -> Vec<String> {
        let names = value
            .split(',')
            .map(|name| name.trim().trim_start_matches('+').to_ascii_lowercase());
        let names: Vec<String> = names
            .filter(|name| is_name(name) && !name.starts_with('-'))
            .collect();
        names.iter().for_each(|name| self.draft.know_qos(name));
        names
    }

    fn user(&mut self, line: &FlatLine) -> Result<(), FieldMistake> {
        if !is_user(&line.name) {
            return Err((
                format!("{:?} is no name of a user", line.name),
                "without blanks and separators",
            ));
        }
        if self.parent == ROOT {
            self.left_out
                .add(line, "", "no job is charged to root, and no user is in it");
            return Ok(());
        }
        if line
            .value("partition")
            .is_some_and(|value| !value.is_empty())
        {
            self.left_out.add(line, "Partition=", instead("partition"));
            return Ok(());
        }
        let mut user = AccountUser::default();
        for spec in &line.specs {
            let (key, value) = spec.split_once('=').unwrap_or((spec, ""));
            if let Some(text) = self.user_key(&mut user, key, value)? {
                self.left_out.add(line, spec, text);
            }
        }
        let coordinates = line
            .value("coordinator")
            .unwrap_or_default()
            .to_ascii_lowercase();
        let Some(account) = self.draft.policy.accounts.get_mut(&self.parent) else {
            return Err((
                format!("the account {:?} above it is not there", self.parent),
                "its line comes first",
            ));
        };
        account.users.insert(line.name.clone(), user);
        for name in coordinates.split(',').map(str::trim) {
            if let Some(account) = self.draft.policy.accounts.get_mut(name) {
                account.coordinators.insert(line.name.clone());
            }
        }
        Ok(())
    }

    fn user_key(
        &self,
        user: &mut AccountUser,
        key: &str,
        value: &str,
    ) -> Result<Option<&'static str>, FieldMistake> {
        let lower = key.to_ascii_lowercase();
        match lower.as_str() {
            "" | "coordinator" | "partition" => {}
            "defaultaccount" => user.is_default = value.eq_ignore_ascii_case(&self.parent),
            "defaultwckey" | "wckeys" | "adminlevel" if ["", "None", "*"].contains(&value) => {}
            "fairshare" | "share" => return Ok(shares(value, &mut user.shares)),
            "grptres" => return limit_tres(value, &mut user.limits),
            "grpjobs" | "maxjobs" => user.limits.running_jobs = count(value)?,
            "grpsubmitjobs" | "grpsubmit" | "maxsubmitjobs" | "maxsubmit" => {
                user.limits.submitted_jobs = count(value)?
            }
            _ => return Ok(Some(instead(&lower))),
        }
        Ok(None)
    }
}

fn instead(key: &str) -> &'static str {
    let known = INSTEAD.iter().find(|(known, _)| *known == key);
    known.map_or(
        "it has no counterpart: gpuctld.toml(5) has the keys of accounts and users",
        |(_, text)| text,
    )
}

fn shares(value: &str, shares: &mut u32) -> Option<&'static str> {
    match value.parse::<u32>() {
        Ok(count) => {
            *shares = count.min(1_000_000);
            None
        }
        Err(_) => Some(
            "users of an account share it by their shares; Fairshare=parent has no counterpart",
        ),
    }
}

/// A bound; `-1` is none.
pub(crate) fn count(value: &str) -> Result<Option<u32>, FieldMistake> {
    match value.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(count) if count >= 0 => Ok(Some(
            u32::try_from(count).unwrap_or(u32::MAX).min(100_000_000),
        )),
        _ => Err((
            format!("{value:?} is no number"),
            "as 20, or -1 for no bound",
        )),
    }
}

/// What of a list of resources bounds what is held at once.
pub(crate) fn limit_tres(
    value: &str,
    limits: &mut Limits,
) -> Result<Option<&'static str>, FieldMistake> {
    let list = tres::amounts(value).ok_or((
        format!("{value:?} is no list of resources"),
        "as cpu=64,gres/gpu=8",
    ))?;
    limits.cpus = list.cpus.or(limits.cpus);
    limits.nodes = list.nodes.or(limits.nodes);
    limits.gpus = list.gpus.or(limits.gpus.take());
    let beyond = list.mem_bytes.is_some() || !list.rest.is_empty();
    Ok(beyond.then_some(
        "GPUs, CPUs and nodes are bounded; of memory and other resources there is no bound",
    ))
}
