//! Faults an administrator or a test can inject, their words on the command line, and what each changes in the state.
//! Every fault does one thing: `xid 79` only delivers the event, and `lost` only loses the GPU.

use std::fmt;
use std::str::FromStr;

use crate::state::{DriverState, EventKind, Gpu, State, now_unix_ms};

/// A fault, or the end of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This many critical Xid events with this number.
    Xid { number: u64, times: u64 },
    /// Counted, but answers nothing any more.
    Lost,
    /// Not enumerated, as after a boot that did not find it.
    Missing,
    /// Calls about it do not return.
    Hang,
    /// Uncorrected ECC errors, each with its double-bit event.
    Ecc { errors: u64 },
    /// Corrected ECC errors, with one single-bit event.
    EccCorrected { errors: u64 },
    /// A row remap waits for the next reset.
    RemapPending,
    /// A row could not be remapped: no spare left.
    RemapFailed,
    /// One NVLink goes down.
    NvlinkDown { link: u32 },
    /// Temperature in Celsius; from 87 on hardware thermal slowdown is reported too.
    Hot { celsius: u32 },
    /// Everything above ends and counters go to zero; events already sent stay sent.
    Clear,
}

const WORDS: &str = "xid N [TIMES], lost, missing, hang, ecc [N], ecc-corrected [N], remap-pending, remap-failed, nvlink-down LINK, hot CELSIUS, clear";

/// From this temperature on the simulated boards throttle.
const SLOWDOWN_CELSIUS: u32 = 87;

/// Changes the GPU in `slot`; an error says which slots there are.
pub fn apply_fault(state: &mut State, slot: usize, fault: Fault) -> Result<(), String> {
    let count = state.gpus.len();
    let gpu = state
        .gpus
        .get_mut(slot)
        .ok_or_else(|| no_such_gpu(&format!("gpu{slot}"), count))?;
    let uuid = gpu.uuid.clone();
    match fault {
        Fault::Xid { number, times } => send(state, &uuid, EventKind::Xid(number), times),
        Fault::Lost => gpu.faults.lost = true,
        Fault::Missing => gpu.faults.missing = true,
        Fault::Hang => gpu.faults.hang = true,
        Fault::Ecc { errors } => {
            gpu.ecc.volatile_uncorrected += errors;
            gpu.ecc.aggregate_uncorrected += errors;
            send(state, &uuid, EventKind::DoubleBitEcc, errors);
        }
        Fault::EccCorrected { errors } => {
            gpu.ecc.volatile_corrected += errors;
            gpu.ecc.aggregate_corrected += errors;
            send(state, &uuid, EventKind::SingleBitEcc, 1);
        }
        Fault::RemapPending => {
            gpu.row_remap.pending = true;
            gpu.row_remap.uncorrected += 1;
        }
        Fault::RemapFailed => gpu.row_remap.failed = true,
        Fault::NvlinkDown { link } => take_link_down(gpu, link)?,
        Fault::Hot { celsius } => heat(gpu, celsius),
        Fault::Clear => clear(gpu),
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

fn no_such_gpu(word: &str, count: usize) -> String {
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

fn heat(gpu: &mut Gpu, celsius: u32) {
    let thermal = u64::from(nvml_wrapper_sys::bindings::nvmlClocksThrottleReasonHwThermalSlowdown);
    gpu.readings.temperature_c = celsius;
    if celsius >= SLOWDOWN_CELSIUS {
        gpu.readings.throttle_reasons |= thermal;
    } else {
        gpu.readings.throttle_reasons &= !thermal;
    }
}

fn clear(gpu: &mut Gpu) {
    gpu.faults = Default::default();
    gpu.ecc = Default::default();
    gpu.row_remap = Default::default();
    gpu.nvlinks_down.clear();
    gpu.nvlink_errors = 0;
    heat(gpu, 30);
}

impl FromStr for Fault {
    type Err = String;

    /// Words as [`Fault`]'s `Display` prints them, separated by blanks.
    fn from_str(text: &str) -> Result<Fault, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let number = |word: &str| {
            word.parse::<u64>()
                .map_err(|_| format!("{word:?} in fault {text:?} is not a number"))
        };
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
            ["ecc"] => Fault::Ecc { errors: 1 },
            ["ecc", n] => Fault::Ecc { errors: number(n)? },
            ["ecc-corrected"] => Fault::EccCorrected { errors: 1 },
            ["ecc-corrected", n] => Fault::EccCorrected { errors: number(n)? },
            ["remap-pending"] => Fault::RemapPending,
            ["remap-failed"] => Fault::RemapFailed,
            ["nvlink-down", link] => Fault::NvlinkDown {
                link: number(link)?.try_into().unwrap_or(u32::MAX),
            },
            ["hot", celsius] => Fault::Hot {
                celsius: number(celsius)?.try_into().unwrap_or(u32::MAX),
            },
            ["clear" | "return"] => Fault::Clear,
            _ => return Err(format!("no fault {text:?}; there are {WORDS}")),
        };
        Ok(fault)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Xid { number, times: 1 } => write!(f, "xid {number}"),
            Fault::Xid { number, times } => write!(f, "xid {number} {times}"),
            Fault::Lost => f.write_str("lost"),
            Fault::Missing => f.write_str("missing"),
            Fault::Hang => f.write_str("hang"),
            Fault::Ecc { errors } => write!(f, "ecc {errors}"),
            Fault::EccCorrected { errors } => write!(f, "ecc-corrected {errors}"),
            Fault::RemapPending => f.write_str("remap-pending"),
            Fault::RemapFailed => f.write_str("remap-failed"),
            Fault::NvlinkDown { link } => write!(f, "nvlink-down {link}"),
            Fault::Hot { celsius } => write!(f, "hot {celsius}"),
            Fault::Clear => f.write_str("clear"),
        }
    }
}

impl State {
    /// A fault of the whole driver: `hang`, `not-loaded`, `mismatch`, or `clear` which ends them.
    pub fn apply_driver_fault(&mut self, word: &str) -> Result<(), String> {
        match word {
            "hang" => self.hang = true,
            "not-loaded" => self.driver.state = DriverState::NotLoaded,
            "mismatch" => self.driver.state = DriverState::Mismatch,
            "clear" | "return" => {
                self.hang = false;
                self.driver.state = DriverState::Loaded;
            }
            _ => {
                return Err(format!(
                    "no driver fault {word:?}; there are hang, not-loaded, mismatch, clear"
                ));
            }
        }
        Ok(())
    }

    /// Sets one reading of one GPU from `key=value`: `util`, `mem-util` (percent), `temp` (Celsius), `power` (watts), `mem` (MiB used).
    pub fn set_reading(&mut self, slot: usize, setting: &str) -> Result<(), String> {
        let count = self.gpus.len();
        let gpu = self
            .gpus
            .get_mut(slot)
            .ok_or_else(|| no_such_gpu(&format!("gpu{slot}"), count))?;
        let parsed = setting
            .split_once('=')
            .and_then(|(key, value)| Some((key, value.parse::<u32>().ok()?)));
        match parsed {
            Some(("util", percent)) if percent <= 100 => {
                let idle = u64::from(nvml_wrapper_sys::bindings::nvmlClocksThrottleReasonGpuIdle);
                gpu.readings.gpu_percent = percent;
                gpu.readings.sm_clock_mhz = if percent > 0 {
                    gpu.max_sm_clock_mhz
                } else {
                    345
                };
                gpu.readings.throttle_reasons = if percent > 0 {
                    gpu.readings.throttle_reasons & !idle
                } else {
                    gpu.readings.throttle_reasons | idle
                };
            }
            Some(("mem-util", percent)) if percent <= 100 => gpu.readings.memory_percent = percent,
            Some(("temp", celsius)) => heat(gpu, celsius),
            Some(("power", watts)) => gpu.set_power(watts.saturating_mul(1000), now_unix_ms()),
            Some(("mem", mib)) => gpu.readings.memory_used_bytes = u64::from(mib) << 20,
            _ => {
                return Err(format!(
                    "no reading {setting:?}; there are util=0..100 mem-util=0..100 temp=CELSIUS power=WATTS mem=MIB"
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
