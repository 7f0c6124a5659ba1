//! Faults that an administrator or a test can inject, the words of each on the command line, and its change of the state.
//! Every fault does one thing: `xid 79` only delivers the event, and `lost` only loses the GPU.

use std::fmt;
use std::str::FromStr;

use nvml_wrapper_sys::bindings;

use crate::board::HEALTHY_FABRIC_MASK;
use crate::host_seed::mix;
use crate::mig;
use crate::reset;
use crate::state::{
    DriverState, EventKind, FabricState, Faults, Gpu, Process, ProcessKind, State, now_unix_ms,
};

/// A fault, or the end of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This many critical Xid events with this number.
    Xid {
        number: u64,
        times: u64,
    },
    /// Counted, but answers nothing any more.
    Lost,
    /// Not enumerated, as after a boot that did not find it.
    Missing,
    /// Calls about it do not return.
    Hang,
    /// Every call about it takes so long.
    Slow {
        millis: u64,
    },
    /// Every call about it is answered with this `nvmlReturn_t`.
    Error {
        code: u32,
    },
    /// Uncorrected ECC errors in device memory, each with its double-bit event.
    Ecc {
        errors: u64,
    },
    /// The same in SRAM.
    EccSram {
        errors: u64,
    },
    /// Corrected ECC errors, with one single-bit event.
    EccCorrected {
        errors: u64,
    },
    /// The driver says that SRAM errors are too many.
    SramThreshold,
    /// A row remap waits for the next reset.
    RemapPending,
    /// A row could not be remapped: no spare left.
    RemapFailed,
    /// Pages to be retired at the next reset, for double-bit errors.
    Retired {
        pages: u32,
    },
    /// One NVLink goes down.
    NvlinkDown {
        link: u32,
    },
    /// One NVLink comes up again.
    NvlinkUp {
        link: u32,
    },
    /// Its links are up and carry half, to it and from it.
    NvlinkSlow,
    /// So many more CRC errors on the links.
    NvlinkErrors {
        errors: u64,
    },
    /// The PCIe link came up with so many lanes, and perhaps an older generation.
    Pcie {
        lanes: u32,
        generation: Option<u32>,
    },
    /// Temperature in Celsius; from the board's own limit on, hardware thermal slowdown is reported too.
    Hot {
        celsius: u32,
    },
    /// The clocks are held down for this reason and no other.
    Throttle(Throttle),
    Fabric(FabricWord),
    /// Registered in a clique of the NVLink fabric of several hosts that has this name; it must know of a fabric.
    NvlinkDomain {
        name: String,
        clique: u32,
    },
    /// What the driver advises to do.
    Recovery(Recovery),
    /// A process appears on the GPU, or in one of its MIG devices.
    Process {
        pid: u32,
        memory_mib: u64,
        instance: Option<[u32; 2]>,
    },
    /// All processes are gone, or this one is.
    NoProcess {
        pid: Option<u32>,
    },
    MigOn,
    MigOff,
    /// Cut anew into instances of these profiles.
    MigCut {
        profiles: Vec<String>,
    },
    /// What `nvidia-smi --gpu-reset` does.
    Reset,
    /// From now on a reset does not succeed.
    ResetFails,
    /// What the simulated check program does on it.
    Check(CheckFault),
    /// The simulated check program takes so long on it.
    CheckTakes {
        millis: u64,
    },
    /// Every fault ends and counters go to zero; events already sent stay sent, processes and MIG instances stay.
    Clear,
}

/// One word each, with its text on the command line.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($variant:ident = $word:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($variant),* }

        impl $name {
            const ALL: &'static [($name, &'static str)] = &[$(($name::$variant, $word)),*];

            fn word(self) -> &'static str {
                Self::ALL.iter().find(|(value, _)| *value == self).map_or("", |(_, word)| word)
            }

            fn parse(text: &str) -> Result<$name, String> {
                let known: Vec<&str> = Self::ALL.iter().map(|(_, word)| *word).collect();
                Self::ALL.iter().find(|(_, word)| *word == text).map(|(value, _)| *value)
                    .ok_or_else(|| format!("{text:?} is none of {}", known.join(", ")))
            }
        }
    };
}

words! {
    /// Why clocks are low.
    Throttle { None = "none", PowerCap = "power-cap", PowerBrake = "power-brake", Hardware = "hardware", Thermal = "thermal", SoftwareThermal = "software-thermal" }
}

words! {
    /// How the fabric manager fares with the GPU.
    FabricWord { NotStarted = "not-started", InProgress = "in-progress", Completed = "completed", Failed = "failed", Unhealthy = "unhealthy" }
}

words! {
    /// What `nvml-sim check` finds or does.
    CheckFault { None = "none", Wrong = "wrong", Slow = "slow", Fails = "fails", Hang = "hang", Crash = "crash", Garbage = "garbage" }
}

words! {
    /// `NVML_GPU_RECOVERY_ACTION_*` in its order.
    Recovery { None = "none", Reset = "reset", Reboot = "reboot", DrainP2p = "drain-p2p", DrainAndReset = "drain-and-reset" }
}

const WORDS: &str = "xid N [TIMES], lost, missing, hang, slow MILLIS, error CODE, ecc [N], ecc-sram [N], ecc-corrected [N], sram-threshold, \
remap-pending, remap-failed, retired [PAGES], nvlink-down LINK, nvlink-up LINK, nvlink-slow, nvlink-errors N, pcie LANES [GENERATION], hot CELSIUS, \
throttle WORD, fabric WORD, nvlink-domain NAME CLIQUE, recovery WORD, process PID MIB [INSTANCE COMPUTE], no-process [PID], mig on|off|PROFILE,..., reset, reset-fails, check WORD, check-takes MILLIS, clear";

/// Changes the GPU in `slot`; an error says which slots there are, or what does not fit this board.
pub fn apply_fault(state: &mut State, slot: usize, fault: Fault) -> Result<(), String> {
    let count = state.gpus.len();
    if fault == Fault::Reset {
        return reset::reset(state, slot);
    }
    let gpu = state
        .gpus
        .get_mut(slot)
        .ok_or_else(|| no_such_gpu(&format!("gpu{slot}"), count))?;
    let uuid = gpu.uuid.clone();
    match fault {
        Fault::Xid { number, times } => send(state, &uuid, EventKind::Xid(number), times),
        Fault::Ecc { errors } => {
            gpu.ecc.volatile_uncorrected += errors;
            gpu.ecc.aggregate_uncorrected += errors;
            send(state, &uuid, EventKind::DoubleBitEcc, errors);
        }
        Fault::EccSram { errors } => {
            gpu.ecc.volatile_uncorrected += errors;
            gpu.ecc.aggregate_uncorrected += errors;
            gpu.ecc.sram_uncorrected += errors;
            gpu.ecc.aggregate_sram_uncorrected += errors;
            send(state, &uuid, EventKind::DoubleBitEcc, errors);
        }
        Fault::EccCorrected { errors } => {
            gpu.ecc.volatile_corrected += errors;
            gpu.ecc.aggregate_corrected += errors;
            send(state, &uuid, EventKind::SingleBitEcc, 1);
        }
        Fault::MigOn | Fault::MigOff | Fault::MigCut { .. } => {
            change_mig(gpu, &fault)?;
            send(state, &uuid, EventKind::MigConfigChange, 1);
        }
        fault => change_gpu(gpu, fault)?,
    }
    Ok(())
}

/// Faults without an event.
fn change_gpu(gpu: &mut Gpu, fault: Fault) -> Result<(), String> {
    match fault {
        Fault::Lost => gpu.faults.lost = true,
        Fault::Missing => gpu.faults.missing = true,
        Fault::Hang => gpu.faults.hang = true,
        Fault::Slow { millis } => gpu.faults.slow_ms = millis,
        Fault::Error { code } => gpu.faults.error_code = code,
        Fault::SramThreshold => gpu.ecc.sram_threshold_exceeded = true,
        Fault::RemapPending => {
            gpu.row_remap.pending = true;
            gpu.row_remap.uncorrected += 1;
        }
        Fault::RemapFailed => gpu.row_remap.failed = true,
        Fault::Retired { pages } => {
            gpu.retired_pages.double_bit += pages;
            gpu.retired_pages.pending = true;
        }
        Fault::NvlinkDown { link } => take_link_down(gpu, link)?,
        Fault::NvlinkUp { link } => gpu.nvlinks_down.retain(|&down| down != link),
        Fault::NvlinkSlow => gpu.faults.nvlink_slow = true,
        Fault::NvlinkErrors { errors } => gpu.nvlink_errors += errors,
        Fault::Pcie { lanes, generation } => {
            gpu.faults.pcie_width = Some(lanes);
            gpu.faults.pcie_gen = generation;
        }
        Fault::Hot { celsius } => heat(gpu, celsius),
        Fault::Throttle(why) => throttle(gpu, why),
        Fault::Fabric(word) => set_fabric(gpu, word)?,
        Fault::NvlinkDomain { name, clique } => {
            set_fabric(gpu, FabricWord::Completed)?;
            let bits = [1, 2]
                .map(|purpose| mix(&name, 0, purpose).to_be_bytes())
                .concat();
            gpu.fabric.cluster_uuid.copy_from_slice(&bits);
            gpu.fabric.clique = clique;
        }
        Fault::Recovery(action) => gpu.recovery_action = action as u32,
        Fault::Process {
            pid,
            memory_mib,
            instance,
        } => start_process(gpu, pid, memory_mib, instance)?,
        Fault::NoProcess { pid } => gpu
            .processes
            .retain(|process| pid.is_some_and(|pid| process.pid != pid)),
        Fault::ResetFails => gpu.faults.reset_fails = true,
        Fault::Check(CheckFault::None) => gpu.faults.check.clear(),
        Fault::Check(word) => gpu.faults.check = word.word().to_owned(),
        Fault::CheckTakes { millis } => gpu.faults.check_ms = millis,
        Fault::Clear => clear(gpu),
        // These have events, or are of the whole host: `apply_fault` takes them.
        Fault::Xid { .. }
        | Fault::Ecc { .. }
        | Fault::EccSram { .. }
        | Fault::EccCorrected { .. } => {}
        Fault::MigOn | Fault::MigOff | Fault::MigCut { .. } | Fault::Reset => {}
    }
    Ok(())
}

/// The slot that `word` names: `gpu3`, `3`, or a UUID or the beginning of exactly one.
pub fn find_gpu(state: &State, word: &str) -> Result<usize, String> {
    let digits = word.strip_prefix("gpu").unwrap_or(word);
    if let Ok(slot) = digits.parse::<usize>()
        && slot < state.gpus.len()
    {
        return Ok(slot);
    }
    let wanted = if word.starts_with("GPU-") && word.len() >= 8 {
        word
    } else {
        return Err(no_such_gpu(word, state.gpus.len()));
    };
    let matching: Vec<usize> = (0..state.gpus.len())
        .filter(|&slot| state.gpus[slot].uuid.starts_with(wanted))
        .collect();
    match matching[..] {
        [slot] => Ok(slot),
        _ => Err(no_such_gpu(word, state.gpus.len())),
    }
}

pub fn no_such_gpu(word: &str, count: usize) -> String {
    match count {
        0 => format!("no GPU {word}: this host has none"),
        1 => format!("no GPU {word}: this host has gpu0"),
        _ => format!("no GPU {word}: this host has gpu0 to gpu{}", count - 1),
    }
}

fn send(state: &mut State, uuid: &str, kind: EventKind, times: u64) {
    for _ in 0..times.min(crate::state::MAX_EVENTS as u64) {
        state.push_event(uuid, kind);
    }
}

fn take_link_down(gpu: &mut Gpu, link: u32) -> Result<(), String> {
    if link >= gpu.nvlink_count {
        return Err(format!(
            "no NVLink {link}: a {} has {}",
            gpu.profile, gpu.nvlink_count
        ));
    }
    if !gpu.nvlinks_down.contains(&link) {
        gpu.nvlinks_down.push(link);
    }
    gpu.nvlink_errors += 1;
    Ok(())
}

pub fn heat(gpu: &mut Gpu, celsius: u32) {
    gpu.settle_counters(now_unix_ms());
    let thermal = u64::from(bindings::nvmlClocksThrottleReasonHwThermalSlowdown);
    gpu.readings.temperature_c = celsius;
    if celsius >= gpu.thresholds.slowdown_c {
        gpu.readings.throttle_reasons |= thermal;
    } else {
        gpu.readings.throttle_reasons &= !thermal;
    }
}

fn throttle(gpu: &mut Gpu, why: Throttle) {
    gpu.settle_counters(now_unix_ms());
    let idle = gpu.readings.throttle_reasons & u64::from(bindings::nvmlClocksThrottleReasonGpuIdle);
    let reason = match why {
        Throttle::None => 0,
        Throttle::PowerCap => bindings::nvmlClocksThrottleReasonSwPowerCap,
        Throttle::PowerBrake => {
            bindings::nvmlClocksThrottleReasonHwPowerBrakeSlowdown
                | bindings::nvmlClocksThrottleReasonHwSlowdown
        }
        Throttle::Hardware => bindings::nvmlClocksThrottleReasonHwSlowdown,
        Throttle::Thermal => {
            bindings::nvmlClocksThrottleReasonHwThermalSlowdown
                | bindings::nvmlClocksThrottleReasonHwSlowdown
        }
        Throttle::SoftwareThermal => bindings::nvmlClocksThrottleReasonSwThermalSlowdown,
    };
    gpu.readings.throttle_reasons = idle | u64::from(reason);
}

fn set_fabric(gpu: &mut Gpu, word: FabricWord) -> Result<(), String> {
    use nvml_wrapper_sys::bindings::{
        NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY, NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY,
    };
    if gpu.fabric.state == FabricState::NotSupported {
        return Err(format!("a {} knows of no fabric", gpu.profile));
    }
    let fabric = &mut gpu.fabric;
    fabric.status = if word == FabricWord::Failed {
        bindings::nvmlReturn_enum_NVML_ERROR_UNKNOWN
    } else {
        0
    };
    fabric.state = match word {
        FabricWord::NotStarted => FabricState::NotStarted,
        FabricWord::InProgress => FabricState::InProgress,
        FabricWord::Completed | FabricWord::Failed | FabricWord::Unhealthy => {
            FabricState::Completed
        }
    };
    let (mask, summary) = match word {
        // Degraded bandwidth, an unhealthy route.
        FabricWord::Unhealthy => (
            1 | (2 << 2) | (1 << 4) | (2 << 6) | (1 << 8),
            NVML_GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY,
        ),
        _ => (HEALTHY_FABRIC_MASK, NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY),
    };
    (fabric.health_mask, fabric.health_summary) = (mask, summary as u8);
    Ok(())
}

fn start_process(
    gpu: &mut Gpu,
    pid: u32,
    memory_mib: u64,
    instance: Option<[u32; 2]>,
) -> Result<(), String> {
    if let Some([instance, compute]) = instance {
        let mut instances = gpu.mig_instances.iter();
        let there = instances.any(|there| {
            there.id == instance && there.compute.iter().any(|other| other.id == compute)
        });
        if !there {
            return Err(format!(
                "no compute instance {compute} in a GPU instance {instance} here"
            ));
        }
    } else if gpu.mig_enabled {
        return Err("this GPU is in MIG mode: say in which instance, as in process PID MIB INSTANCE COMPUTE".to_owned());
    }
    gpu.processes
        .retain(|process| process.pid != pid || process.instance != instance);
    gpu.processes.push(Process {
        pid,
        memory_bytes: memory_mib << 20,
        kind: ProcessKind::Compute,
        instance,
        sm_percent: 0,
        started_unix_ms: now_unix_ms(),
    });
    Ok(())
}

fn change_mig(gpu: &mut Gpu, fault: &Fault) -> Result<(), String> {
    match fault {
        Fault::MigCut { profiles } => mig::cut(gpu, profiles),
        fault => mig::set_mode(gpu, *fault == Fault::MigOn)
            .map(drop)
            .map_err(|_| format!("a {} has no MIG", gpu.profile)),
    }
}

fn clear(gpu: &mut Gpu) {
    gpu.faults = Faults::default();
    gpu.ecc = Default::default();
    gpu.row_remap = Default::default();
    gpu.retired_pages = Default::default();
    gpu.nvlinks_down.clear();
    gpu.nvlink_errors = 0;
    gpu.recovery_action = 0;
    throttle(gpu, Throttle::None);
    heat(gpu, 30);
    if gpu.fabric.state != FabricState::NotSupported {
        gpu.fabric.state = FabricState::Completed;
        gpu.fabric.status = 0;
        gpu.fabric.health_mask = HEALTHY_FABRIC_MASK;
        gpu.fabric.health_summary = bindings::NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY as u8;
    }
}

impl FromStr for Fault {
    type Err = String;

    /// Words as [`Fault`]'s `Display` prints them, separated by blanks.
    fn from_str(text: &str) -> Result<Fault, String> {
        parse_fault(text)
    }
}

fn parse_fault(text: &str) -> Result<Fault, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |word: &str| {
        word.parse::<u64>()
            .map_err(|_| format!("{word:?} in fault {text:?} is not a number"))
    };
    let small = |word: &str| number(word).map(|value| value.try_into().unwrap_or(u32::MAX));
    let fault = match words[..] {
        ["xid", n] => Fault::Xid {
            number: number(n)?,
            times: 1,
        },
        ["xid", n, times] => Fault::Xid {
            number: number(n)?,
            times: number(times)?,
        },
        ["lost"] => Fault::Lost,
        ["missing"] => Fault::Missing,
        ["hang"] => Fault::Hang,
        ["slow", millis] => Fault::Slow {
            millis: number(millis)?,
        },
        ["error", code] => Fault::Error { code: small(code)? },
        ["ecc"] => Fault::Ecc { errors: 1 },
        ["ecc", n] => Fault::Ecc { errors: number(n)? },
        ["ecc-sram"] => Fault::EccSram { errors: 1 },
        ["ecc-sram", n] => Fault::EccSram { errors: number(n)? },
        ["ecc-corrected"] => Fault::EccCorrected { errors: 1 },
        ["ecc-corrected", n] => Fault::EccCorrected { errors: number(n)? },
        ["sram-threshold"] => Fault::SramThreshold,
        ["remap-pending"] => Fault::RemapPending,
        ["remap-failed"] => Fault::RemapFailed,
        ["retired"] => Fault::Retired { pages: 1 },
        ["retired", pages] => Fault::Retired {
            pages: small(pages)?,
        },
        ["nvlink-down", link] => Fault::NvlinkDown { link: small(link)? },
        ["nvlink-up", link] => Fault::NvlinkUp { link: small(link)? },
        ["nvlink-slow"] => Fault::NvlinkSlow,
        ["nvlink-errors", n] => Fault::NvlinkErrors { errors: number(n)? },
        ["pcie", lanes] => Fault::Pcie {
            lanes: small(lanes)?,
            generation: None,
        },
        ["pcie", lanes, generation] => Fault::Pcie {
            lanes: small(lanes)?,
            generation: Some(small(generation)?),
        },
        ["hot", celsius] => Fault::Hot {
            celsius: small(celsius)?,
        },
        ["throttle", why] => Fault::Throttle(Throttle::parse(why)?),
        ["nvlink-domain", name, clique] => Fault::NvlinkDomain {
            name: name.to_owned(),
            clique: small(clique)?,
        },
        ["fabric", word] => Fault::Fabric(FabricWord::parse(word)?),
        ["check", word] => Fault::Check(CheckFault::parse(word)?),
        ["check-takes", millis] => Fault::CheckTakes {
            millis: number(millis)?,
        },
        ["recovery", action] => Fault::Recovery(Recovery::parse(action)?),
        ["process", pid, mib] => Fault::Process {
            pid: small(pid)?,
            memory_mib: number(mib)?,
            instance: None,
        },
        ["process", pid, mib, instance, compute] => Fault::Process {
            pid: small(pid)?,
            memory_mib: number(mib)?,
            instance: Some([small(instance)?, small(compute)?]),
        },
        ["no-process"] => Fault::NoProcess { pid: None },
        ["no-process", pid] => Fault::NoProcess {
            pid: Some(small(pid)?),
        },
        ["mig", "on"] => Fault::MigOn,
        ["mig", "off"] => Fault::MigOff,
        ["mig", profiles] => Fault::MigCut {
            profiles: profiles.split(',').map(str::to_owned).collect(),
        },
        ["reset"] => Fault::Reset,
        ["reset-fails"] => Fault::ResetFails,
        ["clear" | "return"] => Fault::Clear,
        _ => return Err(format!("no fault {text:?}; there are {WORDS}")),
    };
    Ok(fault)
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Xid { number, times: 1 } => write!(f, "xid {number}"),
            Fault::Xid { number, times } => write!(f, "xid {number} {times}"),
            Fault::Lost => f.write_str("lost"),
            Fault::Missing => f.write_str("missing"),
            Fault::Hang => f.write_str("hang"),
            Fault::Slow { millis } => write!(f, "slow {millis}"),
            Fault::Error { code } => write!(f, "error {code}"),
            Fault::Ecc { errors } => write!(f, "ecc {errors}"),
            Fault::EccSram { errors } => write!(f, "ecc-sram {errors}"),
            Fault::EccCorrected { errors } => write!(f, "ecc-corrected {errors}"),
            Fault::SramThreshold => f.write_str("sram-threshold"),
            Fault::RemapPending => f.write_str("remap-pending"),
            Fault::RemapFailed => f.write_str("remap-failed"),
            Fault::Retired { pages } => write!(f, "retired {pages}"),
            Fault::NvlinkDown { link } => write!(f, "nvlink-down {link}"),
            Fault::NvlinkUp { link } => write!(f, "nvlink-up {link}"),
            Fault::NvlinkSlow => f.write_str("nvlink-slow"),
            Fault::NvlinkErrors { errors } => write!(f, "nvlink-errors {errors}"),
            Fault::Pcie {
                lanes,
                generation: None,
            } => write!(f, "pcie {lanes}"),
            Fault::Pcie {
                lanes,
                generation: Some(generation),
            } => write!(f, "pcie {lanes} {generation}"),
            Fault::Hot { celsius } => write!(f, "hot {celsius}"),
            Fault::Throttle(why) => write!(f, "throttle {}", why.word()),
            Fault::Fabric(word) => write!(f, "fabric {}", word.word()),
            Fault::NvlinkDomain { name, clique } => write!(f, "nvlink-domain {name} {clique}"),
            Fault::Recovery(action) => write!(f, "recovery {}", action.word()),
            Fault::Process {
                pid,
                memory_mib,
                instance: None,
            } => write!(f, "process {pid} {memory_mib}"),
            Fault::Process {
                pid,
                memory_mib,
                instance: Some([instance, compute]),
            } => {
                write!(f, "process {pid} {memory_mib} {instance} {compute}")
            }
            Fault::NoProcess { pid: None } => f.write_str("no-process"),
            Fault::NoProcess { pid: Some(pid) } => write!(f, "no-process {pid}"),
            Fault::Check(word) => write!(f, "check {}", word.word()),
            Fault::CheckTakes { millis } => write!(f, "check-takes {millis}"),
            Fault::MigOn => f.write_str("mig on"),
            Fault::MigOff => f.write_str("mig off"),
            Fault::MigCut { profiles } => write!(f, "mig {}", profiles.join(",")),
            Fault::Reset => f.write_str("reset"),
            Fault::ResetFails => f.write_str("reset-fails"),
            Fault::Clear => f.write_str("clear"),
        }
    }
}

impl State {
    /// A fault of the whole driver: `hang`, `not-loaded`, `mismatch`, `version V`, `withhold FUNCTION`, `reboot` of the host, or
    /// `clear`, which ends them (but leaves the version).
    pub fn apply_driver_fault(&mut self, text: &str) -> Result<(), String> {
        match text.split_whitespace().collect::<Vec<_>>()[..] {
            ["hang"] => self.hang = true,
            ["not-loaded"] => self.driver.state = DriverState::NotLoaded,
            ["mismatch"] => self.driver.state = DriverState::Mismatch,
            ["version", version] => self.driver.version = version.to_owned(),
            ["withhold", function] => self.driver.withheld_functions.push(function.to_owned()),
            ["reboot"] => reset::reboot(self),
            ["clear" | "return"] => {
                self.hang = false;
                self.driver.state = DriverState::Loaded;
                self.driver.withheld_functions.clear();
            }
            _ => {
                return Err(format!(
                    "no driver fault {text:?}; there are hang, not-loaded, mismatch, version V, withhold FUNCTION, reboot, clear"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::board;

    #[test]
    fn every_fault_reads_back_as_printed() {
        let all = [
            "xid 79",
            "xid 48 500",
            "lost",
            "missing",
            "hang",
            "ecc 3",
            "ecc-corrected 9",
            "remap-pending",
            "remap-failed",
            "nvlink-down 4",
            "hot 91",
            "clear",
            "slow 300",
            "error 999",
            "ecc-sram 1",
            "sram-threshold",
            "retired 3",
            "nvlink-up 4",
            "nvlink-slow",
            "nvlink-errors 900",
            "pcie 8",
            "pcie 8 3",
            "throttle power-brake",
            "throttle none",
            "fabric in-progress",
            "recovery drain-and-reset",
            "process 77 1024",
            "process 77 1024 1 0",
            "no-process",
            "no-process 77",
            "mig on",
            "mig off",
            "mig 3g.40gb,1g.10gb+me",
            "reset",
            "reset-fails",
        ];
        for text in all {
            assert_eq!(text.parse::<Fault>().unwrap().to_string(), text);
        }
        assert!(
            "melt"
                .parse::<Fault>()
                .unwrap_err()
                .contains("there are xid N")
        );
    }

    #[test]
    fn clear_ends_what_faults_began() {
        let fresh = board("h100", 2, "n", 0).unwrap();
        let mut state = fresh.clone();
        for fault in [
            Fault::Lost,
            Fault::Ecc { errors: 2 },
            Fault::RemapFailed,
            Fault::NvlinkDown { link: 3 },
            Fault::Hot { celsius: 95 },
            Fault::Throttle(Throttle::PowerBrake),
            Fault::Fabric(FabricWord::Unhealthy),
            Fault::Recovery(Recovery::Reboot),
            Fault::Pcie {
                lanes: 8,
                generation: Some(3),
            },
            Fault::EccSram { errors: 1 },
            Fault::SramThreshold,
        ] {
            apply_fault(&mut state, 0, fault).unwrap();
        }
        assert_ne!(state.gpus, fresh.gpus);
        apply_fault(&mut state, 0, Fault::Clear).unwrap();
        assert_eq!(state.gpus, fresh.gpus);
    }

    #[test]
    fn event_storm_keeps_the_newest() {
        let mut state = board("l4", 1, "n", 0).unwrap();
        apply_fault(
            &mut state,
            0,
            Fault::Xid {
                number: 13,
                times: u64::MAX,
            },
        )
        .unwrap();
        apply_fault(
            &mut state,
            0,
            Fault::Xid {
                number: 79,
                times: 1,
            },
        )
        .unwrap();
        assert_eq!(state.events.len(), crate::state::MAX_EVENTS);
        assert_eq!(state.events.last().unwrap().kind, EventKind::Xid(79));
        assert_eq!(state.events.last().unwrap().seq + 1, state.next_event);
    }

    #[test]
    fn what_a_board_has_not_is_refused() {
        let mut state = board("l4", 1, "n", 0).unwrap();
        for fault in [
            "fabric failed",
            "mig on",
            "mig 1g.5gb",
            "nvlink-down 0",
            "process 7 1 0 0",
        ] {
            let refused = apply_fault(&mut state, 0, fault.parse().unwrap());
            assert!(refused.is_err(), "{fault}");
        }
        assert_eq!(state, board("l4", 1, "n", 0).unwrap());
        assert!(
            "throttle heat"
                .parse::<Fault>()
                .unwrap_err()
                .contains("power-cap")
        );
    }

    #[test]
    fn driver_faults_end_with_clear() {
        let fresh = board("h100", 1, "n", 0).unwrap();
        let mut state = fresh.clone();
        for fault in ["hang", "mismatch", "withhold nvmlDeviceGetFieldValues"] {
            state.apply_driver_fault(fault).unwrap();
        }
        assert_ne!(state, fresh);
        state.apply_driver_fault("clear").unwrap();
        assert_eq!(state, fresh);
        assert!(
            state
                .apply_driver_fault("explode")
                .unwrap_err()
                .contains("not-loaded")
        );
    }

    #[test]
    fn gpu_is_found_by_slot_or_uuid_and_refused_with_the_range() {
        let state = board("h100", 8, "n", 0).unwrap();
        assert_eq!(find_gpu(&state, "gpu3"), Ok(3));
        assert_eq!(find_gpu(&state, &state.gpus[5].uuid), Ok(5));
        assert_eq!(
            find_gpu(&state, "gpu8").unwrap_err(),
            "no GPU gpu8: this host has gpu0 to gpu7"
        );
        assert!(find_gpu(&state, "GPU-").is_err());
    }
}
