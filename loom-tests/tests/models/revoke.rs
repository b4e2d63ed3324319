//! Taking messages back, while somebody else flushes.

use std::future::poll_fn;

use loom::thread;
use segchain::queue::{Flushed, QueueOptions, Revocation, SendQueue, Ticket};
use segchain::send::SendErrorKind;
use segchain_loom_tests::{Message, Record, Records, Seen, Wire, block_on};

use crate::queue::{Queue, left_to_others, push, queue};

const FIRST: Message = Message(1, 1);
const SECOND: Message = Message(1, 2);

/// Revokes the first message, sends what is left, and looks whether the wire agrees with the answer.
fn revoke(queue: &Queue, ticket: Ticket<Message>, seen: &Seen, meanwhile: thread::JoinHandle<()>) {
    let expected = match ticket.revoke() {
        Revocation::Waiting(message) => {
            assert_eq!(message, FIRST);
            seen.note("waiting");
            None
        }
        Revocation::Dropped => {
            seen.note("dropped");
            None
        }
        Revocation::Aborted => {
            seen.note("aborted");
            Some(Record::Aborted(FIRST))
        }
        Revocation::Sent => {
            seen.note("sent");
            Some(Record::Whole(FIRST))
        }
        other => panic!("{other:?}"),
    };
    meanwhile.join().expect("another thread");
    let _ = queue.flush().expect("a live stream");
    let expected = expected.into_iter().chain([Record::Whole(SECOND)]).collect::<Vec<_>>();
    assert_eq!(queue.transport().records(), expected);
    assert!(queue.is_empty());
}

/// It waits, or is being framed, or is in a call, or has left: nobody sends it who was told not to.
pub(crate) fn of_a_waiting_message(seen: &Seen) {
    let queue = left_to_others(Wire::new());
    let ticket = push(&queue, FIRST);
    drop(push(&queue, SECOND));
    let flusher = flusher(&queue);
    revoke(&queue, ticket, seen, flusher);
}

/// The wire never blocks, so that only the flusher itself can take the message back: after the call that it is in.
pub(crate) fn of_a_half_sent_message(seen: &Seen) {
    let queue = left_to_others(Wire::new().at_most(2));
    let ticket = push(&queue, FIRST);
    drop(push(&queue, SECOND));
    let flusher = flusher(&queue);
    revoke(&queue, ticket, seen, flusher);
}

/// The protocol cannot abort a message: if it has begun, the stream ends there, and the message behind fails.
pub(crate) fn of_a_half_sent_message_that_cannot_be_aborted(seen: &Seen) {
    let options = QueueOptions::new().pushers_flush(false);
    let queue = SendQueue::with_options(Records::all_or_close(), Wire::new().at_most(2), options);
    let ticket = push(&queue, FIRST);
    let behind = push(&queue, SECOND);
    let flusher = thread::spawn({
        let queue = queue.clone();
        move || drop(queue.flush())
    });
    let revoked = ticket.revoke();
    flusher.join().expect("a flusher");
    let flushed = queue.flush();
    let (records, rest) = queue.transport().records_and_rest();
    if let Revocation::Failed(error) = revoked {
        seen.note("failed");
        assert_eq!(error.kind(), SendErrorKind::Revoked);
        assert_eq!((records, rest as u64), (Vec::new(), error.sent()));
        let error = behind.result().expect("an answer").expect_err("a dead stream");
        assert_eq!((error.kind(), error.sent()), (SendErrorKind::Revoked, 0));
        assert!(flushed.is_err());
    } else {
        let (outcome, expected) = match revoked {
            Revocation::Waiting(FIRST) => ("waiting", vec![SECOND]),
            // All that was left were bytes that hold nothing of the caller's.
            Revocation::Finishing => ("finishing", vec![FIRST, SECOND]),
            Revocation::Sent => ("sent", vec![FIRST, SECOND]),
            other => panic!("{other:?}"),
        };
        seen.note(outcome);
        assert_eq!((records, rest), (expected.into_iter().map(Record::Whole).collect(), 0));
        assert_eq!(behind.result(), Some(Ok(())));
    }
    assert!(queue.is_empty());
}

/// Framed and not begun, in a protocol that accepts a gap: it disappears.
pub(crate) fn of_a_framed_message_where_gaps_are_accepted(seen: &Seen) {
    let options = QueueOptions::new().pushers_flush(false);
    let queue = SendQueue::with_options(Records::with_gaps(), Wire::new().full_after(0), options);
    let ticket = push(&queue, FIRST);
    drop(push(&queue, SECOND));
    let resumer = resumer(&queue);
    revoke(&queue, ticket, seen, resumer);
}

/// Nobody has the message while the transport is full; another thread goes on with it as soon as it is not.
pub(crate) fn of_a_message_that_is_blocked_half_way(seen: &Seen) {
    let queue = queue(Wire::new().full_after(3));
    let ticket = push(&queue, FIRST);
    drop(push(&queue, SECOND));
    let resumer = resumer(&queue);
    revoke(&queue, ticket, seen, resumer);
}

/// A task looks for work while the message is being taken out of the batch: it learns that there is some.
pub(crate) fn beside_a_task_that_flushes(seen: &Seen) {
    let queue = left_to_others(Wire::new().full_after(3));
    let [first, second] = [FIRST, SECOND].map(|message| push(&queue, message));
    assert!(matches!(queue.flush(), Ok(Flushed::Blocked(_))));
    queue.transport().open();
    let task = thread::spawn({
        let queue = queue.clone();
        move || {
            loop {
                let _ = block_on(poll_fn(|context| queue.poll_work(context)));
                if queue.flush().is_err() {
                    return;
                }
            }
        }
    });
    let record = match first.revoke() {
        Revocation::Aborted => {
            seen.note("aborted");
            Record::Aborted(FIRST)
        }
        Revocation::Sent => {
            seen.note("sent");
            Record::Whole(FIRST)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(second.wait(None), Some(Ok(())));
    queue.shut_down();
    task.join().expect("a task");
    assert_eq!(queue.transport().records(), [record, Record::Whole(SECOND)]);
}

fn flusher(queue: &Queue) -> thread::JoinHandle<()> {
    let queue = queue.clone();
    thread::spawn(move || {
        let _ = queue.flush().expect("a live stream");
    })
}

fn resumer(queue: &Queue) -> thread::JoinHandle<()> {
    let queue = queue.clone();
    thread::spawn(move || {
        let _ = queue.flush().expect("a live stream");
        queue.transport().open();
        let _ = queue.flush().expect("a live stream");
    })
}
