//! What sacctmgr's commands are about: accounts, users, QOS and so on, by their names and beginnings of them.

use gcli::Failure;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Entity {
    #[default]
    Associations,
    Users,
    Accounts,
    Qos,
    Cluster,
    Tres,
    Runaway,
    Events,
    Problems,
    Transactions,
    Wckeys,
}

/// Each entity with the fewest letters that mean it.
const ENTITIES: [(&str, usize, Entity); 14] = [
    ("problems", 1, Entity::Problems),
    ("events", 1, Entity::Events),
    ("tres", 2, Entity::Tres),
    ("runawayjobs", 2, Entity::Runaway),
    ("accounts", 2, Entity::Accounts),
    ("accts", 3, Entity::Accounts),
    ("associations", 2, Entity::Associations),
    ("clusters", 2, Entity::Cluster),
    ("qos", 1, Entity::Qos),
    ("qualityofservices", 3, Entity::Qos),
    ("users", 1, Entity::Users),
    ("transactions", 1, Entity::Transactions),
    ("txns", 2, Entity::Transactions),
    ("wckeys", 1, Entity::Wckeys),
];

/// What sacctmgr lists and we do not, each with where else to look.
const NOT_LISTED: [(&str, &str); 7] = [
    ("configuration", "gadm config prints the configuration"),
    (
        "coordinators",
        "show user format=User,Coord shows coordinators, gadm user list too",
    ),
    (
        "federations",
        "there are no federations: each cluster has a queue of its own",
    ),
    (
        "reservations",
        "scontrol show reservation and gadm reservation list show them",
    ),
    ("resources", "gadm licence list shows licences"),
    (
        "stats",
        "gadm diag and sdiag say how the controller is doing",
    ),
    ("archive", "gadm backup writes a copy of all there is"),
];

pub(super) fn entity_of(entity: &str) -> Result<Entity, Failure> {
    let lower = entity.to_ascii_lowercase();
    let found = ENTITIES
        .iter()
        .find(|(word, least, _)| lower.len() >= *least && word.starts_with(&lower));
    if let Some((.., kind)) = found {
        return Ok(*kind);
    }
    let advice = NOT_LISTED
        .iter()
        .find(|(word, _)| lower.len() > 2 && word.starts_with(&lower))
        .map(|(_, advice)| *advice);
    let advice = advice.unwrap_or("account, assoc, user, qos and cluster are");
    Err(Failure::usage(format_args!(
        "{entity:?} is not listed here: {advice}"
    )))
}

/// The words of a list with commas.
pub(super) fn words_of(text: &str) -> impl Iterator<Item = String> {
    text.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entities_may_be_shortened_and_those_that_are_not_listed_are_told_where_else() {
        for (word, kind) in [
            ("acc", Entity::Accounts),
            ("Account", Entity::Accounts),
            ("assoc", Entity::Associations),
            ("us", Entity::Users),
            ("QOS", Entity::Qos),
        ] {
            assert_eq!(entity_of(word).ok(), Some(kind), "{word}");
        }
        assert_eq!(
            (entity_of("RunAway").ok(), entity_of("tres").ok()),
            (Some(Entity::Runaway), Some(Entity::Tres))
        );
        assert!(
            entity_of("stats")
                .unwrap_err()
                .text
                .starts_with("\"stats\" is not listed here: gadm diag")
        );
        assert_eq!(
            entity_of("foo").unwrap_err().text,
            "\"foo\" is not listed here: account, assoc, user, qos and cluster are"
        );
    }
}
