//! A submission that is made for another process: of the same options, with variables, directory and script of its own.
//!
//! Owns nothing of what options mean. The script's lines are not read, nor are this process's variables and limits.

use crate::choice::Choices;
use crate::environment;
use crate::launch_context::Submitter;
use crate::option_words::{GivenOption, Origin, read};
use crate::script::Work;
use crate::specification::{ReadParts, build};
use gcli::Failure;
use gmodel::Timestamp;
use gwire::api::SubmitRequest;
use std::ffi::OsString;

/// Options that take a file of nodes, too.
const NODES: [&str; 3] = ["exclude", "nodefile", "nodelist"];

/// What a submission is made of beside its options.
#[derive(Clone, Debug, Default)]
pub struct RemoteWork {
    pub script: String,
    /// Arguments of the script.
    pub argv: Vec<String>,
    pub variables: Vec<(OsString, OsString)>,
    /// Absolute.
    pub work_dir: String,
    pub host: String,
    pub now: Timestamp,
}

/// The submission of the options of each component, as sbatch would send it, with notes.
///
/// # Errors
/// The first option that cannot be.
pub fn request(
    parts: &[Vec<String>],
    given: &RemoteWork,
) -> Result<(SubmitRequest, Vec<String>), Failure> {
    let work = Work {
        script: given.script.clone(),
        argv: given.argv.clone(),
        job_name: "sbatch".to_owned(),
        ..Work::default()
    };
    let submitter = Submitter {
        work_dir: Some(given.work_dir.clone()),
        host: given.host.clone(),
        umask: 0o22,
        limits: Vec::new(),
        now: given.now,
        outside: false,
    };
    let mut notes = Vec::new();
    let mut read_parts = ReadParts::default();
    for words in parts {
        let (options, rest) = read(words, &Origin::CommandLine)?;
        if let Some(word) = rest.words.first() {
            return Err(Failure::usage(format_args!("{word:?} is no option")));
        }
        // This process may read files that the other may not.
        let names_file =
            |given: &&GivenOption| NODES.contains(&given.option.name) && given.text().contains('/');
        if let Some(given) = options.iter().find(names_file) {
            return Err(given.fail("a file is not read here. Name the nodes themselves"));
        }
        let mut choices = Choices::of(options.clone())?;
        notes.extend(choices.unused());
        let part = build(&mut choices, &work, &submitter)?;
        notes.extend(read_parts.add(options, part));
    }
    let whole = read_parts.whole;
    let mut whole = whole.ok_or_else(|| Failure::new("there is nothing to submit"))?;
    whole.name_output_as_sbatch();
    let environment = whole.export.select(given.variables.iter().cloned());
    environment::check_size(&environment).map_err(Failure::new)?;
    let request = SubmitRequest {
        spec: whole.spec,
        script: work.script,
        environment,
        client_key: None,
        others: whole.others,
    };
    Ok((request, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_of_nodes_is_read_for_another_process() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "node1\n").unwrap();
        let path = file.path().display();
        for option in ["nodelist", "exclude", "nodefile"] {
            let refused = request(
                &[vec![format!("--{option}={path}")]],
                &RemoteWork::default(),
            );
            let text = refused.map(|_| ()).unwrap_err().text;
            assert!(text.contains("a file is not read here"), "{text}");
        }
    }

    #[test]
    fn options_of_another_process_become_its_submission() {
        let words = ["--gpus=2", "--time=5", "--chdir=/data", "--export=ALL"];
        let parts = [words.map(str::to_owned).to_vec()];
        let given = RemoteWork {
            script: "#!/bin/sh\n#SBATCH --time=9\ntrue\n".to_owned(),
            variables: vec![("A".into(), "1".into())],
            work_dir: "/".to_owned(),
            ..RemoteWork::default()
        };
        let (request, _) = request(&parts, &given).unwrap();
        assert_eq!(
            request.spec.time_limit_secs,
            Some(300),
            "its lines are not read"
        );
        assert_eq!(request.spec.launch.work_dir, "/data");
        assert_eq!(request.spec.launch.stdout, "slurm-%j.out");
        assert!(request.environment.contains(&"A=1".to_owned()));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused =
            |word: &str| request(&[vec![word.to_owned()]], &RemoteWork::default()).unwrap_err();
        assert!(refused("--time=soon").text.contains("--time"));
        assert!(refused("train.sh").text.contains("is no option"));
    }
}
