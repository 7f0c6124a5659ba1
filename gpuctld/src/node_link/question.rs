//! Questions to a node over its connection, beside its orders.

use super::end::LinkEnd;
use crate::http::StreamSource;
use gcore::ctl::bounded_use;
use gmodel::RunId;
use gmodel::run::RunUse;
use gmodel::supervise::StepOrder;
use gwire::frame::FrameError;
use std::collections::BTreeMap;
use std::sync::Mutex;
use tokio::sync::oneshot;

/// The end of a run's log, and of an error.
const MAX_LOG_BYTES: usize = 1 << 20;
const MAX_ERROR_BYTES: usize = 4096;

pub(super) struct Question {
    pub(super) run: RunId,
    pub(super) about: QuestionKind,
}

/// What is asked of a node beside its orders, with the channel of the answer.
pub(super) enum QuestionKind {
    Log(AnswerSender<String>),
    Use(AnswerSender<RunUse>),
    /// Answered as soon as the order is sent.
    Step(Box<StepOrder>, AnswerSender<()>),
    Stream {
        stream: String,
        source: StreamSource,
        answer: AnswerSender<()>,
    },
    SignalStep {
        step: u32,
        signal: Option<u8>,
        answer: AnswerSender<()>,
    },
}

pub(super) type AnswerSender<T> = oneshot::Sender<Result<T, String>>;

/// Questions that the node has not answered yet, by their number.
#[derive(Default)]
pub(super) struct OpenQuestions(Mutex<BTreeMap<u64, QuestionKind>>);

impl OpenQuestions {
    pub(super) fn add(&self, number: u64, about: QuestionKind) {
        let mut open = self.0.lock().expect("no panic while held");
        open.retain(|_, about| !about.is_given_up());
        open.insert(number, about);
    }

    /// Answers a question about a log; an error where it has a text.
    pub(super) fn answer_log(&self, number: u64, text: String, error: String) {
        if let Some(QuestionKind::Log(answer)) = self.remove(number) {
            let _ = answer.send(if error.is_empty() {
                Ok(newest(text, MAX_LOG_BYTES))
            } else {
                Err(newest(error, MAX_ERROR_BYTES))
            });
        }
    }

    /// Answers a question about use; an error where it has a text.
    pub(super) fn answer_use(&self, number: u64, used: RunUse, error: String) {
        if let Some(QuestionKind::Use(answer)) = self.remove(number) {
            let _ = answer.send(if error.is_empty() {
                Ok(bounded_use(used))
            } else {
                Err(error)
            });
        }
    }

    /// Answers a question about a signal; an error where it has a text.
    pub(super) fn answer_signal(&self, number: u64, error: String) {
        if let Some(QuestionKind::SignalStep { answer, .. }) = self.remove(number) {
            let _ = answer.send(match error.is_empty() {
                true => Ok(()),
                false => Err(newest(error, MAX_ERROR_BYTES)),
            });
        }
    }

    fn remove(&self, number: u64) -> Option<QuestionKind> {
        self.0.lock().expect("no panic while held").remove(&number)
    }
}

impl QuestionKind {
    /// The handler that asked is gone.
    pub(super) fn is_given_up(&self) -> bool {
        match self {
            Self::Log(answer) => answer.is_closed(),
            Self::Use(answer) => answer.is_closed(),
            Self::Step(_, answer)
            | Self::Stream { answer, .. }
            | Self::SignalStep { answer, .. } => answer.is_closed(),
        }
    }
}

/// The end of a text.
fn newest(mut text: String, most_bytes: usize) -> String {
    let cut = text.len().saturating_sub(most_bytes);
    text.drain(..text.ceil_char_boundary(cut));
    text
}

/// Answers with the fate of a frame. A frame that is too large was not begun: that is an error of the request, and no end of the
/// connection.
pub(super) fn answer_sent(
    sent: Result<(), LinkEnd>,
    answer: AnswerSender<()>,
) -> Result<(), LinkEnd> {
    let (told, goes_on) = match sent {
        Err(LinkEnd::Frame(FrameError::TooLarge {
            announced,
            max_bytes,
        })) => {
            let text = format!(
                "its order takes {announced} bytes on its way to the node, and {max_bytes} are the most. Pass less of the environment with --export, and data in files"
            );
            (Err(text), Ok(()))
        }
        Err(end) => (Err(format!("the node's connection ended: {end}")), Err(end)),
        Ok(()) => (Ok(()), Ok(())),
    };
    let _ = answer.send(told); // the handler may be gone
    goes_on
}

#[cfg(test)]
mod tests {
    use super::*;
    use gwire::frame::{self, FrameReader};
    use gwire::node_protocol::{MAX_FRAME_BYTES, ToNode};

    #[tokio::test]
    async fn an_order_that_no_frame_holds_is_the_requests_error_and_the_connection_goes_on() {
        let (mut near, far) = tokio::io::duplex(64 << 20);
        let step = |bytes: usize| ToNode::Step {
            run: RunId::new(gmodel::JobId(1), 1),
            step: StepOrder {
                argv: vec!["x".repeat(bytes)],
                ..StepOrder::default()
            },
        };
        for (bytes, fits) in [(MAX_FRAME_BYTES as usize, false), (100, true)] {
            let (sender, answer) = oneshot::channel();
            let sent = frame::write(&mut near, &step(bytes))
                .await
                .map_err(LinkEnd::from);
            answer_sent(sent, sender).expect("the connection goes on");
            let told = answer.await.unwrap();
            assert_eq!(told.is_ok(), fits, "{told:?}");
            assert!(fits || told.unwrap_err().contains("and 16777216 are the most"));
        }
        drop(near);
        let mut frames = FrameReader::new(far);
        assert_eq!(
            frames.next::<ToNode>().await.unwrap(),
            Some(step(100)),
            "nothing of the first was written"
        );
        assert_eq!(frames.next::<ToNode>().await.unwrap(), None);
    }
}
