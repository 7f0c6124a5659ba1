//! What a job made of its GPUs: sampled by gpud, kept with the run's end, and shown by every way to ask for it.

use gmodel::JobState::Completed;
use gpupool_tests::pool::Pool;
use gwire::api::{ReportRow, RunRow};
use serde::Deserialize;

#[derive(Deserialize)]
struct Runs {
    runs: Vec<RunRow>,
}

#[derive(Deserialize)]
struct Report {
    rows: Vec<ReportRow>,
}

fn run_of(pool: &Pool, job: u64) -> RunRow {
    pool.client()
        .get::<Runs>(&format!("/v1/runs?job={job}"))
        .unwrap()
        .runs
        .remove(0)
}

fn report(pool: &Pool) -> ReportRow {
    let said = pool.run("gacct", &["report", "--by", "user", "--json"]);
    serde_json::from_str::<Report>(&said.out)
        .unwrap_or_else(|error| panic!("{error}: {said:?}"))
        .rows
        .remove(0)
}

fn set(pool: &Pool, gpu: &str, settings: &[&str]) {
    let said = pool.sandbox(&[&["fault", "node1", gpu, "set"], settings].concat());
    assert_eq!(said.code, 0, "{said:?}");
}

#[test]
fn a_job_that_uses_one_of_its_two_gpus_is_seen_to_do_so_and_a_crash_of_the_controller_forgets_nothing()
 {
    let Some(pool) = Pool::up(1, "h100:2") else {
        return;
    };
    for (gpu, settings) in [
        ("gpu0", &["util=80", "power=500", "mem=60000"][..]),
        ("gpu1", &["util=0", "power=100", "mem=0"]),
    ] {
        set(&pool, gpu, settings);
    }
    // Use is a mean since the sample before: a daemon that begins now has seen no other.
    pool.reconfigure("node1", "gpu_watch_secs = 1\n");
    pool.wait_idle("node1");
    let job = pool.gsub(&[
        "--gpus",
        "2",
        "--wrap",
        "until [ -e stop ]; do sleep 0.1; done",
    ]);
    // Some seconds of both GPUs, by the samples' own clock.
    let begun = std::time::Instant::now();
    pool.wait_until("it has run for six seconds", || {
        begun.elapsed().as_secs() >= 6
    });
    set(&pool, "gpu0", &["mem=0"]); // what is left on a GPU would keep its run from being clean
    pool.write("stop", "");
    pool.wait_state(job, Completed);

    let run = run_of(&pool, job);
    let used = run.gpu_use.expect("its GPUs were sampled");
    let busy = used.busy_percent.expect("the simulator tells use");
    assert!(
        (30.0..=45.0).contains(&busy),
        "one of two GPUs at 80 %: {used:?}"
    );
    assert!(
        used.sampled_secs >= 6 && used.idle_secs >= 2 && used.idle_secs < used.sampled_secs,
        "{used:?}"
    );
    assert!(
        used.memory_peak_bytes >= 60_000 << 20 && used.energy_joules > 0,
        "{used:?}"
    );
    assert!(used.power_peak_watts >= 499.0, "{used:?}");

    let full = pool.run("gacct", &[&job.to_string()]);
    let efficiency = pool.run("gacct", &["efficiency", &job.to_string()]);
    for said in [&full, &efficiency] {
        assert!(
            said.out
                .contains(&format!("GPU Efficiency: {busy:.2}% of ")),
            "{said:?}"
        );
        assert!(said.out.contains("GPU Idle: 00:00:"), "{said:?}");
    }
    let line = pool.run(
        "gacct",
        &[
            "-n",
            "-P",
            "-j",
            &job.to_string(),
            "-o",
            "jobid,gpueff,consumedenergyraw",
        ],
    );
    assert_eq!(
        line.out.trim(),
        format!("{job}|{busy:.1}%|{}", used.energy_joules)
    );

    let before = report(&pool);
    assert_eq!(
        (
            before.jobs,
            before.gpu_told_hours > 0.0,
            before.gpu_idle_hours > 0.0
        ),
        (1, true, true),
        "{before:?}"
    );
    assert!(
        (before.gpu_percent.unwrap() - busy).abs() < 0.2,
        "{before:?}"
    );
    pool.kill("gpuctld");
    pool.start("gpuctld");
    let after = report(&pool);
    assert_eq!(
        serde_json::to_string(&before).unwrap(),
        serde_json::to_string(&after).unwrap()
    );
    let table = pool.run("gacct", &["efficiency", "--by", "user"]);
    assert!(
        table.out.contains("GPU_EFF") && table.out.contains('%'),
        "{table:?}"
    );
    pool.down();
}

#[test]
fn steps_are_listed_while_they_run_and_kept_when_they_are_over() {
    let Some(pool) = Pool::up(2, "h100:1") else {
        return;
    };
    let programs = gpupool_tests::pool::programs();
    let script = "PATH=PROGRAMS:$PATH; grun -N1 -n1 --exact --gpus 1 --mem 64M true; grun -n2 sh -c 'exit $((SLURM_PROCID * 7))'; grun sleep 1000 & until [ -e stop ]; do sleep 0.1; done; kill $!; wait";
    let script = script.replace("PROGRAMS", &programs.display().to_string());
    let job = pool.gsub(&["-N2", "--gpus-per-node", "1", "--wrap", &script]);
    let listed = || pool.run("gq", &["-s", "-h", "-o", "%i %j %N"]).out;
    pool.wait_until("the third step runs", || listed().contains("sleep"));
    assert_eq!(
        listed(),
        format!("{job}.batch batch node1\n{job}.2 sleep node[1-2]\n")
    );
    assert_eq!(
        pool.run("gq", &["-s", &format!("{job}.2"), "-h", "-o", "%i"])
            .out,
        format!("{job}.2\n")
    );
    // A restart knows them still.
    pool.kill("gpuctld");
    pool.start("gpuctld");
    assert_eq!(
        listed(),
        format!("{job}.batch batch node1\n{job}.2 sleep node[1-2]\n")
    );
    pool.write("stop", "");
    pool.wait_state(job, Completed);
    assert_eq!(listed(), "");
    let columns = "jobid,jobname,state,exitcode";
    let kept = pool
        .run(
            "gacct",
            &["-n", "-P", "--steps", "-j", &job.to_string(), "-o", columns],
        )
        .out;
    let lines: Vec<&str> = kept.lines().collect();
    assert_eq!(
        lines[..4],
        [
            format!("{job}|wrap|COMPLETED|0:0"),
            format!("{job}.batch|batch|COMPLETED|0:0"),
            format!("{job}.0|true|COMPLETED|0:0"),
            format!("{job}.1|sh|FAILED|7:0"),
        ]
    );
    assert!(
        lines[4].starts_with(&format!("{job}.2|sleep|FAILED|")),
        "{kept}"
    );
    let held = pool
        .run(
            "gacct",
            &[
                "-n",
                "-P",
                "--steps",
                "-j",
                &job.to_string(),
                "-o",
                "alloccpus,alloctres",
            ],
        )
        .out;
    assert_eq!(
        held.lines().skip(1).take(3).collect::<Vec<_>>(),
        ["2|", "1|cpu=1,gres/gpu=1,mem=64M,node=1", "2|"],
        "{held}"
    );
    assert_eq!(
        pool.run(
            "gacct",
            &["-n", "-P", "-j", &format!("{job}.1"), "-o", columns]
        )
        .out,
        format!("{}\n", lines[3])
    );
    assert_eq!(
        pool.run(
            "gacct",
            &[
                "-n",
                "-P",
                "-X",
                "-j",
                &job.to_string(),
                "-o",
                "jobid,derivedexitcode"
            ]
        )
        .out
        .lines()
        .count(),
        1
    );
}

/// Rows of `gacct` for a job and its steps, split at `|`.
fn steps_of(pool: &Pool, job: u64, columns: &str) -> Vec<Vec<String>> {
    let said = pool
        .run(
            "gacct",
            &[
                "-n",
                "-P",
                "--steps",
                "--units=K",
                "-j",
                &job.to_string(),
                "-o",
                columns,
            ],
        )
        .out;
    said.lines()
        .map(|line| line.split('|').map(str::to_owned).collect())
        .collect()
}

#[test]
fn a_step_is_measured_apart_from_its_job_and_held_to_its_memory() {
    let Some(pool) = Pool::up(2, "none") else {
        return;
    };
    let programs = gpupool_tests::pool::programs();
    let script = "PATH=PROGRAMS:$PATH\n\
                  fill() { head -c $1 /dev/zero | tail -n 1 | wc -c; }\n\
                  export burn='i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; head -c 60000000 /dev/zero | tail -n 1 | wc -c'\n\
                  grun -N2 -n2 sh -c \"$burn\" > sizes\n\
                  grun -N1 -n1 --mem 40M sh -c 'exec tail -n 1 /dev/zero' 2> said; echo $? >> said\n\
                  grun -N1 -n1 --mem 40M sh -c '(head -c 300000000 /dev/zero | tail -n 1 | wc -c); exit 0' 2> child; echo $? >> child\n\
                  grun -N1 -n1 sleep 1000 & until [ -e up ]; do sleep 0.1; done; kill -9 $!; wait\n\
                  touch goes-on";
    let job = pool.gsub(&[
        "-N2",
        "--mem",
        "500M",
        "--wrap",
        &script.replace("PROGRAMS", &programs.display().to_string()),
    ]);
    pool.wait_until("the last step runs", || {
        pool.run("gq", &["-s", "-h", "-o", "%i"])
            .out
            .contains(&format!("{job}.3\n"))
    });
    let live = |more: &[&str]| {
        pool.run(
            "gacct",
            &[
                &[
                    "--live",
                    "-n",
                    "-P",
                    "--units=K",
                    "-o",
                    "jobid,ntasks,maxrss,totalcpu",
                ],
                more,
            ]
            .concat(),
        )
    };
    let rows = || -> Vec<Vec<String>> {
        let said = live(&["-j", &job.to_string()]).out;
        said.lines()
            .map(|line| line.split('|').map(str::to_owned).collect())
            .collect()
    };
    pool.wait_until("both are measured", || {
        rows().iter().filter(|row| !row[2].is_empty()).count() == 2
    });
    let seen = rows();
    assert_eq!(
        (seen.len(), &seen[0][0], &seen[1][0]),
        (2, &format!("{job}.batch"), &format!("{job}.3")),
        "{seen:?}"
    );
    assert!(seen[0][3] != "00:00.000" && seen[1][1] == "1", "{seen:?}");
    assert_eq!(live(&["-j", &format!("{job}.3")]).out.lines().count(), 1);
    let none = live(&["-j", &format!("{job}.0")]);
    assert!(
        none.code == 1 && none.err.contains("none of it runs now"),
        "{none:?}"
    );
    pool.write("up", "");
    let ended = pool.wait_state(job, Completed);
    assert_eq!(pool.file("goes-on"), "", "{ended:?}");

    let rows = steps_of(
        &pool,
        job,
        "jobid,state,exitcode,ntasks,totalcpu,avecpu,maxrss",
    );
    let states: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {} {}", row[0], row[1], row[2]))
        .collect();
    let (job_row, of) = (format!("{job} COMPLETED 0:0"), |step: &str, rest: &str| {
        format!("{job}.{step} {rest}")
    });
    assert_eq!(
        states,
        [
            job_row,
            of("batch", "COMPLETED 0:0"),
            of("0", "COMPLETED 0:0"),
            of("1", "OUT_OF_MEMORY 0:9"),
            of("2", "OUT_OF_MEMORY 0:9"),
            of("3", "CANCELLED 0:0")
        ],
        "{rows:?}"
    );
    let said = pool.file("said");
    assert!(
        said.contains("grun: error: node1: task 0: Out Of Memory\n") && said.ends_with("\n137\n"),
        "{said}"
    );
    let why = "grun: error: node1: step 1: Out Of Memory: the kernel killed 1 process of it, at a peak of ";
    assert!(
        said.contains(why)
            && said.contains(": the step may have 40 MiB on this node. Ask for more with --mem\n"),
        "{said}"
    );
    let child = pool.file("child");
    assert!(
        child.contains("step 2: Out Of Memory") && child.ends_with("\n137\n"),
        "its main process ended well: {child}"
    );
    let log = pool.run("gq", &["--log", &job.to_string()]).out;
    assert!(
        log.contains("step 1: ended, exit 0:9, out of memory")
            && log.contains("step 1: Out Of Memory: the kernel killed 1 process"),
        "{log}"
    );

    // 00:01.234 and 61234K
    let secs = |text: &str| -> f64 {
        text.split(':')
            .fold(0.0, |sum, part| sum * 60.0 + part.parse::<f64>().unwrap())
    };
    let mib = |text: &str| text.strip_suffix('K').unwrap().parse::<f64>().unwrap() / 1024.0;
    let cpu: Vec<f64> = rows.iter().map(|row| secs(&row[4])).collect();
    assert!(cpu[2] > 0.02 && cpu[0] >= cpu[2] + cpu[3], "{rows:?}");
    assert!(
        (cpu[0] - cpu[1..].iter().sum::<f64>()).abs() < 0.01,
        "they add up: {rows:?}"
    );
    assert!(
        (50.0..400.0).contains(&mib(&rows[2][6])) && (20.0..41.0).contains(&mib(&rows[3][6])),
        "{rows:?}"
    );
    assert_eq!(
        (
            rows[0][5].as_str(),
            rows[2][5].as_str(),
            rows[5][6].as_str()
        ),
        ("", "00:00:00", ""),
        "{rows:?}"
    );
    pool.wait_idle("node1");
    pool.wait_idle("node2");
    pool.check();
}
