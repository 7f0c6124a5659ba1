//! Which CPUs and GPUs of a job one task of it gets: `--cpu-bind` and `--gpu-bind`, in srun's words.
//!
//! Reads the words and says which position of a list a task gets. Which CPUs and GPUs there are is the node's affair.
//! Without a word every task may use all CPUs and sees all GPUs of its job. Source: srun(1).

use crate::suggest::did_you_mean;
use std::fmt;

/// Most entries of a map, and the largest repetition in it.
const MAX_MAP: usize = 4096;
const CPU_WORDS: [&str; 7] = [
    "quiet",
    "verbose",
    "none",
    "cores",
    "threads",
    "map_cpu:",
    "mask_cpu:",
];
const GPU_WORDS: [&str; 8] = [
    "quiet",
    "verbose",
    "none",
    "closest",
    "single:",
    "per_task:",
    "map_gpu:",
    "mask_gpu:",
];

/// `--cpu-bind`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuBind {
    /// Each task says on its stderr what it got.
    pub verbose: bool,
    pub how: CpuChoice,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CpuChoice {
    /// All CPUs of the job on the node.
    #[default]
    None,
    /// As many whole cores as the task's CPUs need.
    Cores,
    /// As many CPUs as the task has.
    Threads,
    /// CPU numbers of the machine, one a task, from the beginning again when they run out.
    Map(Vec<u32>),
    /// Sets of them, in the same way.
    Mask(Vec<Vec<u32>>),
}

/// `--gpu-bind`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuBind {
    pub verbose: bool,
    pub how: GpuChoice,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum GpuChoice {
    /// All GPUs of the job on the node.
    #[default]
    None,
    /// Those nearest to the task's CPUs.
    Closest,
    /// One GPU, shared by so many tasks that follow each other.
    Single(u32),
    /// So many of its own.
    PerTask(u32),
    /// Positions among the job's GPUs on the node, one a task, from the beginning again when they run out.
    Map(Vec<u32>),
    /// Sets of them, in the same way.
    Mask(Vec<Vec<u32>>),
}

/// What is wrong with the words, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadBinding(String);

impl CpuBind {
    /// # Errors
    /// Words that are none of srun's, or that are not acted on.
    pub fn parse(text: &str) -> Result<Self, BadBinding> {
        let (verbose, word) = split_verbose(text);
        let how = match word.split_once(':').unwrap_or((word, "")) {
            ("" | "none" | "no" | "n", "") => CpuChoice::None,
            ("cores" | "core", "") => CpuChoice::Cores,
            ("threads" | "thread", "") => CpuChoice::Threads,
            ("map_cpu", list) => CpuChoice::Map(map(list, "map_cpu", &number)?),
            ("mask_cpu", list) => CpuChoice::Mask(map(list, "mask_cpu", &mask)?),
            (
                known @ ("sockets" | "ldoms" | "rank" | "rank_ldom" | "map_ldom" | "mask_ldom"),
                _,
            ) => {
                return Err(BadBinding(format!(
                    "{known} is not offered. Use cores, threads, map_cpu:LIST or mask_cpu:LIST"
                )));
            }
            (unknown, _) => return Err(no_word(unknown, &CPU_WORDS)),
        };
        Ok(Self { verbose, how })
    }
}

impl GpuBind {
    /// # Errors
    /// Words that are none of srun's, or that are not acted on.
    pub fn parse(text: &str) -> Result<Self, BadBinding> {
        let (verbose, word) = split_verbose(text);
        let how = match word.split_once(':').unwrap_or((word, "")) {
            ("" | "none", "") => GpuChoice::None,
            ("closest", "") => GpuChoice::Closest,
            ("single", count) => GpuChoice::Single(positive(count, "single", "tasks on each GPU")?),
            ("per_task", count) => {
                GpuChoice::PerTask(positive(count, "per_task", "GPUs of each task")?)
            }
            // The words of --tres-bind; a list of none binds nothing.
            ("map" | "mask", "") => GpuChoice::None,
            (word @ ("map" | "map_gpu"), list) => GpuChoice::Map(map(list, word, &position)?),
            (word @ ("mask" | "mask_gpu"), list) => GpuChoice::Mask(map(list, word, &mask)?),
            (unknown, _) => return Err(no_word(unknown, &GPU_WORDS)),
        };
        Ok(Self { verbose, how })
    }

    /// As `--tres-bind` has it: `gres/gpu:single:2`.
    ///
    /// # Errors
    /// Another resource, or words that are none of srun's.
    pub fn parse_tres(text: &str) -> Result<Self, BadBinding> {
        let how = text.strip_prefix("gres/gpu:");
        match how.or_else(|| text.strip_prefix("gpu:")) {
            Some(how) if how.contains("map_gpu:") || how.contains("mask_gpu:") => Err(BadBinding(
                format!("{how:?} is of --gpu-bind. Write gres/gpu:map:LIST or gres/gpu:mask:LIST"),
            )),
            Some(how) if !how.contains("gres/") && !how.contains('+') => Self::parse(how),
            _ => Err(BadBinding(format!(
                "{text:?} is not known here: GPUs are bound to tasks, in one way, as in gres/gpu:single:1"
            ))),
        }
    }

    /// Positions of the GPUs that task `local` of the node gets, of `gpus`; `near` are the positions of those near its CPUs.
    ///
    /// # Errors
    /// There are too few, with the numbers.
    pub fn positions(&self, local: u32, gpus: u32, near: &[u32]) -> Result<Vec<u32>, BadBinding> {
        let all = || (0..gpus).collect();
        Ok(match &self.how {
            GpuChoice::None => all(),
            _ if gpus == 0 => {
                return Err(BadBinding(format!(
                    "{self}: the job has no GPU on this node. Ask for some with --gpus"
                )));
            }
            GpuChoice::Closest if near.is_empty() => all(),
            GpuChoice::Closest => near.to_vec(),
            GpuChoice::Single(tasks) => {
                let of: Vec<u32> = if near.is_empty() {
                    all()
                } else {
                    near.to_vec()
                };
                vec![of[(local / tasks) as usize % of.len()]]
            }
            GpuChoice::PerTask(count) => {
                let (first, end) = (
                    u64::from(local) * u64::from(*count),
                    (u64::from(local) + 1) * u64::from(*count),
                );
                if end > u64::from(gpus) {
                    return Err(BadBinding(format!(
                        "{self}: task {local} of this node would be given GPUs {first} to {}, and the job has {gpus} here. \
                         Start fewer tasks a node, or ask for more GPUs",
                        end - 1
                    )));
                }
                (first as u32..end as u32).collect()
            }
            GpuChoice::Map(list) => self.held(vec![list[local as usize % list.len()]], gpus)?,
            GpuChoice::Mask(list) => self.held(list[local as usize % list.len()].clone(), gpus)?,
        })
    }

    fn held(&self, positions: Vec<u32>, gpus: u32) -> Result<Vec<u32>, BadBinding> {
        match positions.iter().find(|position| **position >= gpus) {
            Some(position) => Err(BadBinding(format!(
                "{self}: there is no GPU {position}: the job has {gpus} on this node, counted from 0"
            ))),
            None => Ok(positions),
        }
    }
}

impl fmt::Display for CpuBind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.how {
            CpuChoice::None => f.write_str("none"),
            CpuChoice::Cores => f.write_str("cores"),
            CpuChoice::Threads => f.write_str("threads"),
            CpuChoice::Map(list) => write!(f, "map_cpu:{}", comma(list.iter())),
            CpuChoice::Mask(list) => write!(
                f,
                "mask_cpu:{}",
                comma(list.iter().map(|cpus| mask_text(cpus)))
            ),
        }
    }
}

impl fmt::Display for GpuBind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.how {
            GpuChoice::None => f.write_str("none"),
            GpuChoice::Closest => f.write_str("closest"),
            GpuChoice::Single(tasks) => write!(f, "single:{tasks}"),
            GpuChoice::PerTask(count) => write!(f, "per_task:{count}"),
            GpuChoice::Map(list) => write!(f, "map_gpu:{}", comma(list.iter())),
            GpuChoice::Mask(list) => write!(
                f,
                "mask_gpu:{}",
                comma(list.iter().map(|gpus| mask_text(gpus)))
            ),
        }
    }
}

/// CPUs as a hexadecimal mask: `0x15` for 0, 2 and 4.
pub fn mask_text(cpus: &[u32]) -> String {
    let top = cpus.iter().max().map_or(0, |cpu| cpu / 4);
    let digit = |at: u32| {
        (0..4)
            .filter(|bit| cpus.contains(&(at * 4 + bit)))
            .map(|bit| 1u32 << bit)
            .sum::<u32>()
    };
    (0..=top).rev().fold(String::from("0x"), |text, at| {
        format!("{text}{:X}", digit(at))
    })
}

fn comma<T: fmt::Display>(items: impl Iterator<Item = T>) -> String {
    items
        .map(|item| item.to_string())
        .collect::<Vec<_>>()
        .join(",")
}

/// `verbose,` or `quiet,` before the word, or alone.
fn split_verbose(text: &str) -> (bool, &str) {
    let text = text.trim();
    let (first, rest) = text.split_once(',').unwrap_or((text, ""));
    match first {
        "verbose" | "v" => (true, rest),
        "quiet" | "q" => (false, rest),
        _ => (false, text),
    }
}

fn no_word(word: &str, words: &[&str]) -> BadBinding {
    let word: String = word.chars().take(40).collect();
    let guess = did_you_mean(&word, words.iter().copied());
    BadBinding(format!(
        "{word:?} is unknown.{guess} There are: {}",
        words.join(", ")
    ))
}

fn positive(text: &str, word: &str, what: &str) -> Result<u32, BadBinding> {
    let count = text
        .parse()
        .ok()
        .filter(|count| (1..=1 << 16).contains(count));
    count.ok_or_else(|| {
        BadBinding(format!(
            "{word}:{text} needs a number, the {what}: {word}:1"
        ))
    })
}

/// `0,2*3,1`: each entry, or so many times the entry.
fn map<T: Clone>(
    list: &str,
    word: &str,
    read: &dyn Fn(&str) -> Option<T>,
) -> Result<Vec<T>, BadBinding> {
    let bad = |entry: &str| {
        BadBinding(format!(
            "{word}:{list}: Failed to validate number: {entry}. A list is as {word}:0,1 or {word}:0*4,1*4"
        ))
    };
    let mut entries = Vec::new();
    for entry in list.split(',') {
        let (text, times) = entry.split_once('*').unwrap_or((entry, "1"));
        let times: usize = times
            .parse()
            .ok()
            .filter(|times| (1..=MAX_MAP).contains(times))
            .ok_or_else(|| bad(entry))?;
        let value = read(text).ok_or_else(|| bad(entry))?;
        entries.extend(std::iter::repeat_n(value, times));
        if entries.len() > MAX_MAP {
            return Err(BadBinding(format!(
                "{word}: a list of more than {MAX_MAP} entries"
            )));
        }
    }
    Ok(entries)
}

fn number(text: &str) -> Option<u32> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok()?,
        None => text.parse().ok()?,
    };
    (number < 1 << 20).then_some(number)
}

/// A GPU's place; unlike a CPU's never hexadecimal.
fn position(text: &str) -> Option<u32> {
    text.parse().ok().filter(|position| *position < 1 << 20)
}

/// `0x15` or `15`, hexadecimal either way: CPUs 0, 2 and 4.
fn mask(text: &str) -> Option<Vec<u32>> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    if digits.is_empty() || digits.len() > 2048 {
        return None;
    }
    let mut cpus = Vec::new();
    for (at, digit) in digits.chars().rev().enumerate() {
        let digit = digit.to_digit(16)?;
        cpus.extend(
            (0..4)
                .filter(|bit| digit >> bit & 1 == 1)
                .map(|bit| at as u32 * 4 + bit),
        );
    }
    (!cpus.is_empty()).then_some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sruns_words_are_read_and_written() {
        for text in [
            "none",
            "cores",
            "threads",
            "map_cpu:0,2,4",
            "mask_cpu:0x3,0xC0",
        ] {
            assert_eq!(CpuBind::parse(text).unwrap().to_string(), text);
            assert!(CpuBind::parse(&format!("verbose,{text}")).unwrap().verbose);
        }
        for text in [
            "none",
            "closest",
            "single:2",
            "per_task:1",
            "map_gpu:1,0",
            "mask_gpu:0x3,0x4",
        ] {
            assert_eq!(GpuBind::parse(text).unwrap().to_string(), text);
            assert!(
                GpuBind::parse(&format!("v,{text}")).unwrap().verbose
                    && !GpuBind::parse(&format!("quiet,{text}")).unwrap().verbose
            );
        }
        assert_eq!(
            GpuBind::parse("verbose").unwrap(),
            GpuBind {
                verbose: true,
                how: GpuChoice::None
            }
        );
        assert_eq!(
            GpuBind::parse("map_gpu:0*2,1").unwrap().how,
            GpuChoice::Map(vec![0, 0, 1])
        );
        assert_eq!(
            CpuBind::parse("mask_cpu:15").unwrap().how,
            CpuChoice::Mask(vec![vec![0, 2, 4]])
        );
        assert_eq!(mask_text(&[0, 2, 4, 33]), "0x200000015");
    }

    #[test]
    fn other_words_are_refused_with_what_there_is() {
        let cpu = |text: &str| CpuBind::parse(text).unwrap_err().to_string();
        let gpu = |text: &str| GpuBind::parse(text).unwrap_err().to_string();
        assert!(
            cpu("corse").contains("Did you mean \"cores\"?")
                && cpu("sockets").contains("Use cores, threads")
        );
        assert!(
            cpu("map_cpu:").contains("Failed to validate number")
                && cpu("mask_cpu:0x0").contains("Failed to validate number")
        );
        assert!(
            cpu("map_cpu:1*9999999").contains("Failed to validate number")
                && cpu("cores:3").contains("unknown")
        );
        assert!(
            gpu("closets").contains("Did you mean \"closest\"?")
                && gpu("single").contains("single:1")
                && gpu("per_task:0").contains("per_task:1")
        );
        assert!(
            gpu("mask_gpu:0").contains("Failed to validate number")
                && gpu("map_gpu:0x1").contains("Failed to validate number")
        );
    }

    #[test]
    fn a_binding_of_resources_is_one_of_gpus() {
        for text in [
            "map:",
            "map:0*2",
            "mask:",
            "mask:abc",
            "mask:0x1,0x2",
            "verbose,single:1",
        ] {
            let read = GpuBind::parse_tres(&format!("gres/gpu:{text}"));
            assert_eq!(read, GpuBind::parse(text), "{text}");
            assert!(read.is_ok(), "{text}");
        }
        for text in [
            "map:abcd",
            "map:0x00",
            "mask:x000",
            "mask:wxyz",
            "map_gpu:0",
            "mask_gpu:1",
        ] {
            assert!(
                GpuBind::parse_tres(&format!("gres/gpu:{text}")).is_err(),
                "{text}"
            );
        }
        for text in [
            "gres/nic:closest",
            "gres/gpu:closest+gres/nic:x",
            "single:1",
        ] {
            assert!(GpuBind::parse_tres(text).is_err(), "{text}");
        }
    }

    #[test]
    fn tasks_get_gpus_by_their_place_on_the_node() {
        let gpus = |text: &str, local, near: &[u32]| {
            GpuBind::parse(text)
                .unwrap()
                .positions(local, 4, near)
                .map_err(|e| e.to_string())
        };
        assert_eq!(gpus("none", 3, &[2]).unwrap(), [0, 1, 2, 3]);
        assert_eq!(gpus("closest", 0, &[2, 3]).unwrap(), [2, 3]);
        assert_eq!(gpus("closest", 0, &[]).unwrap(), [0, 1, 2, 3]);
        assert_eq!(
            (0..6)
                .map(|local| gpus("single:2", local, &[]).unwrap()[0])
                .collect::<Vec<_>>(),
            [0, 0, 1, 1, 2, 2]
        );
        assert_eq!(gpus("single:1", 1, &[2, 3]).unwrap(), [3]);
        assert_eq!(gpus("per_task:2", 1, &[]).unwrap(), [2, 3]);
        assert_eq!(gpus("map_gpu:3,1", 2, &[]).unwrap(), [3]);
        assert_eq!(gpus("mask_gpu:3,c", 1, &[]).unwrap(), [2, 3]);
        assert!(
            gpus("mask_gpu:11", 0, &[])
                .unwrap_err()
                .contains("there is no GPU 4")
        );
        assert!(
            gpus("per_task:2", 2, &[])
                .unwrap_err()
                .contains("the job has 4 here")
        );
        assert!(
            gpus("map_gpu:4", 0, &[])
                .unwrap_err()
                .contains("there is no GPU 4")
        );
        let none = GpuBind::parse("closest")
            .unwrap()
            .positions(0, 0, &[])
            .unwrap_err()
            .to_string();
        assert!(none.contains("--gpus"), "{none}");
    }
}
