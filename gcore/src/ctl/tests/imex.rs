//! IMEX channels of runs on several nodes of one NVLink domain.

use crate::ctl::tests::world::check;
use expect_test::expect;

#[test]
fn a_run_across_a_domain_has_a_channel_of_its_own_until_all_is_clean() {
    check(
        "node n1 h100:8 domain=a
         node n2 h100:8 domain=a
         node n3 h100:8 domain=b
         node n4 h100:8
         submit user=alice nodes=2 gpn=4 time=60 nodelist=n[1-2]
         submit user=alice nodes=2 gpn=4 time=60 nodelist=n[1-2]
         submit user=alice nodes=2 gpn=4 time=60 nodelist=n[3-4]
         submit user=alice nodes=1 gpn=4 time=60 nodelist=n3
         plan
         channels
         n1 ready 1-1
         n2 ready 1-1
         n1 running 1-1
         n2 running 1-1
         n1 exits 1-1 0
         n1 clean 1-1 0
         channels
         n2 stopped 1-1
         channels",
        expect![[r#"
            job 1
            job 2
            job 3
            job 4
            1-1 has 2
            2-1 has 3
            1-1 has 2
            2-1 has 3
            2-1 has 3
        "#]],
    );
}
