//! `#BSUB` lines, of LSF.

use super::{Dialect, ForeignOption, Translate, Translation, count};

pub(super) const DIALECT: Dialect = Dialect {
    word: "#BSUB",
    with_value: "cebEGiJkLmMnopPqRsStTuUvwWZ",
    flags: "BHKNrx",
    long: &[
        ("app", true),
        ("cwd", true),
        ("env", true),
        ("eo", true),
        ("gpu", true),
        ("oo", true),
        ("rn", false),
        ("sla", true),
    ],
};

/// `-B` and `-N` of the lines so far.
#[derive(Default)]
pub(super) struct Bsub {
    mail: Vec<&'static str>,
}

impl Translate for Bsub {
    fn option(&mut self, option: &ForeignOption, told: &mut Translation) -> Result<(), String> {
        let value = &*option.value;
        match &*option.name {
            "cwd" => told.set("chdir", value),
            "e" | "eo" => told.set("error", path(value)),
            "o" | "oo" => told.set("output", path(value)),
            "i" => told.set("input", path(value)),
            "G" | "U" | "P" | "app" | "sla" => told.note(format_args!("-{} {value}", option.name)),
            "H" => told.flag("hold"),
            "J" => name(value, told),
            "m" => told.set(
                "nodelist",
                value.split_whitespace().collect::<Vec<_>>().join(","),
            ),
            "M" => told.set("mem-per-cpu", memory(value)?),
            "n" => told.set("ntasks", count(value.rsplit(',').next().unwrap_or(value))?),
            "q" => told.set("partition", value),
            "r" => told.flag("requeue"),
            "rn" => told.flag("no-requeue"),
            "R" => requirement(value, told)?,
            "u" => told.set("mail-user", value),
            "B" => self.mail("BEGIN", told),
            "N" => self.mail("END", told),
            "w" => {
                return Err(format!(
                    "{value:?} is a dependency in LSF's words. Write #SBATCH --dependency=afterok:JOB"
                ));
            }
            "W" => told.set("time", time(value)?),
            "x" => told.flag("exclusive"),
            "gpu" => told.set("gpus-per-node", gpus(value)?),
            // The script's first line names its shell.
            "L" => {}
            name => told.note(format!("-{name} {value}").trim_end()),
        }
        Ok(())
    }
}

impl Bsub {
    fn mail(&mut self, when: &'static str, told: &mut Translation) {
        self.mail.push(when);
        told.set("mail-type", self.mail.join(","));
    }
}

/// `%J` is the job's id, of an array the array's, and `%I` the task's.
fn path(text: &str) -> String {
    let job = if text.contains("%I") { "%A" } else { "%j" };
    text.replace("%J", job).replace("%I", "%a")
}

/// `sweep[1-10:2]%5`
fn name(text: &str, told: &mut Translation) {
    let Some((name, rest)) = text.split_once('[') else {
        return told.set("job-name", text);
    };
    if !name.is_empty() {
        told.set("job-name", name);
    }
    let (tasks, most) = rest.split_once(']').unwrap_or((rest, ""));
    told.set("array", format_args!("{tasks}{most}"));
}

/// KB unless a unit follows.
fn memory(text: &str) -> Result<String, String> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.to_ascii_uppercase();
    match unit.strip_suffix('B').unwrap_or(&unit) {
        "" if !number.is_empty() => Ok(format!("{number}K")),
        unit @ ("K" | "M" | "G" | "T") if !number.is_empty() => Ok(format!("{number}{unit}")),
        _ => Err(format!("{text:?} is no size. Write 4GB, or kilobytes")),
    }
}

/// `[hours:]minutes`, whatever host it is a time of.
fn time(text: &str) -> Result<String, String> {
    let time = text.split('/').next().unwrap_or(text);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match time.split_once(':') {
        Some((hours, minutes)) if is_number(hours) && is_number(minutes) => {
            Ok(format!("{hours}:{minutes}:00"))
        }
        None if is_number(time) => Ok(time.to_owned()),
        _ => Err(format!("{text:?} is no time. Write minutes or HH:MM")),
    }
}

/// `span[hosts=1] span[ptile=4]`; other requirements are told.
fn requirement(text: &str, told: &mut Translation) -> Result<(), String> {
    for part in text
        .split(']')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        match part.split_once('[') {
            Some(("span", span)) => match span.split_once('=') {
                Some(("hosts", "1")) => told.set("nodes", 1),
                Some(("ptile", tasks)) => told.set("ntasks-per-node", count(tasks)?),
                _ => told.note(format_args!("-R {part}]")),
            },
            _ => told.note(format_args!("-R {part}]")),
        }
    }
    Ok(())
}

/// `num=2:mode=exclusive_process`: GPUs of each host.
fn gpus(text: &str) -> Result<u32, String> {
    let number = text.split(':').find_map(|part| part.strip_prefix("num="));
    count(number.ok_or_else(|| format!("{text:?} has no num=. Write \"num=1\""))?)
}
