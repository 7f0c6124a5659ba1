//! The jobs that a name on the command line stands for: `17`, `98_5`, `98`.

use gcli::Failure;
use gcli::slurm_words::Cause;
use gmodel::RefusalKind;
use gwire::api::JobRow;
use gwire::client::{Client, escape};

/// `/v1/jobs/98_5/log`.
pub(crate) fn job_path(job: &str, what: &str) -> String {
    format!("/v1/jobs/{}{what}", escape(job))
}

/// The jobs that a name stands for, all columns, finished ones too.
///
/// # Errors
/// There is no such job.
pub fn jobs_named(client: &mut Client, job: &str) -> Result<Vec<JobRow>, Failure> {
    let mut rows = client.rows(&job_path(job, ""))?;
    let mut jobs = Vec::new();
    while let Some(text) = rows.next_row()? {
        let row = serde_json::from_slice(text);
        jobs.push(row.map_err(|error| {
            Failure::new(format_args!(
                "the record of job {job} cannot be read: {error}"
            ))
        })?);
    }
    if jobs.is_empty() {
        let cause = Cause::Refused {
            about: RefusalKind::Job,
            subject: job.to_owned(),
        };
        return Err(Failure::new(format_args!("job {job}: there is no such job")).because(cause));
    }
    Ok(jobs)
}
