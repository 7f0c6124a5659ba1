//! `#PBS` lines, of PBS Pro, OpenPBS and Torque.

use super::{Dialect, ForeignOption, Translate, Translation, count};

pub(super) const DIALECT: Dialect = Dialect {
    word: "#PBS",
    with_value: "aAcCdeJjklmMNopPqrStuvwW",
    flags: "hIVXz",
    long: &[],
};

/// `-V` and `-v` of the lines so far.
#[derive(Default)]
pub(super) struct Pbs {
    all_variables: bool,
    variables: Vec<String>,
}

impl Translate for Pbs {
    fn option(&mut self, option: &ForeignOption, told: &mut Translation) -> Result<(), String> {
        let value = &*option.value;
        match &*option.name {
            "a" => told.set("begin", begin(value)?),
            "A" => told.set("account", value),
            "d" | "w" => told.set("chdir", value),
            "e" => told.set("error", without_host(value)),
            "h" => told.flag("hold"),
            "J" | "t" => told.set("array", value),
            "l" => resources(value, told)?,
            "m" => told.set("mail-type", mail_types(value)),
            "M" => told.set("mail-user", value),
            "N" => told.set("job-name", value),
            "o" => told.set("output", without_host(value)),
            "p" => match value.parse::<i32>() {
                Ok(priority) if priority <= 0 => told.set("nice", -i64::from(priority)),
                _ => told.note(format_args!("-p {value}")),
            },
            "q" => told.set("partition", value.split('@').next().unwrap_or(value)),
            "r" if value.starts_with(['n', 'N']) => told.flag("no-requeue"),
            "r" => told.flag("requeue"),
            "v" => {
                self.variables.push(value.to_owned());
                told.set("export", self.export());
            }
            "V" => {
                self.all_variables = true;
                told.set("export", self.export());
            }
            "W" => match value.split_once('=') {
                Some(("depend", what)) => told.set("dependency", what),
                Some(_) => told.note(format_args!("-W {value}")),
                None => {
                    return Err(format!(
                        "{value:?} is not NAME=VALUE. Write -W depend=afterok:12"
                    ));
                }
            },
            // Output is in one file unless -e names another, and the script's first line names its shell.
            "j" | "k" | "S" | "z" => {}
            name => told.note(format!("-{name} {value}").trim_end()),
        }
        Ok(())
    }
}

impl Pbs {
    fn export(&self) -> String {
        let all = self.all_variables.then_some("ALL");
        let variables = self.variables.iter().map(String::as_str);
        all.into_iter()
            .chain(variables)
            .collect::<Vec<_>>()
            .join(",")
    }
}

/// `[[CC]YY]MMDDhhmm[.SS]` or `hhmm`, as `--begin` reads it.
fn begin(text: &str) -> Result<String, String> {
    let digits = text.split('.').next().unwrap_or(text);
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let time = |at: usize| format!("{}:{}", &digits[at..at + 2], &digits[at + 2..at + 4]);
    let day = |at: usize| format!("{}/{}", &digits[at..at + 2], &digits[at + 2..at + 4]);
    match digits.len() {
        4 if is_number && &digits[..2] < "24" => Ok(time(0)),
        8 if is_number => Ok(format!("{}-{}", day(0), time(4))),
        10 if is_number => Ok(format!("{}/{}-{}", day(2), &digits[..2], time(6))),
        12 if is_number => Ok(format!(
            "{}-{}-{}T{}",
            &digits[..4],
            &digits[4..6],
            &digits[6..8],
            time(8)
        )),
        _ => Err(format!(
            "{text:?} is no time. Write MMDDhhmm, for instance 12241830"
        )),
    }
}

/// A path without the host before it.
fn without_host(path: &str) -> &str {
    let host = path
        .split_once(':')
        .filter(|(host, path)| path.starts_with('/') && !host.is_empty() && !host.contains('/'));
    host.map_or(path, |(_, path)| path)
}

fn mail_types(letters: &str) -> String {
    if letters.contains(['n', 'N']) {
        return "NONE".to_owned();
    }
    let types = [('b', "BEGIN"), ('e', "END"), ('a', "FAIL")];
    let wanted = types.into_iter().filter(|(letter, _)| {
        letters.contains(*letter) || letters.contains(letter.to_ascii_uppercase())
    });
    wanted.map(|(_, name)| name).collect::<Vec<_>>().join(",")
}

/// `-l walltime=1:00:00,nodes=2:ppn=4`, or a chunk of PBS Pro.
fn resources(list: &str, told: &mut Translation) -> Result<(), String> {
    let parts = || list.split(',').filter(|part| !part.is_empty());
    for part in parts() {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        match &*name.to_ascii_lowercase() {
            "walltime" => told.set("time", time(value)?),
            // Time of CPUs: a limit where there is no other.
            "cput" | "pcput" if !list.contains("walltime=") => told.set("time", time(value)?),
            "mem" => told.set("mem", size(value)?),
            "file" => told.set("tmp", size(value)?),
            "nice" => told.set("nice", value),
            "nodes" => nodes(value, told)?,
            "select" => chunk(value, told)?,
            "ncpus" => told.set("cpus-per-task", count(value)?),
            "ngpus" | "gpus" => told.set("gpus-per-node", count(value)?),
            "naccelerators" => told.set("gres", format_args!("gpu:{}", count(value)?)),
            "accelerator" if value.eq_ignore_ascii_case("true") => told.set("gres", "gpu:1"),
            "proc" => told.set("constraint", value),
            "place" => {
                if value.contains("excl") {
                    told.flag("exclusive");
                }
            }
            _ => told.note(format_args!("-l {part}")),
        }
    }
    Ok(())
}

/// `2:ppn=4:gpus=2:h100`, or `n1+n2:ppn=4`.
fn nodes(text: &str, told: &mut Translation) -> Result<(), String> {
    // As sbatch takes it, too: 2+ppn=4.
    let text = text.replace("+ppn=", ":ppn=");
    let groups: Vec<&str> = text.split('+').collect();
    let shape = |group: &str| {
        group
            .split_once(':')
            .map_or("", |(_, shape)| shape)
            .to_owned()
    };
    let shapes: Vec<String> = groups.iter().map(|group| shape(group)).collect();
    // A shape behind the last of several names is that of all.
    let last = shapes.last().cloned().unwrap_or_default();
    if shapes
        .iter()
        .any(|shape| !shape.is_empty() && *shape != last)
    {
        return Err(format!(
            "{text:?} asks for nodes of different shapes. Write components: #SBATCH lines with #SBATCH hetjob between them"
        ));
    }
    let (mut nodes, mut names) = (0_u32, Vec::new());
    for group in groups {
        let first = group.split(':').next().unwrap_or(group);
        if first.starts_with(|c: char| c.is_ascii_digit()) {
            nodes = nodes.saturating_add(count(first)?);
        } else {
            names.push(first);
        }
    }
    let all = nodes.saturating_add(names.len() as u32);
    told.set("nodes", all);
    if !names.is_empty() {
        told.set("nodelist", names.join(","));
    }
    let mut features = Vec::new();
    for part in last.split(':').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some(("ppn", number)) => told.set("ntasks", u64::from(count(number)?) * u64::from(all)),
            Some(("gpus", number)) => told.set("gpus-per-node", count(number)?),
            Some(_) => told.note(format_args!("-l nodes=...:{part}")),
            None => features.push(part),
        }
    }
    if !features.is_empty() {
        told.set("constraint", features.join("&"));
    }
    Ok(())
}

/// `2:ncpus=8:mpiprocs=2:ngpus=1:mem=16gb`: a chunk is a node.
fn chunk(text: &str, told: &mut Translation) -> Result<(), String> {
    if text.contains('+') {
        return Err(format!(
            "{text:?} asks for chunks of different shapes. Write components: #SBATCH lines with #SBATCH hetjob between them"
        ));
    }
    let mut parts = text.split(':');
    told.set("nodes", count(parts.next().unwrap_or_default())?);
    let (mut cpus, mut tasks) = (None, 1);
    for part in parts {
        match part.split_once('=') {
            Some(("ncpus", number)) => cpus = Some(count(number)?),
            Some(("mpiprocs", number)) => tasks = count(number)?,
            Some(("ngpus" | "naccelerators", number)) => told.set("gpus-per-node", count(number)?),
            Some(("mem", text)) => told.set("mem", size(text)?),
            Some(("host" | "vnode", name)) => told.set("nodelist", name),
            _ => told.note(format_args!("-l select=...:{part}")),
        }
    }
    told.set("ntasks-per-node", tasks);
    match cpus {
        Some(cpus) if cpus % tasks == 0 => told.set("cpus-per-task", cpus / tasks),
        Some(cpus) => told.set("mincpus", cpus),
        None => {}
    }
    Ok(())
}

/// Seconds, `MM:SS`, `HH:MM:SS` or `DD:HH:MM:SS`, as `--time` reads it.
fn time(text: &str) -> Result<String, String> {
    let whole = text.split('.').next().unwrap_or(text);
    let fields: Vec<&str> = whole.split(':').collect();
    let are_numbers = fields
        .iter()
        .all(|field| !field.is_empty() && field.bytes().all(|byte| byte.is_ascii_digit()));
    match fields[..] {
        [seconds] if are_numbers => Ok(format!("0:{seconds}")),
        [_, _] | [_, _, _] if are_numbers => Ok(whole.to_owned()),
        [days, hours, minutes, seconds] if are_numbers => {
            Ok(format!("{days}-{hours}:{minutes}:{seconds}"))
        }
        _ => Err(format!("{text:?} is no time. Write seconds or HH:MM:SS")),
    }
}

/// `16gb` as `16G`.
fn size(text: &str) -> Result<String, String> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.to_ascii_uppercase();
    match unit.strip_suffix(['B', 'W']).unwrap_or(&unit) {
        unit @ ("K" | "M" | "G" | "T") if !number.is_empty() => Ok(format!("{number}{unit}")),
        _ => Err(format!(
            "{text:?} is no size with a unit. Write 16gb or 500mb"
        )),
    }
}
