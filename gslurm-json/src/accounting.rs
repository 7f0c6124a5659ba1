//! Accounts, associations, users, QOS, TRES and the cluster: `sacctmgr show ... --json`.

use super::association::Association;
use super::datum::{Datum, Field, blank, empty, list, number, said, text, unset, whole, zero};
use super::tres::CountedTres;
use gmodel::gpu_amounts::{ALL_GPUS, GpuAmounts};
use gmodel::hostlist;
use gmodel::policy::{Limits, PreemptMode, Qos};
use gwire::api::ClusterInfo;
use serde_json::{Value, json};
use std::sync::Arc;

/// What is counted, for the numbers of its kinds.
pub type AllTres = Arc<Vec<CountedTres>>;

/// All QOS with numbers in their order.
pub fn qos_cells(rows: Vec<Qos>, tres: &AllTres) -> impl Iterator<Item = QosCell> {
    let cell = |(id, row)| QosCell {
        id,
        row,
        tres: Arc::clone(tres),
    };
    (1..).zip(rows).map(cell)
}

/// All associations with numbers in their order.
pub fn association_cells(
    rows: Vec<Association>,
    tres: &AllTres,
) -> impl Iterator<Item = AssociationCell> {
    let cell = |(id, row)| AssociationCell {
        id,
        row,
        tres: Arc::clone(tres),
    };
    (1..).zip(rows).map(cell)
}

/// The associations of each user.
pub fn by_user(rows: Vec<Association>) -> Vec<SameName> {
    grouped(rows, |row| row.user.clone().unwrap_or_default())
}

/// The associations of each account.
pub fn by_account(rows: Vec<Association>) -> Vec<SameName> {
    grouped(rows, Association::name)
}

/// Associations of one user, or of one account.
pub struct SameName {
    name: String,
    /// At least one.
    rows: Vec<Association>,
}

fn grouped(rows: Vec<Association>, name: impl Fn(&Association) -> String) -> Vec<SameName> {
    let mut all: Vec<SameName> = Vec::new();
    for row in rows {
        let name = name(&row);
        match all.last_mut().filter(|last| last.name == name) {
            Some(last) => last.rows.push(row),
            None => all.push(SameName {
                name,
                rows: vec![row],
            }),
        }
    }
    all
}

impl SameName {
    fn short(&self) -> Datum<'_> {
        list(self.rows.iter().map(short))
    }

    fn coordinators(&self) -> Datum<'_> {
        let account = self.rows[0].account.as_ref();
        let names = account
            .into_iter()
            .flat_map(|account| &account.coordinators);
        list(names.map(|name| json!({"name": name, "direct": true})))
    }
}

fn short(row: &Association) -> Value {
    json!({"account": row.name(), "cluster": row.cluster, "partition": "", "user": row.user.as_deref().unwrap_or_default(), "id": 0})
}

pub const ACCOUNT: &[Field<SameName>] = &[
    ("associations", SameName::short),
    ("coordinators", SameName::coordinators),
    ("description", |one| {
        let account = one.rows[0].account.as_ref();
        text(account.map_or("", |account| &account.description))
    }),
    ("name", |one| text(&one.name)),
    ("organization", |one| {
        let account = one.rows[0].account.as_ref();
        text(account.map_or("", |account| {
            account.parent.as_ref().unwrap_or(&account.name)
        }))
    }),
    empty("flags"),
];

pub const USER: &[Field<SameName>] = &[
    ("administrator_level", |one| {
        let level = one.rows[0].admin.as_str();
        list([if level.is_empty() { "None" } else { level }])
    }),
    ("associations", SameName::short),
    ("coordinators", |one| {
        let accounts = one.rows[0].coordinates.split(',');
        let named = accounts.filter(|name| !name.is_empty());
        list(named.map(|name| json!({"name": name, "direct": true})))
    }),
    ("default/account", |one| text(&one.rows[0].default_account)),
    blank("default/wckey"),
    empty("flags"),
    ("name", |one| text(&one.name)),
    blank("old_name"),
    empty("wckeys"),
];

pub struct AssociationCell {
    id: u32,
    row: Association,
    tres: AllTres,
}

pub const ASSOCIATION: &[Field<AssociationCell>] = &[
    empty("accounting"),
    ("account", |one| said(one.row.name())),
    ("cluster", |one| text(&one.row.cluster)),
    blank("comment"),
    ("default/qos", |one| text(&one.row.default_qos)),
    empty("flags"),
    ("max/jobs/per/count", |one| {
        most(one.row.group().running_jobs)
    }),
    unset("max/jobs/per/accruing"),
    ("max/jobs/per/submitted", |one| {
        most(one.row.group().submitted_jobs)
    }),
    unset("max/jobs/per/wall_clock"),
    ("max/jobs/active", |one| most(one.row.each().running_jobs)),
    unset("max/jobs/accruing"),
    ("max/jobs/total", |one| most(one.row.each().submitted_jobs)),
    ("max/tres/total", |one| held(&one.row.group(), &one.tres)),
    empty("max/tres/group/minutes"),
    ("max/tres/group/active", |one| {
        running(&one.row.group(), &one.tres)
    }),
    empty("max/tres/minutes/total"),
    empty("max/tres/minutes/per/job"),
    empty("max/tres/per/job"),
    empty("max/tres/per/node"),
    unset("max/per/account/wall_clock"),
    ("id", |one| whole(one.id)),
    ("is_default", |one| Datum::Flag(one.row.of_user.is_default)),
    blank("lineage"),
    unset("min/priority_threshold"),
    ("parent_account", |one| {
        let of_account = one.row.account.as_ref().filter(|_| one.row.user.is_none());
        said(of_account.map_or(String::new(), |account| {
            account.parent.clone().unwrap_or_else(|| "root".to_owned())
        }))
    }),
    blank("partition"),
    unset("priority"),
    ("qos", |one| {
        let names = one.row.qos.split(',');
        list(names.filter(|name| !name.is_empty()))
    }),
    ("shares_raw", |one| {
        match (&one.row.user, &one.row.account) {
            (None, Some(account)) => whole(account.shares),
            _ => whole(one.row.of_user.shares),
        }
    }),
    ("user", |one| {
        text(one.row.user.as_deref().unwrap_or_default())
    }),
];

pub struct QosCell {
    id: u32,
    row: Qos,
    tres: AllTres,
}

pub const QOS: &[Field<QosCell>] = &[
    ("description", |one| text(&one.row.description)),
    empty("flags"),
    ("id", |one| whole(one.id)),
    zero("limits/grace_time"),
    unset("limits/max/active_jobs/accruing"),
    ("limits/max/active_jobs/count", |one| {
        most(one.row.group.running_jobs)
    }),
    ("limits/max/jobs/count", |one| {
        most(one.row.group.submitted_jobs)
    }),
    ("limits/max/jobs/active_jobs/per/account", |one| {
        most(one.row.per_account.running_jobs)
    }),
    ("limits/max/jobs/active_jobs/per/user", |one| {
        most(one.row.per_user.running_jobs)
    }),
    ("limits/max/jobs/per/account", |one| {
        most(one.row.per_account.submitted_jobs)
    }),
    ("limits/max/jobs/per/user", |one| {
        most(one.row.per_user.submitted_jobs)
    }),
    ("limits/max/tres/total", |one| {
        held(&one.row.group, &one.tres)
    }),
    empty("limits/max/tres/minutes/total"),
    ("limits/max/tres/minutes/per/qos", |one| {
        running(&one.row.group, &one.tres)
    }),
    empty("limits/max/tres/minutes/per/job"),
    empty("limits/max/tres/minutes/per/account"),
    empty("limits/max/tres/minutes/per/user"),
    ("limits/max/tres/per/account", |one| {
        held(&one.row.per_account, &one.tres)
    }),
    ("limits/max/tres/per/job", |one| {
        let of = &one.row.per_job;
        amounts(of.cpus, of.nodes, of.gpus.as_ref(), &one.tres)
    }),
    empty("limits/max/tres/per/node"),
    ("limits/max/tres/per/user", |one| {
        held(&one.row.per_user, &one.tres)
    }),
    unset("limits/max/wall_clock/per/qos"),
    ("limits/max/wall_clock/per/job", |one| {
        most(one.row.per_job.time_secs.map(|secs| secs.div_ceil(60)))
    }),
    unset("limits/max/accruing/per/account"),
    unset("limits/max/accruing/per/user"),
    ("limits/factor", |_| Datum::Fraction(None)),
    unset("limits/min/priority_threshold"),
    ("limits/min/tres/per/job", |one| {
        amounts(None, None, one.row.per_job.min_gpus.as_ref(), &one.tres)
    }),
    ("name", |one| text(&one.row.name)),
    ("preempt/list", |one| list(one.row.preempt.iter().cloned())),
    ("preempt/mode", |one| {
        let mode = one.row.preempt_mode.map(PreemptMode::word);
        list([mode.map_or("DISABLED".to_owned(), str::to_uppercase)])
    }),
    ("preempt/exempt_time", |one| {
        most(Some(one.row.min_run_secs).filter(|secs| *secs > 0))
    }),
    ("priority", |one| number(one.row.priority)),
    ("usage_factor", |one| {
        Datum::Fraction(Some(f64::from(one.row.usage_factor_milli) / 1000.0))
    }),
    ("usage_threshold", |_| Datum::Fraction(None)),
];

pub const TRES: &[Field<CountedTres>] = &[
    ("type", |row| text(row.kind)),
    ("name", |row| text(&row.name)),
    ("id", |row| whole(row.id)),
    zero("count"),
];

pub struct ClusterCell {
    pub info: ClusterInfo,
    /// Of its nodes.
    pub names: Vec<String>,
}

pub const CLUSTER: &[Field<ClusterCell>] = &[
    ("controller/host", |row| text(&row.info.host)),
    zero("controller/port"),
    empty("flags"),
    ("name", |row| text(&row.info.name)),
    ("nodes", |row| {
        let mut names = row.names.clone();
        hostlist::sort_names(&mut names);
        said(hostlist::compress(names))
    }),
    ("associations/root", |row| {
        Datum::Value(
            json!({"account": "root", "cluster": row.info.name, "partition": "", "user": "root", "id": 1}),
        )
    }),
    zero("rpc_version"),
    empty("tres"),
];

/// A bound; without one nothing is set.
fn most<'a>(count: Option<u32>) -> Datum<'a> {
    Datum::Number(count.map(u64::from))
}

fn held<'a>(limits: &Limits, all: &[CountedTres]) -> Datum<'a> {
    amounts(limits.cpus, limits.nodes, limits.gpus.as_ref(), all)
}

/// GPU-hours that running jobs may still use, as minutes.
fn running<'a>(limits: &Limits, all: &[CountedTres]) -> Datum<'a> {
    let minutes = limits
        .running_gpu_hours
        .map(|hours| hours.saturating_mul(60));
    list(minutes.map(|minutes| one("gres", "gpu", json!(minutes), all)))
}

fn amounts<'a>(
    cpus: Option<u32>,
    nodes: Option<u32>,
    gpus: Option<&GpuAmounts>,
    all: &[CountedTres],
) -> Datum<'a> {
    let gpus = gpus.into_iter().flat_map(|gpus| &gpus.0);
    let gpus = gpus.map(|(kind, milli)| {
        let name = match kind.as_str() {
            ALL_GPUS => "gpu".to_owned(),
            kind => format!("gpu:{kind}"),
        };
        let count = match milli % 1000 {
            0 => json!(milli / 1000),
            _ => json!(*milli as f64 / 1000.0),
        };
        one("gres", &name, count, all)
    });
    let cpus = cpus.map(|count| one("cpu", "", json!(count), all));
    let nodes = nodes.map(|count| one("node", "", json!(count), all));
    list(cpus.into_iter().chain(nodes).chain(gpus))
}

fn one(kind: &str, name: &str, count: Value, all: &[CountedTres]) -> Value {
    let known = all.iter().find(|row| row.kind == kind && row.name == name);
    json!({"type": kind, "name": name, "id": known.map_or(0, |row| row.id), "count": count})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datum::record;
    use crate::shape_tests::check;
    use gmodel::policy::{Account, AccountUser};

    fn association(user: Option<&str>) -> Association {
        Association {
            account: Some(Account {
                name: "bio".to_owned(),
                ..Account::default()
            }),
            user: user.map(str::to_owned),
            of_user: AccountUser {
                limits: Limits {
                    running_jobs: Some(3),
                    gpus: Some(GpuAmounts([("h100".to_owned(), 4000)].into())),
                    ..Limits::default()
                },
                ..AccountUser::default()
            },
            ..Association::default()
        }
    }

    #[test]
    fn records_have_the_keys_of_slurms_and_values_of_their_kinds() {
        let tres: AllTres = Arc::new(Vec::new());
        let row = association(None);
        let one = AssociationCell {
            id: 1,
            row,
            tres: tres.clone(),
        };
        check("association", ASSOCIATION, &one);
        let together = grouped(
            vec![association(None), association(Some("ada"))],
            Association::name,
        );
        assert_eq!(together.len(), 1, "both are of one account");
        check("account", ACCOUNT, &together[0]);
        check("user", USER, &together[0]);
        let row = Qos::default();
        check("qos", QOS, &QosCell { id: 1, row, tres });
        let row = CountedTres {
            kind: "cpu",
            name: String::new(),
            id: 1,
        };
        check("tres", TRES, &row);
        let info = ClusterInfo::default();
        check(
            "cluster",
            CLUSTER,
            &ClusterCell {
                info,
                names: Vec::new(),
            },
        );
    }

    #[test]
    fn a_users_bounds_are_those_of_their_line() {
        let row = association(Some("ada"));
        let kinds = CountedTres {
            kind: "gres",
            name: "gpu:h100".to_owned(),
            id: 1002,
        };
        let read = record(
            ASSOCIATION,
            &AssociationCell {
                id: 7,
                row,
                tres: Arc::new(vec![kinds]),
            },
        );
        assert_eq!(
            (&read["user"], &read["max"]["jobs"]["active"]["number"]),
            (&json!("ada"), &json!(3))
        );
        assert_eq!(read["max"]["jobs"]["per"]["count"]["set"], json!(false));
        assert_eq!(
            read["max"]["tres"]["total"],
            json!([{"type": "gres", "name": "gpu:h100", "id": 1002, "count": 4}])
        );
    }
}
