//! `scontrol create|update|delete ReservationName=`: scontrol's words as those of `gadm reservation`.
//!
//! Owns how one without a name is named, and which of `create` and `delete` are about partitions.

use super::{first_value, partition, split, value_of};
use gadm::policy::NameAndWords;
use gadm::policy::reservation::{self, ReservationAct, ReservationRemoval};
use gcli::{Failure, Outcome};
use gwire::client::Client;
use std::io::Write;

const WHAT_IS_MADE: &str = "reservations and partitions are made and removed so: ReservationName=course, PartitionName=debug; nodes join by themselves";

/// scontrol's names of a reservation's name.
pub(super) const NAMES: [&str; 2] = ["reservationname", "reservation"];

/// `create`: a partition, where no word is of a reservation.
pub(super) fn create_one(client: &mut Client, words: &[String]) -> Outcome {
    let is_one = |word: &String| {
        let entity = word.split('=').next().unwrap_or_default();
        NAMES.iter().any(|known| entity.eq_ignore_ascii_case(known))
    };
    match partition::named(words) {
        Some(name) if !words.iter().any(is_one) => partition::create(client, name, words),
        _ => edit(client, words, true),
    }
}

/// `create reservation ReservationName=course Users=ada ...`, `update ReservationName=course Duration=60`: the words are those
/// of `gadm reservation`.
pub(super) fn edit(client: &mut Client, words: &[String], new: bool) -> Outcome {
    let named = first_value(words, &NAMES).map(str::to_owned);
    let is_one = |word: &String| NAMES.iter().any(|known| word.eq_ignore_ascii_case(known));
    let name = match (named, words.first().is_some_and(is_one)) {
        (Some(name), _) => name,
        (None, true) if new => reservation::new_name(client, account_or_user(words))?,
        (None, true) => return Err(Failure::usage("which reservation? ReservationName=course")),
        (None, false) => return Err(Failure::usage(WHAT_IS_MADE)),
    };
    let is_change = |word: &&String| {
        (word.contains('=') || word.eq_ignore_ascii_case("skip"))
            && value_of(word, &NAMES).is_none()
    };
    let args = NameAndWords::of(
        name.clone(),
        words.iter().filter(is_change).cloned().collect(),
    );
    let act = if new {
        ReservationAct::Add(args)
    } else {
        ReservationAct::Set(args)
    };
    let exit = reservation::run(client, act)?;
    if exit == 0 {
        writeln!(
            std::io::stdout(),
            "{}",
            if new {
                format!("Reservation created: {name}")
            } else {
                "Reservation updated.".to_owned()
            }
        )?;
    }
    Ok(exit)
}

/// The name from which a reservation without one is named: its first account, else its first user.
fn account_or_user(words: &[String]) -> &str {
    let first = |keys: [&str; 2]| first_value(words, &keys)?.split(',').next();
    let name = first(["accounts", "account"])
        .or_else(|| first(["users", "user"]))
        .unwrap_or_default();
    name.trim_start_matches('-')
}

/// `delete ReservationName=course`, `delete reservation course`; as usual nothing is asked.
pub(super) fn delete(client: &mut Client, words: &[String]) -> Outcome {
    match words {
        [word, name]
            if super::partition::NAMES
                .iter()
                .any(|known| word.eq_ignore_ascii_case(known)) =>
        {
            return partition::delete(client, name);
        }
        [word] if partition::named(words).is_some() => {
            return partition::delete(client, word.split_once('=').map_or("", |(_, name)| name));
        }
        _ => {}
    }
    let names: Vec<String> = match words {
        [word, names @ ..] if NAMES.iter().any(|known| word.eq_ignore_ascii_case(known)) => {
            names.to_vec()
        }
        words => words
            .iter()
            .filter_map(|word| value_of(word, &NAMES))
            .map(str::to_owned)
            .collect(),
    };
    if names.is_empty() {
        return Err(Failure::usage(WHAT_IS_MADE));
    }
    reservation::run(
        client,
        ReservationAct::Del(ReservationRemoval::of(split(&names))),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_without_a_name_is_named_after_its_account_or_user() {
        let of = |text: &str| {
            account_or_user(&text.split(' ').map(str::to_owned).collect::<Vec<_>>()).to_owned()
        };
        assert_eq!(of("reservation Users=ada,bob StartTime=now"), "ada");
        assert_eq!(of("reservation users=ada account=-nlp,vision"), "nlp");
        assert_eq!(of("reservation StartTime=now"), "");
    }
}
