//! `make test-gpu`: the steps of `gpu_run` on the GPUs of this machine. Ends with 0 when all that was run passed, 1 when something
//! did not, 77 when there is no NVIDIA GPU here and nothing was tried, 2 when it was told what it does not know.

use gpupool_tests::gpu_run::{GpuRun, GpuSource, Outcome, Permissions, Step, record};
use gpupool_tests::pool::{Pool, programs};
use std::process::{Command, ExitCode};

const NO_GPU: u8 = 77;

fn main() -> ExitCode {
    let may = match Permissions::read(&std::env::var("GPUPOOL_TEST_GPU_MAY").unwrap_or_default()) {
        Ok(may) => may,
        Err(words) => {
            eprintln!("test-gpu: {words}");
            return ExitCode::from(2);
        }
    };
    let list = Command::new(programs().join("gcheck"))
        .arg("list")
        .output()
        .expect("gcheck runs");
    if !list.status.success() || list.stdout.is_empty() {
        println!(
            "no NVIDIA GPU here: nothing was tried ({})",
            String::from_utf8_lossy(&list.stderr).trim()
        );
        return ExitCode::from(NO_GPU);
    }
    // Daemons and jobs do not have this shell's variables.
    let bare = Command::new(programs().join("gcheck"))
        .arg("list")
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .expect("gcheck runs");
    if !bare.status.success() {
        eprintln!(
            "test-gpu: the driver's libraries are found by LD_LIBRARY_PATH alone, which daemons do not have. Write their directory into a file in /etc/ld.so.conf.d, run ldconfig, and try again"
        );
        return ExitCode::FAILURE;
    }
    println!(
        "test-gpu: MIG, clocks and resets are not touched{}",
        if may.mps {
            "; MPS may set a GPU's compute mode for the time of a job"
        } else {
            ""
        }
    );
    let Some(pool) = Pool::up(1, "real") else {
        return ExitCode::FAILURE;
    };
    let run = GpuRun::new(&pool, GpuSource::Real, may);
    let steps = run.run(&mut |Step { name, outcome }| match outcome {
        Outcome::Passed(words) => println!("passed   {name}: {words}"),
        Outcome::Failed(words) => println!("FAILED   {name}: {words}"),
        Outcome::NotRun(words) => println!("NOT RUN  {name}: {words}"),
    });
    let date = Command::new("date")
        .arg("+%Y-%m-%d")
        .output()
        .map(|said| String::from_utf8_lossy(&said.stdout).trim().to_owned())
        .unwrap_or_default();
    println!(
        "\nFor docs/gpu-runs.md:\n\n{}",
        record(
            GpuSource::Real,
            &run.types(),
            &run.versions(),
            &date,
            &steps
        )
    );
    let failed = steps
        .iter()
        .any(|step| matches!(step.outcome, Outcome::Failed(_)));
    pool.down();
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}
