//! Where the two connections of a stream meet: the client's waits here until the job's node has opened its own.

use crate::hex::hex;
use crate::http::error::ApiError;
use gmodel::NodeId;
use hyper::upgrade::OnUpgrade;
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Mutex;
use tokio::sync::oneshot;

/// The node's connection, or why it opens none.
pub(crate) type NodeEnd = Result<OnUpgrade, String>;

/// Clients that wait for a node, by the name of their stream.
#[derive(Default)]
pub(crate) struct StreamExchange(Mutex<BTreeMap<String, WaitingClient>>);

struct WaitingClient {
    node: NodeId,
    answer: oneshot::Sender<NodeEnd>,
}

impl StreamExchange {
    /// A new stream that only this node may open: its name, which cannot be guessed, and the node's end when it comes.
    ///
    /// # Errors
    /// No random numbers.
    pub(crate) fn wait(
        &self,
        node: NodeId,
    ) -> std::io::Result<(String, oneshot::Receiver<NodeEnd>)> {
        let mut bytes = [0; 16];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let (stream, (answer, end)) = (hex(&bytes), oneshot::channel());
        let mut waiting = self.0.lock().expect("no panic while held");
        waiting.retain(|_, client| !client.answer.is_closed());
        waiting.insert(stream.clone(), WaitingClient { node, answer });
        Ok((stream, end))
    }

    /// The node's end of a stream, once.
    ///
    /// # Errors
    /// No client waits for it from this node.
    pub(crate) fn meet(&self, stream: &str, node: NodeId, end: NodeEnd) -> Result<(), ApiError> {
        let mut waiting = self.0.lock().expect("no panic while held");
        let is_its = waiting
            .get(stream)
            .is_some_and(|client| client.node == node);
        let client = is_its.then(|| waiting.remove(stream)).flatten();
        drop(waiting);
        client
            .and_then(|client| client.answer.send(end).ok())
            .ok_or_else(|| ApiError::denied("no client waits for such a stream from this node"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_opened_once_by_the_node_that_was_asked_and_only_while_its_client_waits() {
        let exchange = StreamExchange::default();
        let (stream, mut end) = exchange.wait(NodeId(1)).unwrap();
        let says = |text: &str| -> NodeEnd { Err(text.to_owned()) };
        assert!(exchange.meet(&stream, NodeId(2), says("stolen")).is_err());
        assert!(
            exchange
                .meet("guessed", NodeId(1), says("guessed"))
                .is_err()
        );
        assert!(end.try_recv().is_err(), "nothing came");
        exchange.meet(&stream, NodeId(1), says("first")).unwrap();
        assert!(exchange.meet(&stream, NodeId(1), says("again")).is_err());
        assert_eq!(end.try_recv().unwrap().err().as_deref(), Some("first"));
        let (stream, end) = exchange.wait(NodeId(1)).unwrap();
        drop(end);
        assert!(exchange.meet(&stream, NodeId(1), says("late")).is_err());
    }
}
