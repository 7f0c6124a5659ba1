//! The texts of a launch as they are stored: environment and long arguments, one blob. Of long arguments the state keeps the beginning,
//! for display; the node gets all of them from the blob.
//!
//! `NAME=value` each, separated by NUL bytes; where arguments follow, an empty variable stands before the first.

/// Arguments that stay in the state, bytes.
const KEPT_ARGUMENT_BYTES: usize = 4096;
/// No variable is empty, so this is nowhere among them.
const ARGUMENTS_FOLLOW: &str = "\0\0";
/// The last word of arguments of which only the beginning is kept.
const MORE: &str = "...";

/// What is stored of an environment, separated by NUL bytes, and of arguments; of long ones `argv` keeps the beginning.
pub fn packed(mut environment: String, argv: &mut Vec<String>) -> String {
    if let Some(all) = shorten(argv) {
        environment.push_str(ARGUMENTS_FOLLOW);
        environment.push_str(&all.join("\0"));
    }
    environment
}

/// Leaves the beginning of long arguments; what they were.
pub fn shorten(argv: &mut Vec<String>) -> Option<Vec<String>> {
    let bytes: usize = argv.iter().map(|word| word.len() + 1).sum();
    if bytes <= KEPT_ARGUMENT_BYTES {
        return None;
    }
    let mut room = KEPT_ARGUMENT_BYTES;
    let mut kept = Vec::new();
    for word in argv.iter() {
        if word.len() >= room {
            kept.push(word[..word.floor_char_boundary(room)].to_owned());
            break;
        }
        room -= word.len() + 1;
        kept.push(word.clone());
    }
    kept.push(MORE.to_owned());
    Some(std::mem::replace(argv, kept))
}

/// The variables, and the arguments if they are there.
pub fn unpacked(text: &str) -> (Vec<String>, Option<Vec<String>>) {
    let (environment, arguments) = match text.split_once(ARGUMENTS_FOLLOW) {
        Some((environment, arguments)) => (
            environment,
            Some(arguments.split('\0').map(str::to_owned).collect()),
        ),
        None => (text, None),
    };
    (
        environment
            .split('\0')
            .filter(|variable| !variable.is_empty())
            .map(str::to_owned)
            .collect(),
        arguments,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_arguments_go_with_the_environment_and_come_back_as_they_were() {
        let long = "é".repeat(3000);
        for (variables, words) in [
            (vec!["A=1", "B="], vec!["prog", "", &long, ""]),
            (vec![], vec!["", "", &long]),
            (vec!["A=1"], vec![long.as_str()]),
            (vec!["A=1"], vec!["short", "", "words"]),
            (vec![], vec![]),
        ] {
            let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
            let mut kept = words.clone();
            let (environment, arguments) = unpacked(&packed(variables.join("\0"), &mut kept));
            assert_eq!(environment, variables);
            assert_eq!(arguments.unwrap_or_else(|| kept.clone()), words);
            assert!(kept.concat().len() <= KEPT_ARGUMENT_BYTES + MORE.len());
            assert!(kept == words || kept.last().is_some_and(|word| word == MORE));
        }
        let mut many: Vec<String> = (0..100_000).map(|at| at.to_string()).collect();
        let stored = packed("A=1".into(), &mut many);
        assert_eq!((many[0].as_str(), many.len() < 1200), ("0", true));
        assert_eq!(unpacked(&stored).1.unwrap().len(), 100_000);
    }
}
