//! The same questions to the driver of this machine, where it has one: reads only, changes nothing. What a simulated driver
//! cannot prove is that a real one answers so.

use std::path::Path;
use std::time::{Duration, Instant};

use gcore::node::gpu_health::{GpuWatch, verdict};
use gmodel::gpu_health::Catalogue;
use gsys::nvml::{CapMinors, NvmlWorker, islands};

/// The first call without persistence mode may take seconds for each GPU.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_real_driver_answers_discovery_health_and_use() {
    let worker = NvmlWorker::start(None).expect("threads");
    let inventory = match worker.discover(PATIENCE) {
        Ok(inventory) if !inventory.gpus.is_empty() => inventory,
        Ok(_) => return eprintln!("NOT RUN: NVML lists no GPU"),
        Err(error) => return eprintln!("NOT RUN: {error}"),
    };
    eprintln!(
        "driver {}, CUDA {:?}, islands {:?}",
        inventory.driver_version,
        inventory.cuda_version,
        islands(&inventory.gpus)
    );
    let minors = CapMinors::read(Path::new(CapMinors::PATH));
    for gpu in &inventory.gpus {
        eprintln!("{gpu:#?}");
        assert!(
            gpu.uuid.starts_with("GPU-")
                && gpu.memory_bytes > 1 << 30
                && gpu.pci_bus_id.len() >= 12
        );
        assert!(gpu.nominal_memory_mib >= gpu.memory_bytes >> 20);
        for profile in gpu.mig.iter().flat_map(|mig| &mig.profiles) {
            assert!(
                !profile.starts.is_empty()
                    && profile.memory_slices > 0
                    && gmodel::gpu_request::is_mig_profile(&profile.name),
                "{profile:?}"
            );
        }
        for (instance, device) in gpu
            .mig
            .iter()
            .flat_map(|mig| &mig.instances)
            .flat_map(|part| part.devices.iter().map(move |device| (part, device)))
        {
            assert!(
                minors
                    .of_device(gpu.minor, instance.id, device.compute_instance_id)
                    .is_some(),
                "{instance:?}"
            );
        }
    }
    let timed = |what: &str, begun: Instant| {
        eprintln!(
            "{what}: {} us for {} GPUs",
            begun.elapsed().as_micros(),
            inventory.gpus.len()
        )
    };
    let catalogue = Catalogue::built_in();
    for round in 0..3 {
        let begun = Instant::now();
        let health = worker.read_health(PATIENCE).expect("health");
        timed("health", begun);
        let begun = Instant::now();
        let sample = worker.sample_use(PATIENCE).expect("use");
        timed("use", begun);
        for (gpu, used) in health.iter().zip(&sample) {
            eprintln!("{gpu:?}\n{used:?}");
            assert!(gpu.reading.fault.is_none() && used.fault.is_none());
            assert!(
                gpu.reading
                    .temperature_c
                    .is_some_and(|celsius| (1..120).contains(&celsius))
            );
            assert!(used.power_mw.is_some_and(|power| power < 3_000_000));
            let mut watch = GpuWatch::accepting(&gpu.reading);
            let now = gmodel::Timestamp::from_secs(1_700_000_000 + round);
            watch.read(&catalogue, &gpu.reading, now);
            if let Some(verdict) = verdict(watch.standing()) {
                eprintln!("this GPU shows {:?}", verdict.sign);
            }
        }
    }
}
