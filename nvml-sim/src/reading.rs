//! Readings that a test or an administrator sets: load, temperature, power, memory, traffic.

use nvml_wrapper_sys::bindings::nvmlClocksThrottleReasonGpuIdle;

use crate::fault::{heat, no_such_gpu};
use crate::state::{Gpu, State, now_unix_ms};

const KEYS: &str = "util=0..100 mem-util=0..100 temp=CELSIUS mem-temp=CELSIUS power=WATTS mem=MIB pcie-tx=MIB/S pcie-rx=MIB/S \
nvlink-tx=MIB/S nvlink-rx=MIB/S pcie-replays=N sm.PID=0..100";

impl State {
    /// Sets one reading of one GPU from `key=value`, such as `util=90`; an error says which keys there are.
    pub fn set_reading(&mut self, slot: usize, setting: &str) -> Result<(), String> {
        let count = self.gpus.len();
        let gpu = self
            .gpus
            .get_mut(slot)
            .ok_or_else(|| no_such_gpu(&format!("gpu{slot}"), count))?;
        let parsed = setting
            .split_once('=')
            .and_then(|(key, value)| Some((key, value.parse::<u32>().ok()?)));
        let Some((key, value)) = parsed else {
            return Err(format!("no reading {setting:?}; there are {KEYS}"));
        };
        gpu.settle_counters(now_unix_ms());
        set(gpu, key, value).ok_or_else(|| format!("no reading {setting:?}; there are {KEYS}"))
    }
}

fn set(gpu: &mut Gpu, key: &str, value: u32) -> Option<()> {
    let kib = value.saturating_mul(1024);
    let readings = &mut gpu.readings;
    match key {
        "util" if value <= 100 => load(gpu, value),
        "mem-util" if value <= 100 => readings.memory_percent = value,
        "temp" => heat(gpu, value),
        "mem-temp" => readings.memory_temperature_c = value,
        "power" => readings.power_mw = value.saturating_mul(1000),
        "mem" => readings.memory_used_bytes = u64::from(value) << 20,
        "pcie-tx" => readings.traffic.pcie_sent_kib_per_s = kib,
        "pcie-rx" => readings.traffic.pcie_received_kib_per_s = kib,
        "nvlink-tx" => readings.traffic.nvlink_sent_kib_per_s = u64::from(value) << 10,
        "nvlink-rx" => readings.traffic.nvlink_received_kib_per_s = u64::from(value) << 10,
        "pcie-replays" => readings.pcie_replays = value,
        _ => {
            let pid: u32 = key.strip_prefix("sm.")?.parse().ok()?;
            let mut processes = gpu.processes.iter_mut();
            let process = processes.find(|process| process.pid == pid && value <= 100)?;
            process.sm_percent = value;
        }
    }
    Some(())
}

/// Clocks and the idle reason follow the load.
fn load(gpu: &mut Gpu, percent: u32) {
    let idle = u64::from(nvmlClocksThrottleReasonGpuIdle);
    let readings = &mut gpu.readings;
    readings.gpu_percent = percent;
    if percent > 0 {
        readings.sm_clock_mhz = gpu.max_sm_clock_mhz;
        readings.throttle_reasons &= !idle;
    } else {
        readings.sm_clock_mhz = 345;
        readings.throttle_reasons |= idle;
    }
}

#[cfg(test)]
mod tests {
    use crate::board::board;

    #[test]
    fn counters_go_on_from_where_they_were_when_a_rate_changes() {
        let mut state = board("h100", 1, "n", 0).unwrap();
        let start = super::now_unix_ms() - 10_000;
        state.gpus[0].readings.counted_to_unix_ms = start;
        state.gpus[0].readings.traffic.nvlink_sent_kib_per_s = 2048;
        state.set_reading(0, "nvlink-tx=0").unwrap();
        state.set_reading(0, "power=0").unwrap();
        let counted = state.gpus[0].readings.counted;
        assert!(
            (20_480..=24_000).contains(&counted.nvlink_sent_kib),
            "{counted:?}"
        );
        assert!(
            (700_000..900_000).contains(&counted.energy_mj),
            "{counted:?}"
        );
        let later = state.gpus[0].readings.counted_to_unix_ms + 60_000;
        assert_eq!(
            state.gpus[0].counters_at(later).nvlink_sent_kib,
            counted.nvlink_sent_kib
        );
    }

    #[test]
    fn unknown_readings_are_refused_with_those_there_are() {
        let mut state = board("l4", 1, "n", 0).unwrap();
        for setting in ["util=101", "util", "power=many", "sm.7=3", "colour=1"] {
            assert!(
                state
                    .set_reading(0, setting)
                    .unwrap_err()
                    .contains("nvlink-rx"),
                "{setting}"
            );
        }
    }
}
