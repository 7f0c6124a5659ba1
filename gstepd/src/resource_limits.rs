//! The resource limits of the job's processes: hard ones from a PAM session, soft ones from the submission. Never sets the
//! supervisor's own. Source: `--propagate` in sbatch(1), setrlimit(2).

use gmodel::job::{LimitName, SoftLimit};
use gsys::launch::{Resource, Rlimit};

/// What every process of the job is started with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobLimits {
    /// Limits of the PAM session; empty: the supervisor's own.
    pub session: Vec<Rlimit>,
    /// The submission's.
    pub soft: Vec<(Resource, u64)>,
}

impl JobLimits {
    pub fn new(session: Vec<Rlimit>, submission: &[SoftLimit]) -> JobLimits {
        JobLimits {
            session,
            soft: submission.iter().filter_map(soft).collect(),
        }
    }

    /// Of a step: where its client sent limits, these.
    pub fn of_step(&self, client: &[SoftLimit]) -> JobLimits {
        match client.is_empty() {
            true => self.clone(),
            false => Self::new(self.session.clone(), client),
        }
    }

    /// For the run's log: the limits that this node cannot give.
    pub fn shortfall(&self) -> Option<String> {
        let short: Vec<String> = self
            .soft
            .iter()
            .filter_map(|(resource, soft)| self.cut(*resource, *soft))
            .collect();
        (!short.is_empty()).then(|| {
            format!(
                "resource limits cut to this node's hard limits: {}",
                short.join(", ")
            )
        })
    }

    fn cut(&self, resource: Resource, soft: u64) -> Option<String> {
        let of_session = self
            .session
            .iter()
            .find(|limit| limit.resource == resource)
            .copied();
        let hard = of_session.or_else(|| resource.current().ok())?.hard;
        (soft > hard).then(|| format!("{} {} to {hard}", resource.name(), in_words(soft)))
    }
}

fn soft(limit: &SoftLimit) -> Option<(Resource, u64)> {
    Some((resource(limit.name)?, limit.soft.unwrap_or(u64::MAX)))
}

/// MEMLOCK stays the node's: sites give it without limit for RDMA, and a login node's 8 MiB would break every such job.
fn resource(name: LimitName) -> Option<Resource> {
    match name {
        LimitName::As => Some(Resource::As),
        LimitName::Core => Some(Resource::Core),
        LimitName::Cpu => Some(Resource::Cpu),
        LimitName::Data => Some(Resource::Data),
        LimitName::Fsize => Some(Resource::Fsize),
        LimitName::Nofile => Some(Resource::Nofile),
        LimitName::Nproc => Some(Resource::Nproc),
        LimitName::Rss => Some(Resource::Rss),
        LimitName::Stack => Some(Resource::Stack),
        LimitName::Memlock | LimitName::Unknown => None,
    }
}

fn in_words(limit: u64) -> String {
    if limit == u64::MAX {
        "unlimited".to_owned()
    } else {
        limit.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_memory_stays_the_nodes_and_what_is_cut_is_said() {
        let limit = |name, soft| SoftLimit { name, soft };
        let submission = [
            limit(LimitName::Memlock, Some(65_536)),
            limit(LimitName::Nofile, Some(4096)),
            limit(LimitName::Core, None),
            limit(LimitName::Unknown, Some(1)),
        ];
        let hard = |resource, hard| Rlimit {
            resource,
            soft: 1,
            hard,
        };
        let limits = JobLimits::new(
            vec![hard(Resource::Nofile, 1000), hard(Resource::Core, u64::MAX)],
            &submission,
        );
        assert_eq!(
            limits.soft,
            [(Resource::Nofile, 4096), (Resource::Core, u64::MAX)]
        );
        let text = limits.shortfall().unwrap();
        assert_eq!(
            text,
            "resource limits cut to this node's hard limits: NOFILE 4096 to 1000"
        );
        assert_eq!(
            JobLimits::new(Vec::new(), &[limit(LimitName::Nofile, Some(1))]).shortfall(),
            None
        );
    }
}
