//! Budgets: the GPU-hours of an account in a period, what its runs used of them and what they may still use by their limits.

use crate::limits::Holding;
use gmodel::Timestamp;

/// A guaranteed budget in its present period. Thousandths of a GPU times milliseconds.
#[derive(Clone, Debug)]
pub struct BudgetUse {
    /// Of which type, or [`ALL`].
    pub gpu_type: usize,
    pub most: u128,
    /// Charged so far, and used so far by runs.
    pub used: u128,
    /// What runs may still use by their limits.
    pub promised: u128,
    /// The most that guaranteed runs begun in the period may use in it.
    pub(crate) began: u128,
    pub start: Timestamp,
    pub end: Timestamp,
    /// Of a cap: what runs may use of the next periods.
    later: Vec<LaterPeriod>,
}

/// A future period.
#[derive(Clone, Debug)]
struct LaterPeriod {
    start: Timestamp,
    end: Timestamp,
    promised: u128,
}

/// What a job would use beyond the rest of a period.
pub struct BudgetExcess {
    /// The begin of a future period.
    pub from: Option<Timestamp>,
    pub promised: u128,
    pub ahead: u128,
}

impl BudgetUse {
    pub fn new(gpu_type: usize, most: u128, used: u128, start: Timestamp, end: Timestamp) -> Self {
        Self {
            gpu_type,
            most,
            used,
            promised: 0,
            began: 0,
            start,
            end,
            later: Vec::new(),
        }
    }

    /// With the periods that follow, by their ends.
    pub fn followed_by(self, ends: &[Timestamp]) -> Self {
        let starts = std::iter::once(&self.end).chain(ends);
        let later = starts
            .zip(ends)
            .map(|(&start, &end)| LaterPeriod {
                start,
                end,
                promised: 0,
            })
            .collect();
        Self { later, ..self }
    }

    /// Counts what a run may still use, or takes it off.
    pub fn count(&mut self, held: &Holding, now: Timestamp, add: bool) {
        let change = |promised: &mut u128, ahead: u128| {
            *promised = if add {
                *promised + ahead
            } else {
                *promised - ahead
            }
        };
        let ahead = self.ahead(held, now);
        change(&mut self.promised, ahead);
        let milli = u128::from(self.of(held));
        for period in self
            .later
            .iter_mut()
            .take_while(|period| held.until.is_none_or(|until| period.start < until))
        {
            change(
                &mut period.promised,
                milli * u128::from(held.millis_within(period.start, period.end)),
            );
        }
    }

    /// The first period of which a job that starts now would use more than is left.
    pub fn beyond(&self, held: &Holding, now: Timestamp) -> Option<BudgetExcess> {
        let milli = u128::from(self.of(held));
        let ahead = self.ahead(held, now);
        if ahead > 0 && self.used + self.promised + ahead > self.most {
            return Some(BudgetExcess {
                from: None,
                promised: self.promised,
                ahead,
            });
        }
        let reached = self
            .later
            .iter()
            .filter(|period| milli > 0 && held.until.is_none_or(|until| period.start < until));
        let mut over = reached.map(|period| BudgetExcess {
            from: Some(period.start),
            promised: period.promised,
            ahead: milli * u128::from(held.millis_within(period.start, period.end)),
        });
        over.find(|period| period.promised + period.ahead > self.most)
    }

    /// The same before any run was counted.
    pub fn without_promises(&self) -> Self {
        Self {
            promised: 0,
            began: 0,
            ..self.clone()
        }
    }

    pub(crate) fn of(&self, held: &Holding) -> u64 {
        held.of(self.gpu_type)
    }

    /// What a run may still use in the period.
    pub fn ahead(&self, held: &Holding, now: Timestamp) -> u128 {
        u128::from(self.of(held)) * u128::from(held.millis_within(now, self.end))
    }

    /// All that a run may use in the period.
    pub(crate) fn whole(&self, held: &Holding) -> u128 {
        u128::from(self.of(held))
            * u128::from(held.millis_within(held.since.max(self.start), self.end))
    }
}
