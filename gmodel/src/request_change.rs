//! A change of what a waiting job asks for: nodes, tasks, CPUs, memory, GPUs, and where.
//!
//! Names of the API and their grammar, which is that of the options of gsub. Whether the job may have what it asks for
//! then is the core's to say. Source: scontrol(1), `update job`.

use crate::constraint::Constraint;
use crate::gpu_request::GpuRequest;
use crate::hostlist::Hostlist;
use crate::job::{GpuScope, MemRequest, Request};
use crate::size::{exact_size, parse_bytes};
use serde::{Deserialize, Serialize};

/// What is to be otherwise; the rest stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestChange {
    /// Least and most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<(u32, u32)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ntasks: Option<u32>,
    /// 0: no such bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ntasks_per_node: Option<u32>,
    /// Of all tasks together: a whole number for each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus_per_task: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mem: Option<MemRequest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<GpuRequestChange>,
    /// Empty: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constraint: Option<String>,
    /// Empty: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodelist: Option<String>,
    /// Empty: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclude: Option<String>,
}

/// GPUs, and what the count is per.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuRequestChange {
    /// `None`: none.
    pub ask: Option<GpuRequest>,
    pub scope: GpuScope,
}

impl RequestChange {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads one part; an empty text takes away what was asked for, where that is possible.
    ///
    /// # Errors
    /// The key is no part of a request, or the text is not in its grammar: why.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), String> {
        let text = text.trim();
        match key {
            "nodes" => self.nodes = Some(range(text)?),
            "ntasks" => self.ntasks = Some(count(text)?),
            "ntasks_per_node" if text.is_empty() => self.ntasks_per_node = Some(0),
            "ntasks_per_node" => self.ntasks_per_node = Some(count(text)?),
            "cpus" => self.cpus = Some(count(text)?),
            "cpus_per_task" => self.cpus_per_task = Some(count(text)?),
            "mem_per_node" => {
                self.mem = Some(MemRequest::PerNode(
                    parse_bytes(text).map_err(|error| error.to_string())?,
                ))
            }
            "mem_per_cpu" => self.mem = Some(MemRequest::PerCpu(some_bytes(text)?)),
            "mem_per_gpu" => self.mem = Some(MemRequest::PerGpu(some_bytes(text)?)),
            "gpus" => self.gpus = Some(gpus(text, GpuScope::Job)?),
            "gpus_per_node" => self.gpus = Some(gpus(text, GpuScope::Node)?),
            "gpus_per_task" => self.gpus = Some(gpus(text, GpuScope::Task)?),
            "constraint" => {
                if !text.is_empty() {
                    Constraint::alternatives(text).map_err(|error| error.to_string())?;
                }
                self.constraint = Some(text.to_owned());
            }
            "nodelist" | "exclude" => {
                if !text.is_empty() {
                    Hostlist::parse(text).map_err(|error| error.to_string())?;
                }
                let list = if key == "nodelist" {
                    &mut self.nodelist
                } else {
                    &mut self.exclude
                };
                *list = Some(text.to_owned());
            }
            _ => return Err(format!("{key:?} is no part of a request")),
        }
        Ok(())
    }

    /// What does not go together in a request once it is changed.
    ///
    /// # Errors
    /// CPUs that cannot be shared out evenly.
    pub fn check(&self, request: &Request) -> Result<(), String> {
        let tasks = self.ntasks.unwrap_or(request.ntasks).max(1);
        match self.cpus {
            Some(cpus) if self.cpus_per_task.is_some() => Err(format!(
                "{cpus} CPUs in all and so many for each task: give one of the two"
            )),
            Some(cpus) if cpus % tasks != 0 => {
                let (less, more) = (cpus / tasks * tasks, cpus.div_ceil(tasks) * tasks);
                let less = if less > 0 {
                    format!("{less} or ")
                } else {
                    String::new()
                };
                Err(format!(
                    "{cpus} CPUs are no whole number for each of {tasks} tasks. {less}{more} would be"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Changes a request.
    pub fn apply(&self, request: &mut Request) {
        if let Some((least, most)) = self.nodes {
            // A task for each node stays one for each.
            if request.ntasks == request.nodes_min && request.ntasks > 1 {
                request.ntasks = least;
            }
            (request.nodes_min, request.nodes_max) = (least, most);
            request.nodes_any = false;
        }
        request.ntasks = self.ntasks.unwrap_or(request.ntasks);
        if let Some(most) = self.ntasks_per_node {
            request.ntasks_per_node = (most > 0).then_some(most);
        }
        request.cpus_per_task = self.cpus_per_task.or(request.cpus_per_task);
        if let Some(cpus) = self.cpus {
            request.cpus_per_task = Some(cpus.div_ceil(request.ntasks.max(1)));
        }
        request.mem = self.mem.unwrap_or(request.mem);
        if let Some(gpus) = &self.gpus {
            request.gpus.clone_from(&gpus.ask);
            request.gpu_scope = gpus.scope;
        }
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let list = |text: &String| some(text).and_then(|text| Hostlist::parse(&text).ok());
        if let Some(text) = &self.constraint {
            request.constraint = some(text);
        }
        if let Some(text) = &self.nodelist {
            request.nodelist = list(text);
        }
        if let Some(text) = &self.exclude {
            request.exclude = list(text);
        }
    }

    /// The changes as text.
    pub fn words(&self) -> Vec<(&'static str, String)> {
        let mut words = Vec::new();
        let mut add = |what: &'static str, value: Option<String>| {
            words.extend(value.map(|value| (what, value)))
        };
        let or = |text: &String, none: &str| {
            if text.is_empty() {
                none.to_owned()
            } else {
                text.clone()
            }
        };
        add(
            "nodes",
            self.nodes.map(|(least, most)| {
                if least == most {
                    least.to_string()
                } else {
                    format!("{least}-{most}")
                }
            }),
        );
        add("tasks", self.ntasks.map(|count| count.to_string()));
        add(
            "tasks per node",
            self.ntasks_per_node.map(|most| {
                if most == 0 {
                    "any number".to_owned()
                } else {
                    most.to_string()
                }
            }),
        );
        add("CPUs", self.cpus.map(|count| count.to_string()));
        add(
            "CPUs per task",
            self.cpus_per_task.map(|count| count.to_string()),
        );
        add("memory", self.mem.map(memory_text));
        add("GPUs", self.gpus.as_ref().map(gpus_text));
        add(
            "features",
            self.constraint.as_ref().map(|text| or(text, "any")),
        );
        add(
            "nodes to run on",
            self.nodelist.as_ref().map(|text| or(text, "any")),
        );
        add(
            "excluded nodes",
            self.exclude.as_ref().map(|text| or(text, "none")),
        );
        words
    }
}

fn memory_text(mem: MemRequest) -> String {
    match mem {
        MemRequest::Default => "the default".to_owned(),
        MemRequest::PerNode(0) => "all of each node".to_owned(),
        MemRequest::PerNode(bytes) => format!("{} per node", exact_size(bytes)),
        MemRequest::PerCpu(bytes) => format!("{} per CPU", exact_size(bytes)),
        MemRequest::PerGpu(bytes) => format!("{} per GPU", exact_size(bytes)),
    }
}

fn gpus_text(gpus: &GpuRequestChange) -> String {
    let per = match gpus.scope {
        GpuScope::Job => "",
        GpuScope::Node => " per node",
        GpuScope::Task => " per task",
    };
    gpus.ask
        .as_ref()
        .map_or("none".to_owned(), |ask| format!("{ask}{per}"))
}

fn count(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(0) => Err("0 is too few: ask for at least 1".to_owned()),
        Ok(count) if !text.starts_with('+') => Ok(count),
        _ => Err(format!("{text:?} is not a whole number")),
    }
}

/// `2` or `2-4`.
fn range(text: &str) -> Result<(u32, u32), String> {
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    let (least, most) = (count(least)?, count(most)?);
    match least > most {
        true => Err(format!(
            "{text:?} has its larger number first. Write {most}-{least}"
        )),
        false => Ok((least, most)),
    }
}

fn some_bytes(text: &str) -> Result<u64, String> {
    match parse_bytes(text).map_err(|error| error.to_string())? {
        0 => Err("0 is too little. For all memory of a node write 0 per node".to_owned()),
        bytes => Ok(bytes),
    }
}

/// `4`, `h100:4`, or as scontrol has it `gres:gpu:h100:4`, `gres/gpu=4`.
fn gpus(text: &str, scope: GpuScope) -> Result<GpuRequestChange, String> {
    let plain = text
        .strip_prefix("gres:")
        .or_else(|| text.strip_prefix("gres/"))
        .unwrap_or(text);
    let ask = match plain.strip_prefix("gpu") {
        _ if text.is_empty() => return Ok(GpuRequestChange { ask: None, scope }),
        Some(rest) if rest.is_empty() || rest.starts_with([':', '=']) => {
            GpuRequest::parse_gres(&plain.replacen('=', ":", 1))
        }
        _ => GpuRequest::parse(plain),
    };
    let ask = ask.map_err(|error| error.to_string())?;
    Ok(GpuRequestChange {
        ask: Some(ask).filter(|ask| !ask.is_none()),
        scope,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(parts: &[(&str, &str)], mut request: Request) -> Request {
        let mut change = RequestChange::default();
        parts
            .iter()
            .for_each(|(key, text)| change.set(key, text).unwrap());
        change.check(&request).unwrap();
        change.apply(&mut request);
        request
    }

    #[test]
    fn what_is_named_changes_and_the_rest_stays() {
        let before = Request {
            cpus_per_task: Some(3),
            exclusive: true,
            ..Request::default()
        };
        let after = changed(
            &[
                ("nodes", "2-4"),
                ("mem_per_node", "8G"),
                ("gpus_per_node", "gres:gpu:h100:2"),
            ],
            before.clone(),
        );
        assert_eq!(
            (after.nodes_min, after.nodes_max, after.mem),
            (2, 4, MemRequest::PerNode(8 << 30))
        );
        assert_eq!(
            (after.gpus.unwrap().to_string(), after.gpu_scope),
            ("h100:2".to_owned(), GpuScope::Node)
        );
        assert_eq!(
            (after.cpus_per_task, after.exclusive),
            (before.cpus_per_task, before.exclusive)
        );
    }

    #[test]
    fn an_empty_text_takes_away() {
        let before = changed(
            &[
                ("constraint", "ib"),
                ("nodelist", "n[1-2]"),
                ("exclude", "n3"),
                ("gpus", "4"),
            ],
            Request::default(),
        );
        assert!(
            before.constraint.is_some()
                && before.nodelist.is_some()
                && before.exclude.is_some()
                && before.gpus.is_some()
        );
        let after = changed(
            &[
                ("constraint", ""),
                ("nodelist", ""),
                ("exclude", ""),
                ("gpus", ""),
            ],
            before,
        );
        assert_eq!(after, Request::default());
    }

    #[test]
    fn cpus_in_all_are_shared_out_to_the_tasks() {
        let four = Request {
            ntasks: 4,
            ..Request::default()
        };
        assert_eq!(
            changed(&[("cpus", "8")], four.clone()).cpus_per_task,
            Some(2)
        );
        assert_eq!(
            changed(&[("cpus", "8"), ("ntasks", "2")], four.clone()).cpus_per_task,
            Some(4)
        );
        let mut odd = RequestChange::default();
        odd.set("cpus", "7").unwrap();
        assert_eq!(
            odd.check(&four).unwrap_err(),
            "7 CPUs are no whole number for each of 4 tasks. 4 or 8 would be"
        );
    }

    #[test]
    fn a_task_for_each_node_stays_one_for_each() {
        let two = Request {
            nodes_min: 2,
            nodes_max: 2,
            ntasks: 2,
            ..Request::default()
        };
        let four = changed(&[("nodes", "4")], two.clone());
        assert_eq!((four.nodes_min, four.ntasks), (4, 4));
        assert_eq!(changed(&[("nodes", "4")], Request::default()).ntasks, 1);
    }

    #[test]
    fn what_is_not_in_the_grammar_is_refused() {
        let mut change = RequestChange::default();
        let odd = [
            ("nodes", "4-2"),
            ("nodes", "0"),
            ("cpus", "x"),
            ("gpus", "h100:"),
            ("constraint", "a&"),
            ("mem_per_cpu", "0"),
            ("shape", "1"),
        ];
        for (key, text) in odd {
            assert!(change.set(key, text).is_err(), "{key}={text}");
        }
        assert!(change.is_empty());
    }
}
