//! The catalogue's own entries, as data. Sources: NVIDIA's Xid document (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors
//! with the Xid Catalog"; the word in capitals is its resolution bucket), "GPU Memory Error Management" and "Dynamic Page
//! Retirement" at the same place, the NVML API reference, and the Fabric Manager User Guide. Texts are ours.

use std::collections::BTreeMap;

use super::catalogue::{Action, Evidence, Severity, SignCounter, SignKind, SignState};

use Action::{EndJob, Note, Quarantine, Reboot, Replace, Reset};
use Severity::{Critical, Fatal, Info, Warning};

const HOUR: u64 = 3600;
const DAY: u64 = 86_400;

/// The job may finish first.
const FINISH: bool = true;
/// The job is ended at once.
const END: bool = false;

/// Name, Xids, severity, action, whether the job may finish, meaning, NVIDIA's bucket.
type XidRow = (
    &'static str,
    &'static [u64],
    Severity,
    Action,
    bool,
    &'static str,
    &'static str,
);

const XIDS: &[XidRow] = &[
    (
        "xid-application",
        &[
            8, 11, 13, 31, 32, 38, 43, 44, 45, 60, 66, 67, 68, 69, 80, 106, 107, 108, 137, 141, 160,
        ],
        Info,
        Note,
        FINISH,
        "a program did something wrong, or was ended; the GPU goes on",
        "RESTART_APP, IGNORE",
    ),
    (
        "xid-engine",
        &[
            39, 40, 41, 70, 71, 72, 75, 76, 77, 82, 83, 84, 85, 86, 88, 89, 96, 97, 98, 99, 100,
            101, 102, 103, 104, 105, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135, 139, 142,
        ],
        Warning,
        Note,
        FINISH,
        "a copy or media engine failed for one program; the program has to be started again",
        "RESTART_APP",
    ),
    (
        "xid-46",
        &[46],
        Critical,
        Reset,
        END,
        "the GPU stopped processing",
        "RESET_GPU",
    ),
    (
        "xid-48",
        &[48],
        Critical,
        Reset,
        END,
        "an ECC error that could not be corrected; results may be wrong",
        "WORKFLOW_XID_48",
    ),
    (
        "xid-54",
        &[54],
        Fatal,
        EndJob,
        END,
        "the board's auxiliary power is not connected",
        "CHECK_MECHANICALS",
    ),
    (
        "xid-62",
        &[62],
        Critical,
        Reset,
        END,
        "a micro-controller of the GPU halted",
        "RESET_GPU",
    ),
    (
        "xid-63",
        &[63],
        Info,
        Note,
        FINISH,
        "a row of memory was replaced, or a page retired, as it should be",
        "IGNORE",
    ),
    (
        "xid-64",
        &[64],
        Critical,
        Reset,
        END,
        "a row of memory could not be replaced, or a page not retired",
        "RESET_GPU",
    ),
    (
        "xid-74",
        &[74],
        Critical,
        Reset,
        END,
        "an NVLink failed, here or at its other end",
        "WORKFLOW_NVLINK_ERR",
    ),
    (
        "xid-79",
        &[79],
        Fatal,
        Reboot,
        END,
        "the GPU has fallen off the bus",
        "RESTART_BM",
    ),
    (
        "xid-92",
        &[92],
        Warning,
        Note,
        FINISH,
        "corrected ECC errors come often",
        "IGNORE, CONTACT_SUPPORT",
    ),
    (
        "xid-93",
        &[93],
        Info,
        Note,
        FINISH,
        "the board's own log may not be written any more",
        "IGNORE",
    ),
    (
        "xid-94",
        &[94],
        Warning,
        Reset,
        FINISH,
        "a memory error that befell one program only; the others are not affected, a reset is due when convenient",
        "RESTART_APP",
    ),
    (
        "xid-95",
        &[95],
        Critical,
        Reset,
        END,
        "a memory error that may have befallen every program on the GPU",
        "RESET_GPU",
    ),
    (
        "xid-109",
        &[109],
        Critical,
        Reset,
        END,
        "a switch between programs did not end",
        "RESET_GPU",
    ),
    (
        "xid-110",
        &[110],
        Fatal,
        Reboot,
        END,
        "a security fault, which hardware that fails may cause; needs a cold start",
        "RESET_GPU",
    ),
    (
        "xid-119",
        &[119, 120],
        Critical,
        Reset,
        END,
        "the GPU's own processor (GSP) failed or does not answer",
        "RESET_GPU",
    ),
    (
        "xid-121",
        &[121],
        Info,
        Note,
        FINISH,
        "corrected errors on the link to a Grace processor",
        "IGNORE",
    ),
    (
        "xid-136",
        &[136],
        Critical,
        Reset,
        FINISH,
        "an NVLink could not be trained",
        "RESET_GPU",
    ),
    (
        "xid-140",
        &[140],
        Critical,
        Reset,
        END,
        "ECC errors that could not be corrected and whose places could not be put aside",
        "RESET_GPU",
    ),
    (
        "xid-143",
        &[143],
        Fatal,
        Reset,
        END,
        "the GPU did not start",
        "RESET_GPU",
    ),
    (
        "xid-nvlink5",
        &[144, 145, 146, 147, 148, 150, 155],
        Warning,
        Note,
        FINISH,
        "an event of NVLink 5, harmless or not by its details; what has to be done comes as the driver's advice",
        "WORKFLOW_NVLINK5_ERR",
    ),
    (
        "xid-149",
        &[149],
        Critical,
        Reset,
        END,
        "an NVLink 5 went down",
        "WORKFLOW_NVLINK5_ERR: RESET_GPU",
    ),
    (
        "xid-151",
        &[151],
        Critical,
        Reboot,
        END,
        "keys of confidential computing could not be changed",
        "RESTART_VM",
    ),
    (
        "xid-154",
        &[154],
        Info,
        Note,
        FINISH,
        "the driver's advice changed; the advice has its own signs",
        "informational",
    ),
    (
        "xid-156",
        &[156],
        Warning,
        Reset,
        FINISH,
        "a unit of the GPU was put out of use; in force after a reset",
        "RESET_GPU",
    ),
    (
        "xid-157",
        &[157],
        Warning,
        Note,
        FINISH,
        "a unit of the GPU could not be put out of use: no spare is left",
        "IGNORE, CONTACT_SUPPORT",
    ),
    (
        "xid-158",
        &[158],
        Critical,
        Reset,
        END,
        "the GPU did not answer in time",
        "RESET_GPU",
    ),
    (
        "xid-161",
        &[161],
        Warning,
        Note,
        FINISH,
        "a channel could not be put out of use",
        "IGNORE",
    ),
    (
        "xid-power-smoothing",
        &[162, 163, 164, 165],
        Info,
        Note,
        FINISH,
        "power smoothing came on, went off, or is worn",
        "see the catalogue",
    ),
    (
        "xid-167",
        &[167],
        Fatal,
        Reboot,
        END,
        "PCIe did not answer in time",
        "not yet told",
    ),
    (
        "xid-168",
        &[168],
        Critical,
        Quarantine,
        FINISH,
        "memory of the GPU is smaller than it should be; switch ECC on",
        "not yet told",
    ),
    (
        "xid-169",
        &[169],
        Critical,
        Reset,
        END,
        "a micro-controller of the GPU halted",
        "not yet told",
    ),
    (
        "xid-171",
        &[171, 172],
        Critical,
        Reset,
        END,
        "where the uncorrected error of an Xid 48 was: memory or SRAM",
        "with WORKFLOW_XID_48",
    ),
];

/// Name, state, severity, action, whether the job may finish, seconds it has to last, seconds until it is over, meaning, source.
type StateRow = (
    &'static str,
    SignState,
    Severity,
    Action,
    bool,
    u64,
    u64,
    &'static str,
    &'static str,
);

const STATES: &[StateRow] = &[
    (
        "lost",
        SignState::Lost,
        Fatal,
        Reboot,
        END,
        0,
        0,
        "the driver cannot reach the GPU any more",
        "NVML: NVML_ERROR_GPU_IS_LOST",
    ),
    (
        "hangs",
        SignState::Hangs,
        Critical,
        Quarantine,
        FINISH,
        60,
        0,
        "a call about the GPU does not return",
        "gpupool: a deadline for each call",
    ),
    (
        "missing",
        SignState::Missing,
        Fatal,
        Reboot,
        END,
        0,
        0,
        "the GPU was there and is not enumerated any more",
        "NVML: nvmlDeviceGetCount",
    ),
    (
        "error",
        SignState::Error,
        Critical,
        Quarantine,
        FINISH,
        60,
        0,
        "the driver answers questions about the GPU with errors",
        "NVML: error codes",
    ),
    (
        "sram-worn",
        SignState::SramWorn,
        Critical,
        Replace,
        FINISH,
        0,
        0,
        "SRAM had more uncorrected errors than a board may have",
        "GPU Memory Error Management: SRAM threshold",
    ),
    (
        "remap-pending",
        SignState::RemapPending,
        Warning,
        Reset,
        FINISH,
        0,
        300,
        "a row of memory will be replaced with the next reset; programs elsewhere in memory are not affected",
        "GPU Memory Error Management: row-remapping pending flag",
    ),
    (
        "remap-failed",
        SignState::RemapFailed,
        Critical,
        Replace,
        FINISH,
        0,
        0,
        "no spare row of memory is left",
        "GPU Memory Error Management: row-remapping failure flag",
    ),
    (
        "retirement-pending",
        SignState::RetirementPending,
        Warning,
        Reset,
        FINISH,
        0,
        300,
        "pages of memory will be retired with the next reset",
        "Dynamic Page Retirement",
    ),
    (
        "nvlink-down",
        SignState::NvlinkDown,
        Critical,
        Reset,
        FINISH,
        30,
        300,
        "an NVLink that should be up is down",
        "NVML: nvmlDeviceGetNvLinkState",
    ),
    (
        "pcie-width",
        SignState::PcieWidth,
        Warning,
        Quarantine,
        FINISH,
        300,
        600,
        "the PCIe link has fewer lanes than it could have",
        "NVML: nvmlDeviceGetCurrPcieLinkWidth",
    ),
    (
        "pcie-generation",
        SignState::PcieGeneration,
        Warning,
        Quarantine,
        FINISH,
        300,
        600,
        "the PCIe link is slower than it could be, and not at rest",
        "NVML: nvmlDeviceGetCurrPcieLinkGeneration",
    ),
    (
        "hot",
        SignState::Hot,
        Warning,
        Quarantine,
        FINISH,
        120,
        600,
        "the GPU slows down for heat",
        "NVML: temperature thresholds",
    ),
    (
        "memory-hot",
        SignState::MemoryHot,
        Warning,
        Quarantine,
        FINISH,
        120,
        600,
        "the GPU's memory is as hot as it may be",
        "NVML: temperature thresholds",
    ),
    (
        "power-brake",
        SignState::PowerBrake,
        Warning,
        Note,
        FINISH,
        60,
        600,
        "the power supply asked the GPU to slow down",
        "NVML: nvmlClocksEventReasonHwPowerBrakeSlowdown",
    ),
    (
        "fabric-not-ready",
        SignState::FabricNotReady,
        Critical,
        Quarantine,
        FINISH,
        300,
        60,
        "the fabric manager has not taken the GPU in, so that CUDA does not start",
        "Fabric Manager User Guide: registration",
    ),
    (
        "fabric-failed",
        SignState::FabricFailed,
        Critical,
        Reset,
        FINISH,
        60,
        60,
        "the fabric manager refused the GPU",
        "Fabric Manager User Guide: registration",
    ),
    (
        "fabric-unhealthy",
        SignState::FabricUnhealthy,
        Warning,
        Quarantine,
        FINISH,
        60,
        300,
        "the GPU's NVLink fabric is degraded",
        "NVML: nvmlGpuFabricInfoV_t.healthMask",
    ),
    (
        "advice-reset",
        SignState::AdviceReset,
        Critical,
        Reset,
        END,
        0,
        60,
        "the driver says that the GPU needs a reset",
        "NVML: NVML_GPU_RECOVERY_ACTION_GPU_RESET",
    ),
    (
        "advice-reboot",
        SignState::AdviceReboot,
        Fatal,
        Reboot,
        END,
        0,
        60,
        "the driver says that the node needs to boot",
        "NVML: NVML_GPU_RECOVERY_ACTION_NODE_REBOOT",
    ),
    (
        "advice-drain",
        SignState::AdviceDrain,
        Warning,
        Quarantine,
        FINISH,
        0,
        60,
        "the driver says that peers should leave the GPU",
        "NVML: NVML_GPU_RECOVERY_ACTION_DRAIN_P2P",
    ),
    (
        "advice-drain-and-reset",
        SignState::AdviceDrainAndReset,
        Warning,
        Reset,
        FINISH,
        0,
        60,
        "the driver says that the GPU works on with less and needs a reset when its jobs are done",
        "NVML: NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET",
    ),
    (
        "gpu-count",
        SignState::CountMismatch,
        Warning,
        Note,
        FINISH,
        60,
        60,
        "the node has fewer GPUs than its configuration says",
        "gpupool: gpus of the node's TOML",
    ),
    (
        "driver-version",
        SignState::DriverMismatch,
        Warning,
        Note,
        FINISH,
        60,
        60,
        "the node has another driver than its configuration says",
        "gpupool: driver of the node's TOML",
    ),
];

/// Name, counter, severity, action, whether the job may finish, threshold, window, meaning, source.
type CountedRow = (
    &'static str,
    SignCounter,
    Severity,
    Action,
    bool,
    u64,
    u64,
    &'static str,
    &'static str,
);

const COUNTED: &[CountedRow] = &[
    (
        "ecc-uncorrected",
        SignCounter::EccUncorrected,
        Critical,
        Reset,
        FINISH,
        1,
        DAY,
        "an ECC error that could not be corrected; the driver ends the programs that it befell",
        "GPU Memory Error Management",
    ),
    (
        "ecc-corrected",
        SignCounter::EccCorrected,
        Info,
        Note,
        FINISH,
        1000,
        DAY,
        "many corrected ECC errors in a day",
        "Xid catalog: Xid 92",
    ),
    (
        "rows-remapped",
        SignCounter::RowsRemapped,
        Info,
        Note,
        FINISH,
        1,
        DAY,
        "a row of memory was replaced for uncorrected errors",
        "GPU Memory Error Management",
    ),
    (
        "nvlink-errors",
        SignCounter::NvlinkErrors,
        Warning,
        Quarantine,
        FINISH,
        10_000,
        HOUR,
        "the NVLinks repeat much of what they carry",
        "NVML: NVLink error counters",
    ),
    (
        "pcie-replays",
        SignCounter::PcieReplays,
        Warning,
        Note,
        FINISH,
        10_000,
        HOUR,
        "the PCIe link repeats much of what it carries",
        "NVML: nvmlDeviceGetPcieReplayCounter",
    ),
    (
        "heat-slowed",
        SignCounter::HeatSlowed,
        Warning,
        Note,
        FINISH,
        600_000,
        HOUR,
        "slowed down for heat for ten minutes of an hour",
        "NVML: NVML_PERF_POLICY_THERMAL",
    ),
];

fn base(
    severity: Severity,
    action: Action,
    let_finish: bool,
    meaning: &str,
    source: String,
) -> SignKind {
    SignKind {
        evidence: Evidence::OtherXid,
        severity,
        action,
        let_finish,
        threshold: 1,
        window_secs: HOUR,
        holds_secs: 0,
        // A sign without an action is over by itself; all others last until the GPU is returned to service.
        clears_secs: if action == Note { HOUR } else { 0 },
        meaning: meaning.to_owned(),
        source,
    }
}

/// All entries by name.
pub fn signs() -> BTreeMap<String, SignKind> {
    let mut signs: BTreeMap<String, SignKind> = BTreeMap::new();
    for &(name, numbers, severity, action, let_finish, meaning, bucket) in XIDS {
        let source = format!("NVIDIA, Xid catalog, {}: {bucket}", xid_text(numbers));
        signs.insert(
            name.to_owned(),
            SignKind {
                evidence: Evidence::Xid(numbers.to_vec()),
                ..base(severity, action, let_finish, meaning, source)
            },
        );
    }
    let other = base(
        Warning,
        Note,
        FINISH,
        "an Xid that this catalogue does not name",
        "NVIDIA, Xid catalog".to_owned(),
    );
    signs.insert("xid-other".to_owned(), other);
    for &(name, state, severity, action, let_finish, holds_secs, clears_secs, meaning, source) in
        STATES
    {
        signs.insert(
            name.to_owned(),
            SignKind {
                evidence: Evidence::State(state),
                holds_secs,
                clears_secs,
                ..base(severity, action, let_finish, meaning, source.to_owned())
            },
        );
    }
    signs.insert("pages-retired".to_owned(), pages_retired());
    for &(name, counted, severity, action, let_finish, threshold, window_secs, meaning, source) in
        COUNTED
    {
        signs.insert(
            name.to_owned(),
            SignKind {
                evidence: Evidence::Counter(counted),
                threshold,
                window_secs,
                ..base(severity, action, let_finish, meaning, source.to_owned())
            },
        );
    }
    signs
}

fn pages_retired() -> SignKind {
    SignKind {
        evidence: Evidence::State(SignState::PagesRetired),
        threshold: 60,
        ..base(
            Warning,
            Replace,
            FINISH,
            "so many pages are retired that the board is to be replaced",
            "Dynamic Page Retirement: 60 pages".to_owned(),
        )
    }
}

fn xid_text(numbers: &[u64]) -> String {
    match numbers {
        [number] => format!("Xid {number}"),
        _ => {
            let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
            format!("Xids {}", words.join(", "))
        }
    }
}
