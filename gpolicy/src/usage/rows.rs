//! The rows of a book by account and user, in chunks behind `Arc`: a book is copied whenever a run is charged while others
//! read it, and so a charge costs one chunk.

use super::UsageEntry;
use std::cmp::Ordering;
use std::sync::Arc;

/// Rows of a chunk; with one more it becomes two.
const MOST: usize = 32;

#[derive(Clone, Debug, Default)]
pub(super) struct Rows {
    /// None is empty.
    chunks: Vec<Arc<Vec<Row>>>,
    /// Rows of users with a name.
    pub users: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub account: Arc<str>,
    pub user: Arc<str>,
    pub entry: Arc<UsageEntry>,
}

impl Row {
    fn compare(&self, account: &str, user: &str) -> Ordering {
        (&*self.account, &*self.user).cmp(&(account, user))
    }
}

impl PartialEq for Rows {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}
impl Eq for Rows {}

impl Rows {
    pub const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            users: 0,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Row> {
        self.chunks.iter().flat_map(|chunk| &**chunk)
    }

    /// Where a row is or would be: the last chunk that begins with it or before.
    fn chunk_of(&self, account: &str, user: &str) -> usize {
        self.chunks
            .partition_point(|chunk| chunk[0].compare(account, user).is_le())
            .saturating_sub(1)
    }

    pub fn get(&self, account: &str, user: &str) -> Option<&Arc<UsageEntry>> {
        let row = self.first_from(account, user)?;
        row.compare(account, user).is_eq().then_some(&row.entry)
    }

    /// The first that is not before a row.
    pub fn first_from(&self, account: &str, user: &str) -> Option<&Row> {
        let at = self.chunk_of(account, user);
        let chunk = self.chunks.get(at)?;
        let place = chunk.partition_point(|row| row.compare(account, user).is_lt());
        chunk
            .get(place)
            .or_else(|| self.chunks.get(at + 1)?.first())
    }

    /// To be changed; a new one where there is none.
    pub fn entry(&mut self, account: &str, user: &str) -> &mut UsageEntry {
        if self.chunks.is_empty() {
            self.chunks.push(Arc::default());
        }
        let mut at = if self.chunks[0].is_empty() {
            0
        } else {
            self.chunk_of(account, user)
        };
        let known = self.chunks[at].binary_search_by(|row| row.compare(account, user));
        let mut place = known.unwrap_or_else(|place| place);
        if known.is_err() {
            let chunk = Arc::make_mut(&mut self.chunks[at]);
            chunk.insert(
                place,
                Row {
                    account: account.into(),
                    user: user.into(),
                    entry: Arc::default(),
                },
            );
            self.users += usize::from(!user.is_empty());
            if chunk.len() > MOST {
                let upper = Arc::new(chunk.split_off(MOST / 2));
                self.chunks.insert(at + 1, upper);
                if place >= MOST / 2 {
                    (at, place) = (at + 1, place - MOST / 2);
                }
            }
        }
        Arc::make_mut(&mut Arc::make_mut(&mut self.chunks[at])[place].entry)
    }

    /// Those that are not as they were before.
    pub fn changed_since<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = &'a Row> {
        let is_known =
            |chunk: &&Arc<Vec<Row>>| before.chunks.iter().any(|known| Arc::ptr_eq(known, chunk));
        let changed = self.chunks.iter().filter(move |chunk| !is_known(chunk));
        let is_as_before = |row: &&Row| {
            before
                .get(&row.account, &row.user)
                .is_some_and(|entry| Arc::ptr_eq(entry, &row.entry))
        };
        changed
            .flat_map(|chunk| &**chunk)
            .filter(move |row| !is_as_before(row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn rows_are_those_of_a_plain_map_and_a_copy_stays_as_it_was() {
        let (mut rows, mut plain) = (Rows::default(), BTreeMap::new());
        let name = |number: u64| {
            (
                format!("a{}", number % 7),
                if number.is_multiple_of(5) {
                    String::new()
                } else {
                    format!("u{}", number % 211)
                },
            )
        };
        let print = |rows: &Rows| {
            rows.iter()
                .map(|row| {
                    (
                        (row.account.to_string(), row.user.to_string()),
                        (*row.entry).clone(),
                    )
                })
                .collect::<BTreeMap<_, _>>()
        };
        for number in (0..4000u64).map(|at| at * 7919 % 4001) {
            let (account, user) = name(number);
            let before = rows.clone();
            let seen = if number % 100 == 0 {
                Some(print(&before))
            } else {
                None
            };
            rows.entry(&account, &user).decayed.half_life_secs += 1;
            plain
                .entry((account.clone(), user.clone()))
                .or_insert_with(UsageEntry::default)
                .decayed
                .half_life_secs += 1;
            let changed: Vec<_> = rows
                .changed_since(&before)
                .map(|row| (&*row.account, &*row.user))
                .collect();
            assert_eq!(changed, [(&*account, &*user)]);
            assert!(
                seen.is_none_or(|seen| print(&before) == seen),
                "a copy is its own"
            );
        }
        assert!(
            rows.chunks.len() > 10
                && rows
                    .chunks
                    .iter()
                    .all(|chunk| (1..=MOST).contains(&chunk.len()))
        );
        assert_eq!(print(&rows), plain);
        assert!(rows.iter().map(|row| (&row.account, &row.user)).is_sorted());
        assert_eq!(
            rows.users,
            plain.keys().filter(|(_, user)| !user.is_empty()).count()
        );
        for ((account, user), entry) in &plain {
            assert_eq!(rows.get(account, user).map(|known| &**known), Some(entry));
        }
        assert_eq!(
            (rows.get("a1", "v"), rows.get("", ""), rows.get("z", "")),
            (None, None, None)
        );
        let next = |account: &str| {
            rows.first_from(account, "")
                .map(|row| row.account.to_string())
        };
        assert_eq!(
            (next("a3").as_deref(), next("a30").as_deref(), next("a7")),
            (Some("a3"), Some("a4"), None)
        );
        assert_eq!(Rows::default(), Rows::new());
    }
}
