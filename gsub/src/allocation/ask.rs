//! What a command line asks of an allocation, with the variables that srun and salloc read, as one submission.

use super::words::asks_for_nodes;
use crate::choice::Choices;
use crate::defined_options::DefinedOptions;
use crate::environment;
use crate::option_words::{GivenOption, read_environment};
use crate::script::Work;
use crate::specification::{ReadParts, build};
use crate::submission;
use gcli::{Failure, cluster_choice};
use gwire::api::SubmitRequest;
use gwire::client::Client;
use std::collections::BTreeMap;

/// An allocation as it is asked for.
pub(crate) struct AllocationAsk {
    pub request: SubmitRequest,
    /// What the options say to the job beside what the controller says of it.
    pub variables: BTreeMap<String, String>,
    /// What is said of options of which nothing comes.
    pub notes: Vec<String>,
    /// Of the first component, for `--verbose`.
    pub defined: DefinedOptions,
}

impl AllocationAsk {
    /// `given` has the options of each component. `prefix` is that of the variables: `SLURM_` for srun, `SALLOC_` for salloc.
    /// `GSUB_` ones outrank them.
    ///
    /// # Errors
    /// The first value that cannot be, with where it was given.
    pub(crate) fn new(
        given: Vec<Vec<GivenOption>>,
        command: &[String],
        prefix: &str,
        client: &mut Client,
    ) -> Result<Self, Failure> {
        let variables = read_environment(prefix, asks_for_nodes, environment::own)?;
        let (work, submitter) = (
            Work::from_command(command.to_vec()),
            submission::submitter(false)?,
        );
        let (mut notes, mut defined) = (Vec::new(), DefinedOptions::default());
        let mut parts = ReadParts::default();
        for (at, given) in given.into_iter().enumerate() {
            let said = given.clone();
            let mut choices = Choices::of(variables.clone().into_iter().chain(given))?;
            notes.extend(choices.unused());
            if at == 0 {
                defined = DefinedOptions::of(&choices);
            }
            let part = build(&mut choices, &work, &submitter)?;
            notes.extend(parts.add(said, part));
        }
        let mut asked = parts.whole.unwrap_or_default();
        asked.spec.allocation = true;
        cluster_choice::check(&asked.clusters, client)?;
        let variables = asked.export.values().collect();
        Ok(Self {
            request: submission::request(&asked, &work)?,
            variables,
            notes,
            defined,
        })
    }
}
