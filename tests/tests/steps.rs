//! Steps of jobs by grun: where their tasks run, which GPUs and files each task has, and step shares.

use gmodel::JobState::Completed;
use gpupool_tests::pool::Pool;

#[test]
fn words_of_srun_in_a_job_are_followed_or_said_to_change_nothing() {
    let Some(pool) = Pool::up(2, "h100:4") else {
        return;
    };
    std::fs::write(pool.work.join("input"), "read\n").unwrap();
    std::fs::write(
        pool.work.join("prolog"),
        "#!/bin/sh\necho export FROM=prolog\necho print hello\n",
    )
    .unwrap();
    let script = "chmod +x prolog
        grun -m plane=2 sh -c 'echo $SLURM_PROCID on $SLURM_NODEID' | sort > plane
        SLURM_DISTRIBUTION=cyclic grun sh -c 'echo $SLURM_PROCID on $SLURM_NODEID' | sort > inherited
        grun -n1 -N1-1 -i input cat > piped
        grun -n1 -N1 --task-prolog ./prolog sh -c 'echo $FROM' > prologue
        grun --ntasks-per-gpu=1 -N1 sh -c 'echo $SLURM_NTASKS' | sort -u > by-gpu
        grun -N1 --tres-per-task=cpu=1,gres/gpu:1 -n1 sh -c 'echo $GSUB_GPU_UUIDS' > per-task
        grun -K1 -n2 sh -c '[ $SLURM_PROCID = 0 ] && exit 5; sleep 1000' 2> /dev/null; echo $? > killed
        grun -N2 -n2 --exact -c4 --mem 1G sleep 1000 & while ! gq -h -s | grep -q sleep; do sleep 0.1; done
        grun -n1 --mem 1G -I2 true 2> immediate; echo $? >> immediate; kill %1
        grun -n1 --hint=compute_bound -B 1:1:1 -X -T1 --network x --x11 -M sandbox true 2> notes; echo $? >> notes
        grun -n1 -M elsewhere true 2> elsewhere; echo $? >> elsewhere";
    let path = format!(
        "PATH={}:$PATH\n{script}",
        gpupool_tests::pool::programs().display()
    );
    let id = pool.gsub(&[
        "-N2",
        "--ntasks-per-node=2",
        "-c2",
        "--gpus-per-node=2",
        "--mem",
        "1G",
        "-t",
        "5",
        "--wrap",
        &path,
    ]);
    pool.wait_state(id, Completed);
    let said = pool.file(&format!("gsub-{id}.out"));
    let file = |name: &str| pool.file(name);
    assert_eq!(file("plane"), "0 on 0\n1 on 0\n2 on 1\n3 on 1\n", "{said}");
    assert_eq!(file("inherited"), "0 on 0\n1 on 1\n2 on 0\n3 on 1\n");
    assert_eq!(
        (file("piped"), file("prologue")),
        ("read\n".into(), "hello\nprolog\n".into())
    );
    assert_eq!(file("by-gpu"), "2\n");
    assert_eq!(file("per-task").matches("GPU-").count(), 1);
    assert_eq!(file("killed"), "143\n");
    let immediate = file("immediate");
    assert!(
        immediate.contains("grun: the step would wait, and --immediate forbids it: ")
            && immediate.ends_with("\n1\n"),
        "{immediate}"
    );
    let notes = file("notes");
    let flags: Vec<&str> = notes
        .lines()
        .filter_map(|line| line.strip_prefix("grun: ")?.split(' ').next())
        .collect();
    assert_eq!(
        (flags.join(" ").as_str(), notes.ends_with("\n0\n")),
        ("--hint --extra-node-info --network --x11 --threads", true),
        "{notes}"
    );
    assert!(file("elsewhere").starts_with("grun: --clusters elsewhere: this is cluster"));
}

#[test]
fn a_step_is_where_it_asks_to_be_and_each_task_has_its_gpus_and_its_file() {
    let Some(pool) = Pool::up(2, "h100:4") else {
        return;
    };
    let script = "grun -w node2 -N1 -n1 sh -c 'echo $SLURMD_NODENAME $SLURM_STEP_NODELIST' > chosen\n\
                  grun -x node2 --ntasks-per-node=2 -o 'gpus.%t' sh -c 'echo $GSUB_GPU_UUIDS'\n\
                  grun -w node9 true 2> stranger; grun --deadline now true 2> refused; echo $? >> refused\n\
                  grun -K -n2 -J first-falls sh -c '[ $SLURM_PROCID = 0 ] && exit 5; sleep 1000'; echo $? > killed\n\
                  grun -r1 -n1 sh -c 'echo $SLURM_NNODES of $SLURM_JOB_NUM_NODES' > relative\n\
                  grun -n4 -m cyclic sh -c 'echo $SLURM_PROCID on $SLURM_NODEID' | sort > cyclic\n\
                  grun -t 0:01 -n1 sleep 1000 2> late; echo $? >> late\n\
                  grun -W1 -n2 sh -c '[ $SLURM_PROCID = 0 ] || sleep 1000' 2> left; echo $? >> left\n\
                  grun --export=NONE,FOO=1 -n1 sh -c 'echo $FOO $BAR $SLURM_JOB_ID' > env; echo $((SLURM_JOB_END_TIME - SLURM_JOB_START_TIME)) >> env";
    let path = format!(
        "export BAR=2 PATH={}:$PATH\n{script}",
        gpupool_tests::pool::programs().display()
    );
    let id = pool.gsub(&[
        "-N2",
        "--gpus=8",
        "--gpus-per-node=4",
        "--gpus-per-task=2",
        "--mem",
        "1G",
        "-t",
        "5",
        "--wrap",
        &path,
    ]);
    pool.wait_state(id, Completed);
    assert_eq!(
        pool.file("chosen"),
        "node2 node2\n",
        "{}",
        pool.file(&format!("gsub-{id}.out"))
    );
    let gpus = [pool.file("gpus.0"), pool.file("gpus.1")];
    assert!(
        gpus[0] != gpus[1] && gpus.iter().all(|line| line.matches("GPU-").count() == 2),
        "{gpus:?}"
    );
    assert_eq!(
        pool.file("stranger"),
        "grun: --nodelist: \"node9\" is not a node of the job, or is excluded. It holds node[1-2].\n"
    );
    let refused = pool.file("refused");
    assert!(
        refused.starts_with("grun: --deadline of srun is not offered: ")
            && refused.ends_with("\n2\n"),
        "{refused}"
    );
    assert_eq!(
        (pool.file("killed").as_str(), pool.file("env")),
        ("143\n", format!("1 {id}\n300\n"))
    );
    assert_eq!(
        (pool.file("relative").as_str(), pool.file("cyclic").as_str()),
        ("1 of 2\n", "0 on 0\n1 on 1\n2 on 0\n3 on 1\n")
    );
    let (late, left) = (pool.file("late"), pool.file("left"));
    assert!(
        late.contains("its time is up (--time 0:01): ending task 0\n") && late.ends_with("\n143\n"),
        "{late}"
    );
    assert!(
        left.contains("its first task ended 1 s ago (--wait): ending task 1\n")
            && left.ends_with("\n143\n"),
        "{left}"
    );
    let steps = pool
        .run(
            "gacct",
            &[
                "-j",
                &id.to_string(),
                "--steps",
                "-nP",
                "-o",
                "jobname,nodelist,state",
            ],
        )
        .out;
    let of_gruns: Vec<&str> = steps.lines().skip(2).collect();
    assert_eq!(
        of_gruns,
        [
            "sh|node2|COMPLETED",
            "sh|node1|COMPLETED",
            "first-falls|node[1-2]|FAILED",
            "sh|node2|COMPLETED",
            "sh|node[1-2]|COMPLETED",
            "sleep|node1|FAILED",
            "sh|node[1-2]|FAILED",
            "sh|node1|COMPLETED"
        ],
        "{steps}"
    );
}

#[test]
fn steps_with_parts_of_their_own_run_as_many_at_once_as_there_is_room_for() {
    let Some(pool) = Pool::up(2, "h100:2") else {
        return;
    };
    // Each makes a directory of its GPU's name: it could not while another step is on the same GPU.
    let script = "one() { grun --exact -n1 -c1 --gpus 1 sh -c 'mkdir $GSUB_GPU_UUIDS && sleep 0.3 && rmdir $GSUB_GPU_UUIDS && echo $SLURMD_NODENAME $SLURM_CPUS_PER_TASK >> done'; }\n\
                  for i in 1 2 3 4 5 6 7 8; do one & done; wait\n\
                  hold() { grun --gpus 4 -n2 sh -c '[ $SLURM_PROCID = 1 ] || touch up; sleep 1000' 2> /dev/null & holder=$!; until [ -e up ]; do sleep 0.05; done; rm up; }\n\
                  hold; kill -9 $holder; grun -n1 --gpus-per-node=h100:2 sh -c 'echo $GSUB_GPU_UUIDS' > after-a-killed-one 2> waited\n\
                  grun -n1 --gres=none sh -c 'echo none:$CUDA_VISIBLE_DEVICES' > none; grun --exact -n1 -c 9 true 2> never; echo $? >> never\n\
                  hold; grun -n1 --gpus 1 true 2> told & waiting=$!; until [ -s told ]; do sleep 0.05; done; kill -INT $waiting; wait $waiting; echo $? >> told; kill $holder";
    let path = format!(
        "export PATH={}:$PATH\n{script}",
        gpupool_tests::pool::programs().display()
    );
    let id = pool.gsub(&[
        "-N2",
        "--gpus-per-node=2",
        "--ntasks-per-node=2",
        "--mem",
        "1G",
        "-t",
        "5",
        "--wrap",
        &path,
    ]);
    pool.wait_state(id, Completed);
    let (done, log) = (pool.file("done"), pool.file(&format!("gsub-{id}.out")));
    assert_eq!(
        (
            done.matches("node1 1\n").count() + done.matches("node2 1\n").count(),
            done.contains("node2")
        ),
        (8, true),
        "{done}{log}"
    );
    assert_eq!(
        pool.file("after-a-killed-one").matches("GPU-").count(),
        2,
        "{log}"
    );
    assert!(
        pool.file("waited").starts_with(
            "grun: waiting: 1 task with 2 h100 GPUs a node: other steps have the rest; "
        ),
        "{}",
        pool.file("waited")
    );
    assert_eq!(pool.file("none"), "none:\n");
    assert_eq!(
        pool.file("never"),
        "grun: 1 task with 9 CPUs each: more than the job has there; node1 has 2 CPUs; node2 has 2 CPUs\n1\n"
    );
    assert!(
        pool.file("told").ends_with("\n130\n"),
        "{}",
        pool.file("told")
    );
}

#[test]
fn the_ranks_of_a_step_meet_at_a_port_of_its_own() {
    let Some(pool) = Pool::up(2, "none") else {
        return;
    };
    let script = "echo $MASTER_ADDR $MASTER_PORT > script; cat $GSUB_NODEFILE > nodes; echo $GSUB_NODEFILE > where\n\
                  env | grep -cE '^(RANK|WORLD_SIZE|LOCAL_RANK)=' > ranks\n\
                  grun -N2 -n4 sh -c 'echo $MASTER_ADDR $MASTER_PORT $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $NODE_RANK' | sort > first &\n\
                  grun -N2 -n2 sh -c 'echo $MASTER_ADDR $MASTER_PORT; sleep 0.5' | uniq > second; wait\n\
                  MASTER_PORT=6000 grun -n1 sh -c 'echo $MASTER_PORT' > own\n\
                  grun -N2 -n2 --rendezvous jax sh -c 'echo $JAX_COORDINATOR_ADDRESS$RANK' | uniq > jax";
    let script = format!(
        "export PATH={}:$PATH\n{script}",
        gpupool_tests::pool::programs().display()
    );
    let id = pool.gsub(&["-N2", "-n4", "--mem", "1G", "-t", "5", "--wrap", &script]);
    pool.wait_state(id, Completed);
    let log = pool.file(&format!("gsub-{id}.out"));
    let [of_script, second] = ["script", "second"].map(|name| pool.file(name));
    let first = pool.file("first");
    let of_first = first.split_inclusive(" 0 4 ").next().unwrap_or_default();
    let of_first = of_first.trim_end_matches(" 0 4 ").to_owned() + "\n";
    assert!(
        of_script != second && second != of_first && of_first != of_script,
        "{of_script}{second}{first}{log}"
    );
    assert!(
        [&of_script, &second, &of_first]
            .iter()
            .all(|line| line.starts_with("127.0.0.1 2")),
        "{of_script}{second}{first}"
    );
    let address = of_first.trim_end();
    let want = ["0 4 0 2 0", "1 4 1 2 0", "2 4 0 2 1", "3 4 1 2 1"]
        .map(|ranks| format!("{address} {ranks}\n"))
        .concat();
    assert_eq!(first, want);
    assert_eq!(
        (pool.file("nodes").as_str(), pool.file("ranks").as_str()),
        ("node1\nnode2\n", "0\n"),
        "a script is no rank"
    );
    assert_eq!(pool.file("own"), "6000\n");
    let jax = pool.file("jax");
    assert!(
        jax.starts_with("127.0.0.1:2") && jax.lines().count() == 1,
        "{jax}"
    );
    pool.wait_until("the file of the nodes is gone", || {
        !std::path::Path::new(pool.file("where").trim()).exists()
    });
    pool.run("gsub", &["--rendezvous", "mpi", "--wrap", "true"])
        .fails_with(2, "is not torch (MASTER_ADDR");
}

#[test]
fn a_step_of_several_programs_has_one_count_of_ranks_one_output_and_one_exit_code() {
    let Some(pool) = Pool::up(2, "h100:1") else {
        return;
    };
    let script = "grun -l -n1 sh -c 'echo master $SLURM_PROCID of $SLURM_NTASKS' : -n3 sh -c 'echo worker $SLURM_PROCID; exit $SLURM_PROCID' > out 2> err; echo $? > code\n\
                  grun -N1 -n1 sh -c 'echo a $SLURMD_NODENAME' : -N1 -n2 sh -c 'echo b $SLURMD_NODENAME' | sort > nodes\n\
                  grun true : --gpus 1 true 2> refused; echo $? >> refused; grun --exact true : true 2>> refused; grun -n3 true : -n3 true 2>> refused; true";
    let path = format!(
        "export PATH={}:$PATH\n{script}",
        gpupool_tests::pool::programs().display()
    );
    let id = pool.gsub(&["-N2", "-n4", "-t", "5", "--wrap", &path]);
    pool.wait_state(id, Completed);
    let mut lines: Vec<String> = pool.file("out").lines().map(str::to_owned).collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "0: master 0 of 4",
            "1: worker 1",
            "2: worker 2",
            "3: worker 3"
        ],
        "{}",
        pool.file("err")
    );
    assert_eq!(pool.file("code"), "3\n");
    assert_eq!(pool.file("nodes"), "a node1\nb node2\nb node2\n");
    let refused = pool.file("refused");
    for words in [
        "--gpus: behind \":\" a program has -N, -n",
        "\n2\n",
        "shares its job: leave out --exact",
        "6 tasks",
    ] {
        assert!(refused.contains(words), "{words:?} is not in {refused}");
    }
    // As a stream from outside.
    let busy = pool.gsub(&["-N2", "-n2", "-t", "5", "--wrap", "sleep 600"]);
    pool.wait_state(busy, gmodel::JobState::Running);
    let said = pool.run(
        "grun",
        &[
            "--jobid",
            &busy.to_string(),
            "-n1",
            "echo",
            "one",
            ":",
            "-n1",
            "echo",
            "two",
        ],
    );
    let mut lines: Vec<&str> = said.out.lines().collect();
    lines.sort_unstable();
    assert_eq!((said.code, lines), (0, vec!["one", "two"]), "{said:?}");
    pool.run("gdel", &[&busy.to_string()]);
}
