//! The soft resource limits of this process, which go with the job as sbatch sends them by default. A login node's `ulimit`
//! holds in the job, as far as the node's hard limits allow. Source: `--propagate` in sbatch(1), setrlimit(2).

use gmodel::job::{LimitName, SoftLimit};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

const SENT: [(LimitName, Resource); 10] = [
    (LimitName::As, Resource::RLIMIT_AS),
    (LimitName::Core, Resource::RLIMIT_CORE),
    (LimitName::Cpu, Resource::RLIMIT_CPU),
    (LimitName::Data, Resource::RLIMIT_DATA),
    (LimitName::Fsize, Resource::RLIMIT_FSIZE),
    (LimitName::Memlock, Resource::RLIMIT_MEMLOCK),
    (LimitName::Nofile, Resource::RLIMIT_NOFILE),
    (LimitName::Nproc, Resource::RLIMIT_NPROC),
    (LimitName::Rss, Resource::RLIMIT_RSS),
    (LimitName::Stack, Resource::RLIMIT_STACK),
];

/// The limits of this list, as `--propagate` writes it: names, with or without `RLIMIT_`, ALL or NONE.
///
/// # Errors
/// A name of none.
pub(crate) fn named(limits: &[SoftLimit], text: &str) -> Result<Vec<SoftLimit>, String> {
    let mut chosen = Vec::new();
    for word in text.split(',').map(|word| word.trim().to_ascii_uppercase()) {
        let name = word.strip_prefix("RLIMIT_").unwrap_or(&word);
        let has_name =
            |limit: &&SoftLimit| serde_json::to_value(limit.name).is_ok_and(|known| known == name);
        match (name, limits.iter().find(has_name)) {
            ("ALL", _) => return Ok(limits.to_vec()),
            ("NONE", _) => {}
            (_, Some(limit)) => chosen.push(limit.clone()),
            (_, None) => {
                return Err(format!(
                    "{word:?} is no limit: ALL, NONE, or a list of AS, CORE, CPU, DATA, FSIZE, MEMLOCK, NOFILE, NPROC, RSS, STACK"
                ));
            }
        }
    }
    Ok(chosen)
}

/// All that sbatch would send; one that the kernel does not tell is left to the node.
pub(crate) fn own() -> Vec<SoftLimit> {
    let limit = |(name, resource)| {
        let (soft, _hard) = getrlimit(resource).ok()?;
        Some(SoftLimit {
            name,
            soft: (soft != RLIM_INFINITY).then_some(soft),
        })
    };
    SENT.into_iter().filter_map(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_the_limits_that_go_along() {
        let names = |text| {
            named(&own(), text).map(|limits| {
                let names: Vec<_> = limits
                    .iter()
                    .map(|limit| format!("{:?}", limit.name))
                    .collect();
                names.join(" ")
            })
        };
        assert_eq!(names("NONE"), Ok(String::new()));
        assert_eq!(names("nofile,RLIMIT_CORE").as_deref(), Ok("Nofile Core"));
        assert_eq!(named(&own(), "CORE,ALL"), Ok(own()));
        assert!(
            names("FILES")
                .unwrap_err()
                .starts_with("\"FILES\" is no limit")
        );
    }

    #[test]
    fn what_the_kernel_says_of_this_process_is_sent() {
        let limits = own();
        assert_eq!(limits.len(), SENT.len());
        let told = std::fs::read_to_string("/proc/self/limits").unwrap();
        let soft = |row: &str| {
            let line = told.lines().find(|line| line.starts_with(row)).unwrap();
            line[row.len()..]
                .split_whitespace()
                .next()
                .unwrap()
                .parse::<u64>()
                .ok()
        };
        let rows = [
            (LimitName::As, "Max address space"),
            (LimitName::Core, "Max core file size"),
            (LimitName::Cpu, "Max cpu time"),
            (LimitName::Data, "Max data size"),
            (LimitName::Fsize, "Max file size"),
            (LimitName::Memlock, "Max locked memory"),
            (LimitName::Nofile, "Max open files"),
            (LimitName::Nproc, "Max processes"),
            (LimitName::Rss, "Max resident set"),
            (LimitName::Stack, "Max stack size"),
        ];
        assert_eq!(
            limits,
            rows.map(|(name, row)| SoftLimit {
                name,
                soft: soft(row)
            })
        );
    }
}
