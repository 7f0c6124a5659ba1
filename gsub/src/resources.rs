//! The resources that options ask for: nodes, tasks, CPUs, memory, GPUs, features, as a `Request`.

use crate::choice::Choices;
use crate::gpu_options::GpuOptions;
use crate::option_value::{count, filled, parsed};
use crate::option_words::GivenOption;
use gcli::Failure;
use gmodel::constraint::Constraint;
use gmodel::duration::TimeLimit;
use gmodel::gpu_request::parse_gpu_mem;
use gmodel::hostlist::Hostlist;
use gmodel::job::{MemRequest, Switches};
use gmodel::{Request, size};
use std::io::Read;

/// Of a file of node names.
const MAX_NODE_FILE_BYTES: u64 = 1 << 20;

pub(crate) fn request(choices: &mut Choices, gpus: &GpuOptions) -> Result<Request, Failure> {
    let usual = Request::default();
    let nodes = parsed(choices.take("nodes"), node_range)?;
    let ntasks = parsed(choices.take("ntasks"), count)?;
    let ntasks_per_node = parsed(choices.take("ntasks-per-node"), count)?;
    gpus.agree_with(nodes, ntasks, ntasks_per_node)?;
    let nodes = gpus.nodes.map(|nodes| (nodes, nodes)).or(nodes);
    let (ntasks, ntasks_per_node) = (
        gpus.ntasks.or(ntasks),
        gpus.ntasks_per_node.or(ntasks_per_node),
    );
    let nodelist = match hosts(choices, "nodelist")? {
        Some(named) => Some(named),
        None => parsed(filled(choices.take("nodefile")), nodes_in_file)?,
    };
    if let (Some((_, most)), Some(named)) = (nodes, nodelist.as_ref().map(Hostlist::len))
        && named > most as usize
    {
        return Err(Failure::usage(format_args!(
            "--nodes {most} and --nodelist, which names {named}: take one of them back"
        )));
    }
    let named = nodelist.as_ref().map_or(0, Hostlist::len);
    let (nodes_min, mut nodes_max) = node_bounds(nodes, ntasks, ntasks_per_node, named);
    if choices.take_flag("use-min-nodes") {
        nodes_max = nodes_min;
    }
    Ok(Request {
        nodes_min,
        nodes_max,
        nodes_any: nodes.is_none()
            && ntasks.is_some_and(|tasks| tasks > 1)
            && ntasks_per_node.is_none(),
        ntasks: ntasks.unwrap_or(usual.ntasks),
        ntasks_per_node,
        cpus_per_task: parsed(choices.take("cpus-per-task"), count)?,
        cpus_per_gpu: parsed(choices.take("cpus-per-gpu"), count)?,
        mincpus: parsed(choices.take("mincpus"), count)?,
        overcommit: choices.take_flag("overcommit"),
        mem: memory(choices)?,
        gpus: gpus.ask.clone(),
        gpu_scope: gpus.scope,
        gpu_mem_mib: parsed(choices.take("gpu-mem"), parse_gpu_mem)?
            .map(|bytes| bytes.div_ceil(1 << 20)),
        exclusive: on_or_off(
            choices.take("exclusive"),
            ": a node is shared with all or with none. Write --exclusive alone, or --exclusive=off",
        )?,
        nodelist,
        exclude: hosts(choices, "exclude")?,
        constraint: parsed(filled(choices.take("constraint")), |text| {
            Constraint::alternatives(text).map(|_| text.to_owned())
        })?,
        prefer: parsed(filled(choices.take("prefer")), |text| {
            Constraint::parse(text).map(|_| text.to_owned())
        })?,
        nvlink: on_or_off(choices.take("nvlink"), ". Write --nvlink, or --nvlink=off")?,
        switches: parsed(choices.take("switches"), switches)?.flatten(),
    })
}

/// What is asked of each GPU is refused where no GPU is asked for; `--gpus 0` and variables, which hold for many jobs, put it aside.
pub(crate) fn per_gpu_without_gpus(gpus: &GpuOptions, choices: &Choices) -> Result<(), Failure> {
    let of_gpus = ["gpu-mem", "cpus-per-gpu", "mem-per-gpu", "nvlink"];
    let odd = of_gpus.iter().find_map(|name| {
        choices
            .get(name)
            .filter(|given| given.origin.rank() != 1 && given.text() != "off")
    });
    match odd {
        Some(given) if !gpus.asked => Err(given.origin.fail(format_args!(
            "--{}: the job asks for no GPU. Add --gpus 1, or leave this out",
            given.option.name
        ))),
        _ => Ok(()),
    }
}

/// The least and the most nodes; `named` counts the names of --nodelist.
fn node_bounds(
    nodes: Option<(u32, u32)>,
    ntasks: Option<u32>,
    ntasks_per_node: Option<u32>,
    named: usize,
) -> (u32, u32) {
    let Some((least, most)) = nodes else {
        // So many tasks at so many a node say how many nodes.
        let needed = ntasks
            .zip(ntasks_per_node)
            .map_or(1, |(tasks, per_node)| tasks.div_ceil(per_node));
        return (needed, needed);
    };
    // As sbatch: a node without a task is none.
    let few = ntasks.filter(|few| *few < least && named <= *few as usize);
    few.map_or((least, most), |few| (few, few))
}

fn hosts(choices: &mut Choices, option: &str) -> Result<Option<Hostlist>, Failure> {
    parsed(filled(choices.take(option)), nodes_named)
}

/// `2`, `2-4`, or a list of these without gaps: `1,2`.
pub(crate) fn node_range(text: &str) -> Result<(u32, u32), String> {
    let mut ranges = text
        .split(',')
        .map(one_range)
        .collect::<Result<Vec<_>, _>>()?;
    ranges.sort_unstable();
    let mut all = ranges[0];
    for &(least, most) in &ranges[1..] {
        if least > all.1.saturating_add(1) {
            return Err(format!(
                "{text:?} leaves numbers out between {} and {least}. Write one range, or one number",
                all.1
            ));
        }
        all.1 = all.1.max(most);
    }
    Ok(all)
}

fn one_range(text: &str) -> Result<(u32, u32), String> {
    let (least, most) = match text.split_once('-') {
        // `-4`: up to so many.
        Some(("", most)) => ("1", most),
        Some(range) => range,
        None => (text, text),
    };
    let (least, most) = (thousands(least)?, thousands(most)?);
    if least > most {
        return Err(format!(
            "{text:?} has its larger number first. Write {most}-{least}"
        ));
    }
    Ok((least, most))
}

/// `2`, `2k` for 2048, `1m`.
fn thousands(text: &str) -> Result<u32, String> {
    let units = [("k", 10), ("m", 20)];
    let unit = units.iter().find_map(|(letter, shift)| {
        Some((
            text.to_ascii_lowercase().strip_suffix(letter)?.to_owned(),
            *shift,
        ))
    });
    match unit {
        Some((digits, shift)) => Ok(count(&digits)?.saturating_mul(1 << shift)),
        None => count(text),
    }
}

fn nodes_named(text: &str) -> Result<Hostlist, String> {
    if text.contains('/') {
        return nodes_in_file(text);
    }
    Hostlist::parse(text).map_err(|error| error.to_string())
}

/// The nodes that a file names, in lines, words or lists.
fn nodes_in_file(path: &str) -> Result<Hostlist, String> {
    let of_file = |why: &dyn std::fmt::Display| format!("the nodes in {path}: {why}");
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_NODE_FILE_BYTES + 1).read_to_string(&mut text))
        .map_err(|error| of_file(&error))?;
    if text.len() as u64 > MAX_NODE_FILE_BYTES {
        return Err(of_file(&format_args!("over {MAX_NODE_FILE_BYTES} bytes")));
    }
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    if words.is_empty() {
        return Err(of_file(&"it names none"));
    }
    Hostlist::parse(&words.join(",")).map_err(|error| of_file(&error))
}

fn memory(choices: &mut Choices) -> Result<MemRequest, Failure> {
    if let Some(bytes) = parsed(choices.take("mem"), size::parse_bytes)? {
        return Ok(MemRequest::PerNode(bytes));
    }
    let some_bytes =
        |text: &str| match size::parse_bytes(text).map_err(|error| error.to_string())? {
            0 => Err("0 is too little. For all memory of a node write --mem=0".to_owned()),
            bytes => Ok(bytes),
        };
    if let Some(bytes) = parsed(choices.take("mem-per-cpu"), some_bytes)? {
        return Ok(MemRequest::PerCpu(bytes));
    }
    Ok(parsed(choices.take("mem-per-gpu"), some_bytes)?
        .map_or(MemRequest::Default, MemRequest::PerGpu))
}

/// An option that is on when it stands alone, and may be `off`. `advice` ends the refusal of any other value.
fn on_or_off(given: Option<GivenOption>, advice: &str) -> Result<bool, Failure> {
    match given {
        None => Ok(false),
        Some(given) if given.value.is_none() => Ok(true),
        Some(given) if given.text() == "off" || given.shares_nodes_with_some() => Ok(false),
        Some(given) => {
            Err(given.fail(format_args!("{:?} is not known here{advice}", given.text())))
        }
    }
}

/// `1` or `1@30:00`; 0: any, as in Slurm.
fn switches(text: &str) -> Result<Option<Switches>, String> {
    if text == "0" {
        return Ok(None);
    }
    let (most, wait) = text
        .split_once('@')
        .map_or((text, None), |(most, wait)| (most, Some(wait)));
    let wait_secs = match wait {
        None => None,
        Some(wait) => {
            let limit = TimeLimit::parse(wait).map_err(|error| error.to_string())?;
            limit
                .secs()
                .map(|secs| u32::try_from(secs).unwrap_or(u32::MAX))
        }
    };
    Ok(Some(Switches {
        most: count(most)?,
        wait_secs,
    }))
}
