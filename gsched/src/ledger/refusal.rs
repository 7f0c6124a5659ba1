//! What refuses a job that would take so much now: limits, caps, licences, a guarantee it may not exceed, GPUs that stay idle.
//!
//! Changes nothing. The comparison with one limit is gpolicy's.

use super::limits::LimitId;
use super::nominated_usage::NominatedUsage;
use super::owner::UsageOwner;
use super::shortage::budget_text;
use super::{Ledger, Shortage, Take};
use crate::headroom::HeadroomTime;
use crate::snapshot::PendingJob;
use gmodel::gpu_amounts::milli_text;
use gmodel::policy::BudgetKind;
use gmodel::{JobId, JobSpec, Reason, ReasonCode, RunClass};
use gpolicy::budget::{BudgetExcess, BudgetUse};
use gpolicy::limits::{Holding, Meter, Scope, hours_text, job_exceeds};
use std::iter::once_with;

/// A limit that refuses a job: which it is, and the reason for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitRefusal {
    pub kind: LimitKind,
    pub reason: Reason,
}

/// A limit that refuses a job, by the runs that hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LimitKind {
    /// No run's end makes room: a bound on one job, a cap, or more than the whole limit.
    Fixed,
    Licence,
    /// The job's own reservation of GPUs.
    Reservation,
    Bound(LimitId),
    /// Of the accounts below this one.
    Guarantee(u32),
    /// GPUs of this partition that stay idle.
    Headroom(Option<usize>),
    /// The cap of the array with this id, of which so many tasks run.
    ArrayCap(JobId, u32),
}

/// What a job would hold, for which owner and in which class.
struct JobUsage<'a> {
    job: &'a PendingJob,
    owner: UsageOwner,
    held: Holding,
    class: Option<RunClass>,
}

impl Ledger {
    /// Whether a job may take so much now, and in which class it would run (`None` where there are no quotas). Limits of
    /// some kinds are left out.
    ///
    /// # Errors
    /// The first other limit that refuses the job, with its value and the use.
    pub(crate) fn check_but(
        &self,
        job: &PendingJob,
        take: &Take,
        is_left_out: impl Fn(LimitKind) -> bool,
    ) -> Result<Option<RunClass>, LimitRefusal> {
        let usage = self.usage_of(job, take);
        let refusal = self.refusals(&usage).find(|no| !is_left_out(no.kind));
        refusal.map_or(Ok(usage.class), Err)
    }

    /// As [`Ledger::check_but`] without headroom and lending limits, for which preemption makes room.
    ///
    /// # Errors
    /// The first limit but headroom and lending limits.
    pub(crate) fn check_but_idle(
        &self,
        job: &PendingJob,
        take: &Take,
    ) -> Result<Option<RunClass>, LimitRefusal> {
        self.check_but(job, take, |kind| matches!(kind, LimitKind::Headroom(_)))
    }

    /// Everything that refuses a job that would take so much now.
    pub(crate) fn refusing_limits(&self, job: &PendingJob, take: &Take) -> Vec<LimitRefusal> {
        self.refusals(&self.usage_of(job, take)).collect()
    }

    /// The class in which a job would run that takes so much, whatever refuses it.
    pub(crate) fn class_with(&self, job: &PendingJob, take: &Take) -> Option<RunClass> {
        self.usage_of(job, take).class
    }

    fn usage_of<'a>(&self, job: &'a PendingJob, take: &Take) -> JobUsage<'a> {
        let owner = self.owners.owner(&job.spec);
        let held = self.limits.holding_of(job, take);
        let guarantees = self.guarantees.as_ref();
        let class = guarantees
            .filter(|_| !self.is_outside_quota(&job.spec))
            .map(|guarantees| {
                let fits = match owner.account {
                    Some(account) => guarantees.fits(self.tree(), account, &held),
                    None => held.gpus == 0,
                };
                match fits {
                    true => RunClass::Guaranteed,
                    false => RunClass::Borrowed,
                }
            });
        JobUsage {
            job,
            owner,
            held,
            class,
        }
    }

    /// All refusals, each worked out when it is asked for.
    fn refusals<'a>(&'a self, usage: &'a JobUsage) -> impl Iterator<Item = LimitRefusal> + 'a {
        let fixed = once_with(|| self.over_qos(usage)).flatten();
        fixed
            .chain(self.over_limits(usage))
            .chain(self.over_caps(usage))
            .chain(self.missing_licences(&usage.job.spec))
            .chain(once_with(|| self.refused_borrowing(usage)).flatten())
            .chain(self.kept_idle(usage))
    }

    /// What a QOS allows one job.
    fn over_qos(&self, usage: &JobUsage) -> Option<LimitRefusal> {
        let (name, secs) = (&usage.job.spec.qos, usage.job.limit_secs);
        let per_job = &self.limits.qos_of(&usage.job.spec)?.per_job;
        let reason = job_exceeds(per_job, name, &usage.held, secs, self.types())?;
        let kind = LimitKind::Fixed;
        Some(LimitRefusal { kind, reason })
    }

    fn over_limits<'a>(&'a self, usage: &'a JobUsage) -> impl Iterator<Item = LimitRefusal> + 'a {
        let (spec, held, now) = (&*usage.job.spec, &usage.held, self.limits.now);
        let limits = self.limits.of(usage.owner, self.tree());
        limits.filter_map(move |(limit, bound)| {
            let account = match limit.scope {
                Scope::Account | Scope::UserInAccount => self.tree().name(limit.at),
                _ => &*spec.account,
            };
            let subject = || {
                let (user, qos) = (&spec.user.name, &spec.qos);
                limit.scope.subject(account, user, qos, &spec.partition)
            };
            let meter = self.meters.of(limit);
            let reason = bound.exceeded(limit.scope, &subject, meter, held, now, self.types())?;
            let kind = match bound.over(&Meter::default(), held, now) {
                Some(_) => LimitKind::Fixed,
                None => LimitKind::Bound(limit),
            };
            Some(LimitRefusal { kind, reason })
        })
    }

    fn over_caps<'a>(&'a self, usage: &'a JobUsage) -> impl Iterator<Item = LimitRefusal> + 'a {
        let accounts = usage.owner.account.into_iter();
        let line = accounts.flat_map(|account| self.tree().line(account));
        let budgets = line.flat_map(|number| {
            let budgets = self.meters.budgets(number).iter();
            budgets.map(move |(budget, spent)| (number, budget, spent))
        });
        let caps = budgets.filter(|(_, budget, _)| budget.kind == BudgetKind::Cap);
        caps.filter_map(|(account, budget, spent)| {
            let beyond = spent.beyond(&usage.held, self.limits.now)?;
            let kind = LimitKind::Fixed;
            let text = format!(
                "account {} may use {}: {}",
                self.tree().name(account),
                budget_text(budget),
                excess_text(spent, &beyond),
            );
            let reason = Reason::new(ReasonCode::AssocGrpBilling, text);
            Some(LimitRefusal { kind, reason })
        })
    }

    fn missing_licences<'a>(
        &'a self,
        spec: &'a JobSpec,
    ) -> impl Iterator<Item = LimitRefusal> + 'a {
        spec.licences.iter().filter_map(|(name, needs)| {
            let text = match self.meters.licences.get(name) {
                Some(licence) if licence.used + u64::from(*needs) <= u64::from(licence.all) => {
                    return None;
                }
                Some(licence) => {
                    format!(
                        "licence {name}: there are {}, {} are in use, this job needs {needs}",
                        licence.all, licence.used
                    )
                }
                None => format!("licence {name} is not in the configuration"),
            };
            let kind = LimitKind::Licence;
            let reason = Reason::new(ReasonCode::Licenses, text);
            Some(LimitRefusal { kind, reason })
        })
    }

    /// Refuses a job that would borrow and may not.
    fn refused_borrowing(&self, usage: &JobUsage) -> Option<LimitRefusal> {
        if usage.class != Some(RunClass::Borrowed) {
            return None;
        }
        let because = self
            .limits
            .borrowing_refusal(&usage.job.spec, usage.owner)?;
        let shortage = Shortage::new(self, &usage.job.spec, usage.owner, &usage.held);
        let top = usage
            .owner
            .account
            .and_then(|account| self.tree().line(account).last())
            .filter(|_| !shortage.for_good);
        let kind = top.map_or(LimitKind::Fixed, LimitKind::Guarantee);
        let text = format!("{} ({because})", shortage.text);
        let reason = Reason::new(ReasonCode::Quota, text);
        Some(LimitRefusal { kind, reason })
    }

    /// Idle GPUs that lenders keep from borrowers, that are headroom for urgent work, or that nominated jobs need.
    fn kept_idle<'a>(&'a self, usage: &'a JobUsage) -> impl Iterator<Item = LimitRefusal> + 'a {
        let JobUsage {
            job,
            owner,
            held,
            class,
        } = usage;
        let not_lent = move || match class {
            Some(RunClass::Borrowed) => self.not_lent(HeadroomTime::Now, owner.account, held),
            _ => None,
        };
        let headroom = move || {
            let spares = self.spares_kept(job, *class);
            let (partition, qos) = (owner.partition, &job.spec.qos);
            let now = HeadroomTime::Now;
            self.idle.kept(now, held, partition, &|_| spares, qos)
        };
        let reasons = move || {
            let nominated = self.nominated_before(job);
            let nominated = nominated.filter_map(|one| self.kept_for(one, *owner, held));
            once_with(not_lent)
                .chain(once_with(headroom))
                .flatten()
                .chain(nominated)
        };
        let reasons = (held.gpus > 0 && self.idle.is_kept()).then(reasons);
        reasons.into_iter().flatten().map(|reason| LimitRefusal {
            kind: LimitKind::Headroom(owner.partition),
            reason,
        })
    }

    /// Idle GPUs that accounts with a lending limit keep from a borrower.
    fn not_lent(&self, at: HeadroomTime, account: Option<u32>, held: &Holding) -> Option<Reason> {
        let guarantees = self.guarantees.as_ref()?;
        held.each().find_map(|(gpu_type, milli)| {
            let kept = guarantees.kept_back(self.tree(), account.unwrap_or_default(), gpu_type);
            let idle = self.idle.of(at, gpu_type);
            let text = || {
                format!(
                    "{} and accounts keep {} of them by their lending limits; this job would borrow {}",
                    self.idle.idle_text(&self.types().text(gpu_type, idle), idle),
                    milli_text(kept),
                    milli_text(milli)
                )
            };
            (kept > 0 && idle < kept + milli).then(|| Reason::new(ReasonCode::Headroom, text()))
        })
    }

    /// Idle GPUs that a nominated job before this one will need after the end of its victims.
    fn kept_for(
        &self,
        nominated: &NominatedUsage,
        owner: UsageOwner,
        held: &Holding,
    ) -> Option<Reason> {
        let (at, spec) = (HeadroomTime::AfterVictims, &nominated.spec);
        let account = || self.tree().number(&spec.account);
        let not_lent = match nominated.borrows {
            true => self.not_lent(at, account(), held),
            false => None,
        };
        let spares = |keeper: usize| nominated.keepers.contains(&keeper);
        not_lent.or_else(|| {
            self.idle
                .kept(at, held, owner.partition, &spares, &spec.qos)
        })
    }
}

fn excess_text(spent: &BudgetUse, beyond: &BudgetExcess) -> String {
    let (promised, ahead) = (hours_text(beyond.promised), hours_text(beyond.ahead));
    match beyond.from {
        None => format!(
            "{} are used, running jobs may use {promised} more by their time limits, and this job {ahead}; the next period begins {}",
            hours_text(spent.used),
            spent.end,
        ),
        Some(begin) => format!(
            "of the period that begins {begin}, running jobs may use {promised} by their time limits, and this job {ahead}"
        ),
    }
}
