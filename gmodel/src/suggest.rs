//! "Did you mean": the known word nearest to a mistyped one, for options, keys, partitions and states.
//! Owns the threshold, so that every command guesses alike; never changes what was asked.

/// Longer words are not guessed at.
const MAX_WORD_CHARS: usize = 64;

/// The nearest known word within one mistake for each three letters (at least one), or one that begins
/// with the word; None if nothing is near. Letter case is not a mistake; ties go to the first candidate.
pub fn closest<'a, I>(word: &str, known: I) -> Option<&'a str>
where
    I: IntoIterator<Item = &'a str>,
{
    let wanted = word.to_lowercase();
    let chars = wanted.chars().count();
    if chars == 0 || chars > MAX_WORD_CHARS {
        return None;
    }
    let allowed = (chars / 3).max(1);
    let mut best: Option<(usize, &'a str)> = None;
    for candidate in known {
        if candidate.chars().count() > MAX_WORD_CHARS {
            continue;
        }
        let lower = candidate.to_lowercase();
        let mistakes = strsim::osa_distance(&wanted, &lower);
        // A word cut short ("part" for "partition") is as likely as the last mistake allowed.
        let cut_short = chars >= 3 && lower.starts_with(&wanted);
        let distance = if cut_short {
            mistakes.min(allowed)
        } else {
            mistakes
        };
        // A word of which every letter would have to change is no guess at all.
        let near = distance <= allowed && distance < chars.max(2);
        if near && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// ` Did you mean "x"?` with its leading blank, or nothing: to be put behind a message.
pub fn did_you_mean<'a, I>(word: &str, known: I) -> String
where
    I: IntoIterator<Item = &'a str>,
{
    closest(word, known)
        .map(|candidate| format!(" Did you mean {candidate:?}?"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KNOWN: [&str; 8] = [
        "partition",
        "account",
        "time",
        "time-min",
        "gpus",
        "gpus-per-node",
        "mem",
        "nodes",
    ];

    #[test]
    fn near_words_are_found() {
        for (word, want) in [
            ("partiton", "partition"),
            ("acount", "account"),
            ("tiem", "time"),
            ("gpu", "gpus"),
            ("part", "partition"),
            ("gpus-per-nodes", "gpus-per-node"),
            ("GPUS", "gpus"),
            ("node", "nodes"),
        ] {
            assert_eq!(closest(word, KNOWN), Some(want), "{word}");
        }
    }

    #[test]
    fn far_words_are_not_guessed() {
        for word in ["", "x", "zebra", "clusters", "qos", &"x".repeat(1000)] {
            assert_eq!(closest(word, KNOWN), None, "{word}");
        }
        assert_eq!(did_you_mean("zebra", KNOWN), "");
        assert_eq!(
            did_you_mean("partitio", KNOWN),
            r#" Did you mean "partition"?"#
        );
    }

    proptest! {
        #[test]
        fn any_word_is_taken(word in "\\PC{0,80}") {
            let _ = closest(&word, KNOWN);
        }

        #[test]
        fn a_known_word_is_its_own_guess(at in 0usize..KNOWN.len()) {
            prop_assert_eq!(closest(KNOWN[at], KNOWN), Some(KNOWN[at]));
        }
    }
}
