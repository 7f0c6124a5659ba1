//! `--export`: which of the submitter's variables the job gets. Source: sbatch(1).

use gmodel::{byte_text, parallel};
use gwire::api::MAX_ENVIRONMENT_BYTES;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// `--export` as read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Export {
    /// All of the submitter's variables.
    all: bool,
    /// These of the submitter's, and these with values.
    names: Vec<(String, Option<String>)>,
    /// What a login has fills the gaps, unless all was taken along or nothing is wished for.
    login: bool,
}

impl Export {
    /// Everything, as without `--export`.
    pub(crate) fn all() -> Self {
        Self {
            all: true,
            ..Self::default()
        }
    }

    /// Nothing of the submitter's, and what a login on the node has.
    pub(crate) fn login() -> Self {
        Self {
            login: true,
            ..Self::default()
        }
    }

    /// Reads `ALL`, `NONE`, `NIL`, `NAME,NAME=VALUE`; commas in quotes belong to a value.
    ///
    /// # Errors
    /// What cannot be a variable's name.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut export = Self::default();
        let mut nil = false;
        for part in split(text)? {
            match part.as_str() {
                "ALL" => export.all = true,
                "NONE" => {}
                "NIL" => nil = true,
                part => {
                    let (name, value) = part
                        .split_once('=')
                        .map_or((part, None), |(name, value)| (name, Some(value.to_owned())));
                    if name.is_empty()
                        || name.contains(|c: char| c.is_whitespace() || c.is_control())
                    {
                        return Err(format!(
                            "{name:?} is no variable's name. Write ALL, NONE, or NAME,NAME=VALUE"
                        ));
                    }
                    export.names.push((name.to_owned(), value));
                }
            }
        }
        export.login = !export.all && !nil;
        Ok(export)
    }

    /// The job gets the environment of a login on its node besides. Source: `--export` in sbatch(1).
    pub(crate) fn wants_login(&self) -> bool {
        self.login
    }

    /// For tasks inside a job, as `srun --export`: what describes the job stays whatever is asked.
    pub(crate) fn inside(&self, variables: Vec<(String, String)>) -> Vec<(String, String)> {
        let named = |name: &str, with_value: bool| {
            self.names
                .iter()
                .any(|(known, value)| known == name && value.is_some() == with_value)
        };
        let kept = |name: &str| {
            !named(name, true) && (self.all || describes_job(name) || named(name, false))
        };
        let set = self
            .names
            .iter()
            .filter_map(|(name, value)| Some((name.clone(), value.clone()?)));
        variables
            .into_iter()
            .filter(|(name, _)| kept(name))
            .chain(set)
            .collect()
    }

    /// A variable of the job whatever else it gets.
    pub(crate) fn set(&mut self, name: &str, value: String) {
        self.names.retain(|(known, _)| known != name);
        self.names.push((name.to_owned(), Some(value)));
    }

    /// The variables with values of their own.
    pub(crate) fn values(&self) -> impl Iterator<Item = (String, String)> + '_ {
        let values = self.names.iter();
        values.filter_map(|(name, value)| Some((name.clone(), value.clone()?)))
    }

    /// `NAME=value` for each variable the job gets, as [`byte_text`] writes bytes.
    pub(crate) fn select(
        &self,
        variables: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Vec<String> {
        let variables: Vec<_> = variables.into_iter().collect();
        // A job's own variables describe that job, not the one it submits.
        let inside_job = variables.iter().any(|(name, _)| name == "GSUB_JOB_ID");
        let given = parallel::given_names(|name| {
            let mut found = variables.iter().filter(|(known, _)| known == name);
            found.next()?.1.to_str()
        });
        let mut selected = Vec::new();
        for (name, value) in &variables {
            let name = byte_text::from_bytes(name.as_bytes());
            let asked = self
                .names
                .iter()
                .any(|(known, value)| *known == name && value.is_none());
            let set = self
                .names
                .iter()
                .any(|(known, value)| *known == name && value.is_some());
            let is_outer = || describes_job(&name) || given.contains(&&name[..]);
            if !set && (asked || self.all && !(inside_job && is_outer())) {
                selected.push(format!(
                    "{name}={}",
                    byte_text::from_bytes(value.as_bytes())
                ));
            }
        }
        selected.extend(
            self.names
                .iter()
                .filter_map(|(name, value)| Some(format!("{name}={}", value.as_ref()?))),
        );
        selected
    }
}

/// A variable of this process, as [`byte_text`] writes bytes.
pub(crate) fn own(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| byte_text::from_bytes(value.as_bytes()))
}

/// Of this process: what a job or a step around it gave for its ranks.
pub(crate) fn given_names() -> Vec<&'static str> {
    let variables: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    parallel::given_names(|name| variables.get(name).map(String::as_str))
}

/// Variables that tell a job of itself.
pub(crate) fn describes_job(name: &str) -> bool {
    ["SLURM_", "SLURMD_", "GSUB_"]
        .iter()
        .any(|prefix| name.starts_with(prefix))
        || matches!(
            name,
            "CUDA_VISIBLE_DEVICES" | "GPU_DEVICE_ORDINAL" | "ROCR_VISIBLE_DEVICES"
        )
}

/// Refuses an environment that the controller would refuse.
pub(crate) fn check_size(environment: &[String]) -> Result<(), String> {
    let bytes: usize = environment.iter().map(|variable| variable.len() + 1).sum();
    if bytes <= MAX_ENVIRONMENT_BYTES {
        return Ok(());
    }
    let largest = environment
        .iter()
        .max_by_key(|variable| variable.len())
        .and_then(|variable| variable.split_once('='));
    let largest = largest.map(|(name, value)| {
        format!(
            "; the largest variable is {name} with {} bytes",
            value.len()
        )
    });
    Err(format!(
        "the environment has {bytes} bytes and {MAX_ENVIRONMENT_BYTES} (1 MiB) are the most{}. Try --export=NONE, or name what the job needs",
        largest.unwrap_or_default()
    ))
}

/// Splits at commas outside of quotes, which go.
fn split(text: &str) -> Result<Vec<String>, String> {
    let (mut parts, mut part, mut quote) = (Vec::new(), String::new(), None);
    for c in text.chars() {
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            (',', None) => parts.push(std::mem::take(&mut part)),
            (c, _) => part.push(c),
        }
    }
    if let Some(quote) = quote {
        return Err(format!("the quote {quote} is not closed"));
    }
    parts.push(part);
    parts.retain(|part| !part.is_empty());
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn select(export: &str, variables: &[(&str, &str)]) -> Vec<String> {
        let variables = variables
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value)));
        Export::parse(export).unwrap().select(variables)
    }

    #[test]
    fn all_none_and_lists_choose_the_variables() {
        let here = [("A", "1"), ("B", "2"), ("PATH", "/bin")];
        assert_eq!(select("ALL", &here), ["A=1", "B=2", "PATH=/bin"]);
        assert!(select("NONE", &here).is_empty());
        assert_eq!(select("A,C=x", &here), ["A=1", "C=x"]);
        assert_eq!(
            select("ALL,B=9,D='p,q'", &here),
            ["A=1", "PATH=/bin", "B=9", "D=p,q"]
        );
        assert_eq!(select("MISSING", &here), [""; 0]);
    }

    #[test]
    fn a_login_fills_the_gaps_unless_all_is_there_or_nothing_is_wished_for() {
        let login = |text: &str| Export::parse(text).unwrap().wants_login();
        assert!(
            login("NONE")
                && login("A,B=x")
                && !login("ALL")
                && !login("ALL,A")
                && !login("NIL")
                && !Export::all().wants_login()
        );
    }

    #[test]
    fn the_variables_of_an_outer_job_stay_with_it() {
        let here = [
            ("GSUB_JOB_ID", "1"),
            ("SLURM_PROCID", "0"),
            ("CUDA_VISIBLE_DEVICES", "0"),
            ("HOME", "/h"),
        ];
        assert_eq!(select("ALL", &here), ["HOME=/h"]);
        assert_eq!(
            select("ALL", &here[1..]).len(),
            3,
            "outside of a job they are the user's own"
        );
    }

    #[test]
    fn a_variable_that_is_no_text_goes_along_as_its_bytes() {
        use std::os::unix::ffi::OsStringExt;
        let odd = [(
            OsString::from_vec(b"N\xe9".to_vec()),
            OsString::from_vec(b"\xff\xfe".to_vec()),
        )];
        let selected = Export::all().select(odd.clone());
        assert_eq!(
            byte_text::to_bytes(&selected[0]).as_ref(),
            b"N\xe9=\xff\xfe"
        );
        let name = byte_text::from_bytes(b"N\xe9");
        assert_eq!(
            Export::parse(&name).unwrap().select(odd),
            selected,
            "by its name, too"
        );
    }

    #[test]
    fn an_environment_that_is_too_large_is_refused_with_the_culprit() {
        let text = check_size(&[
            format!("BIG={}", "x".repeat(MAX_ENVIRONMENT_BYTES)),
            "A=1".into(),
        ])
        .unwrap_err();
        assert!(
            text.contains("largest variable is BIG with 1048576 bytes"),
            "{text}"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,40}|[A-Z=,'\"]{0,20}") {
            let _ = Export::parse(&text);
        }
    }
}
