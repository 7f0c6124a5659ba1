//! Reservations of the last pass, so that this one makes most of them again without a search. Decides nothing.
//!
//! Nodes whose room may be another than when a reservation was made have "moved"; of all others holds what was found out then.
//! Too few of them had room before the time of the reservation, and where it is known which, the moved ones are counted
//! anew: as long as all together are too few, it does not begin earlier. At its time the first nodes in their order get it,
//! so moved ones that have room now take their places among these. Who cannot be helped in this way is looked for anew. The
//! nodes that somebody had or gets, but not both, have moved for those behind.

use crate::cluster::nodes::Taken;
use crate::cluster::picked::first_of;
use crate::job::job_class::JobClassId;
use fixedbitset::FixedBitSet;
use gmodel::{JobId, Timestamp};
use std::collections::BTreeMap;
use std::ops::Range;

/// With more moved nodes than this a search costs no more: it looks at each room once, too.
const MOST_MOVED: usize = 1024;

/// What the last pass that made reservations made, in order, and what is otherwise since.
#[derive(Debug, Default)]
pub(crate) struct Promised {
    before: Vec<Promise>,
    /// Places of the former planned starts, once the order of jobs differs.
    by_job: Option<BTreeMap<JobId, usize>>,
    /// Up to here those of before were passed, made again or not.
    passed: usize,
    now: Vec<Promise>,
    /// Nodes with another state than before the next of the earlier planned starts was made.
    moved: Moved,
    /// Nodes on which this pass started something.
    started: Moved,
    /// Of the shapes that promises name.
    era: u64,
    /// Until the next pass nothing is compared or noted, not even by planned starts that are made later.
    closed: bool,
}

/// A planned start as it was made: job, time and nodes.
#[derive(Debug, PartialEq, Eq)]
struct Promise {
    who: Who,
    at: Timestamp,
    /// In the order in which they were picked.
    nodes: Vec<Range<usize>>,
    early: Option<Early>,
    /// What it made of rooms.
    taken: Vec<Taken>,
}

/// All nodes that have room for a job by themselves from a time on, and before that of its reservation: too few.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Early {
    pub from: Timestamp,
    pub nodes: FixedBitSet,
}

/// What asks again for what was promised.
pub(crate) struct Again<'a> {
    pub who: Who,
    pub now: Timestamp,
    /// It is known not to begin before.
    pub from: Timestamp,
    /// How many nodes it asks for.
    pub count: usize,
    /// It gets the first of the nodes that have room.
    pub in_order: bool,
    /// Nodes that it may run on.
    pub may: &'a FixedBitSet,
}

/// What is known of a reservation without a search.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    /// When it begins, if it can then.
    Time(Timestamp),
    /// When and where.
    All(Timestamp, Vec<Range<usize>>, Option<Early>),
}

/// A job with what decides when it can start: its shape, and the seconds it asks for.
pub(crate) type Who = (JobId, JobClassId, u32);

#[derive(Debug, Default)]
struct Moved {
    nodes: FixedBitSet,
    count: usize,
}

impl Moved {
    fn add(&mut self, nodes: impl IntoIterator<Item = usize>) {
        let mut nodes = nodes.into_iter();
        while let Some(at) = nodes.next().filter(|_| !self.are_too_many()) {
            if !self.nodes.contains(at) {
                self.nodes.grow_and_insert(at);
                self.count += 1;
            }
        }
    }

    fn add_all(&mut self, stretches: &[Range<usize>]) {
        for nodes in stretches {
            if self.are_too_many() {
                return;
            }
            self.nodes.grow(nodes.end);
            self.count += nodes.len() - self.nodes.count_ones(nodes.clone());
            self.nodes.insert_range(nodes.clone());
        }
    }

    fn are_too_many(&self) -> bool {
        self.count > MOST_MOVED
    }

    fn are_any_in(&self, nodes: &Range<usize>) -> bool {
        let end = nodes.end.min(self.nodes.len());
        nodes.start < end && self.nodes.contains_any_in_range(nodes.start..end)
    }

    fn clear(&mut self) {
        self.nodes.clear();
        self.count = 0;
    }
}

impl Promised {
    /// A new pass, at whose beginning the rooms of some nodes are others than at that of the last one.
    pub fn begin(&mut self, era: u64, changed: &[usize]) {
        if era != self.era {
            *self = Self {
                era,
                ..Self::default()
            };
            return;
        }
        if !self.now.is_empty() {
            self.before = std::mem::take(&mut self.now);
            self.by_job = None;
            self.moved.clear();
        }
        self.passed = 0;
        self.closed = false;
        // What the last pass started it may have started before it made a reservation, and the core may have dropped it.
        self.moved.add(self.started.nodes.ones());
        self.started.clear();
        self.moved.add(changed.iter().copied());
    }

    /// Nothing is promised again in this pass and the next.
    pub fn forget(&mut self) {
        *self = Self {
            era: self.era,
            closed: true,
            ..Self::default()
        };
    }

    /// A pass started something there.
    pub fn start(&mut self, nodes: impl Iterator<Item = usize> + Clone) {
        self.started.add(nodes.clone());
        self.moved.add(nodes);
    }

    /// When and where a job is to start, as far as that follows from what was promised; of jobs whose nodes all give the same
    /// and may be any of some. `alike`: up to where nodes from one on have the same room; `first`: from when on a node has room for it,
    /// not before `from` and before a time; `fits`: whether it has at a time.
    pub fn again(
        &mut self,
        ask: &Again<'_>,
        alike: impl Fn(usize) -> usize,
        mut first: impl FnMut(usize, Timestamp) -> Option<Timestamp>,
        mut fits: impl FnMut(usize, Timestamp) -> bool,
    ) -> Found {
        let Some(place) = self.pass_to(ask.who) else {
            return Found::Nothing;
        };
        let (one, moved) = (&mut self.before[place], &self.moved);
        if one.who != ask.who || one.at <= ask.now || one.at < ask.from || moved.are_too_many() {
            return Found::Nothing;
        }
        let early = one.early.take().filter(|early| early.from <= ask.from);
        let is_known = early.is_some();
        let mut early = early.unwrap_or_default().nodes;
        early.difference_with(&moved.nodes);
        let mut fitting = FixedBitSet::new();
        let (mut until, mut time, mut has_room) = (0, None, false);
        for at in moved.nodes.ones().filter(|at| ask.may.contains(*at)) {
            if at >= until {
                until = alike(at);
                time = first(at, one.at.plus_millis(1));
                has_room = time.is_some_and(|time| time == one.at || fits(at, one.at));
            }
            if time.is_some_and(|time| time < one.at) {
                if !is_known {
                    return Found::Nothing;
                }
                early.grow_and_insert(at);
            }
            if has_room {
                fitting.grow_and_insert(at);
            }
        }
        if is_known && early.count_ones(..) >= ask.count {
            return Found::Nothing;
        }
        let early = is_known.then_some(Early {
            from: ask.from,
            nodes: early,
        });
        let have_moved = one.nodes.iter().any(|nodes| moved.are_any_in(nodes));
        let end = one.nodes.last().map_or(0, |last| last.end);
        let are_any_before = fitting.minimum().is_some_and(|at| at < end);
        if !have_moved
            && (if ask.in_order {
                !are_any_before
            } else {
                fitting.is_clear()
            })
        {
            return Found::All(one.at, one.nodes.clone(), early);
        }
        if !ask.in_order {
            return Found::Nothing;
        }
        let mut nodes = FixedBitSet::with_capacity(end);
        one.nodes
            .iter()
            .for_each(|stretch| nodes.insert_range(stretch.clone()));
        nodes.difference_with(&moved.nodes);
        fitting
            .ones()
            .take_while(|at| *at < end)
            .for_each(|at| nodes.insert(at));
        match nodes.count_ones(..) >= ask.count {
            true => Found::All(one.at, first_of(&nodes, ask.count), early),
            false => Found::Time(one.at),
        }
    }

    /// What a reservation that begins at the same time as before made of rooms then; once.
    pub fn taken_before(&mut self, who: Who, at: Timestamp) -> Vec<Taken> {
        let place = self.place_of(who.0);
        let one = place
            .map(|place| &mut self.before[place])
            .filter(|one| one.who == who && one.at == at);
        one.map(|one| std::mem::take(&mut one.taken))
            .unwrap_or_default()
    }

    /// A job got a reservation, `again` or by a search.
    pub fn make(
        &mut self,
        who: Who,
        at: Timestamp,
        nodes: Vec<Range<usize>>,
        early: Option<Early>,
        taken: Vec<Taken>,
    ) {
        if self.closed {
            return;
        }
        let place = self.pass_to(who);
        match place.map(|place| &self.before[place]) {
            Some(before) if before.who == who && before.at == at && before.nodes == nodes => {}
            Some(before) if before.who == who && before.at == at => {
                let mut others = FixedBitSet::new();
                let end = |nodes: &[Range<usize>]| {
                    nodes.iter().map(|stretch| stretch.end).max().unwrap_or(0)
                };
                others.grow(end(&before.nodes).max(end(&nodes)));
                before
                    .nodes
                    .iter()
                    .chain(&nodes)
                    .for_each(|stretch| others.toggle_range(stretch.clone()));
                self.moved.add(others.ones());
            }
            before => {
                before
                    .into_iter()
                    .for_each(|before| self.moved.add_all(&before.nodes));
                self.moved.add_all(&nodes);
            }
        }
        self.passed = place.map_or(self.passed, |place| place + 1);
        self.now.push(Promise {
            who,
            at,
            nodes,
            early,
            taken,
        });
    }

    /// The place of a job among those of before that are still to come.
    fn place_of(&mut self, job: JobId) -> Option<usize> {
        if self
            .before
            .get(self.passed)
            .is_some_and(|next| next.who.0 == job)
        {
            return Some(self.passed);
        }
        let places = || {
            (0..)
                .zip(&self.before)
                .map(|(place, one)| (one.who.0, place))
                .collect()
        };
        self.by_job
            .get_or_insert_with(places)
            .get(&job)
            .copied()
            .filter(|place| *place >= self.passed)
    }

    /// The place of a job among those of before, if it is still to come. Those up to it have no reservation now, or not in
    /// their turn: what they held is free.
    fn pass_to(&mut self, who: Who) -> Option<usize> {
        let place = self.place_of(who.0)?;
        for one in &self.before[self.passed..place] {
            self.moved.add_all(&one.nodes);
        }
        self.passed = place;
        Some(place)
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    fn secs(at: i64) -> Timestamp {
        Timestamp::from_secs(at)
    }
    fn who(job: u64) -> Who {
        (JobId(job), 0, 60)
    }
    /// Two reservations, and the pass after.
    fn two(changed: &[usize]) -> Promised {
        let mut promised = Promised::default();
        promised.make(who(1), secs(100), vec![0..2], None, Vec::new());
        promised.make(who(2), secs(200), vec![2..3], None, Vec::new());
        promised.begin(0, changed);
        promised
    }
    fn never(_: usize, _: Timestamp) -> Option<Timestamp> {
        None
    }
    fn ask(job: u64, now: i64, count: usize) -> Again<'static> {
        static ALL: LazyLock<FixedBitSet> = LazyLock::new(|| (0..20_000).collect());
        Again {
            who: who(job),
            now: secs(now),
            from: secs(now),
            count,
            in_order: true,
            may: &ALL,
        }
    }
    fn nodes(all: &[usize]) -> FixedBitSet {
        all.iter().copied().collect()
    }
    /// Nodes that have room from some second on, and keep it.
    fn room(since: &[(usize, i64)]) -> impl Fn(usize, Timestamp) -> Option<Timestamp> + Copy {
        move |node, until| {
            since
                .iter()
                .find(|(at, _)| *at == node)
                .map(|(_, since)| secs(*since))
                .filter(|since| *since < until)
        }
    }
    fn again(
        promised: &mut Promised,
        ask: Again,
        first: impl Fn(usize, Timestamp) -> Option<Timestamp> + Copy,
    ) -> Found {
        promised.again(
            &ask,
            |at| at + 1,
            first,
            |node, at| first(node, at.plus_millis(1)).is_some(),
        )
    }
    fn all(at: i64, nodes: &[Range<usize>]) -> Found {
        Found::All(secs(at), nodes.to_vec(), None)
    }

    #[test]
    fn what_nothing_changed_about_is_promised_again() {
        let mut promised = two(&[5]);
        assert_eq!(again(&mut promised, ask(1, 1, 2), never), all(100, &[0..2]));
        promised.make(who(1), secs(100), vec![0..2], None, Vec::new());
        assert_eq!(again(&mut promised, ask(2, 1, 1), never), all(200, &[2..3]));
        assert_eq!(
            again(&mut promised, ask(2, 200, 1), never),
            Found::Nothing,
            "its time has come"
        );
        assert_eq!(
            again(
                &mut promised,
                Again {
                    who: (JobId(2), 0, 61),
                    ..ask(2, 1, 1)
                },
                never
            ),
            Found::Nothing,
            "it asks for longer"
        );
        promised.begin(1, &[]);
        assert_eq!(
            again(&mut promised, ask(2, 1, 1), never),
            Found::Nothing,
            "shapes are others"
        );
    }

    #[test]
    fn after_something_was_taken_back_nothing_is_noted_before_the_next_pass() {
        let mut promised = two(&[]);
        promised.forget();
        promised.make(who(3), secs(300), vec![3..4], None, Vec::new());
        promised.begin(0, &[]);
        assert_eq!(
            again(&mut promised, ask(3, 1, 1), never),
            Found::Nothing,
            "who was promised something before it is not known"
        );
        promised.make(who(3), secs(300), vec![3..4], None, Vec::new());
        promised.begin(0, &[]);
        assert_eq!(again(&mut promised, ask(3, 1, 1), never), all(300, &[3..4]));
    }

    #[test]
    fn nodes_that_moved_are_counted_anew() {
        let mut promised = two(&[2]);
        assert_eq!(
            again(&mut promised, ask(1, 1, 2), room(&[(2, 101)])),
            all(100, &[0..2])
        );
        assert_eq!(
            again(&mut promised, ask(1, 1, 2), room(&[(2, 100)])),
            all(100, &[0..2]),
            "those before it in the order have room, too"
        );
        let picky = || Again {
            in_order: false,
            ..ask(1, 1, 2)
        };
        assert_eq!(
            again(&mut promised, picky(), room(&[(2, 100)])),
            Found::Nothing,
            "it may be liked better"
        );
        assert_eq!(
            again(&mut promised, ask(1, 1, 2), room(&[(2, 99)])),
            Found::Nothing,
            "with others it may be enough before"
        );
        assert_eq!(
            again(&mut promised, ask(2, 1, 1), never),
            Found::Time(secs(200)),
            "it was to run there"
        );
        assert_eq!(
            again(&mut two(&[0, 2]), ask(1, 1, 2), room(&[(0, 50)])),
            Found::Nothing,
            "nor is it known who had room before"
        );
        assert_eq!(
            again(&mut two(&[0, 2]), ask(1, 1, 2), room(&[(0, 100)])),
            all(100, &[0..2]),
            "it has room still"
        );
        let mut promised = two(&[]);
        promised.start(std::iter::once(0));
        assert_eq!(
            again(&mut promised, ask(1, 1, 2), never),
            Found::Time(secs(100)),
            "somebody else runs there now"
        );
        promised.make(who(1), secs(300), vec![2..4], None, Vec::new());
        assert_eq!(
            again(&mut promised, ask(2, 1, 1), never),
            Found::Time(secs(200)),
            "somebody before it moved there"
        );
        assert_eq!(
            again(&mut two(&[]), ask(2, 1, 1), room(&[(0, 7), (1, 7)])),
            Found::Nothing,
            "who was before it leaves its nodes to it"
        );
        let elsewhere = nodes(&[0, 1, 5]);
        let there = || Again {
            may: &elsewhere,
            ..ask(1, 1, 2)
        };
        assert_eq!(
            again(&mut two(&[3]), there(), room(&[(3, 50)])),
            all(100, &[0..2]),
            "it may not run there"
        );
        let mut looked = Vec::new();
        let first = |at: usize, _| {
            looked.push(at);
            None
        };
        two(&[2, 3, 4, 6]).again(
            &ask(1, 1, 2),
            |at| if at < 4 { 4 } else { at + 1 },
            first,
            |_, _| false,
        );
        assert_eq!(
            looked,
            [2, 4, 6],
            "of those that are alike one is looked at"
        );
        let mut far = two(&(10..10_000).collect::<Vec<_>>());
        assert_eq!(
            again(&mut far, ask(1, 1, 2), never),
            Found::Nothing,
            "too much is otherwise"
        );
    }

    #[test]
    fn with_too_few_nodes_before_its_time_a_job_does_not_begin_earlier() {
        let early = |from: i64, of: &[usize]| {
            Some(Early {
                from: secs(from),
                nodes: nodes(of),
            })
        };
        let known = |from: i64, changed: &[usize]| {
            let mut promised = Promised::default();
            promised.make(
                who(1),
                secs(100),
                vec![4..7],
                early(from, &[1, 4]),
                Vec::new(),
            );
            promised.begin(0, changed);
            promised
        };
        assert_eq!(
            again(&mut known(0, &[9]), ask(1, 1, 3), room(&[(9, 50)])),
            Found::Nothing,
            "three have room before"
        );
        assert_eq!(
            again(&mut known(0, &[1, 9]), ask(1, 1, 3), room(&[(9, 50)])),
            Found::All(secs(100), vec![4..7], early(1, &[4, 9]))
        );
        assert_eq!(
            again(&mut known(0, &[1]), ask(1, 1, 3), room(&[(1, 50)])),
            Found::All(secs(100), vec![1..2, 4..6], early(1, &[1, 4])),
            "it comes first"
        );
        assert_eq!(
            again(&mut known(0, &[5]), ask(1, 1, 3), never),
            Found::Time(secs(100)),
            "who is the next is not known"
        );
        assert_eq!(
            again(&mut known(2, &[1]), ask(1, 1, 3), room(&[(1, 50)])),
            Found::Nothing,
            "who had room between is not known"
        );
        let mut promised = known(0, &[]);
        promised.make(who(1), secs(100), vec![1..2, 4..6], None, Vec::new());
        assert_eq!(
            promised.moved.nodes.ones().collect::<Vec<_>>(),
            [1, 6],
            "the others it has as before"
        );
    }
}
