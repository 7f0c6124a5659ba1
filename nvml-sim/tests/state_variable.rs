//! Alone in its process, because it sets an environment variable: where the library finds its state.

mod simulated;

use simulated::SimulatedHost;

#[test]
fn the_variable_wins_over_the_directory_of_the_library() {
    let beside = SimulatedHost::with(&[("l4", 1)]);
    let elsewhere = SimulatedHost::with(&[("h100", 3)]);
    let count = || {
        let nvml = nvml_wrapper::Nvml::builder()
            .lib_path(beside.library().as_os_str())
            .init()
            .unwrap();
        nvml.device_count().unwrap()
    };
    assert_eq!(count(), 1);
    for path in [
        elsewhere.dir.path().to_owned(),
        elsewhere.dir.path().join(nvidia_ml_sim::STATE_FILE),
    ] {
        // SAFETY: this process has one test, and no other thread of it reads the environment now.
        unsafe { std::env::set_var(nvidia_ml_sim::STATE_VARIABLE, &path) };
        assert_eq!(count(), 3);
    }
}
