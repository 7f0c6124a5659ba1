//! `sinfo` against canned answers of the API.

#[path = "../../gq/tests/canned/nodes.rs"]
mod canned;

use canned::answer;
use expect_test::expect;
use gcli::fake_controller::FakeController;

const GSLURM: &str = env!("CARGO_BIN_EXE_gslurm");

#[test]
fn partitions_are_listed_without_being_asked_for() {
    let controller = FakeController::start(answer);
    let text = |words: &[&str]| controller.run_as("sinfo", GSLURM, words).text();
    expect![[r#"
        PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST
        main*        up 1-00:00:00      1   down n10
        main*        up 1-00:00:00      1  drain n3
        main*        up 1-00:00:00      1    mix node2
        main*        up 1-00:00:00      2   idle n[1,4]
        long       down   infinite      1  drain n3
    "#]]
    .assert_eq(&text(&[]));
    expect![[r#"
        NODELIST   NODES PARTITION STATE 
        n1             1     main* idle  
        node2          1     main* mix   
        n3             1     main* drain 
        n3             1      long drain 
        n10            1     main* down  
        n4             1     main* idle  
    "#]]
    .assert_eq(&text(&["-N"]));
    expect![[r#"
        PARTITION AVAIL  TIMELIMIT   NODES(A/I/O/T) NODELIST
        main*        up 1-00:00:00          1/2/2/5 n[1,3-4,10],node2
        long       down   infinite          0/0/1/1 n3
    "#]]
    .assert_eq(&text(&["-s"]));
    expect![[r#"
        main* 5
        long 1
    "#]]
    .assert_eq(&text(&["-h", "-o", "%P %D"]));
    // A drained node without jobs counts as idle, unlike in gnodes.
    expect![[r#"
        PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST
        main*        up 1-00:00:00      1  drain n3
        main*        up 1-00:00:00      2   idle n[1,4]
        long       down   infinite      1  drain n3
    "#]]
    .assert_eq(&text(&["-t", "idle"]));
    assert!(
        controller.run_as("sinfo", GSLURM, &["--health"]).exit == Some(1),
        "no canned answer for it: it is gnodes'"
    );
}
