//! Jobs of unlike parts: one submission, one start on nodes of several kinds, one end.

use gmodel::JobState::{Cancelled, Completed, Failed, Pending, Running};
use gpupool_tests::pool::{CommandOutput, Pool, is_alive, kill_process, programs, say};
use std::os::unix::process::CommandExt;

#[test]
fn the_script_of_the_first_component_starts_steps_in_the_others_and_ends_all() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    let out = pool.work.join("out.txt");
    let script = pool.work.join("parts.sh");
    let text = format!(
        "#!/bin/sh
#SBATCH --gpus-per-node 2 -J whole -o {}
#SBATCH hetjob
#SBATCH --gpus-per-node 2 -n 1 -J part
echo $SLURM_HET_SIZE $SLURM_JOB_ID $SLURM_JOB_ID_HET_GROUP_0 $SLURM_JOB_ID_HET_GROUP_1
echo here $SLURM_JOB_NODELIST $SLURM_JOB_NODELIST_HET_GROUP_0
echo there $SLURM_JOB_NODELIST_HET_GROUP_1
{grun} --het-group 1 sh -c 'echo step in $SLURM_JOB_ID on $SLURMD_NODENAME with $SLURM_GPUS_ON_NODE'
{grun} --het-group 2 true
exit 3
",
        out.display(),
        grun = programs().join("grun").display()
    );
    std::fs::write(&script, text).unwrap();
    let id = pool.gsub(&[script.to_str().unwrap()]);
    pool.wait_state(id, Failed);
    let second = pool.wait_state(id + 1, Failed);
    assert_eq!(
        (second.shown_id, second.name),
        (format!("{id}+1"), "part".into())
    );
    let said = std::fs::read_to_string(&out).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], format!("2 {id} {id} {}", id + 1), "{said}");
    let (here, there) = (&lines[1]["here ".len()..], &lines[2]["there ".len()..]);
    assert_eq!(here.split(' ').next(), here.split(' ').nth(1), "{said}");
    assert_eq!(
        lines[3],
        format!("step in {} on {there} with 2", id + 1),
        "{said}"
    );
    assert!(
        said.contains("this job has 2 components, numbered from 0"),
        "{said}"
    );

    let listed = pool.run(
        "gacct",
        &[
            "-j",
            &id.to_string(),
            "-n",
            "-X",
            "-o",
            "JobID,State,ExitCode",
        ],
    );
    for offset in 0..2 {
        let line = format!("{id}+{offset}");
        assert!(listed.out.contains(&line), "{listed:?}");
    }
    let one = pool.run(
        "gacct",
        &["-j", &format!("{id}+1"), "-n", "-X", "-o", "JobID"],
    );
    assert_eq!(one.out.trim(), format!("{id}+1"));
}

#[test]
fn no_component_starts_before_all_can_and_a_cancel_of_one_is_of_all() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    let busy = pool.gsub(&["--gpus", "2", "--wrap", "sleep 600"]);
    pool.wait_state(busy, Running);
    let words = ["--gpus", "2", ":", "--gpus", "2", "--wrap", "sleep 600"];
    let id = pool.gsub(&words);
    pool.wait_state(id, Pending);
    let first = pool.find_job(&format!("{id}+0")).expect("it waits");
    assert_eq!((first.id, first.shown_id), (id, format!("{id}+0")));
    let why = pool.run("gq", &["--why", &id.to_string()]);
    assert!(why.out.contains("component 1:"), "{why:?}");
    pool.run("gdel", &[&busy.to_string()]);
    pool.wait_state(id, Running);
    pool.wait_state(id + 1, Running);
    let listed = pool.run("gq", &["-h", "-o", "%i %T"]);
    let mut lines: Vec<&str> = listed.out.lines().collect();
    lines.retain(|line| line.ends_with("RUNNING"));
    lines.sort_unstable();
    assert_eq!(
        lines,
        [format!("{id}+0 RUNNING"), format!("{id}+1 RUNNING")],
        "{listed:?}"
    );
    // A component's node that dies of kill -9 keeps its run; the cancel reaches it all the same.
    pool.run("gdel", &[&format!("{id}+1")]);
    pool.wait_state(id, Cancelled);
    pool.wait_state(id + 1, Cancelled);

    let quick = pool.gsub(&["--gpus", "1", ":", "-n", "2", "--", "true"]);
    pool.wait_state(quick, Completed);
    pool.wait_state(quick + 1, Completed);
    pool.run("gsub", &["--gpus", "1", ":", "--gpus", "9", "--", "true"])
        .fails_with(1, "component 1:");
    pool.run(
        "gsub",
        &["--gpus", "1", ":", "--array", "0-3", "--", "true"],
    )
    .fails_with(1, "component 1: --array does not go with");
}

#[test]
fn a_shell_beside_an_allocation_of_unlike_parts_starts_steps_in_each() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    let dry = pool.run(
        "gsub",
        &["--dry-run", "--gpus", "2", ":", "--gpus", "2", "--", "true"],
    );
    assert_eq!(
        (dry.code, dry.out.trim_end()),
        (
            0,
            "would start at once, using 2 CPUs on nodes node[1-2] in partition main"
        ),
        "{dry:?}"
    );
    let programs = programs();
    let grun = programs.join("grun");
    let script = format!(
        "echo $SLURM_HET_SIZE; for n in 0 1; do {grun} --het-group $n sh -c 'echo $SLURM_JOB_ID on $SLURMD_NODENAME'; done; {grun} --het-group 1,1 true; exit 3",
        grun = grun.display()
    );
    let mut salloc = pool.command("gslurm");
    salloc.arg0("salloc");
    salloc.args(["-w", "node1", "--gpus", "2", ":", "-w", "node2"]);
    salloc.args(["--gpus", "1", "sh", "-c", &script]);
    let said = say(&mut salloc);
    let id = *pool.ids().first().expect("an allocation");
    assert_eq!(
        said.out,
        format!("2\n{id} on node1\n{} on node2\n", id + 1),
        "{said:?}"
    );
    said.fails_with(3, "a step is once in each component");
    assert_eq!(pool.wait_state(id, Failed).exit_code.code, 3);
    pool.wait_state(id + 1, Failed);

    let words = ["--gpus", "2", ":", "--gpus", "1", "--wrap", "sleep 600"];
    let id = pool.gsub(&words);
    pool.wait_state(id + 1, Running);
    let shown = slurm(&pool, "scontrol", &["show", "job", &format!("{id}+1")]);
    let (first, set) = (
        format!("JobId={} HetJobId={id} HetJobOffset=1 JobName=wrap", id + 1),
        format!("HetJobIdSet={id}-{}", id + 1),
    );
    assert!(
        shown.out.contains(&first) && shown.out.contains(&set),
        "{shown:?}"
    );
    let columns = "JobArrayID:8,HetJobID:8,HetJobOffset:8,HetJobIDSet:8";
    let listed = slurm(&pool, "squeue", &["-h", "-O", columns]);
    let mut lines: Vec<&str> = listed.out.lines().map(str::trim_end).collect();
    lines.sort_unstable();
    let line = |at: u64| format!("{:<8}{id:<8}{at:<8}{id}-{}", format!("{id}+{at}"), id + 1);
    assert_eq!(lines, [line(0), line(1)], "{listed:?}");
    let raw = slurm(
        &pool,
        "sacct",
        &[
            "-n",
            "-X",
            "-P",
            "-o",
            "JobID,JobIDRaw",
            "-j",
            &id.to_string(),
        ],
    );
    assert_eq!(
        raw.out,
        format!("{id}+0|{id}\n{id}+1|{}\n", id + 1),
        "{raw:?}"
    );
    pool.run("gdel", &[&id.to_string()]);
    pool.wait_state(id + 1, Cancelled);
    let too_much = pool.run(
        "gsub",
        &[
            "--gpus-per-node",
            "2",
            "-N2",
            ":",
            "--gpus",
            "1",
            "--",
            "true",
        ],
    );
    too_much.fails_with(
        1,
        "component 1: 1 GPU and 1 CPU on one node has no room beside the other components",
    );
}

fn slurm(pool: &Pool, name: &str, words: &[&str]) -> CommandOutput {
    say(pool.command("gslurm").arg0(name).args(words))
}

/// Holds every start on node2 until the file `open` is there.
fn hold_node2(pool: &Pool) {
    let file = pool.dir.join("gpuctld/partitions.d/main.toml");
    let good = std::fs::read_to_string(&file).unwrap();
    let prolog = pool.work.join("prolog");
    let text = format!(
        "#!/bin/sh\n[ $SLURMD_NODENAME = node1 ] || while [ ! -e {} ]; do sleep 0.05; done\n",
        pool.work.join("open").display()
    );
    std::fs::write(&prolog, text).unwrap();
    std::fs::set_permissions(&prolog, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(&file, format!("{good}prolog = \"{}\"\n", prolog.display())).unwrap();
    assert_eq!(pool.run("gadm", &["reload"]).code, 0);
}

/// A job with a component on each of two nodes, whose script waits for the file `end` behind this.
fn on_both(pool: &Pool, script: &str) -> u64 {
    let programs = programs();
    let script = format!(
        "export PATH={}:$PATH\necho $GSUB_ATTEMPT >> started\n{script}\nwhile [ ! -e end ]; do sleep 0.05; done",
        programs.display()
    );
    let second = [
        "-w", "node1", "--gpus", "2", ":", "-w", "node2", "--gpus", "2",
    ];
    let words: Vec<&str> = second.into_iter().chain(["--wrap", &script]).collect();
    pool.gsub(&words)
}

#[test]
fn daemons_that_are_killed_before_all_components_are_ready_cost_no_start() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    hold_node2(&pool);
    for killed in ["gpuctld", "node2", "node1"] {
        let id = on_both(&pool, "");
        pool.wait_until("its prolog waits on node2", || {
            pool.node("node1").gpus_alloc == 2.0 && pool.node("node2").gpus_alloc == 2.0
        });
        pool.kill(killed);
        pool.start(killed);
        assert!(
            !pool.work.join("started").exists(),
            "{killed}: a component went alone"
        );
        pool.write("open", "");
        assert_eq!(pool.wait_file("started"), "1\n", "{killed}");
        pool.wait_state(id, Running);
        pool.write("end", "");
        for component in [id, id + 1] {
            let job = pool.wait_state(component, Completed);
            assert_eq!(job.attempts, 1, "{killed}: {job:?}");
        }
        pool.wait_idle("node1");
        pool.wait_idle("node2");
        for file in ["open", "end", "started"] {
            std::fs::remove_file(pool.work.join(file)).unwrap();
        }
    }
    pool.check();
}

#[test]
fn a_step_in_another_component_outlives_its_daemon_and_ends_with_its_client() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    let id = on_both(
        &pool,
        "grun --het-group 1 sh -c 'echo $$ > there; while [ ! -e done ]; do sleep 0.05; done; echo $SLURMD_NODENAME' > said
         grun --het-group 1 sh -c 'echo $$ > lost; sleep 1000' & echo $! > client",
    );
    pool.wait_file("there");
    for daemon in ["node2", "gpuctld", "node1"] {
        pool.kill(daemon);
        pool.start(daemon);
    }
    pool.write("done", "");
    let (client, task) = (pool.wait_file("client"), pool.wait_file("lost"));
    assert_eq!(pool.file("said"), "node2\n");
    let (client, task): (i32, i32) = (client.trim().parse().unwrap(), task.trim().parse().unwrap());
    kill_process(client);
    pool.wait_until("the task ended with its client", || !is_alive(task));
    assert_eq!(pool.job(id).state, Running);
    pool.write("end", "");
    pool.wait_state(id, Completed);
    pool.wait_state(id + 1, Completed);
    pool.check();
}

#[test]
fn a_supervisor_that_is_killed_in_one_component_ends_all_and_all_start_again() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    let id = on_both(
        &pool,
        "grun --het-group 1 sh -c 'echo $$ > task.$GSUB_ATTEMPT; sleep 0.1'",
    );
    let text = pool.wait_file("started");
    assert_eq!(text, "1\n");
    pool.wait_file("task.1");
    kill_process(pool.supervisor("node2", &format!("{}-1", id + 1)));
    pool.wait_until("both started again", || pool.file("started") == "1\n2\n");
    pool.write("end", "");
    for component in [id, id + 1] {
        let job = pool.wait_state_through(component, Completed);
        assert_eq!(job.attempts, 2, "{job:?}");
    }
    pool.wait_idle("node1");
    pool.wait_idle("node2");
    pool.check();
}

const RANK: &str = "echo $SLURM_PROCID of $SLURM_NTASKS, node $SLURM_NODEID, $RANK of $WORLD_SIZE: $0 in $SLURM_JOB_ID on $SLURMD_NODENAME";

#[test]
fn a_step_over_components_has_ranks_in_a_row_and_a_record_in_each() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    // Outside of a job the components are asked for with it.
    let a = ["-n2", "-w", "node1", "sh", "-c", RANK, "a"];
    let b = ["--gpus", "2", "-w", "node2", "sh", "-c", RANK, "b"];
    let said = slurm(&pool, "srun", &[&a[..], &[":"], &b].concat());
    let mut lines: Vec<&str> = said.out.lines().collect();
    lines.sort_unstable();
    let id = *pool.ids().first().expect("a job");
    let wanted = [
        format!("0 of 3, node 0, 0 of 3: a in {id} on node1"),
        format!("1 of 3, node 0, 1 of 3: a in {id} on node1"),
        format!("2 of 3, node 1, 2 of 3: b in {} on node2", id + 1),
    ];
    assert_eq!(lines, wanted, "{said:?}");
    for component in [id, id + 1] {
        pool.wait_state(component, Completed);
    }
    slurm(&pool, "srun", &["-n1", "false", ":", "-n1", "true"]).fails_with(1, "task 0: Exited");
    slurm(&pool, "srun", &["-n1", "true", ":", "-n1"]).fails_with(255, "on each side of");
    let late = ["true", ":", "--mpi=pmi2", "true"];
    slurm(&pool, "srun", &late).fails_with(255, "--mpi is the whole step's");
    slurm(&pool, "srun", &["--het-group", "0,1", "true"])
        .fails_with(255, "names components of a job");

    // Inside of one each part goes to the next component, with files of its own.
    let id = on_both(
        &pool,
        "grun -o a-%t sh -c 'echo $SLURM_JOB_ID' : -o b-%t sh -c 'echo $SLURM_JOB_ID; cat' < /dev/null
         grun --het-group 1,0 -l sh -c 'echo $SLURM_JOB_ID' | sort > both
         grun --exact -n1 sh -c 'touch held; while [ ! -e free ]; do sleep 0.05; done' &
         while [ ! -e held ]; do sleep 0.05; done
         grun --immediate --exact true : --exact touch none 2> waits
         touch free; wait
         grun --exact true : --exact true; echo $? > after
         grun sh -c 'echo $$ > first; sleep 1000' : sh -c 'echo $$ > second; sleep 1000' & echo $! > client",
    );
    let tasks = ["client", "first", "second"].map(|name| pool.wait_file(name));
    let (first, second) = (format!("{id}\n"), format!("{}\n", id + 1));
    assert_eq!([pool.file("a-0"), pool.file("b-1")], [first, second]);
    assert_eq!(pool.file("both"), format!("0: {}\n1: {id}\n", id + 1));
    assert!(pool.file("waits").contains("the step would wait"));
    assert!(
        !pool.work.join("none").exists(),
        "no part of it was started"
    );
    assert_eq!(pool.file("after"), "0\n");
    let [client, tasks @ ..] = tasks.map(|pid| pid.trim().parse::<i32>().unwrap());
    kill_process(client);
    pool.wait_until("both tasks ended with their client", || {
        !tasks.iter().any(|pid| is_alive(*pid))
    });
    pool.write("end", "");
    let shown = |offset: u64| {
        pool.wait_state(id + offset, Completed);
        let component = format!("{id}+{offset}");
        let words = ["-j", &component, "-n", "-P", "-o", "JobID,NTasks,State"];
        slurm(&pool, "sacct", &words).out
    };
    let (here, there) = (shown(0), shown(1));
    for line in [
        format!("{id}+0.0|1|COMPLETED"),
        format!("{id}+0.3|1|COMPLETED"),
    ] {
        assert!(here.contains(&line), "{line}: {here}");
    }
    for line in [
        format!("{id}+1.0|1|COMPLETED"),
        format!("{id}+1.2|1|COMPLETED"),
    ] {
        assert!(there.contains(&line), "{line}: {there}");
    }
    pool.check();
}
