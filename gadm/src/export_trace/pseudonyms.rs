//! Numbers in place of names, so that a trace can be given away: equal names stay equal, and no name is told.

use std::collections::BTreeMap;

/// The same name has the same number in all that one export writes.
pub(super) struct Pseudonyms {
    keep: bool,
    users: Numbers,
    accounts: Numbers,
    partitions: Numbers,
    qos: Numbers,
    nodes: Numbers,
}

type Numbers = BTreeMap<String, usize>;

impl Pseudonyms {
    /// With `keep` names stay as they are.
    pub(super) fn new(keep: bool) -> Self {
        let none = Numbers::new;
        Self {
            keep,
            users: none(),
            accounts: none(),
            partitions: none(),
            qos: none(),
            nodes: none(),
        }
    }

    pub(super) fn user(&mut self, name: &str) -> String {
        number(self.keep, &mut self.users, "user", name)
    }
    pub(super) fn account(&mut self, name: &str) -> String {
        number(self.keep, &mut self.accounts, "account", name)
    }
    pub(super) fn partition(&mut self, name: &str) -> String {
        number(self.keep, &mut self.partitions, "partition", name)
    }
    pub(super) fn qos(&mut self, name: &str) -> String {
        number(self.keep, &mut self.qos, "qos", name)
    }
    pub(super) fn node(&mut self, name: &str) -> String {
        number(self.keep, &mut self.nodes, "node", name)
    }
}

/// An empty name stays empty: there is none.
fn number(keep: bool, numbers: &mut Numbers, kind: &str, name: &str) -> String {
    if keep || name.is_empty() {
        return name.to_owned();
    }
    if let Some(number) = numbers.get(name) {
        return format!("{kind}{number}");
    }
    let number = numbers.len() + 1;
    numbers.insert(name.to_owned(), number);
    format!("{kind}{number}")
}
