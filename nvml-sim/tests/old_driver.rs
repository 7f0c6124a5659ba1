//! Drivers that lack a function which gpupool asks for: what it tells is left out, the GPUs are there all the same.

mod simulated;

use std::time::Duration;

use gsys::nvml::NvmlWorker;
use simulated::SimulatedHost;

const SOON: Duration = Duration::from_secs(20);

/// All that is asked and can be done without. Names, UUIDs, places on the bus and minors every driver tells.
const NOT_NEEDED: &[&str] = &[
    "nvmlDeviceGetAttributes_v2",
    "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetCpuAffinity",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkWidth",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetGpuFabricInfo",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetMemoryAffinity",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetSramEccErrorStatus",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetTemperatureThreshold",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetUtilizationRates",
    "nvmlGpmMetricsGet",
    "nvmlGpmQueryDeviceSupport",
    "nvmlGpmSampleGet",
    "nvmlSystemGetCudaDriverVersion_v2",
];

#[test]
fn a_driver_without_any_one_function_that_is_not_needed_shows_its_gpus_and_how_they_are() {
    for function in NOT_NEEDED {
        let host = SimulatedHost::with(&[("h100", 2)]);
        host.edit(|state| state.driver.withheld_functions.push((*function).to_owned()));
        let worker = NvmlWorker::start(Some(host.library())).expect("a worker");
        let found = worker
            .discover(SOON)
            .unwrap_or_else(|error| panic!("{function}: {error}"));
        assert!(
            found.unreadable.is_empty(),
            "{function}: {:?}",
            found.unreadable
        );
        let seen: Vec<_> = found
            .gpus
            .iter()
            .map(|gpu| (gpu.gpu_type.as_str(), gpu.nominal_memory_mib))
            .collect();
        assert_eq!(seen, [("h100", 81_920); 2], "{function}");
        let health = worker.read_health(SOON).unwrap();
        assert!(
            health.iter().all(|gpu| gpu.reading.fault.is_none()),
            "{function}: {health:?}"
        );
        let used = worker.sample_use(SOON).unwrap();
        assert!(
            used.iter().all(|gpu| gpu.fault.is_none()),
            "{function}: {used:?}"
        );
    }
}

#[test]
fn a_driver_that_lacks_all_of_them_shows_gpus_without_what_they_told() {
    let host = SimulatedHost::with(&[("h100", 2)]);
    host.edit(|state| {
        state.driver.withheld_functions = NOT_NEEDED.iter().map(|name| (*name).to_owned()).collect()
    });
    let worker = NvmlWorker::start(Some(host.library())).expect("a worker");
    let found = worker.discover(SOON).unwrap();
    assert_eq!((found.gpus.len(), found.unreadable.len()), (2, 0));
    assert!(
        found
            .gpus
            .iter()
            .all(|gpu| gpu.gpu_type == "h100" && gpu.mig.is_none() && gpu.memory_bytes == 0)
    );
    // What is not told is not zero: nobody is idle for it.
    let used = worker.sample_use(SOON).unwrap();
    assert!(
        used.iter().all(|gpu| gpu.fault.is_none()
            && gpu.gpu_percent.is_none()
            && gpu.sm_percent.is_none())
    );
}

#[test]
fn a_share_of_the_multiprocessors_that_is_not_told_is_not_zero() {
    let host = SimulatedHost::with(&[("h100", 1)]);
    let worker = NvmlWorker::start(Some(host.library())).expect("a worker");
    worker.discover(SOON).unwrap();
    host.edit(|state| {
        state
            .driver
            .withheld_functions
            .push("nvmlGpmMetricsGet".to_owned())
    });
    worker.sample_use(SOON).unwrap();
    assert_eq!(worker.sample_use(SOON).unwrap()[0].sm_percent, None);
    host.edit(|state| state.driver.withheld_functions.clear());
    worker.sample_use(SOON).unwrap();
    assert_eq!(worker.sample_use(SOON).unwrap()[0].sm_percent, Some(0));
}

/// What R510 brought, and R470.
const NEWER: &[&str] = &[
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
];

#[test]
fn a_driver_of_the_first_years_of_mig_has_the_same_profiles_by_name_and_tells_who_is_on_a_gpu() {
    let older = [
        "nvmlDeviceGetComputeRunningProcesses_v2",
        "nvmlDeviceGetMPSComputeRunningProcesses_v2",
    ];
    for (board, cut) in [
        ("a100-40", "mig 3g.20gb,1g.5gb"),
        ("a100-80", "mig 3g.40gb,1g.10gb"),
    ] {
        let host = SimulatedHost::with(&[(board, 1)]);
        host.inject(0, cut);
        let instance = host.state().gpus[0].mig_instances[0].id;
        host.inject(0, &format!("process 4711 2000 {instance} 0"));
        let look = |withheld: &[&str]| {
            host.edit(|state| {
                state.driver.withheld_functions =
                    withheld.iter().map(|name| (*name).to_owned()).collect()
            });
            let worker = NvmlWorker::start(Some(host.library())).expect("a worker");
            let gpu = worker.discover(SOON).unwrap().gpus.remove(0);
            let used = worker.sample_use(SOON).unwrap().remove(0);
            (gpu.mig.expect("the board has MIG"), used.processes)
        };
        let (newest, processes) = look(&[]);
        assert_eq!(
            processes
                .iter()
                .map(|process| (process.pid, process.gpu_instance_id))
                .collect::<Vec<_>>(),
            [(4711, Some(instance))],
            "{board}"
        );
        assert_eq!(look(NEWER), (newest.clone(), processes), "{board}");
        let (mig, processes) = look(&[NEWER, &older].concat());
        assert_eq!(mig, newest, "{board}");
        assert_eq!(
            processes
                .iter()
                .map(|process| (process.pid, process.gpu_instance_id))
                .collect::<Vec<_>>(),
            [(4711, None)],
            "{board}"
        );
    }
}
