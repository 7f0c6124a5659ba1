//! Which jobs are meant: the filters that `gq` and `gdel` share, as squeue and scancel spell them.

use gcli::{Failure, slurm_name};
use gmodel::JobState;
use gmodel::suggest::did_you_mean;
use gwire::api::JobQuery;
use nix::unistd::{Uid, User};

/// Filters; several of them narrow each other, values in one are alternatives.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct JobFilter {
    /// Jobs of these users, by name or number
    #[arg(short, long, value_name = "USERS", alias = "users")]
    pub user: Vec<String>,
    /// Your own jobs
    #[arg(long)]
    pub me: bool,
    /// Jobs in these partitions
    #[arg(short, long, value_name = "NAMES", alias = "partitions")]
    pub partition: Vec<String>,
    /// Jobs in these states, PENDING or PD; all shows finished ones too
    #[arg(short = 't', long, value_name = "STATES", alias = "state")]
    pub states: Vec<String>,
    /// Jobs charged to these accounts
    #[arg(short = 'A', long, value_name = "NAMES")]
    pub account: Vec<String>,
    /// Jobs of these qualities of service
    #[arg(short, long, value_name = "NAMES")]
    pub qos: Vec<String>,
    /// Jobs in these reservations
    #[arg(short = 'R', long, value_name = "NAMES")]
    pub reservation: Vec<String>,
    /// Jobs with these names
    #[arg(short, long, value_name = "NAMES", alias = "jobname")]
    pub name: Vec<String>,
    /// Jobs on these nodes: node[1-3]
    #[arg(short = 'w', long, value_name = "NODES", alias = "nodes")]
    pub nodelist: Vec<String>,
}

impl JobFilter {
    pub(crate) fn is_empty(&self) -> bool {
        !self.me && self.lists().iter().all(|(_, values)| values.is_empty())
    }

    fn lists(&self) -> [(&'static str, &Vec<String>); 8] {
        let Self {
            user,
            me: _,
            partition,
            states,
            account,
            qos,
            reservation,
            name,
            nodelist,
        } = self;
        [
            ("user", user),
            ("partition", partition),
            ("states", states),
            ("account", account),
            ("qos", qos),
            ("reservation", reservation),
            ("name", name),
            ("nodelist", nodelist),
        ]
    }

    /// A filter that was given and names nothing, as `-u "$UNSET"` does.
    pub(crate) fn blank(&self) -> Option<&'static str> {
        let nothing = |values: &Vec<String>| {
            !values.is_empty()
                && values
                    .iter()
                    .all(|list| list.split(',').all(|word| word.trim().is_empty()))
        };
        let mut lists = self.lists().into_iter();
        lists
            .find(|(_, values)| nothing(values))
            .map(|(flag, _)| flag)
    }

    /// The filters that were given: `--name=x`.
    pub(crate) fn named(&self) -> Vec<String> {
        let given = self.lists().into_iter();
        let given = given.filter(|(_, values)| !values.is_empty());
        given
            .map(|(flag, values)| format!("--{flag}={}", values.join(",")))
            .collect()
    }

    /// With what the environment says where nothing is given. Source: squeue(1).
    pub(crate) fn with_variables(&self, variable: impl Fn(&str) -> Option<String>) -> Self {
        let or = |given: &[String], end: &str| {
            if given.is_empty() {
                variable(end).into_iter().collect()
            } else {
                given.to_vec()
            }
        };
        Self {
            user: if self.me {
                self.user.clone()
            } else {
                or(&self.user, "USERS")
            },
            partition: or(&self.partition, "PARTITION"),
            states: or(&self.states, "STATES"),
            account: or(&self.account, "ACCOUNT"),
            qos: or(&self.qos, "QOS"),
            name: or(&self.name, "NAMES"),
            ..self.clone()
        }
    }

    /// The filters as the API takes them.
    ///
    /// # Errors
    /// Unknown states, node lists that cannot be read.
    pub(crate) fn query(&self) -> Result<JobQuery, Failure> {
        let mut users: Vec<String> = Vec::new();
        for user in self
            .user
            .iter()
            .flat_map(|list| list.split(','))
            .filter(|user| !user.is_empty())
        {
            users.push(user_name(user));
        }
        if self.me {
            users.push(own_name()?);
        }
        let nodelist = self.nodelist.join(",");
        if !self.nodelist.is_empty() {
            gmodel::hostlist::Hostlist::parse(&nodelist)
                .map_err(|error| Failure::usage(format_args!("--nodelist: {error}")))?;
        }
        Ok(JobQuery {
            user: users.join(","),
            partition: self.partition.join(","),
            account: self.account.join(","),
            qos: self.qos.join(","),
            name: self.name.join(","),
            reservation: self.reservation.join(","),
            state: states(&self.states.join(","))?,
            nodelist,
            ..JobQuery::default()
        })
    }
}

/// States that no job is ever in here, in Slurm's two forms: lists that name them among others are often typed.
const NEVER: [(&str, &str); 12] = [
    ("BF", "BOOT_FAIL"),
    ("CF", "CONFIGURING"),
    ("LF", "LAUNCH_FAILED"),
    ("RD", "RESV_DEL_HOLD"),
    ("RF", "REQUEUE_FED"),
    ("RH", "REQUEUE_HOLD"),
    ("RS", "RESIZING"),
    ("RV", "REVOKED"),
    ("SE", "SPECIAL_EXIT"),
    ("SI", "SIGNALING"),
    ("SO", "STAGE_OUT"),
    ("ST", "STOPPED"),
];

/// States in their long form, comma-separated; `all` stays.
///
/// # Errors
/// A word that is no state, or only states that no job is ever in here.
pub(crate) fn states(list: &str) -> Result<String, Failure> {
    let names = || JobState::ALL.map(JobState::long);
    let (mut states, mut never) = (Vec::new(), None);
    for word in list
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
    {
        if word.eq_ignore_ascii_case("all") {
            return Ok("all".to_owned());
        }
        match (
            JobState::parse(word).filter(|state| *state != JobState::Unknown),
            NEVER.iter().find(|(short, long)| {
                short.eq_ignore_ascii_case(word) || long.eq_ignore_ascii_case(word)
            }),
        ) {
            (Some(state), _) => states.push(state.long()),
            (None, Some((_, long))) => never = Some(*long),
            (None, None) => {
                let hint = did_you_mean(word, names());
                return Err(Failure::usage(format_args!(
                    "{word:?} is no state of a job.{hint} States are {}, or all",
                    names().join(", ")
                )));
            }
        }
    }
    match never {
        // Launchers look for CONFIGURING before a job runs.
        Some(_) if states.is_empty() && slurm_name::is_one(std::env::args_os().next().as_ref()) => {
            Ok(JobState::Unknown.long().to_owned())
        }
        Some(never) if states.is_empty() => Err(Failure::usage(format_args!(
            "no job here is ever {never}. States are {}, or all",
            names().join(", ")
        ))),
        _ => Ok(states.join(",")),
    }
}

/// The name of a user given by name or number; a number without a name is asked for as it is, for its user's jobs outlive it.
pub fn user_name(user: &str) -> String {
    let of_number = user
        .parse::<u32>()
        .ok()
        .and_then(|uid| User::from_uid(Uid::from_raw(uid)).ok().flatten());
    of_number.map_or_else(|| user.to_owned(), |found| found.name)
}

/// The first of these names that this machine does not know; where it cannot tell, none.
pub fn unknown_user(users: &str) -> Option<&str> {
    users
        .split(',')
        .filter(|user| !user.is_empty() && user.parse::<u32>().is_err())
        .find(|user| matches!(User::from_name(user), Ok(None)))
}

/// The user of this process.
pub(crate) fn own_name() -> Result<String, Failure> {
    name_of(Uid::current())
}

fn name_of(uid: Uid) -> Result<String, Failure> {
    match User::from_uid(uid) {
        Ok(Some(user)) => Ok(user.name),
        Ok(None) => Err(Failure::new(format_args!(
            "there is no user with the number {uid} on this machine"
        ))),
        Err(error) => Err(Failure::new(format_args!(
            "cannot look up user {uid}: {error}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_in_both_forms_and_refused_with_a_guess() {
        assert_eq!(states("pd,RUNNING").unwrap(), "PENDING,RUNNING");
        assert_eq!(states("all").unwrap(), "all");
        assert_eq!(
            states("bf,F,NODE_FAIL,Stopped").unwrap(),
            "FAILED,NODE_FAIL",
            "what never is adds nothing"
        );
        assert!(
            states("CF")
                .unwrap_err()
                .text
                .starts_with("no job here is ever CONFIGURING.")
        );
        let refused = states("RUNING").unwrap_err();
        assert!(
            refused.exit == 2 && refused.text.contains(r#"Did you mean "RUNNING"?"#),
            "{}",
            refused.text
        );
    }

    #[test]
    fn an_unknown_user_is_found() {
        assert_eq!(
            unknown_user("root,no-such-user-here,root"),
            Some("no-such-user-here")
        );
        assert_eq!(
            (
                unknown_user("root"),
                unknown_user(""),
                unknown_user("4200000001")
            ),
            (None, None, None)
        );
        assert_eq!(
            ["0", "4200000001", "ada"].map(user_name),
            ["root", "4200000001", "ada"]
        );
    }

    #[test]
    fn variables_stand_in_for_options_that_are_not_given() {
        let variable = |end: &str| Some(format!("v{}", end.to_lowercase()));
        let given = JobFilter {
            me: true,
            partition: vec!["p".into()],
            states: vec!["R".into()],
            ..JobFilter::default()
        };
        let both = given.with_variables(variable);
        assert_eq!(
            (
                both.user.join(","),
                both.partition.join(","),
                both.account.join(",")
            ),
            ("".into(), "p".into(), "vaccount".into())
        );
        assert_eq!(
            JobFilter::default().with_variables(variable).user,
            ["vusers"]
        );
    }

    #[test]
    fn filters_become_the_query_of_the_api() {
        let filter = JobFilter {
            user: vec!["0,alice".into(), "bob".into()],
            states: vec!["R".into(), "PD".into()],
            ..Default::default()
        };
        let query = filter.query().unwrap();
        assert_eq!(
            (query.user.as_str(), query.state.as_str()),
            ("root,alice,bob", "RUNNING,PENDING"),
            "lists grow"
        );
        assert!(!filter.is_empty() && JobFilter::default().is_empty());
        assert_eq!(filter.blank(), None);
        assert_eq!(
            JobFilter {
                user: vec![" ,".into()],
                ..filter
            }
            .blank(),
            Some("user")
        );
        let bad = JobFilter {
            nodelist: vec!["node[1-1000000000]".into()],
            ..Default::default()
        };
        assert_eq!(bad.query().unwrap_err().exit, 2);
    }
}
