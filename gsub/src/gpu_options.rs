//! `--gpus`, `--gpus-per-node` (or `--gres`), `--gpus-per-task` and `--ntasks-per-gpu` given together: one request, and the
//! nodes and tasks that follow.
//!
//! Never guesses: numbers that do not go into each other are refused. Source: sbatch(1), which takes the options together
//! and works out nodes and tasks by the same divisions.

use crate::choice::Choices;
use crate::option_words::GivenOption;
use gcli::Failure;
use gmodel::gpu_request::{GpuAlternative, GpuAmount, GpuKind, GpuRequest};
use gmodel::job::GpuScope;

/// GPUs or slices that a node has at most, and entries of a map that `--gpu-bind` reads.
const MOST_GPUS_OF_NODE: u32 = 64;
const MOST_MAPPED: u32 = 4096;

/// What the GPU options of a submission come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GpuOptions {
    pub ask: Option<GpuRequest>,
    pub scope: GpuScope,
    /// Number of nodes: GPUs of the job over GPUs of a node.
    pub nodes: Option<u32>,
    /// Number of tasks: GPUs of the job over GPUs of a task.
    pub ntasks: Option<u32>,
    /// Tasks on each node: GPUs of a node over GPUs of a task.
    pub ntasks_per_node: Option<u32>,
    /// Whether any was given, be it `--gpus 0`.
    pub asked: bool,
    /// Of `--ntasks-per-gpu`: which GPU each task of a node has, in the words of `--gpu-bind`.
    pub bind: Option<String>,
    /// Each as it was given, by the end of its variable's name: `GPUS_PER_NODE`.
    pub given: Vec<(&'static str, String)>,
}

/// One option, read.
#[derive(Clone, Debug)]
struct GpuOption {
    given: GivenOption,
    ask: GpuRequest,
    scope: GpuScope,
}

impl GpuOptions {
    /// Takes the GPU options out of `choices`.
    ///
    /// # Errors
    /// A value that cannot be read, and values that contradict each other.
    pub(crate) fn take(choices: &mut Choices) -> Result<Self, Failure> {
        let mut parts: Vec<GpuOption> = Vec::new();
        for (name, scope) in [
            ("gpus", GpuScope::Job),
            ("gpus-per-node", GpuScope::Node),
            ("gres", GpuScope::Node),
            ("gpus-per-task", GpuScope::Task),
        ] {
            let Some(given) = choices.take(name) else {
                continue;
            };
            if name == "gres" && given.text().trim().is_empty() {
                continue; // Scripts have it empty, from a variable.
            }
            let ask = if name == "gres" {
                GpuRequest::parse_gres(given.text())
            } else {
                GpuRequest::parse(given.text())
            };
            let ask = ask.map_err(|error| given.fail(error))?;
            match parts.iter().find(|part| part.scope == scope) {
                Some(same) if same.ask != ask => return Err(contradiction(&same.given, &given)),
                Some(_) => {}
                None => parts.push(GpuOption { given, ask, scope }),
            }
        }
        let mut options = match parts.as_slice() {
            [] => Self::default(),
            [part] => {
                let ask = Some(part.ask.clone()).filter(|ask| !ask.is_none());
                Self {
                    ask,
                    scope: part.scope,
                    asked: true,
                    given: variables(&parts),
                    ..Self::default()
                }
            }
            [..] => together(&parts)?,
        };
        if let Some(per_gpu) = choices.take("ntasks-per-gpu") {
            if let Some(rival) = choices.get("ntasks-per-node").or(parts
                .iter()
                .find(|part| part.scope == GpuScope::Task)
                .map(|part| &part.given))
            {
                return Err(contradiction(rival, &per_gpu));
            }
            options.count_tasks(&per_gpu, choices.get("ntasks"))?;
        }
        Ok(options)
    }

    /// How many tasks the GPUs come to at so many tasks each, or how many GPUs the tasks.
    fn count_tasks(
        &mut self,
        per_gpu: &GivenOption,
        ntasks: Option<&GivenOption>,
    ) -> Result<(), Failure> {
        let each = task_count(per_gpu)?;
        if each > MOST_MAPPED {
            return Err(per_gpu.fail(format_args!(
                "{each} tasks for each GPU are more than {MOST_MAPPED}, the most there can be"
            )));
        }
        let ntasks = ntasks.map(task_count).transpose()?;
        match (self.ask.as_ref(), ntasks) {
            (Some(ask), ntasks) => {
                let gpus = count(ask).ok_or_else(|| per_gpu.fail(format_args!("{ask} are no whole GPUs of one kind to count tasks by. Use --ntasks")))?;
                let made = gpus.saturating_mul(each);
                match (self.scope, ntasks) {
                    (GpuScope::Job, Some(asked)) if asked != made => {
                        let text = format!("{each} for each of {gpus} GPUs are {made} tasks, and --ntasks asks for {asked}. Leave one of the three out");
                        return Err(per_gpu.fail(text));
                    }
                    (GpuScope::Job, _) => self.ntasks = Some(made),
                    _ => self.ntasks_per_node = Some(made),
                }
            }
            (None, Some(tasks)) if !self.asked => {
                let gpus = tasks.div_ceil(each);
                self.ask = Some(GpuRequest { alternatives: vec![GpuAlternative { kind: GpuKind::Any, amount: GpuAmount::Whole(gpus) }] });
                (self.scope, self.asked) = (GpuScope::Job, true);
            }
            (None, _) => return Err(per_gpu.fail("the job asks for no GPU. Add --gpus 1, or --ntasks to have as many GPUs as its tasks need")),
        }
        self.given.push(("NTASKS_PER_GPU", each.to_string()));
        self.bind = self
            .ask
            .as_ref()
            .and_then(count)
            .map(|gpus| one_gpu_each(gpus, each));
        Ok(())
    }

    /// Compares with what is asked for by `--nodes`, `--ntasks` and `--ntasks-per-node`.
    ///
    /// # Errors
    /// A number that the GPU options do not come to.
    pub(crate) fn agree_with(
        &self,
        nodes: Option<(u32, u32)>,
        ntasks: Option<u32>,
        per_node: Option<u32>,
    ) -> Result<(), Failure> {
        let checks = [
            (
                self.nodes,
                nodes,
                ["GPUS", "GPUS_PER_NODE"],
                "nodes",
                "--nodes",
            ),
            (
                self.ntasks,
                ntasks.map(|count| (count, count)),
                ["GPUS", "GPUS_PER_TASK"],
                "tasks",
                "--ntasks",
            ),
            (
                self.ntasks_per_node,
                per_node.map(|count| (count, count)),
                ["GPUS_PER_NODE", "GPUS_PER_TASK"],
                "tasks on a node",
                "--ntasks-per-node",
            ),
        ];
        for (made, asked, words, what, option) in checks {
            let Some((made, (least, most))) = made.zip(asked) else {
                continue;
            };
            if (least..=most).contains(&made) {
                continue;
            }
            let [more, fewer] = words.map(|word| {
                let value = self
                    .given
                    .iter()
                    .find(|(known, _)| *known == word)
                    .map(|(_, value)| value.as_str());
                (
                    word.to_ascii_lowercase().replace('_', "-"),
                    value.unwrap_or_default(),
                )
            });
            let asked = if least == most {
                least.to_string()
            } else {
                format!("{least} to {most}")
            };
            return Err(Failure::usage(format_args!(
                "--{}: {} at --{} {} make {made} {what}, and {option} asks for {asked}. Leave one of the three out",
                more.0, more.1, fewer.0, fewer.1
            )));
        }
        Ok(())
    }
}

fn together(parts: &[GpuOption]) -> Result<GpuOptions, Failure> {
    let kind = one_kind(parts)?;
    let (job, node, task) = (
        of(parts, GpuScope::Job),
        of(parts, GpuScope::Node),
        of(parts, GpuScope::Task),
    );
    // A node's number is the firmest; the job's and the tasks' follow from it by the counts worked out here.
    let stored = node.or(task).expect("there are two of the three");
    let amount = stored.ask.alternatives[0].amount.clone();
    Ok(GpuOptions {
        ask: Some(GpuRequest {
            alternatives: vec![GpuAlternative { kind, amount }],
        }),
        scope: stored.scope,
        nodes: ratio(job, node)?,
        ntasks: ratio(job, task)?,
        ntasks_per_node: ratio(node, task)?,
        asked: true,
        bind: None,
        given: variables(parts),
    })
}

fn of(parts: &[GpuOption], scope: GpuScope) -> Option<&GpuOption> {
    parts.iter().find(|part| part.scope == scope)
}

/// How often the fewer go into the more; they must do so evenly.
fn ratio(more: Option<&GpuOption>, fewer: Option<&GpuOption>) -> Result<Option<u32>, Failure> {
    let Some((more, fewer)) = more.zip(fewer) else {
        return Ok(None);
    };
    match (count(&more.ask), count(&fewer.ask)) {
        (Some(most), Some(least)) if most % least == 0 => Ok(Some(most / least)),
        (Some(most), Some(least)) => Err(more.given.fail(format_args!(
            "{most} is no multiple of --{} {least}. Make it {}, or leave one of the two out",
            fewer.given.option.name,
            most.next_multiple_of(least)
        ))),
        _ => Err(contradiction(&more.given, &fewer.given)),
    }
}

/// `map_gpu:0*2,1*2`: the first two tasks of a node have its first GPU. More positions than a node has GPUs are never used.
fn one_gpu_each(gpus: u32, tasks: u32) -> String {
    let positions = gpus.min(MOST_GPUS_OF_NODE).min(MOST_MAPPED / tasks).max(1);
    let map: Vec<String> = (0..positions).map(|gpu| format!("{gpu}*{tasks}")).collect();
    format!("map_gpu:{}", map.join(","))
}

fn task_count(given: &GivenOption) -> Result<u32, Failure> {
    let count = given.text().parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| {
        given.fail(format_args!(
            "{:?} is not a whole number from 1",
            given.text()
        ))
    })
}

/// GPUs or MIG instances of an ask that names one kind and no share.
fn count(ask: &GpuRequest) -> Option<u32> {
    match ask.alternatives.as_slice() {
        [
            GpuAlternative {
                amount: GpuAmount::Whole(count) | GpuAmount::Mig { count, .. },
                ..
            },
        ] => Some(*count),
        _ => None,
    }
}

/// The type that the options name, `Any` if none does. What is counted must be the same for all.
fn one_kind(parts: &[GpuOption]) -> Result<GpuKind, Failure> {
    let first = &parts[0];
    let profile = |part: &GpuOption| match part
        .ask
        .alternatives
        .first()
        .map(|alternative| &alternative.amount)
    {
        Some(GpuAmount::Mig { profile, .. }) => Some(profile.clone()),
        _ => None,
    };
    let mut named: Option<&GpuOption> = None;
    for part in parts {
        if count(&part.ask).is_none() || profile(part) != profile(first) {
            return Err(contradiction(
                &first.given,
                &parts
                    .iter()
                    .find(|other| other.scope != first.scope)
                    .unwrap_or(part)
                    .given,
            ));
        }
        if part.ask.alternatives[0].kind == GpuKind::Any {
            continue;
        }
        match named {
            Some(other) if other.ask.alternatives[0].kind != part.ask.alternatives[0].kind => {
                return Err(contradiction(&other.given, &part.given));
            }
            _ => named = Some(part),
        }
    }
    Ok(named.map_or(GpuKind::Any, |part| part.ask.alternatives[0].kind.clone()))
}

fn contradiction(one: &GivenOption, other: &GivenOption) -> Failure {
    let (name, other_name) = (one.option.name, other.option.name);
    one.origin.fail(format_args!(
        "--{name} {} and --{other_name} {} contradict each other. Keep one of them",
        one.text(),
        other.text()
    ))
}

fn variables(parts: &[GpuOption]) -> Vec<(&'static str, String)> {
    let word = |scope| match scope {
        GpuScope::Job => "GPUS",
        GpuScope::Node => "GPUS_PER_NODE",
        GpuScope::Task => "GPUS_PER_TASK",
    };
    parts
        .iter()
        .filter(|part| !part.ask.is_none())
        .map(|part| (word(part.scope), part.ask.to_string()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::option_words::{Origin, read};

    fn check(words: &str, want: &str) {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        let mut choices = Choices::of(read(&words, &Origin::CommandLine).unwrap().0).unwrap();
        let seen = match GpuOptions::take(&mut choices) {
            Ok(GpuOptions {
                ask,
                scope,
                nodes,
                ntasks,
                ntasks_per_node,
                ..
            }) => {
                let ask = ask.map(|ask| ask.to_string()).unwrap_or_default();
                format!(
                    "{ask} a {scope:?}, nodes {nodes:?}, tasks {ntasks:?}, a node {ntasks_per_node:?}"
                )
            }
            Err(failure) => failure.text,
        };
        assert_eq!(seen, want, "{words:?}");
    }

    #[test]
    fn two_ways_to_count_gpus_say_how_many_nodes_and_tasks() {
        check(
            "--gpus=8 --gpus-per-node=4",
            "4 a Node, nodes Some(2), tasks None, a node None",
        );
        check(
            "--gpus=4 --gpus-per-task=1",
            "1 a Task, nodes None, tasks Some(4), a node None",
        );
        check(
            "--gres=gpu:h100:8 --gpus-per-task=2",
            "h100:8 a Node, nodes None, tasks None, a node Some(4)",
        );
        check(
            "-G16 --gpus-per-node=8 --gpus-per-task=h100:1",
            "h100:8 a Node, nodes Some(2), tasks Some(16), a node Some(8)",
        );
        check(
            "--gres=gpu:4 --gpus-per-node=4",
            "4 a Node, nodes None, tasks None, a node None",
        );
        check(
            "--gpus=h100:2 --ntasks-per-gpu=2",
            "h100:2 a Job, nodes None, tasks Some(4), a node None",
        );
        check(
            "--gpus=2 --ntasks-per-gpu=2 -n4",
            "2 a Job, nodes None, tasks Some(4), a node None",
        );
        check(
            "--gres=gpu:2 --ntasks-per-gpu=3 -N2",
            "2 a Node, nodes None, tasks None, a node Some(6)",
        );
        check(
            "-n8 --ntasks-per-gpu=2",
            "4 a Job, nodes None, tasks None, a node None",
        );
        check(
            "-n9 --ntasks-per-gpu=2",
            "5 a Job, nodes None, tasks None, a node None",
        );
        check(
            "-G 1g.10gb:4 --gpus-per-task=1g.10gb:2",
            "1g.10gb:2 a Task, nodes None, tasks Some(2), a node None",
        );
    }

    #[test]
    fn a_map_of_gpus_can_be_read_whatever_the_numbers() {
        for (gpus, tasks) in [(1, 1), (8, 2), (4096, 3), (2, 4096), (8, 100_000)] {
            let read = gmodel::binding::GpuBind::parse(&one_gpu_each(gpus, tasks));
            assert_eq!(
                read.is_ok(),
                tasks <= MOST_MAPPED,
                "{gpus} GPUs, {tasks} tasks: {read:?}"
            );
        }
    }

    #[test]
    fn gpu_options_that_contradict_each_other_are_refused_with_their_numbers() {
        check(
            "--gpus=7 --gpus-per-node=4",
            "--gpus: 7 is no multiple of --gpus-per-node 4. Make it 8, or leave one of the two out",
        );
        check(
            "--gres=gpu:2 --gpus-per-node=4",
            "--gpus-per-node 4 and --gres gpu:2 contradict each other. Keep one of them",
        );
        check(
            "--gpus=h100:4 --gpus-per-task=a100:1",
            "--gpus h100:4 and --gpus-per-task a100:1 contradict each other. Keep one of them",
        );
        check(
            "--gpus=4 --gpus-per-task=1g.10gb:1",
            "--gpus 4 and --gpus-per-task 1g.10gb:1 contradict each other. Keep one of them",
        );
        check(
            "--gpus=h100:4|a100:8 --gpus-per-node=4",
            "--gpus h100:4|a100:8 and --gpus-per-node 4 contradict each other. Keep one of them",
        );
        check(
            "--gpus=2 --ntasks-per-gpu=2 -n5",
            "--ntasks-per-gpu: 2 for each of 2 GPUs are 4 tasks, and --ntasks asks for 5. Leave one of the three out",
        );
        check(
            "--gpus-per-task=1 --ntasks-per-gpu=2",
            "--gpus-per-task 1 and --ntasks-per-gpu 2 contradict each other. Keep one of them",
        );
        check(
            "--ntasks-per-node=4 --gpus=2 --ntasks-per-gpu=2",
            "--ntasks-per-node 4 and --ntasks-per-gpu 2 contradict each other. Keep one of them",
        );
        check(
            "--ntasks-per-gpu=2",
            "--ntasks-per-gpu: the job asks for no GPU. Add --gpus 1, or --ntasks to have as many GPUs as its tasks need",
        );
        check(
            "-G 0 -n2 --ntasks-per-gpu=2",
            "--ntasks-per-gpu: the job asks for no GPU. Add --gpus 1, or --ntasks to have as many GPUs as its tasks need",
        );
        check(
            "-G 0.5 --ntasks-per-gpu=2",
            "--ntasks-per-gpu: 0.5 are no whole GPUs of one kind to count tasks by. Use --ntasks",
        );
        check(
            "-G 1 --ntasks-per-gpu=x",
            "--ntasks-per-gpu: \"x\" is not a whole number from 1",
        );
        check(
            "--gpus=0 --gpus-per-task=1",
            "--gpus 0 and --gpus-per-task 1 contradict each other. Keep one of them",
        );
    }
}
