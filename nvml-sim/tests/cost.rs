//! What sweeps over eight GPUs cost: calls into the library, which is what a driver is asked, and processor time with the
//! simulated one. Alone in its process, because it measures the process.

mod simulated;

use std::ffi::{CString, c_int, c_void};
use std::time::Duration;

use gsys::nvml::NvmlWorker;
use simulated::SimulatedHost;

const SOON: Duration = Duration::from_secs(20);
const SWEEPS: u32 = 50;

/// Calls that the library has answered so far.
fn calls(host: &SimulatedHost) -> u64 {
    let path = CString::new(host.library().into_os_string().into_encoded_bytes()).unwrap();
    // SAFETY: the library is loaded already and stays so; the symbol is its function of this type.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_NOW);
        assert!(!library.is_null());
        let symbol: *mut c_void = libc::dlsym(library, c"nvmlSimCalls".as_ptr());
        let count: extern "C" fn() -> u64 = std::mem::transmute(symbol);
        libc::dlclose(library);
        count()
    }
}

/// Processor time of this process.
fn cpu_time() -> Duration {
    // SAFETY: getrusage fills the structure it is given.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        let outcome: c_int = libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        assert_eq!(outcome, 0);
        usage
    };
    let part = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    part(usage.ru_utime) + part(usage.ru_stime)
}

#[test]
fn sweeps_over_eight_gpus_stay_within_their_calls_and_a_hundredth_of_a_core() {
    let host = SimulatedHost::with(&[("h100", 8)]);
    host.inject(0, "process 77 1000");
    let worker = NvmlWorker::start(Some(host.library())).unwrap();
    worker.discover(SOON).unwrap();
    worker.sample_use(SOON).unwrap();
    let measure = |what: &str, most_calls: u64, sweep: &dyn Fn()| {
        sweep();
        let (calls_before, cpu_before) = (calls(&host), cpu_time());
        (0..SWEEPS).for_each(|_| sweep());
        let calls = (calls(&host) - calls_before) / u64::from(SWEEPS);
        let cpu = (cpu_time() - cpu_before) / SWEEPS;
        eprintln!(
            "{what}: {calls} calls and {} us of processor time a sweep over 8 GPUs",
            cpu.as_micros()
        );
        assert!(
            calls <= most_calls,
            "{what}: {calls} calls, at most {most_calls}"
        );
        // A sweep each second would be a hundredth of a core. The waiting event thread is in it too.
        assert!(cpu < Duration::from_millis(10), "{what}: {cpu:?}");
    };
    // The count, and ten or eleven a GPU.
    measure("use", 1 + 8 * 11, &|| {
        drop(worker.sample_use(SOON).unwrap())
    });
    measure("health", 1 + 8 * 9, &|| {
        drop(worker.read_health(SOON).unwrap())
    });
    // Besides: the driver's and CUDA's version and the count.
    measure("discovery", 3 + 8 * 9, &|| {
        drop(worker.discover(SOON).unwrap())
    });
}
