//! `scontrol` without a command: reads commands by the line, as a shell does.
//!
//! Owns the words that are of the lines alone: `exit`, `quit`, `!!` and how records are shown from now on. Source: scontrol(1).

use super::{ScontrolArgs, carry_out};
use gcli::{Failure, Outcome};
use gmodel::directive::split_words;
use std::io::{BufRead, Read, Write};

/// Longest line that is read, bytes.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// Carries out lines until `exit`, `quit` or the end of stdin. Exits as the worst of them.
pub(super) fn run(mut args: ScontrolArgs) -> Outcome {
    let mut stdin = std::io::stdin().lock();
    let (mut last, mut worst) = (Vec::new(), 0);
    loop {
        write!(std::io::stdout(), "scontrol: ")?;
        std::io::stdout().flush()?;
        let mut line = String::new();
        if (&mut stdin).take(MAX_LINE_BYTES).read_line(&mut line)? == 0 {
            return Ok(worst);
        }
        let words = match split_words(line.trim()) {
            Ok(words) if words.is_empty() => continue,
            Ok(words) if words[0] == "!!" => last.clone(),
            Ok(words) => words,
            Err(error) => {
                gcli::failure::say_failure("scontrol", &Failure::usage(error))?;
                continue;
            }
        };
        match words
            .first()
            .map(|word| word.to_ascii_lowercase())
            .as_deref()
        {
            Some("exit" | "quit" | "q") => return Ok(worst),
            Some("oneliner") => args.oneliner = true,
            Some("details") => args.details = true,
            // As is usual here.
            None | Some("all" | "hide" | "quiet" | "verbose") => {}
            Some(_) => {
                args.words.clone_from(&words);
                worst = worst.max(match carry_out(&args) {
                    Ok(exit) => exit,
                    Err(failure) => {
                        gcli::failure::say_failure("scontrol", &failure)?;
                        failure.exit
                    }
                });
            }
        }
        last = words;
    }
}
