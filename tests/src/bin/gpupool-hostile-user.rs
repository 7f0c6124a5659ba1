//! `gpupool-hostile-user OWN-JOB OTHERS-JOB DIR SECS SEED SOCKET...`: an ordinary, hostile user. The last line counts the
//! answers by status; exit code 1 if one was an answer that no user must get.

use gpupool_tests::hostile::user::{Ground, attack};
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [own, others, dir, secs, seed, sockets @ ..] = &words[..] else {
        eprintln!("usage: gpupool-hostile-user OWN-JOB OTHERS-JOB DIR SECS SEED SOCKET...");
        return ExitCode::from(2);
    };
    let number = |text: &str| text.parse().expect("a number");
    let sockets = sockets.iter().map(Into::into).collect();
    let ground = Ground {
        sockets,
        own: number(own),
        others: number(others),
        dir: dir.clone(),
        secs: number(secs),
        seed: number(seed),
    };
    match attack(&ground) {
        Ok(counts) => {
            println!("{counts:?}");
            ExitCode::SUCCESS
        }
        Err(text) => {
            println!("{text}");
            ExitCode::FAILURE
        }
    }
}
