//! Outputs that nodes hand over: of their own runs, once, whole, within the bound.

use crate::controller::{Site, job};
use crate::node::Machine;
use gmodel::launch_order::LaunchOrder;
use gwire::api::STREAM_UPGRADE;
use gwire::node_protocol::{ALPN_HTTP, ToNode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Asks to hand over `bytes`, sends `sent`, and hears what the controller says.
async fn upload(machine: &Machine, file: &str, bytes: usize, sent: &[u8]) -> String {
    let mut stream = machine.dial(ALPN_HTTP).await.unwrap();
    let request = format!(
        "POST /v1/outputs/{file}?bytes={bytes} HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: {STREAM_UPGRADE}\r\ncontent-length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut said = vec![0; 12];
    stream.read_exact(&mut said).await.unwrap();
    if !said.ends_with(b"101") {
        return String::from_utf8(said).unwrap()[9..].to_owned();
    }
    while !said.ends_with(b"\r\n\r\n") {
        said.push(stream.read_u8().await.unwrap());
    }
    stream.write_all(sent).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut said = String::new();
    // The controller may close without a word.
    let _ = stream.read_to_string(&mut said).await;
    said
}

#[tokio::test]
async fn an_output_is_taken_once_whole_and_from_the_first_node_of_its_run() {
    let site = Site::new();
    let controller = site.start();
    let machine = Machine::join(&site, &controller, "compute", "n1").await;
    let other = Machine::join(&site, &controller, "compute", "n2").await;
    let (mut link, _) = machine.connect("boot", Vec::new()).await;
    controller.client().submit(&job("one"));
    let order: LaunchOrder = loop {
        if let ToNode::Orders { mut orders, .. } = link.hear().await
            && let Some(order) = orders.pop()
        {
            break order;
        }
    };
    let run = order.run.unwrap();
    let max_bytes = usize::try_from(order.output.unwrap().max_bytes).unwrap();
    let (out, err) = (format!("{run}.out"), format!("{run}.err"));
    let kept = site.database().with_file_name("outputs");
    let kept = kept.join(run.job.to_string());
    assert_eq!(upload(&other, &out, 4, b"fake").await, "403");
    assert_eq!(upload(&machine, "999-1.out", 4, b"fake").await, "403");
    for name in ["..%2F..%2Fgpupool.db", "1-1.log", "+1-1.out"] {
        assert_eq!(upload(&machine, name, 4, b"fake").await, "400", "{name}");
    }
    assert_eq!(upload(&machine, &out, max_bytes + 1, b"").await, "413");
    assert_eq!(
        upload(&machine, &out, 10, b"half").await,
        "",
        "it broke off"
    );
    assert!(!kept.join(&out).exists());
    assert_eq!(upload(&machine, &out, 5, b"whole and more").await, "kept\n");
    assert_eq!(std::fs::read(kept.join(&out)).unwrap(), b"whole");
    assert_eq!(
        upload(&machine, &out, 5, b"other").await,
        "200",
        "it is there"
    );
    assert_eq!(std::fs::read(kept.join(&out)).unwrap(), b"whole");
    assert_eq!(upload(&machine, &err, 0, b"").await, "kept\n");
    assert_eq!(std::fs::read(kept.join(&err)).unwrap(), b"");
}
