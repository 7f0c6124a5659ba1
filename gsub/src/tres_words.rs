//! `--tres-per-task` and `--tres-bind`: lists of resources, read as the options that say the same of one resource. Source:
//! sbatch(1), srun(1).

use gmodel::binding::GpuBind;

/// An option and its value.
pub(crate) type OptionWord = (&'static str, String);

/// `cpu=4,gres/gpu:h100:1` as --cpus-per-task and --gpus-per-task.
///
/// # Errors
/// A resource that a task cannot ask for here.
pub(crate) fn per_task(text: &str) -> Result<Vec<OptionWord>, String> {
    let word = |item: &str| {
        let (name, value) = item.split_once([':', '=']).unwrap_or((item, "1"));
        match name.strip_prefix("gres/").unwrap_or(name) {
            "cpu" => Ok(("cpus-per-task", value.to_owned())),
            "gpu" => Ok(("gpus-per-task", value.replacen('=', ":", 1))),
            _ => Err(format!(
                "{item:?} is not known for a task: CPUs and GPUs are, as in cpu=4,gres/gpu:h100:1"
            )),
        }
    };
    items(text).map(word).collect()
}

/// `gres/gpu:closest` as --gpu-bind; `gres/gpu:verbose,single:2`.
///
/// # Errors
/// A resource that is not bound to tasks here.
pub(crate) fn bind(text: &str) -> Result<Vec<OptionWord>, String> {
    gpu_bind(text).map(|how| vec![("gpu-bind", how)])
}

/// The same as the value of --gpu-bind.
///
/// # Errors
/// The same.
pub(crate) fn gpu_bind(text: &str) -> Result<String, String> {
    GpuBind::parse_tres(text).map_err(|why| why.to_string())?;
    let how = text.trim_start_matches("gres/");
    Ok(how.trim_start_matches("gpu:").to_owned())
}

fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_resources_are_read_as_the_options_of_one() {
        let words = |text| {
            per_task(text).map(|words| {
                let words: Vec<_> = words
                    .iter()
                    .map(|(name, v)| format!("{name}={v}"))
                    .collect();
                words.join(" ")
            })
        };
        let same = [
            ("cpu=4", "cpus-per-task=4"),
            (
                "cpu:4,gres/gpu:h100:2",
                "cpus-per-task=4 gpus-per-task=h100:2",
            ),
            ("gres/gpu:h100=2", "gpus-per-task=h100:2"),
            ("gres/gpu=2,", "gpus-per-task=2"),
            ("gres/gpu", "gpus-per-task=1"),
        ];
        for (text, want) in same {
            assert_eq!(words(text).as_deref(), Ok(want));
        }
        let refused = words("cpu=1,license/matlab:1").unwrap_err();
        assert!(refused.starts_with("\"license/matlab:1\" is not known for a task"));
        assert_eq!(
            bind("gres/gpu:verbose,single:2").unwrap(),
            [("gpu-bind", "verbose,single:2".to_owned())]
        );
        assert!(bind("gres/nic:closest").is_err() && bind("gres/gpu:map_gpu:0").is_err());
    }
}
