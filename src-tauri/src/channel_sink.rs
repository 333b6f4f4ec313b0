//! Sends messages of the application over a channel to the page. The application has already numbered and batched
//! the events.

use tauri::ipc::{Channel, IpcResponse};

/// Receives the messages of a command, in order.
pub(crate) type Sink<M> = Box<dyn FnMut(M) + Send>;

/// Returns a sink that sends to a channel.
pub(crate) fn channel_sink<M: IpcResponse + Send + 'static>(channel: Channel<M>) -> Sink<M> {
    Box::new(move |message| {
        // Fails if the page is gone. Its window then stops the answer.
        let _ = channel.send(message);
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use hunch::api::StreamMessage;
    use hunch::event::GenerationEvent;
    use tauri::ipc::InvokeResponseBody;

    use super::*;

    fn message(seq: u32) -> StreamMessage {
        StreamMessage {
            generation_id: 7,
            seq,
            events: vec![GenerationEvent::Prefill { done: seq, total: 9 }],
        }
    }

    #[test]
    fn sends_every_message_in_order_as_json() {
        let (sender, receiver) = mpsc::channel();
        let mut sink = channel_sink(Channel::new(move |body| {
            sender.send(body).expect("the test listens");
            Ok(())
        }));
        (0..3).for_each(|seq| sink(message(seq)));
        drop(sink);
        let received: Vec<StreamMessage> = receiver
            .iter()
            .map(|body| match body {
                InvokeResponseBody::Json(json) => serde_json::from_str(&json).expect("the wire type"),
                InvokeResponseBody::Raw(_) => panic!("messages are JSON"),
            })
            .collect();
        assert_eq!(received, (0..3).map(message).collect::<Vec<_>>());
    }

    #[test]
    fn ignores_messages_of_a_closed_page() {
        let (sender, receiver) = mpsc::channel();
        let mut sink = channel_sink(Channel::new(move |_| {
            sender.send(()).expect("the test listens");
            Err(std::io::Error::other("the page is gone").into())
        }));
        sink(message(0));
        sink(message(1));
        assert_eq!(receiver.try_iter().count(), 2);
    }
}
