//! `grun --mpi=pmi2` over two nodes, with ranks that speak PMI-1 in a few lines of bash: what they exchange, and how a step ends when
//! one of them dies or misbehaves. `--mpi=pmix` as far as it goes without a program of MPI. Real MPICH and Open MPI are parties of
//! `make clients`.

use gmodel::JobState::Completed;
use gpupool_tests::pool::{CommandOutput, Pool, programs};
use std::fs;

/// `rank.sh WHAT`: puts 200 keys, meets the other ranks, says what the next rank put, and then does WHAT.
const RANK: &str = r#"
[ $1 != absent ] || [ $PMI_RANK != 2 ] || exit 4
[ $1 != elsewhere ] || [ $PMI_RANK = 0 ] || [ $PMI_RANK = 1 ] || exit 0
say() { printf '%s\n' "$*" >&$PMI_FD; read -r answer <&$PMI_FD; }
say cmd=init pmi_version=1 pmi_subversion=1
printf -v long %01000d 0
for key in {1..200}; do say "cmd=put kvsname=k key=$PMI_RANK.$key value=$long"; done
say "cmd=put kvsname=k key=$PMI_RANK value=from $PMI_RANK on $SLURMD_NODENAME"
say cmd=barrier_in
say "cmd=get kvsname=k key=$(( (PMI_RANK + 1) % PMI_SIZE ))"
echo "$PMI_RANK hears ${answer#*value=}"
say "cmd=get kvsname=k key=PMI_process_mapping"
[ $PMI_RANK != 0 ] || echo "${answer#*value=}"
say cmd=barrier_in
if [ $PMI_RANK = 2 ]; then
    case $1 in
    die) kill -9 $$ ;;
    leave) exit 0 ;;
    abort) printf 'cmd=abort exitcode=3\n' >&$PMI_FD; sleep 1000 ;;
    rubbish) printf 'rubbish\n' >&$PMI_FD; sleep 1000 ;;
    spawn) printf 'mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns=1\nendcmd\n' >&$PMI_FD; read -r answer <&$PMI_FD; echo "$answer" ;;
    esac
fi
[ $1 = well ] || [ $1 = spawn ] || sleep 1000
say cmd=finalize
"#;

fn pool_with_ranks() -> Option<Pool> {
    let pool = Pool::up(2, "none")?;
    fs::write(pool.work.join("rank.sh"), RANK).unwrap();
    Some(pool)
}

fn ranks(pool: &Pool, what: &str) -> CommandOutput {
    let words = ["-N2", "-n4", "-c1", "--mpi=pmi2", "bash", "rank.sh", what];
    pool.run("grun", &words)
}

fn sorted(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

const RING: &str = "(vector,(0,2,2))\n0 hears from 1 on node1\n1 hears from 2 on node2\n2 hears from 3 on node2\n3 hears from 0 on node1";

#[test]
fn ranks_on_two_nodes_learn_what_each_put() {
    let Some(pool) = pool_with_ranks() else {
        return;
    };
    // Over streams, as outside of a job, and over the nodes' own connections.
    let said = ranks(&pool, "well");
    assert_eq!(
        (said.code, sorted(&said.out).as_str()),
        (0, RING),
        "{said:?}"
    );
    let script = format!(
        "export PATH={}:$PATH\ngrun --mpi=pmi2 bash rank.sh well | sort > ring\n\
         SLURM_MPI_TYPE=pmi2 grun -n1 sh -c 'echo $PMI_SIZE; grun --mpi=none -n1 sh -c \"echo none:\\$PMI_SIZE\\$PMI_FD\"' > inner",
        programs().display()
    );
    let id = pool.gsub(&["-N2", "-n4", "--mem", "1G", "-t", "5", "--wrap", &script]);
    pool.wait_state(id, Completed);
    let log = pool.file(&format!("gsub-{id}.out"));
    assert_eq!(sorted(&pool.file("ring")), RING, "{log}");
    assert_eq!(pool.file("inner"), "1\nnone:\n", "{log}");
}

#[test]
fn a_rank_that_dies_ends_its_step_and_is_named() {
    let Some(pool) = pool_with_ranks() else {
        return;
    };
    for (what, why) in [
        ("die", "it has left before MPI_Finalize"),
        ("leave", "it has left before MPI_Finalize"),
        ("abort", "it called MPI_Abort, exit code 3"),
        ("rubbish", "its PMI cannot be read: "),
    ] {
        let said = ranks(&pool, what);
        said.fails_with(143, &format!("step 0: task 2 on node2: {why}"));
        assert!(said.err.contains("ending task 0, 1"), "{said:?}");
    }
    // Ranks that never begin MPI, beside ranks of their node that do, and on a node of their own.
    for what in ["absent", "elsewhere"] {
        let said = ranks(&pool, what);
        said.fails_with(143, "wait for it: ending task 0, 1");
        assert!(said.err.contains(" on node2"), "{said:?}");
    }
}

#[test]
fn spawning_and_unknown_kinds_of_mpi_are_refused() {
    let Some(pool) = pool_with_ranks() else {
        return;
    };
    let said = ranks(&pool, "spawn");
    assert!(
        said.code == 0
            && said.err.contains("task 2: MPI_Comm_spawn is not offered: ")
            && said.out.contains("cmd=spawn_result rc=-1"),
        "{said:?}"
    );
    pool.run("grun", &["--mpi=openmpi", "true"])
        .fails_with(2, "\"openmpi\" is not offered. There is pmi2");
    let list = pool.run("grun", &["--mpi=list"]);
    let known = "MPI plugin types are...\n\tnone\n\tpmi2\n";
    assert_eq!(list.code, 0);
    assert!(
        [known, &format!("{known}\tpmix\n")].contains(&list.out.as_str()),
        "{list:?}"
    );
}

#[test]
fn pmix_names_each_rank_or_the_package_that_is_missing() {
    let Some(pool) = pool_with_ranks() else {
        return;
    };
    let has_library = pool.run("grun", &["--mpi=list"]).out.contains("pmix");
    let name = "echo $PMIX_RANK of ${PMIX_NAMESPACE#gpupool.*.} on $PMIX_HOSTNAME";
    let words = ["-N2", "-n4", "-c1", "--mpi=pmix", "sh", "-c", name];
    let said = pool.run("grun", &words);
    if !has_library {
        said.fails_with(
            143,
            "libpmix.so.2 is missing there. Its package is libpmix2",
        );
        return;
    }
    let named = "0 of 0 on node1\n1 of 0 on node1\n2 of 0 on node2\n3 of 0 on node2";
    assert_eq!(
        (said.code, sorted(&said.out).as_str()),
        (0, named),
        "{said:?}"
    );
    // Its server is the user's own process, and no rank goes on without it.
    let kill = "while sleep 0.1; do for one in /proc/[0-9]*; do [ \"$(tr '\\0' ' ' <$one/cmdline)\" != 'gstepd --pmix ' ] \
                || [ \"$(cat $one/cgroup)\" != \"$(cat /proc/self/cgroup)\" ] || kill -9 ${one#/proc/}; done; done";
    let said = pool.run(
        "grun",
        &["-N2", "-n4", "-c1", "--mpi=pmix", "sh", "-c", kill],
    );
    said.fails_with(
        143,
        "the PMIx server of its node has ended: ending task 0, 1, 2, 3",
    );
}
