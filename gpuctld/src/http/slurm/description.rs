//! The description of a job in Slurm's API, as options of sbatch: one meaning for both.
//!
//! Owns Slurm's keys and the forms of their values; what an option means is gsub's. Source: the OpenAPI document of slurmrestd 25.05.

use super::error::SlurmError;
use serde_json::{Map, Value};

/// How the value of a key is written behind an option.
#[derive(Clone, Copy)]
enum Form {
    Text,
    /// A whole number, or `{"set": true, "number": 2}`.
    Count,
    Minutes,
    Mebibytes,
    /// Seconds since 1970; 0 is none.
    Moment,
    /// A list of texts, or a text with commas.
    Texts,
    /// The option stands there, or does not.
    Flag,
    /// `gres/gpu:h100:2` as `h100:2`.
    Gpus,
    /// `gres/gpu:2,gres/shard:1` as `gpu:2,shard:1`.
    Gres,
}

/// Keys with their options.
const OPTIONS: [(&str, &str, Form); 48] = [
    ("account", "account", Form::Text),
    ("array", "array", Form::Text),
    ("begin_time", "begin", Form::Moment),
    ("clusters", "clusters", Form::Text),
    ("comment", "comment", Form::Text),
    ("constraints", "constraint", Form::Text),
    ("contiguous", "contiguous", Form::Flag),
    ("cpus_per_task", "cpus-per-task", Form::Count),
    ("cpus_per_tres", "cpus-per-gpu", Form::Gpus),
    ("current_working_directory", "chdir", Form::Text),
    ("deadline", "deadline", Form::Moment),
    ("dependency", "dependency", Form::Text),
    ("distribution", "distribution", Form::Text),
    ("excluded_nodes", "exclude", Form::Texts),
    ("extra", "extra", Form::Text),
    ("hold", "hold", Form::Flag),
    ("licenses", "licenses", Form::Text),
    ("mail_type", "mail-type", Form::Texts),
    ("mail_user", "mail-user", Form::Text),
    ("memory_per_cpu", "mem-per-cpu", Form::Mebibytes),
    ("memory_per_node", "mem", Form::Mebibytes),
    ("minimum_cpus_per_node", "mincpus", Form::Count),
    ("name", "job-name", Form::Text),
    ("network", "network", Form::Text),
    ("nice", "nice", Form::Count),
    ("nodes", "nodes", Form::Text),
    ("open_mode", "open-mode", Form::Texts),
    ("overcommit", "overcommit", Form::Flag),
    ("partition", "partition", Form::Text),
    ("prefer", "prefer", Form::Text),
    ("priority", "priority", Form::Count),
    ("qos", "qos", Form::Text),
    ("reboot", "reboot", Form::Flag),
    ("required_nodes", "nodelist", Form::Texts),
    ("reservation", "reservation", Form::Text),
    ("standard_error", "error", Form::Text),
    ("standard_input", "input", Form::Text),
    ("standard_output", "output", Form::Text),
    ("tasks", "ntasks", Form::Count),
    ("tasks_per_node", "ntasks-per-node", Form::Count),
    ("threads_per_core", "threads-per-core", Form::Count),
    ("time_limit", "time", Form::Minutes),
    ("time_minimum", "time-min", Form::Minutes),
    ("tres_bind", "tres-bind", Form::Text),
    ("tres_per_job", "gpus", Form::Gpus),
    ("tres_per_node", "gres", Form::Gres),
    ("tres_per_task", "gpus-per-task", Form::Gpus),
    ("wckey", "wckey", Form::Text),
];

/// Keys of Slurm of which nothing comes here. Their usual values say nothing.
const WITHOUT_COUNTERPART: [&str; 58] = [
    "account_gather_frequency",
    "admin_comment",
    "allocation_node_list",
    "allocation_node_port",
    "batch_features",
    "burst_buffer",
    "cluster_constraint",
    "container",
    "container_id",
    "core_specification",
    "cpu_binding",
    "cpu_binding_flags",
    "cpu_frequency",
    "crontab",
    "delay_boot",
    "distribution_plane_size",
    "end_time",
    "flags",
    "hetjob_group",
    "immediate",
    "job_id",
    "kill_warning_flags",
    "maximum_cpus",
    "mcs_label",
    "memory_binding",
    "memory_binding_type",
    "memory_per_tres",
    "minimum_boards_per_node",
    "minimum_cpus",
    "minimum_sockets_per_board",
    "ntasks_per_tres",
    "oom_kill_step",
    "power_flags",
    "profile",
    "reserve_ports",
    "resv_mpi_ports",
    "rlimits",
    "segment_size",
    "selinux_context",
    "site_factor",
    "sockets_per_node",
    "spank_environment",
    "tasks_per_board",
    "tasks_per_core",
    "tasks_per_socket",
    "temporary_disk_per_node",
    "thread_specification",
    "tres_freq",
    "tres_per_socket",
    "user_id",
    "group_id",
    "wait_all_nodes",
    "x11",
    "x11_magic_cookie",
    "x11_target_host",
    "x11_target_port",
    "argv",
    "script",
];

/// A description, read.
#[derive(Debug, Default)]
pub(super) struct Description {
    /// Options of sbatch.
    pub(super) words: Vec<String>,
    pub(super) script: String,
    pub(super) argv: Vec<String>,
    pub(super) variables: Vec<(String, String)>,
    pub(super) work_dir: String,
    /// Warnings of the answer.
    pub(super) notes: Vec<String>,
}

/// Reads the description under `source`.
///
/// # Errors
/// A value that is not in the form of its key.
pub(super) fn read(value: &Value, source: &str) -> Result<Description, SlurmError> {
    let fields = value.as_object().ok_or_else(|| {
        SlurmError::unreadable(format!("{source} is no object with keys of a job")).of(source)
    })?;
    let mut read = Description::default();
    for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let refused = |why: String| {
            SlurmError::unreadable(format!("{key}: {why}")).of(format!("{source}/{key}"))
        };
        let known = OPTIONS.iter().find(|(known, ..)| known == key);
        match known {
            Some((_, option, form)) => {
                let word = word(option, *form, value).map_err(refused)?;
                read.words.extend(word);
            }
            None => read.take_other(key, value).map_err(refused)?,
        }
    }
    read.take_pairs(fields)
        .map_err(|why| SlurmError::unreadable(why).of(source))?;
    Ok(read)
}

/// The option with this value; none where the value says nothing.
fn word(option: &str, form: Form, value: &Value) -> Result<Option<String>, String> {
    let text = match form {
        Form::Text => text(value)?,
        Form::Count => number(value)?,
        Form::Minutes => number(value)?.map(|number| match number.as_str() {
            "infinite" => "UNLIMITED".to_owned(),
            _ => number,
        }),
        Form::Mebibytes => number(value)?.map(|number| format!("{number}M")),
        Form::Moment => number(value)?.filter(|number| number != "0"),
        Form::Texts => texts(value)?,
        Form::Flag => return Ok(flag(value)?.then(|| format!("--{option}"))),
        Form::Gpus => text(value)?.map(|text| gpus(&text)).transpose()?,
        Form::Gres => text(value)?.map(|text| gres(&text)),
    };
    Ok(text.map(|text| format!("--{option}={text}")))
}

fn text(value: &Value) -> Result<Option<String>, String> {
    match value {
        Value::String(text) if text.is_empty() => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        Value::Number(number) => Ok(Some(number.to_string())),
        Value::Array(_) => {
            let texts = texts(value)?;
            // A range of nodes may be a list of two.
            Ok(texts.map(|text| text.replace(',', "-")))
        }
        _ => Err("a text is wanted".to_owned()),
    }
}

/// `17`, `"17"`, `{"set": true, "infinite": false, "number": 17}`.
fn number(value: &Value) -> Result<Option<String>, String> {
    match value {
        Value::Number(number) if number.is_i64() || number.is_u64() => Ok(Some(number.to_string())),
        Value::String(text) if text.is_empty() => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        Value::Object(fields) => {
            let says = |key: &str| fields.get(key).and_then(Value::as_bool);
            match (says("set"), says("infinite")) {
                (_, Some(true)) => Ok(Some("infinite".to_owned())),
                (Some(false), _) => Ok(None),
                _ => number(fields.get("number").unwrap_or(&Value::Null)),
            }
        }
        _ => Err("a whole number is wanted, or {\"set\": true, \"number\": 2}".to_owned()),
    }
}

fn texts(value: &Value) -> Result<Option<String>, String> {
    match value {
        Value::Array(list) => {
            let texts: Result<Vec<String>, String> = list
                .iter()
                .map(|one| text(one).map(Option::unwrap_or_default))
                .collect();
            Ok(Some(texts?.join(",")).filter(|text| !text.is_empty()))
        }
        Value::String(_) => text(value),
        _ => Err("a list of texts is wanted".to_owned()),
    }
}

fn flag(value: &Value) -> Result<bool, String> {
    match value {
        Value::Bool(flag) => Ok(*flag),
        Value::Number(number) => Ok(number.as_i64() != Some(0)),
        Value::String(text) if text.eq_ignore_ascii_case("true") => Ok(true),
        Value::String(text) if text.eq_ignore_ascii_case("false") => Ok(false),
        _ => Err("true or false is wanted".to_owned()),
    }
}

fn gpus(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix("gres/").or(text.strip_prefix("gres:"));
    let count = bare.unwrap_or(text).strip_prefix("gpu").map(|count| {
        let parted = count.strip_prefix([':', '=']);
        (count.is_empty(), parted)
    });
    match count {
        Some((true, _)) => Ok("1".to_owned()),
        Some((_, Some(count))) if count.contains(',') => {
            Err(format!("{text:?} names several; write one kind of GPUs"))
        }
        Some((_, Some(count))) => Ok(count.to_owned()),
        _ => Err(format!(
            "{text:?}: GPUs alone are counted so. Write gres/gpu:2"
        )),
    }
}

fn gres(text: &str) -> String {
    let parts = text.split(',').map(|part| {
        let bare = part.strip_prefix("gres/").or(part.strip_prefix("gres:"));
        bare.unwrap_or(part).replace('=', ":")
    });
    parts.collect::<Vec<_>>().join(",")
}

impl Description {
    /// A key without an option of its own.
    fn take_other(&mut self, key: &str, value: &Value) -> Result<(), String> {
        match key {
            "script" => self.script = text(value)?.unwrap_or_default(),
            "argv" => {
                let list = value.as_array().ok_or("a list of texts is wanted")?;
                let words = list
                    .iter()
                    .map(|one| text(one).map(Option::unwrap_or_default));
                self.argv = words.collect::<Result<_, _>>()?;
            }
            "environment" => self.variables = variables(value)?,
            "requeue" => {
                let word = if flag(value)? {
                    "--requeue"
                } else {
                    "--no-requeue"
                };
                self.words.push(word.to_owned());
            }
            "kill_on_node_fail" if flag(value)? => {}
            "kill_on_node_fail" => self.words.push("--no-kill".to_owned()),
            "shared" => match texts(value)?.unwrap_or_default().as_str() {
                "" => {}
                "none" | "exclusive" => self.words.push("--exclusive".to_owned()),
                "oversubscribe" | "sharing" => {}
                who => self.words.push(format!("--exclusive={who}")),
            },
            "minimum_nodes"
            | "maximum_nodes"
            | "required_switches"
            | "wait_for_switch"
            | "kill_warning_signal"
            | "kill_warning_delay" => {}
            _ if WITHOUT_COUNTERPART.contains(&key) => {
                if says_something(value) {
                    self.notes
                        .push(format!("{key} changes nothing here: it has no counterpart"));
                }
            }
            _ => {
                let key: String = key.chars().take(80).collect();
                self.notes
                    .push(format!("{key:?} is no key of a job, and changes nothing"));
            }
        }
        Ok(())
    }

    /// Keys that make one option together.
    fn take_pairs(&mut self, fields: &Map<String, Value>) -> Result<(), String> {
        let count = |key: &str| match fields.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => number(value).map_err(|why| format!("{key}: {why}")),
        };
        let says_nodes = fields.get("nodes").is_some_and(|nodes| !nodes.is_null());
        match (count("minimum_nodes")?, count("maximum_nodes")?) {
            _ if says_nodes => {}
            (Some(least), Some(most)) => self.words.push(format!("--nodes={least}-{most}")),
            (Some(least), None) => self.words.push(format!("--nodes={least}")),
            (None, Some(most)) => self.words.push(format!("--nodes=1-{most}")),
            (None, None) => {}
        }
        if let Some(count) = count("required_switches")?.filter(|count| count != "0") {
            let wait = fields.get("wait_for_switch").and_then(Value::as_u64);
            let wait = wait.map_or(String::new(), |secs| format!("@{}", secs.div_ceil(60)));
            self.words.push(format!("--switches={count}{wait}"));
        }
        if let Some(signal) = fields
            .get("kill_warning_signal")
            .map(text)
            .transpose()?
            .flatten()
        {
            let delay =
                count("kill_warning_delay")?.map_or(String::new(), |secs| format!("@{secs}"));
            self.words.push(format!("--signal=B:{signal}{delay}"));
        }
        self.work_dir = fields
            .get("current_working_directory")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        Ok(())
    }
}

/// `["A=1"]` or `{"A": "1"}`.
fn variables(value: &Value) -> Result<Vec<(String, String)>, String> {
    let odd = |name: &str| {
        let name: String = name.chars().take(40).collect();
        format!("{name:?} is no NAME=value")
    };
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| Ok((name.clone(), text(value)?.unwrap_or_default())))
            .collect(),
        Value::Array(list) => list
            .iter()
            .map(|one| {
                let one = one.as_str().ok_or("a list of texts is wanted")?;
                let (name, value) = one.split_once('=').ok_or_else(|| odd(one))?;
                Ok((name.to_owned(), value.to_owned()))
            })
            .collect(),
        Value::String(text) if !text.contains('=') => Err(odd(text)),
        Value::String(text) => variables(&Value::from(text.split(',').collect::<Vec<_>>())),
        _ => Err("a list of NAME=value is wanted, or an object".to_owned()),
    }
}

fn says_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => match fields.get("set") {
            Some(set) => *set == Value::Bool(true),
            None => fields.values().any(says_something),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn words(value: Value) -> String {
        read(&value, "job").map_or_else(
            |error| format!("{}: {}", error.source, error.description),
            |read| read.words.join(" "),
        )
    }

    #[test]
    fn keys_become_options() {
        let job = json!({"name": "train", "tasks": 2, "time_limit": {"set": true, "infinite": false, "number": 5}, "nodes": [1, 2],
            "memory_per_node": {"set": true, "number": 200}, "tres_per_job": "gres/gpu:h100:2", "tres_per_node": "gres/gpu=1",
            "hold": true, "requeue": false, "begin_time": 0, "mail_type": ["END", "FAIL"], "memory_per_cpu": {"set": false}});
        assert_eq!(
            words(job),
            "--hold --mail-type=END,FAIL --mem=200M --job-name=train --nodes=1-2 --no-requeue --ntasks=2 --time=5 --gpus=h100:2 --gres=gpu:1"
        );
        assert_eq!(
            words(json!({"time_limit": {"infinite": true}})),
            "--time=UNLIMITED"
        );
        let pair =
            json!({"kill_warning_signal": "USR1", "kill_warning_delay": 60, "minimum_nodes": 2});
        assert_eq!(words(pair), "--nodes=2 --signal=B:USR1@60");
    }

    #[test]
    fn values_of_another_form_are_refused_by_their_key() {
        for (job, refused) in [
            (json!({"tasks": [1]}), "job/tasks: tasks: a whole number"),
            (json!({"name": {}}), "job/name: name: a text is wanted"),
            (json!({"hold": "maybe"}), "job/hold: hold: true or false"),
            (
                json!({"environment": ["A"]}),
                "job/environment: environment: \"A\" is no NAME=value",
            ),
            (
                json!({"tres_per_job": "license/x:1"}),
                "job/tres_per_job: tres_per_job: \"license/x:1\": GPUs alone",
            ),
            (
                json!({"tres_per_job": "gpu\u{e9}"}),
                "job/tres_per_job: tres_per_job: \"gpu\u{e9}\": GPUs alone",
            ),
            (
                json!({"tres_per_job": "gres\u{e9}gpu:1"}),
                "job/tres_per_job: tres_per_job:",
            ),
            (json!([]), "job: job is no object"),
        ] {
            let said = words(job);
            assert!(said.starts_with(refused), "{said}");
        }
    }

    #[test]
    fn what_comes_to_nothing_is_said() {
        let job = json!({"tres_freq": "high", "power_flags": [], "core_specification": 0, "tres_per_nod": "gres/gpu:1"});
        assert_eq!(
            read(&job, "job").unwrap().notes,
            [
                "tres_freq changes nothing here: it has no counterpart",
                "\"tres_per_nod\" is no key of a job, and changes nothing"
            ]
        );
    }
}
