//! Ranks of both versions as lines of text.

use super::*;

fn server(ranks: &[u32], size: u32) -> PmiServer {
    PmiServer::new(PmiStep {
        name: "gpupool_17_0".into(),
        size,
        ranks: ranks.to_vec(),
        mapping: "(vector,(0,2,2))".into(),
        is_alone: ranks.len() as u32 == size,
    })
}

/// What a request leads to: `0<answer`, `0!abort`, `0?told`, `+exchange`.
fn says(server: &mut PmiServer, local: usize, text: &str) -> String {
    let version = server.version(local);
    let bytes = match version {
        PmiVersion::One => format!("{text}\n"),
        PmiVersion::Two => format!("{:>6}{text}", text.len()),
    };
    let (request, _) = PmiRequest::read(version, bytes.as_bytes())
        .unwrap()
        .unwrap();
    shown(&server.take(local, &request))
}

fn shown(effects: &[PmiEffect]) -> String {
    let one = |effect: &PmiEffect| match effect {
        PmiEffect::Answer { local, bytes } => {
            format!("{local}<{}", String::from_utf8_lossy(bytes).trim())
        }
        PmiEffect::Exchange(pieces) => format!("+{}", pieces.len()),
        PmiEffect::Tell { local, text } => format!("{local}?{text}"),
        PmiEffect::Abort { local, text } => format!("{local}!{text}"),
    };
    effects.iter().map(one).collect::<Vec<_>>().join("|")
}

fn begun(ranks: &[u32], size: u32) -> PmiServer {
    let mut server = server(ranks, size);
    for local in 0..ranks.len() {
        says(
            &mut server,
            local,
            "cmd=init pmi_version=1 pmi_subversion=1",
        );
    }
    server
}

#[test]
fn ranks_of_one_node_see_what_the_others_put() {
    let mut server = server(&[0, 1], 2);
    assert_eq!(
        says(&mut server, 0, "cmd=init pmi_version=1 pmi_subversion=1"),
        "0<cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
    );
    says(&mut server, 1, "cmd=init pmi_version=1 pmi_subversion=1");
    assert_eq!(
        says(&mut server, 0, "cmd=get_maxes"),
        "0<cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024"
    );
    assert_eq!(
        says(&mut server, 0, "cmd=get_my_kvsname"),
        "0<cmd=my_kvsname rc=0 kvsname=gpupool_17_0"
    );
    assert_eq!(
        says(&mut server, 0, "cmd=get kvsname=x key=PMI_process_mapping"),
        "0<cmd=get_result rc=0 msg=success value=(vector,(0,2,2))"
    );
    assert_eq!(
        says(&mut server, 0, "cmd=put kvsname=x key=P0 value=n1 7"),
        "0<cmd=put_result rc=0 msg=success"
    );
    assert_eq!(says(&mut server, 0, "cmd=barrier_in"), "");
    assert_eq!(
        says(&mut server, 1, "cmd=barrier_in"),
        "0<cmd=barrier_out rc=0|1<cmd=barrier_out rc=0"
    );
    assert_eq!(
        says(&mut server, 1, "cmd=get kvsname=x key=P0"),
        "1<cmd=get_result rc=0 msg=success value=n1 7"
    );
    assert!(says(&mut server, 1, "cmd=get kvsname=x key=P9").contains("rc=-1"));
    assert_eq!(
        says(&mut server, 1, "cmd=finalize"),
        "1<cmd=finalize_ack rc=0"
    );
    assert_eq!(server.left(1), None);
    assert_eq!(
        server.left(0).as_deref(),
        Some("it has left before MPI_Finalize")
    );
}

#[test]
fn a_fence_over_nodes_opens_with_the_news_of_the_others() {
    let (mut first, mut second) = (begun(&[0], 2), begun(&[1], 2));
    says(&mut first, 0, "cmd=put kvsname=x key=P0 value=a=b");
    let request = PmiRequest::read(PmiVersion::One, b"cmd=barrier_in\n");
    let (request, _) = request.unwrap().unwrap();
    let effects = first.take(0, &request);
    let [PmiEffect::Exchange(pieces)] = &effects[..] else {
        panic!("{effects:?}");
    };
    assert!(
        second.exchanged(&pieces[0], true).is_err(),
        "no rank waits there"
    );
    assert_eq!(says(&mut second, 0, "cmd=barrier_in"), "+0");
    assert_eq!(second.exchanged(&pieces[0], false), Ok(Vec::new()));
    assert_eq!(
        shown(&second.exchanged(&[], true).unwrap()),
        "0<cmd=barrier_out rc=0"
    );
    assert!(says(&mut second, 0, "cmd=get kvsname=x key=P0").ends_with("value=a=b"));
    assert!(first.exchanged(b"\0\x09\0\0short", false).is_err());
    assert!(says(&mut first, 0, "cmd=barrier_in").contains("0!it waits at a fence already"));
}

#[test]
fn the_second_version_has_the_same_and_attributes_of_a_node() {
    let mut server = server(&[4, 5], 6);
    assert_eq!(
        says(&mut server, 0, "cmd=init pmi_version=2 pmi_subversion=0"),
        "0<cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0"
    );
    says(&mut server, 1, "cmd=init pmi_version=2 pmi_subversion=0");
    let full = says(&mut server, 1, "cmd=fullinit;pmirank=5;threaded=FALSE;");
    assert!(full.contains("rank=5;size=6;appnum=0;") && full.ends_with("rc=0;"));
    assert!(says(&mut server, 0, "cmd=job-getid;").contains("jobid=gpupool_17_0;rc=0;"));
    assert!(
        says(
            &mut server,
            0,
            "cmd=info-getjobattr;key=PMI_process_mapping;"
        )
        .contains("found=TRUE;value=(vector,(0,2,2));rc=0;")
    );
    assert!(says(&mut server, 0, "cmd=info-getjobattr;key=none;").contains("found=FALSE;"));
    let wait = "cmd=info-getnodeattr;key=shm;wait=TRUE;thrid=7;";
    assert_eq!(says(&mut server, 1, wait), "");
    let put = says(&mut server, 0, "cmd=info-putnodeattr;key=shm;value=/a;");
    assert!(
        put.contains("0<") && put.contains("1<") && put.contains("thrid=7;found=TRUE;value=/a;"),
        "{put}"
    );
    assert!(says(&mut server, 0, "cmd=kvs-put;key=k;value=v;;w;").ends_with("rc=0;"));
    assert!(says(&mut server, 1, "cmd=kvs-get;key=k;").contains("value=v;;w;"));
    assert_eq!(says(&mut server, 0, "cmd=kvs-fence;"), "");
    assert_eq!(says(&mut server, 1, "cmd=kvs-fence;"), "+1");
    assert_eq!(
        shown(&server.exchanged(&[], true).unwrap()),
        "0<28cmd=kvs-fence-response;rc=0;|1<28cmd=kvs-fence-response;rc=0;"
    );
}

#[test]
fn what_is_not_offered_is_refused_and_said() {
    let mut server = begun(&[0], 1);
    let several = "mcmd=spawn\nnprocs=1\ntotspawns=2\nendcmd";
    assert_eq!(says(&mut server, 0, several), "", "one of two");
    let spawn = says(&mut server, 0, several);
    assert!(
        spawn.starts_with("0?MPI_Comm_spawn is not offered: ")
            && spawn.ends_with("0<cmd=spawn_result rc=-1 msg=not_offered"),
        "{spawn}"
    );
    assert!(says(&mut server, 0, "cmd=lookup_name service=a").contains("rc=-1"));
    assert_eq!(
        says(&mut server, 0, "cmd=nosuch"),
        "0!PMI knows no request \"nosuch\""
    );
    assert_eq!(
        says(&mut server, 0, "cmd=abort exitcode=3"),
        "0!it called MPI_Abort, exit code 3"
    );
    assert_eq!(server.left(0), None, "said once");
}

#[test]
fn keys_are_bounded() {
    let mut server = begun(&[0], 1);
    let long = "x".repeat(MAX_VALUE_BYTES + 1);
    let said = says(&mut server, 0, &format!("cmd=put key=a value={long}"));
    assert!(
        said.contains("1024 at most, not 1 and 1025") && said.contains("rc=-1"),
        "{said}"
    );
    // The same key again takes no more room.
    for _ in 0..3 {
        says(&mut server, 0, "cmd=put key=a value=1");
    }
    assert_eq!(server.pair_bytes, 2);
    let full = "x".repeat(MAX_VALUE_BYTES);
    let refused = (0..MAX_KEY_SPACE_BYTES / MAX_VALUE_BYTES + 1).any(|number| {
        says(
            &mut server,
            0,
            &format!("cmd=put key={number} value={full}"),
        )
        .contains("rc=-1")
    });
    assert!(refused && server.pair_bytes <= MAX_KEY_SPACE_BYTES);
}

#[test]
fn no_rank_waits_for_one_that_is_gone() {
    let mut server = server(&[0, 1, 2], 3);
    says(&mut server, 0, "cmd=init pmi_version=1 pmi_subversion=1");
    assert_eq!(server.left(1), None, "it may be no program of MPI");
    assert_eq!(
        says(&mut server, 0, "cmd=barrier_in"),
        "1!it has ended, and others wait for it"
    );
    assert_eq!(
        server.left(2).as_deref(),
        Some("it has ended, and others wait for it")
    );
    assert_eq!(server.left(2), None, "said once");
}
