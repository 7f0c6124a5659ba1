//! What a job sees and how its steps start, on real processes and under Slurm's names: environments, groups, launchers.

use gmodel::JobState::{Completed, Failed};
use gpupool_tests::pool::Pool;

/// Shell words after which Slurm's names are ours.
fn slurm_names(pool: &Pool) -> String {
    let links = pool.work.join("links");
    let said = pool.run("gadm", &["slurm-names", links.to_str().unwrap()]);
    assert_eq!(said.code, 0, "{said:?}");
    format!("export PATH={}:$PATH; ", links.display())
}

/// A script as sbatch takes it, and what it wrote.
fn run_script(pool: &Pool, names: &str, head: &str, body: &str) -> String {
    pool.write(
        "job.sh",
        format!("#!/bin/bash\n#SBATCH -t 5 -o said {head}\n{body}\n"),
    );
    let said = pool.run_shell(&format!("{names}sbatch --parsable job.sh"));
    assert_eq!(said.code, 0, "{said:?}");
    pool.wait_state(said.id(), Completed);
    pool.file("said")
}

#[test]
fn a_launcher_of_ranks_gets_one_task_a_node_with_all_of_the_job_there() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    let names = slurm_names(&pool);
    // As Open MPI 5 (PRRTE) calls it, for the nodes other than its own.
    let body = "count() { echo 'echo '$1' on $SLURMD_NODENAME sees $(echo $GSUB_GPU_UUIDS | tr , \" \" | wc -w), $SLURM_STEP_NUM_TASKS of it'; }\n\
                srun --ntasks-per-node=1 --kill-on-bad-exit --mpi=none --cpu-bind=none --external-launcher --nodes=1 --nodelist=node2 --ntasks=1 bash -c \"$(count prted)\"\n\
                srun --ntasks-per-node=1 --kill-on-bad-exit --external-launcher=x --nodes=2 --nodelist=node[1-2] --ntasks=2 bash -c \"$(count prted)\" | sort\n\
                srun -n1 bash -c \"$(count task)\"\n\
                srun -n1 --gpus=1 --gpus-per-node=0 bash -c \"$(count own)\"\n\
                srun -n1 --gpus-per-task=2 --gpus-per-node=0 bash -c \"$(count own)\"\n\
                srun --external-launcher --gpus 1 true 2> refused; echo $?";
    let said = run_script(
        &pool,
        &names,
        "-N2 -n4 --gpus-per-task=1 --get-user-env=L",
        body,
    );
    assert_eq!(
        said,
        "prted on node2 sees 2, 1 of it\nprted on node1 sees 2, 2 of it\nprted on node2 sees 2, 2 of it\ntask on node1 sees 1, 1 of it\n\
         own on node1 sees 1, 1 of it\nown on node1 sees 2, 1 of it\n255\n"
    );
}

#[test]
fn srun_starts_what_its_job_has_room_for_and_says_what_it_cannot() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let names = slurm_names(&pool);
    let body = "exec 2>&1\nsrun -n 99 true; echo $?\nsrun -n 99 -O true && echo overcommitted\nSLURM_OVERCOMMIT=1 srun -n 9 true && echo so, too\n\
                srun hostname : date; echo $?\nsrun echo a b : \nsrun -n1 --container=/x true; echo $?\n\
                srun -n1 bash -c 'kill -9 $$'; echo $?\nsrun -n1 bash -c 'kill -SEGV $$'\nsrun -n1 bash -c 'exit 3'";
    let said = run_script(&pool, &names, "-n3", &format!("{body}\nexit 0"));
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("srun: error: More processors requested than permitted: 99 tasks, and the job has 3 CPUs on the 1 node(s)"), "{said}");
    assert_eq!(lines[1..4], ["1", "overcommitted", "so, too"], "{said}");
    assert!(
        lines[4].contains("6 tasks, and the job has 3 CPUs") && lines[4].contains("Ask for 3"),
        "{said}"
    );
    assert_eq!(lines[5], "1", "{said}");
    assert!(
        lines[6].contains("on each side of \":\" a command is needed"),
        "{said}"
    );
    assert_eq!(
        lines[7..9],
        [
            "srun: error: node1: task 0: container: /x/config.json: No such file or directory (os error 2)",
            "125"
        ],
        "{said}"
    );
    let killed = [
        "srun: error: node1: task 0: Killed",
        "137",
        "srun: error: node1: task 0: Segmentation fault",
        "srun: error: node1: task 0: Exited with exit code 3",
    ];
    assert_eq!(lines[9..], killed, "{said}");
    pool.write("box.sh", "#!/bin/sh\n#SBATCH --container-id=x\ntrue\n");
    pool.run_shell(&format!("{names}sbatch box.sh")).fails_with(
        1,
        "has no meaning here: a container is named by its job and step",
    );
}

#[test]
fn a_job_has_a_logins_environment_where_it_brings_none_and_bytes_are_bytes() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let names = slurm_names(&pool);
    // Neither the path nor the pool is known to such a job.
    let config = pool.run_shell("printf %s \"$GPUPOOL_CONFIG\"").out;
    let srun = format!(
        "GPUPOOL_CONFIG={config} {}",
        pool.work.join("links/srun").display()
    );
    let says = format!(
        "echo ${{MINE:-none}} ${{OTHER:-none}} ${{PATH:+path}} ${{SLURM_EXPORT_ENV:-unset}}; {srun} -n1 bash -c 'echo ${{MINE:-none}} ${{OTHER:-none}}'"
    );
    let run = |words: &str| {
        pool.write("export.sh", format!("#!/bin/bash\n{says}\n"));
        let said = pool.run_shell(&format!("{names}export MINE=mine OTHER=other; sbatch --wait --parsable -t 5 -o exported {words} export.sh"));
        assert_eq!(said.code, 0, "{said:?}");
        pool.file("exported")
    };
    assert_eq!(run(""), "mine other path unset\nmine other\n");
    assert_eq!(run("--get-user-env"), "mine other path unset\nmine other\n");
    // Tasks as well, as srun has it: what sbatch was told is their --export, too.
    assert_eq!(run("--export=NONE"), "none none path NONE\nnone none\n");
    assert_eq!(run("--export=NIL"), "none none path NIL\nnone none\n");
    assert_eq!(run("--export=MINE"), "mine none path MINE\nmine none\n");
    assert_eq!(
        run("--export=ALL,MINE=yours"),
        "yours other path ALL,MINE=yours\nyours other\n"
    );
    let log = pool.run("gq", &["--log", "3"]).out;
    assert!(log.contains("variables of a login of "), "{log}");

    let odd = "d=$(printf 'd\\377'); mkdir -p \"$d\"; cd \"$d\"; export ODD=$(printf '\\376\\200')";
    let show = "basename \\\"\\$PWD\\\" | od -An -c; printf %s \\\"\\$ODD\\\" | od -An -tx1; srun -n1 sh -c 'basename \\\"\\$PWD\\\" | od -An -c; printf %s \\\"\\$ODD\\\" | od -An -tx1'";
    let said = pool.run_shell(&format!("{names}{odd}; sbatch --wait --parsable -t 5 -o ../bytes --wrap \"{show}\"; squeue -h -t all -o %Z | grep -c 'd.xff'"));
    assert_eq!(
        (said.code, said.out.lines().last()),
        (0, Some("1")),
        "{said:?}"
    );
    let bytes: Vec<String> = pool
        .file("bytes")
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert!(
        bytes.len() == 4
            && bytes[0] == "d 377 \\n"
            && bytes[1] == "fe 80"
            && bytes[2..] == bytes[..2],
        "{bytes:?}"
    );
}

#[test]
fn a_job_runs_as_the_group_it_was_submitted_as_or_is_refused() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    let group = "nogroup";
    let gid = nix::unistd::Group::from_name(group)
        .unwrap()
        .expect("Debian has it")
        .gid;
    let as_group = format!("setpriv --regid={gid} --clear-groups");
    let said = pool.run_shell(&format!(
        "{as_group} {}/gsub -t 5 -o group --wrap 'id -g'",
        gpupool_tests::pool::programs().display()
    ));
    let job = pool.wait_state(said.id(), Failed);
    assert!(
        job.end_text.contains(&format!(
            "submitted as group {gid}, and user \"root\" is not in that group on this node"
        )),
        "{job:?}"
    );
    let own = pool.run_as_user("gsub", &["-t", "5", "-o", "group", "--wrap", "id -g"]);
    pool.wait_state(own.id(), Completed);
    assert_eq!(pool.file("group"), format!("{}\n", pool.person().gid));
}

#[test]
fn a_job_finds_slurms_names_behind_all_of_its_path() {
    let Some(pool) = Pool::up(1, "none") else {
        return;
    };
    pool.write(
        "job.sh",
        "#!/bin/bash\n#SBATCH -t 5 -o said -n2\n\
        # A real Slurm on this machine comes first.\n\
        ours() { \"$(type -aP \"$1\" | tail -1)\" \"${@:2}\"; }\n\
        ours srun echo by srun\nours squeue -h -j $SLURM_JOB_ID -o %T\n",
    );
    let id = pool.run("gsub", &["job.sh"]).id();
    pool.wait_state(id, Completed);
    let said = pool.file("said");
    assert_eq!(said, "by srun\nby srun\nRUNNING\n");
}
