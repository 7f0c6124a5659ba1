//! The command beside the library: makes a state of simulated GPUs, injects faults, sets readings, plays a drill with times,
//! and shows what there is. All of it works on the state directory; it never talks to a driver.

mod mps_control;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nvidia_ml_sim::{Fault, State, apply_fault, find_gpu, host, keep_out, log_xid};

const USAGE: &str = "\
nvml-sim init  --dir D --gpus h100:8[,l4:2] [--seed S] [--minor-base M]   make D/state.json
nvml-sim fault --dir D gpu3 FAULT
    xid N [TIMES]; lost; missing; hang; slow MILLIS; error NVML-CODE; clear
    ecc [N]; ecc-sram [N]; ecc-corrected [N]; sram-threshold; remap-pending; remap-failed; retired [PAGES]
    nvlink-down LINK; nvlink-up LINK; nvlink-slow; nvlink-errors N; pcie LANES [GENERATION]
    hot CELSIUS; throttle none|power-cap|power-brake|hardware|thermal|software-thermal
    fabric not-started|in-progress|completed|failed|unhealthy; recovery none|reset|reboot|drain-p2p|drain-and-reset
    check none|wrong|slow|fails|hang|crash|garbage; check-takes MILLIS
    process PID MIB [INSTANCE COMPUTE]; no-process [PID]; mig on|off|PROFILE,PROFILE,...; reset; reset-fails
    set util=90 ... as below
nvml-sim fault --dir D driver hang | not-loaded | mismatch | version V | withhold FUNCTION | reboot | clear
nvml-sim set   --dir D gpu3 util=90 mem-util=40 temp=70 mem-temp=80 power=500 mem=60000 pcie-tx=900 pcie-rx=900
                            nvlink-tx=9000 nvlink-rx=9000 pcie-replays=3 sm.PID=80
nvml-sim play  --dir D FILE     lines `SECONDS gpu3 FAULT...` or `SECONDS gpu3 set util=90 ...`, seconds since the start
nvml-sim show  --dir D [--json]
nvml-sim reset --dir D gpu3     what nvidia-smi --gpu-reset does: refuses while anybody has the GPU in use or NVML open
nvml-sim check --dir D GPU-UUID  what a program that checks the GPU finds, in JSON lines: for [diagnostics] of gpuctld.toml
GPUs are named gpuN by slot, or by UUID. See README.md for the state file.
";

enum Failure {
    /// The command line is wrong: exit 2.
    Usage(String),
    /// It was understood and did not work: exit 1.
    Refused(String),
}

fn main() -> ExitCode {
    let called = std::env::args_os()
        .next()
        .map(PathBuf::from)
        .unwrap_or_default();
    if called
        .file_name()
        .is_some_and(|name| name == mps_control::NAME)
    {
        return mps_control::main(&std::env::args_os().skip(1).collect::<Vec<_>>());
    }
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    if words.is_empty() || words.iter().any(|word| word == "--help" || word == "-h") {
        return print(USAGE);
    }
    let command = words.remove(0);
    let outcome = Arguments::parse(words).and_then(|arguments| match command.as_str() {
        "init" => init(arguments),
        "fault" => fault(arguments),
        "set" => set(arguments),
        "play" => play(arguments),
        "show" => show(arguments),
        "check" => check_gpu(arguments),
        "reset" => reset(arguments),
        _ => Err(Failure::Usage(format!(
            "no command {command:?}; there are init, fault, set, play, show, check, reset"
        ))),
    });
    match outcome {
        Ok(text) => print(&text),
        Err(Failure::Usage(text)) => complain(&text, 2),
        Err(Failure::Refused(text)) => complain(&text, 1),
    }
}

/// `--name value` pairs and what is left.
struct Arguments {
    options: BTreeMap<String, String>,
    words: Vec<String>,
}

impl Arguments {
    fn parse(line: Vec<String>) -> Result<Arguments, Failure> {
        let mut arguments = Arguments {
            options: BTreeMap::new(),
            words: Vec::new(),
        };
        let mut line = line.into_iter();
        while let Some(word) = line.next() {
            match word.strip_prefix("--") {
                Some("json") => {
                    arguments.options.insert("json".to_owned(), String::new());
                }
                Some(name @ ("dir" | "gpus" | "seed" | "minor-base")) => {
                    let value = line
                        .next()
                        .ok_or_else(|| Failure::Usage(format!("--{name} needs a value")))?;
                    arguments.options.insert(name.to_owned(), value);
                }
                Some(name) => {
                    return Err(Failure::Usage(format!(
                        "no option --{name}; see nvml-sim --help"
                    )));
                }
                None => arguments.words.push(word),
            }
        }
        Ok(arguments)
    }

    fn take(&mut self, name: &str) -> Option<String> {
        self.options.remove(name)
    }

    fn dir(&mut self) -> Result<PathBuf, Failure> {
        self.take("dir")
            .map(PathBuf::from)
            .ok_or_else(|| Failure::Usage("--dir D is needed: the state directory".to_owned()))
    }

    /// Refuses what the command did not take.
    fn finish(self, words_wanted: bool) -> Result<Vec<String>, Failure> {
        if let Some(name) = self.options.keys().next() {
            return Err(Failure::Usage(format!(
                "--{name} means nothing here; see nvml-sim --help"
            )));
        }
        if !words_wanted && !self.words.is_empty() {
            return Err(Failure::Usage(format!(
                "{:?} means nothing here; see nvml-sim --help",
                self.words[0]
            )));
        }
        Ok(self.words)
    }
}

fn init(mut arguments: Arguments) -> Result<String, Failure> {
    let dir = arguments.dir()?;
    let gpus = arguments
        .take("gpus")
        .ok_or_else(|| Failure::Usage("--gpus TYPE:COUNT is needed, such as h100:8".to_owned()))?;
    let seed = arguments
        .take("seed")
        .unwrap_or_else(|| dir.display().to_string());
    let minor_base = match arguments.take("minor-base") {
        Some(text) => text
            .parse()
            .map_err(|_| Failure::Usage(format!("--minor-base {text:?} is not a number")))?,
        None => 0,
    };
    arguments.finish(false)?;
    let parts = parse_gpus(&gpus).map_err(Failure::Usage)?;
    let parts: Vec<(&str, usize)> = parts
        .iter()
        .map(|(kind, count)| (kind.as_str(), *count))
        .collect();
    let mut state = host(&parts, &seed, minor_base).map_err(Failure::Refused)?;
    let now_unix_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64);
    for gpu in &mut state.gpus {
        gpu.readings.counted_to_unix_ms = now_unix_ms;
    }
    state.write(&dir).map_err(refused)?;
    Ok(String::new())
}

/// `h100:8,l4:2`; a type without a count is one GPU.
fn parse_gpus(text: &str) -> Result<Vec<(String, usize)>, String> {
    let part = |part: &str| match part.split_once(':') {
        None => Ok((part.to_owned(), 1)),
        Some((kind, count)) => Ok((
            kind.to_owned(),
            count.parse().map_err(|_| {
                format!(
                    "--gpus {text:?}: {count:?} is not a number; write TYPE:COUNT, such as h100:8"
                )
            })?,
        )),
    };
    text.split(',').map(part).collect()
}

fn fault(mut arguments: Arguments) -> Result<String, Failure> {
    let dir = arguments.dir()?;
    let words = arguments.finish(true)?;
    let [target, rest @ ..] = &words[..] else {
        return Err(Failure::Usage(
            "which GPU? nvml-sim fault --dir D gpu3 xid 79".to_owned(),
        ));
    };
    inject(&dir, target, &rest.join(" "))?;
    Ok(String::new())
}

/// What happens to one GPU or, where `target` is `driver`, to the driver.
enum SimulatedEvent {
    Driver(String),
    Fault(Fault),
    Readings(Vec<String>),
}

impl SimulatedEvent {
    fn parse(target: &str, text: &str) -> Result<SimulatedEvent, String> {
        if target == "driver" {
            return Ok(SimulatedEvent::Driver(text.to_owned()));
        }
        match text.split_once(' ') {
            Some(("set", settings)) => Ok(SimulatedEvent::Readings(
                settings.split_whitespace().map(str::to_owned).collect(),
            )),
            _ => text.parse().map(SimulatedEvent::Fault),
        }
    }

    /// All of it or, with an error, nothing.
    fn befall(self, state: &mut State, target: &str) -> Result<(), String> {
        let mut changed = state.clone();
        match self {
            SimulatedEvent::Driver(text) => changed.apply_driver_fault(&text)?,
            SimulatedEvent::Fault(fault) => {
                let slot = find_gpu(&changed, target)?;
                apply_fault(&mut changed, slot, fault)?;
            }
            SimulatedEvent::Readings(settings) => {
                let slot = find_gpu(&changed, target)?;
                settings
                    .iter()
                    .try_for_each(|setting| changed.set_reading(slot, setting))?;
            }
        }
        *state = changed;
        Ok(())
    }
}

fn inject(dir: &Path, target: &str, text: &str) -> Result<(), Failure> {
    let happening = SimulatedEvent::parse(target, text).map_err(Failure::Usage)?;
    let xid = match &happening {
        SimulatedEvent::Fault(Fault::Xid { number, times }) => Some((*number, *times)),
        _ => None,
    };
    let befallen = |state: &mut State| {
        happening.befall(state, target)?;
        Ok::<_, String>(
            xid.and_then(|xid| Some((state.gpus.get(find_gpu(state, target).ok()?)?.clone(), xid))),
        )
    };
    let logged = State::edit(dir, befallen)
        .map_err(refused)?
        .map_err(Failure::Refused)?;
    // As the driver would, before or after its event.
    match logged {
        Some((gpu, (number, times))) => log_xid(dir, &gpu, number, times)
            .map_err(|error| Failure::Refused(format!("writing the kernel log: {error}"))),
        None => Ok(()),
    }
}

fn set(mut arguments: Arguments) -> Result<String, Failure> {
    let dir = arguments.dir()?;
    let words = arguments.finish(true)?;
    let [target, settings @ ..] = &words[..] else {
        return Err(Failure::Usage(
            "which GPU? nvml-sim set --dir D gpu3 util=90".to_owned(),
        ));
    };
    let happening = SimulatedEvent::Readings(settings.to_vec());
    State::edit(&dir, |state| happening.befall(state, target))
        .map_err(refused)?
        .map_err(Failure::Refused)?;
    Ok(String::new())
}

/// Unlike the fault of that name, which is what a GPU is like afterwards.
fn reset(mut arguments: Arguments) -> Result<String, Failure> {
    let dir = arguments.dir()?;
    let words = arguments.finish(true)?;
    let [target] = &words[..] else {
        return Err(Failure::Usage(
            "which GPU? nvml-sim reset --dir D gpu3".to_owned(),
        ));
    };
    let _nobody_comes =
        keep_out(&dir).map_err(|why| Failure::Refused(format!("{target}: {why}")))?;
    inject(&dir, target, "reset")?;
    Ok(format!("GPU {target} was reset\n"))
}

/// Reads the whole drill before it starts, so that a typing error at its end does not cost half an hour.
fn play(mut arguments: Arguments) -> Result<String, Failure> {
    let dir = arguments.dir()?;
    let words = arguments.finish(true)?;
    let [file] = &words[..] else {
        return Err(Failure::Usage(
            "which file? nvml-sim play --dir D FILE".to_owned(),
        ));
    };
    let text =
        fs::read_to_string(file).map_err(|error| Failure::Refused(format!("{file}: {error}")))?;
    let mut steps =
        parse_drill(&text).map_err(|error| Failure::Refused(format!("{file}:{error}")))?;
    steps.sort_by_key(|step| step.after);
    let start = Instant::now();
    for step in steps {
        thread::sleep(step.after.saturating_sub(start.elapsed()));
        eprintln!(
            "nvml-sim: {:>8.1} s  {} {}",
            step.after.as_secs_f64(),
            step.target,
            step.fault
        );
        inject(&dir, &step.target, &step.fault)?;
    }
    Ok(String::new())
}

struct Step {
    after: Duration,
    target: String,
    fault: String,
}

/// Lines `2.5 gpu3 xid 79`; `#` begins a comment. An error names its line.
fn parse_drill(text: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let words: Vec<&str> = line
            .split('#')
            .next()
            .unwrap_or("")
            .split_whitespace()
            .collect();
        let [seconds, target, fault @ ..] = &words[..] else {
            if words.is_empty() {
                continue;
            }
            return Err(format!(
                "{}: a step reads SECONDS GPU FAULT, such as 2.5 gpu3 xid 79",
                number + 1
            ));
        };
        let after = seconds
            .parse()
            .ok()
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let after = after
            .ok_or_else(|| format!("{}: {seconds:?} is not a number of seconds", number + 1))?;
        let fault = fault.join(" ");
        SimulatedEvent::parse(target, &fault)
            .map_err(|error| format!("{}: {error}", number + 1))?;
        steps.push(Step {
            after,
            target: (*target).to_owned(),
            fault,
        });
    }
    Ok(steps)
}

fn check_gpu(mut arguments: Arguments) -> Result<String, Failure> {
    let dir = arguments.dir()?;
    let words = arguments.finish(true)?;
    let [target] = &words[..] else {
        return Err(Failure::Usage(
            "which GPU? nvml-sim check --dir D $GPUPOOL_GPU".to_owned(),
        ));
    };
    let state = State::read(&dir).map_err(refused)?;
    let slot = find_gpu(&state, target).map_err(Failure::Refused)?;
    nvidia_ml_sim::check(&state, slot, &mut io::stdout().lock())
        .map_err(|error| Failure::Refused(error.to_string()))?;
    Ok(String::new())
}

fn show(mut arguments: Arguments) -> Result<String, Failure> {
    let dir = arguments.dir()?;
    let as_json = arguments.take("json").is_some();
    arguments.finish(false)?;
    let state = State::read(&dir).map_err(refused)?;
    if as_json {
        return serde_json::to_string(&state)
            .map(|text| text + "\n")
            .map_err(|error| Failure::Refused(error.to_string()));
    }
    let mut text = format!(
        "driver {} {:?}{}, {} events\n",
        state.driver.version,
        state.driver.state,
        if state.hang { ", hangs" } else { "" },
        state.events.len()
    );
    text += "GPU    MINOR  TYPE     UUID                                      TEMP  POWER  UTIL  ECC  FAULTS\n";
    for (slot, gpu) in state.gpus.iter().enumerate() {
        let faults = [
            (gpu.faults.lost, "lost"),
            (gpu.faults.missing, "missing"),
            (gpu.faults.hang, "hang"),
        ];
        let mut faults: Vec<String> = faults
            .iter()
            .filter(|(is, _)| *is)
            .map(|(_, word)| (*word).to_owned())
            .collect();
        faults.extend(
            gpu.nvlinks_down
                .iter()
                .map(|link| format!("nvlink-down {link}")),
        );
        if gpu.mig_enabled {
            faults.push(format!("mig ({} instances)", gpu.mig_instances.len()));
        }
        text += &format!(
            "{:<6} {:>5}  {:<8} {}  {:>3}C  {:>4}W  {:>3}%  {:>3}  {}\n",
            format!("gpu{slot}"),
            gpu.minor,
            gpu.profile,
            gpu.uuid,
            gpu.readings.temperature_c,
            gpu.readings.power_mw / 1000,
            gpu.readings.gpu_percent,
            gpu.ecc.volatile_uncorrected,
            if faults.is_empty() {
                "-".to_owned()
            } else {
                faults.join(",")
            },
        );
    }
    Ok(text)
}

fn refused(error: nvidia_ml_sim::StateError) -> Failure {
    let cause = std::error::Error::source(&error)
        .map(|source| format!(": {source}"))
        .unwrap_or_default();
    Failure::Refused(format!("{error}{cause}"))
}

fn print(text: &str) -> ExitCode {
    // A reader that went away is no failure.
    let _ = io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn complain(text: &str, code: u8) -> ExitCode {
    eprintln!("nvml-sim: {text}");
    ExitCode::from(code)
}
