//! The CPUs and GPUs of the run that one task of a step gets: what grun says in `SLURM_CPU_BIND` and `SLURM_GPU_BIND`, applied to
//! what this node gave the run; all without either. Source: `--cpu-bind` and `--gpu-bind` in srun(1).

use std::path::Path;

use gmodel::binding::{CpuBind, CpuChoice, GpuBind, mask_text};
use gmodel::launch_order::LaunchOrder;
use gmodel::supervise::{RunSetup, StepOrder};
use gsys::cpu::{CpuTopology, SYSTEM, list_text, own_cpus};

/// What a task is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskBinding {
    /// `None`: all of the run.
    pub cpus: Option<Vec<u32>>,
    /// Positions among the run's GPUs; `None`: all.
    pub gpus: Option<Vec<u32>>,
    pub verbose: bool,
    /// Said on the task's stderr before it begins; empty unless that is wished.
    pub words: String,
}

impl TaskBinding {
    /// # Errors
    /// Words that make no sense, or ask for what the run has not, as the sentence for the task's end.
    pub fn of(
        order: &LaunchOrder,
        setup: &RunSetup,
        step: &StepOrder,
        local: usize,
    ) -> Result<Self, String> {
        let told = |name: &str| {
            let lines = step.environment.iter().rev();
            lines
                .filter_map(|line| line.split_once('='))
                .find(|(known, _)| *known == name)
                .map_or("", |(_, value)| value)
        };
        let cpu = CpuBind::parse(told("SLURM_CPU_BIND")).map_err(|e| format!("--cpu-bind: {e}"))?;
        let gpu = GpuBind::parse(told("SLURM_GPU_BIND")).map_err(|e| format!("--gpu-bind: {e}"))?;
        let own = match setup.cpus.is_empty() {
            true => own_cpus().map_err(|e| format!("the node cannot tell its CPUs: {e}"))?,
            false => setup.cpus.clone(),
        };
        let cpus = cpus_of(&cpu, order, step, local, &own)
            .map_err(|e| format!("--cpu-bind={cpu}: {e}"))?;
        // Processors of the step's own keep it from those of other steps.
        let has_own = !step.cpus.is_empty() && !setup.cpus.is_empty();
        let cpus = cpus.or_else(|| has_own.then(|| own.clone()));
        let here: &[u32] = cpus.as_deref().unwrap_or(&own);
        let positions = gpu.positions(local as u32, setup.gpus.len() as u32, &near(setup, here));
        // Without a word nothing is narrowed, and a job without GPUs has none to narrow.
        let gpus = match gpu.how {
            gmodel::binding::GpuChoice::None => None,
            _ => Some(positions.map_err(|e| format!("--gpu-bind={e}"))?),
        };
        let mut bound = Self {
            cpus,
            gpus,
            verbose: cpu.verbose,
            words: String::new(),
        };
        bound.words = bound.said(setup, step, local, &own, &gpu, &cpu);
        Ok(bound)
    }

    /// A line for each binding that is to be told, as slurmstepd words it.
    fn said(
        &self,
        setup: &RunSetup,
        step: &StepOrder,
        local: usize,
        own: &[u32],
        gpu: &GpuBind,
        cpu: &CpuBind,
    ) -> String {
        let who = format!(
            "{}, task {:>2} {local:>2}",
            setup.node_name,
            step.ranks.get(local).copied().unwrap_or(0)
        );
        let mut words = String::new();
        if cpu.verbose {
            let cpus = self.cpus.as_deref().unwrap_or(own);
            words = format!(
                "cpu-bind={cpu} - {who}: mask {} set, CPUs {}\n",
                mask_text(cpus),
                list_text(cpus)
            );
        }
        if gpu.verbose {
            let all: Vec<u32> = (0..setup.gpus.len() as u32).collect();
            let gpus = self
                .gpus
                .as_ref()
                .unwrap_or(&all)
                .iter()
                .filter_map(|at| setup.gpus.get(*at as usize));
            let names: Vec<String> = gpus
                .map(|gpu| format!("{} ({})", gpu.index, gpu.uuid))
                .collect();
            words += &format!(
                "gpu-bind={gpu} - {who}: GPUs {}\n",
                if names.is_empty() {
                    "none".into()
                } else {
                    names.join(", ")
                }
            );
        }
        words
    }
}

/// What the run has as a step sees it: of the CPUs and GPUs only its own, where it asked for some.
pub fn seen_by(step: &StepOrder, setup: &RunSetup) -> RunSetup {
    let mut seen = setup.clone();
    if let Some(gpus) = &step.gpus {
        seen.gpus = gpus
            .iter()
            .filter_map(|at| setup.gpus.get(*at as usize).cloned())
            .collect();
    }
    // Where the run has no processors of its own, its share of the machine's is all there is.
    if !step.cpus.is_empty() && !setup.cpus.is_empty() {
        seen.cpus = step
            .cpus
            .iter()
            .filter_map(|at| setup.cpus.get(*at as usize).copied())
            .collect();
    }
    seen
}

/// The CPUs of one task; `None` where nothing is asked.
fn cpus_of(
    bind: &CpuBind,
    order: &LaunchOrder,
    step: &StepOrder,
    local: usize,
    own: &[u32],
) -> Result<Option<Vec<u32>>, String> {
    let each = if step.cpus_per_task > 0 {
        step.cpus_per_task
    } else {
        order.cpus_per_task.max(1)
    } as usize;
    let tasks = step.ranks.len().max(1);
    let too_few = |units: &str, has: usize| {
        format!(
            "{tasks} tasks of {each} CPUs here, and the job has {has} {units} on this node. Start fewer tasks, ask for more CPUs, or leave it away"
        )
    };
    Ok(Some(match &bind.how {
        CpuChoice::None => return Ok(None),
        CpuChoice::Threads => {
            let part = own.get(local * each..(local + 1) * each);
            part.ok_or_else(|| too_few("CPUs", own.len()))?.to_vec()
        }
        CpuChoice::Cores => {
            let machine = CpuTopology::read(Path::new(SYSTEM))
                .map_err(|e| format!("the node cannot tell its cores: {e}"))?;
            let cores = machine.cores_of(own);
            let has = cores.len();
            nth_share(cores, each, local).ok_or_else(|| too_few("cores", has))?
        }
        CpuChoice::Map(list) => among(vec![list[local % list.len()]], own)?,
        CpuChoice::Mask(list) => among(list[local % list.len()].clone(), own)?,
    }))
}

/// Whole cores in turn, as many for each task as its CPUs need.
fn nth_share(cores: Vec<Vec<u32>>, each: usize, local: usize) -> Option<Vec<u32>> {
    let mut cores = cores.into_iter();
    let mut share = Vec::new();
    for _ in 0..=local {
        share.clear();
        while share.len() < each {
            share.extend(cores.next()?);
        }
    }
    share.sort_unstable();
    Some(share)
}

fn among(cpus: Vec<u32>, own: &[u32]) -> Result<Vec<u32>, String> {
    match cpus.iter().find(|cpu| !own.contains(cpu)) {
        Some(foreign) => Err(format!(
            "CPU {foreign} is not the job's on this node; it has {}",
            list_text(own)
        )),
        None => Ok(cpus),
    }
}

/// Positions of the GPUs that are near one of these CPUs.
fn near(setup: &RunSetup, cpus: &[u32]) -> Vec<u32> {
    let is_near = |ranges: &[(u32, u32)]| {
        cpus.iter().any(|cpu| {
            ranges
                .iter()
                .any(|(first, last)| (*first..=*last).contains(cpu))
        })
    };
    (0..)
        .zip(&setup.gpus)
        .filter(|(_, gpu)| is_near(&gpu.near_cpus))
        .map(|(at, _)| at)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmodel::supervise::RunGpu;

    /// Two memory nodes of two CPUs and two GPUs each; all of it is the run's.
    fn node() -> RunSetup {
        let gpu = |index: u32| RunGpu {
            uuid: format!("GPU-{index}"),
            index,
            near_cpus: vec![(index / 2 * 2, index / 2 * 2 + 1)],
            ..RunGpu::default()
        };
        RunSetup {
            node_name: "n1".into(),
            cpus: vec![0, 1, 2, 3],
            gpus: (0..4).map(gpu).collect(),
            ..RunSetup::default()
        }
    }

    fn bound(tasks: u32, local: usize, variables: &[&str]) -> Result<TaskBinding, String> {
        let step = StepOrder {
            ranks: (10..10 + tasks).collect(),
            environment: variables.iter().map(|line| (*line).to_owned()).collect(),
            ..StepOrder::default()
        };
        TaskBinding::of(
            &LaunchOrder {
                cpus_per_task: 2,
                ..LaunchOrder::default()
            },
            &node(),
            &step,
            local,
        )
    }

    #[test]
    fn without_a_word_a_task_has_everything() {
        assert_eq!(bound(2, 1, &[]), Ok(TaskBinding::default()));
        assert_eq!(
            bound(2, 1, &["SLURM_CPU_BIND=none", "SLURM_GPU_BIND=none"]),
            Ok(TaskBinding::default())
        );
    }

    #[test]
    fn each_task_gets_its_cpus_and_the_gpus_near_them() {
        let words = ["SLURM_CPU_BIND=threads", "SLURM_GPU_BIND=verbose,closest"];
        let second = bound(2, 1, &words).unwrap();
        assert_eq!(
            (second.cpus, second.gpus),
            (Some(vec![2, 3]), Some(vec![2, 3]))
        );
        assert_eq!(
            second.words,
            "gpu-bind=closest - n1, task 11  1: GPUs 2 (GPU-2), 3 (GPU-3)\n"
        );
        let first = bound(
            2,
            0,
            &[
                "SLURM_CPU_BIND=v,mask_cpu:0x3,0xC",
                "SLURM_GPU_BIND=single:1",
            ],
        )
        .unwrap();
        assert_eq!((first.cpus, first.gpus), (Some(vec![0, 1]), Some(vec![0])));
        assert_eq!(
            first.words,
            "cpu-bind=mask_cpu:0x3,0xC - n1, task 10  0: mask 0x3 set, CPUs 0-1\n"
        );
        assert_eq!(
            bound(4, 3, &["SLURM_CPU_BIND=map_cpu:3,1"]).unwrap().cpus,
            Some(vec![1])
        );
        assert_eq!(
            nth_share(vec![vec![0, 8], vec![1, 9], vec![2, 10]], 1, 2),
            Some(vec![2, 10])
        );
        assert_eq!(
            nth_share(vec![vec![0, 8], vec![1, 9], vec![2, 10]], 3, 0),
            Some(vec![0, 1, 8, 9])
        );
    }

    #[test]
    fn a_step_with_a_part_of_its_own_sees_nothing_else() {
        let variables = vec!["SLURM_GPU_BIND=per_task:1".to_owned()];
        let mut step = StepOrder {
            ranks: vec![0, 1],
            cpus: vec![2, 3],
            cpus_per_task: 1,
            gpus: Some(vec![1, 3]),
            ..StepOrder::default()
        };
        let order = LaunchOrder {
            cpus_per_task: 2,
            ..LaunchOrder::default()
        };
        let of = |step: &StepOrder, local| {
            TaskBinding::of(&order, &seen_by(step, &node()), step, local).unwrap()
        };
        assert_eq!(
            (of(&step, 1).cpus, of(&step, 1).gpus),
            (Some(vec![2, 3]), None),
            "all tasks of it share its part"
        );
        step.environment = variables;
        let seen = seen_by(&step, &node());
        let second = of(&step, 1).gpus.unwrap();
        assert_eq!(seen.gpus[second[0] as usize].index, 3);
        step.environment.push("SLURM_CPU_BIND=threads".into());
        assert_eq!(
            of(&step, 1).cpus,
            Some(vec![3]),
            "as many for each as the step says"
        );
        step.gpus = Some(Vec::new());
        assert!(seen_by(&step, &node()).gpus.is_empty(), "--gpus 0");
        let shares = RunSetup {
            cpus: Vec::new(),
            ..node()
        };
        assert!(
            seen_by(&step, &shares).cpus.is_empty(),
            "where the run shares the machine's, so does the step"
        );
    }

    #[test]
    fn what_the_run_has_not_is_refused_with_what_it_has() {
        let refusal = |tasks, local, word: &str| bound(tasks, local, &[word]).unwrap_err();
        let text = refusal(3, 2, "SLURM_CPU_BIND=threads");
        assert!(
            text.contains("3 tasks of 2 CPUs here, and the job has 4 CPUs"),
            "{text}"
        );
        assert_eq!(
            refusal(1, 0, "SLURM_CPU_BIND=map_cpu:7"),
            "--cpu-bind=map_cpu:7: CPU 7 is not the job's on this node; it has 0-3"
        );
        assert!(refusal(3, 2, "SLURM_GPU_BIND=per_task:2").contains("the job has 4 here"));
        assert!(
            refusal(1, 0, "SLURM_GPU_BIND=closets")
                .contains("--gpu-bind: \"closets\" is unknown. Did you mean \"closest\"?")
        );
    }
}
