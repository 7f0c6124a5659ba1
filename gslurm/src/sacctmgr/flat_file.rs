//! `sacctmgr dump` and `load`: accounts, their users and QOS as the flat file of sacctmgr(1), so that a site brings over its own.
//!
//! The file's form is gimport's affair. What a specification means is `change`'s and gadm's affair; one that has no meaning here is told and left out.

use super::change::{Change, ChangeTarget, Verb};
use super::edit::PolicyRecords;
use super::entity::Entity;
use super::limits::tres;
use gadm::policy::account::{self, AccountAct};
use gadm::policy::qos::QosAct;
use gadm::policy::user::{self, UserAct};
use gadm::policy::{self, NameAndWords};
use gcli::{Failure, Outcome, cluster_choice};
use gimport::flat_file::{FlatLine, FlatTitle, MOST_BYTES, ROOT, read};
use gmodel::policy::account::tree;
use gmodel::policy::{Account, AccountUser, Limits};
use gwire::api::ClusterInfo;
use gwire::client::Client;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write;

/// `FILE`, `file=FILE`, `cluster=NAME`.
#[derive(Debug, Default)]
struct FlatWords {
    file: Option<String>,
    cluster: String,
}

impl FlatWords {
    /// A word without a key is the file of `load` and the cluster of `dump`.
    fn of(words: &[String], bare_is_file: bool) -> Result<Self, Failure> {
        let mut read = Self::default();
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or(("", word));
            match key.to_ascii_lowercase().as_str() {
                "file" => read.file = Some(value.to_owned()),
                "cluster" => value.clone_into(&mut read.cluster),
                "" if value.eq_ignore_ascii_case("clean") => return Err(Failure::usage(CLEAN)),
                "clean" => return Err(Failure::usage(CLEAN)),
                "" if bare_is_file => read.file = Some(value.to_owned()),
                "" => value.clone_into(&mut read.cluster),
                _ => {
                    return Err(Failure::usage(format_args!(
                        "{word:?} is not taken here: file= and cluster= are"
                    )));
                }
            }
        }
        Ok(read)
    }
}

const CLEAN: &str = "clean would remove accounts that jobs were charged to: delete or close accounts one by one, then load";

/// `sacctmgr dump`.
///
/// # Errors
/// Another cluster; a file that cannot be written.
pub(super) fn dump(words: &[String]) -> Outcome {
    let asked = FlatWords::of(words, false)?;
    let mut client = gcli::connect("sacctmgr")?;
    cluster_choice::check(&asked.cluster, &mut client)?;
    let cluster = client.get::<ClusterInfo>("/v1/cluster")?.name;
    let accounts = account::read_all(&mut client)?;
    let text = text_of(&cluster, &accounts);
    let path = asked.file.unwrap_or_else(|| format!("{cluster}.cfg"));
    std::fs::write(&path, text)
        .map_err(|error| Failure::new(format_args!("cannot write {path}: {error}")))?;
    let beyond = |one: &&Account| one.guaranteed.is_some() || !one.budgets.is_empty();
    if let Some(one) = accounts.iter().find(beyond) {
        writeln!(
            std::io::stderr(),
            "sacctmgr: guarantees and budgets, as of {}, are not in {path}: gadm policy export writes all",
            one.name
        )?;
    }
    Ok(0)
}

/// The file: the cluster, then each account below its parent, with its users.
fn text_of(cluster: &str, accounts: &[Account]) -> String {
    let mut out = format!("Cluster - '{cluster}'\nParent - '{ROOT}'\n");
    let _ = writeln!(
        out,
        "User - '{ROOT}':DefaultAccount='{ROOT}':AdminLevel='Administrator':Fairshare=1"
    );
    let open: Vec<Account> = accounts.iter().filter(|one| !one.closed).cloned().collect();
    let of_parent = |parent: Option<&str>, out: &mut String| {
        for one in open.iter().filter(|one| one.parent.as_deref() == parent) {
            let _ = writeln!(out, "Account - '{}'{}", one.name, account_specs(one));
        }
    };
    of_parent(None, &mut out);
    for (_, one) in tree(&open) {
        let has_own = open
            .iter()
            .any(|other| other.parent.as_ref() == Some(&one.name));
        if !has_own && one.users.is_empty() {
            continue;
        }
        let _ = writeln!(out, "Parent - '{}'", one.name);
        of_parent(Some(&one.name), &mut out);
        for (name, user) in &one.users {
            let _ = writeln!(out, "User - '{name}'{}", user_specs(one, name, user));
        }
    }
    out
}

fn account_specs(one: &Account) -> String {
    let mut specs = String::new();
    let mut add = |key: &str, value: String| {
        if !value.is_empty() {
            let _ = write!(specs, ":{key}={value}");
        }
    };
    let quoted = |text: &str| match text.is_empty() {
        true => String::new(),
        false => format!("'{}'", text.replace(['\'', '\n'], " ")),
    };
    add("Description", quoted(&one.description));
    add("Fairshare", one.shares.to_string());
    let gpus = one.limit.as_ref().or(one.group.gpus.as_ref());
    add("GrpTRES", tres(None, None, gpus));
    add_counts(
        &one.group,
        ["GrpJobs", "GrpSubmitJobs", "GrpCPUs", "GrpNodes"],
        &mut add,
    );
    add_counts(
        &one.per_user,
        ["MaxJobs", "MaxSubmitJobs", "MaxCPUs", "MaxNodes"],
        &mut add,
    );
    add("QOS", quoted(&one.allow_qos.join(",")));
    add(
        "DefaultQOS",
        quoted(one.default_qos.as_deref().unwrap_or_default()),
    );
    specs
}

fn add_counts(limits: &Limits, keys: [&str; 4], add: &mut impl FnMut(&str, String)) {
    let counts = [
        limits.running_jobs,
        limits.submitted_jobs,
        limits.cpus,
        limits.nodes,
    ];
    for (key, count) in keys.into_iter().zip(counts) {
        add(
            key,
            count.map(|count| count.to_string()).unwrap_or_default(),
        );
    }
}

fn user_specs(account: &Account, name: &str, user: &AccountUser) -> String {
    let mut specs = format!(":Fairshare={}", user.shares);
    if user.is_default {
        let _ = write!(specs, ":DefaultAccount='{}'", account.name);
    }
    if account.coordinators.contains(name) {
        let _ = write!(specs, ":Coordinator='{}'", account.name);
    }
    let gpus = tres(None, None, user.limits.gpus.as_ref());
    let mut add = |key: &str, value: String| {
        if !value.is_empty() {
            let _ = write!(specs, ":{key}={value}");
        }
    };
    add("GrpTRES", gpus);
    add_counts(
        &user.limits,
        ["MaxJobs", "MaxSubmitJobs", "MaxCPUs", "MaxNodes"],
        &mut add,
    );
    specs
}

/// `sacctmgr load`.
///
/// # Errors
/// A file that cannot be read or has a line of another form; what the controller refuses, with its line. Lines before it are done.
pub(super) fn load(words: &[String], immediate: bool) -> Outcome {
    let asked = FlatWords::of(words, true)?;
    let path = asked
        .file
        .ok_or_else(|| Failure::usage("load what? load file=pool.cfg"))?;
    let text = read_file(&path)?;
    let lines = read(&text).map_err(|why| Failure::new(format_args!("{path}: {why}")))?;
    let mut client = gcli::connect("sacctmgr")?;
    cluster_choice::check(&asked.cluster, &mut client)?;
    let records = PolicyRecords::read(&mut client)?;
    let count = |title| lines.iter().filter(|line| line.title == title).count();
    let question = format!(
        "load {} QOS, {} account(s) and {} user(s)?",
        count(FlatTitle::Qos),
        count(FlatTitle::Account),
        count(FlatTitle::User)
    );
    policy::confirm_saying(immediate, &question, "-i")?;
    let mut load = Load {
        client: &mut client,
        accounts: records
            .accounts
            .iter()
            .map(|one| one.name.clone())
            .collect(),
        users: BTreeSet::new(),
        qos: records.qos.into_iter().collect(),
        parent: ROOT.to_owned(),
    };
    for one in &records.accounts {
        let users = one
            .users
            .keys()
            .map(|user| (one.name.clone(), user.clone()));
        load.users.extend(users);
    }
    for line in &lines {
        load.line(line).map_err(|failure| {
            let text = format!("{path}, line {}: {}", line.number, failure.text);
            Failure { text, ..failure }
        })?;
    }
    Ok(0)
}

fn read_file(path: &str) -> Result<String, Failure> {
    let failure = |error: std::io::Error| Failure::new(format_args!("cannot read {path}: {error}"));
    let size = std::fs::metadata(path).map_err(failure)?.len();
    if size > MOST_BYTES {
        return Err(Failure::new(format_args!(
            "{path} has {size} bytes, and {MOST_BYTES} are the most: split it"
        )));
    }
    std::fs::read_to_string(path).map_err(failure)
}

/// What is there already, and where the file is.
struct Load<'c> {
    client: &'c mut Client,
    accounts: BTreeSet<String>,
    /// With their accounts.
    users: BTreeSet<(String, String)>,
    qos: BTreeSet<String>,
    parent: String,
}

impl Load<'_> {
    fn line(&mut self, line: &FlatLine) -> Result<(), Failure> {
        match line.title {
            FlatTitle::Parent => line.name.clone_into(&mut self.parent),
            FlatTitle::Cluster if line.specs.is_empty() => {}
            FlatTitle::Cluster => self.say(
                line,
                "limits of a cluster are those of its accounts and QOS",
            )?,
            // The line of root is in each file.
            FlatTitle::User if line.name == ROOT => {}
            FlatTitle::User => self.user(line)?,
            FlatTitle::Account => self.account(line)?,
            FlatTitle::Qos => self.qos(line)?,
        }
        Ok(())
    }

    fn say(&self, line: &FlatLine, what: &str) -> Result<(), Failure> {
        writeln!(std::io::stderr(), "sacctmgr: line {}: {what}", line.number)?;
        Ok(())
    }

    /// The specifications that have a meaning here; of the others it is told that they are left out.
    fn taken(&self, line: &FlatLine, kind: Entity, skip: &[&str]) -> Result<Vec<String>, Failure> {
        let mut taken = Vec::new();
        for spec in &line.specs {
            let key = spec.split('=').next().unwrap_or_default();
            if skip.iter().any(|one| key.eq_ignore_ascii_case(one)) {
                continue;
            }
            let words = ["x".to_owned(), spec.clone()];
            let read = Change::of(Verb::Add, ChangeTarget::Record(kind), &words);
            let read = read.and_then(|change| {
                match kind {
                    Entity::Qos => policy::qos::check(&change.set)?,
                    Entity::Users => user::check(&change.set)?,
                    _ => account::check(&change.set)?,
                }
                Ok(change.set)
            });
            match read {
                Ok(set) => taken.extend(set),
                Err(why) => self.say(line, &format!("{spec} is left out: {}", why.text))?,
            }
        }
        Ok(taken)
    }

    fn qos(&mut self, line: &FlatLine) -> Result<(), Failure> {
        let set = self.taken(line, Entity::Qos, &[])?;
        let words = NameAndWords::of(line.name.clone(), set.clone());
        match self.qos.insert(line.name.clone()) {
            true => policy::qos::run(self.client, QosAct::Add(words))?,
            false if set.is_empty() => 0,
            false => policy::qos::run(self.client, QosAct::Set(words))?,
        };
        Ok(())
    }

    fn account(&mut self, line: &FlatLine) -> Result<(), Failure> {
        if line.name == ROOT {
            return Ok(());
        }
        let mut set = self.taken(line, Entity::Accounts, &["organization"])?;
        let parent = if self.parent == ROOT {
            "none"
        } else {
            &self.parent
        };
        let is_new = self.accounts.insert(line.name.clone());
        if !is_new || parent != "none" {
            set.push(format!("parent={parent}"));
        }
        let words = NameAndWords::of(line.name.clone(), set);
        match is_new {
            true => account::run(self.client, AccountAct::Add(words))?,
            false => account::run(self.client, AccountAct::Set(words))?,
        };
        Ok(())
    }

    fn user(&mut self, line: &FlatLine) -> Result<(), Failure> {
        if self.parent == ROOT {
            return self.say(line, "no job is charged to root, and no user is in it");
        }
        let skip = [
            "defaultaccount",
            "coordinator",
            "adminlevel",
            "defaultwckey",
        ];
        let mut set = self.taken(line, Entity::Users, &skip)?;
        let value = |wanted: &str| {
            let found = line.specs.iter().find_map(|spec| {
                let (key, value) = spec.split_once('=')?;
                key.eq_ignore_ascii_case(wanted).then_some(value)
            });
            found.unwrap_or_default()
        };
        let level = value("adminlevel");
        if !["", "None"].contains(&level) {
            let text =
                format!("AdminLevel={level} is left out: operators are listed in gpuctld.toml");
            self.say(line, &text)?;
        }
        set.insert(0, format!("account={}", self.parent));
        set.extend((value("defaultaccount") == self.parent).then(|| "default=yes".to_owned()));
        let is_new = self.users.insert((self.parent.clone(), line.name.clone()));
        let words = user::UserWords::of(line.name.clone(), set.clone());
        match is_new {
            true => user::run(self.client, UserAct::Add(words))?,
            false if set.len() == 1 => 0,
            false => user::run(self.client, UserAct::Set(words))?,
        };
        let coordinates = value("coordinator").split(',').map(str::trim);
        for name in coordinates.filter(|name| self.accounts.contains(*name)) {
            let set = vec![format!("coordinators+={}", line.name)];
            let words = NameAndWords::of(name.to_owned(), set);
            account::run(self.client, AccountAct::Set(words))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dumped_is_read_again() {
        let account = |name: &str, parent: Option<&str>| Account {
            name: name.to_owned(),
            parent: parent.map(str::to_owned),
            ..Account::default()
        };
        let mut lab = account("lab", None);
        lab.description = "it's ours".to_owned();
        lab.group.running_jobs = Some(7);
        lab.coordinators = BTreeSet::from(["ada".to_owned()]);
        let user = AccountUser {
            is_default: true,
            ..AccountUser::default()
        };
        lab.users.insert("ada".to_owned(), user);
        let text = text_of("pool", &[lab, account("bio", Some("lab"))]);
        expect_test::expect![[r#"
            Cluster - 'pool'
            Parent - 'root'
            User - 'root':DefaultAccount='root':AdminLevel='Administrator':Fairshare=1
            Account - 'lab':Description='it s ours':Fairshare=1:GrpJobs=7
            Parent - 'lab'
            Account - 'bio':Fairshare=1
            User - 'ada':Fairshare=1:DefaultAccount='lab':Coordinator='lab'
        "#]]
        .assert_eq(&text);
        assert_eq!(read(&text).unwrap().len(), 7);
    }
}
