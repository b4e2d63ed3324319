//! The send queue.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use loom::thread;
use segchain::queue::{Flushed, QueueOptions, Revocation, SendQueue, Ticket, Work};
use segchain::send::{SendError, SendErrorKind};
use segchain::transport::{Interest, Wait};
use segchain_loom_tests::{Flag, Message, Record, Records, Seen, Wire, block_on, poll_with};

pub(crate) type Queue = SendQueue<Message, Records, Wire>;

/// A queue that its pushers flush.
pub(crate) fn queue(wire: Wire) -> Queue {
    SendQueue::new(Records::new(), wire)
}

/// A queue that is flushed by whoever is told to.
pub(crate) fn left_to_others(wire: Wire) -> Queue {
    SendQueue::with_options(Records::new(), wire, QueueOptions::new().pushers_flush(false))
}

pub(crate) fn push(queue: &Queue, message: Message) -> Ticket<Message> {
    queue.push(message).expect("an open queue")
}

fn whole(producer: u8, number: u8) -> Record {
    Record::Whole(Message(producer, number))
}

/// Two messages each: whole, and in their producer's order.
pub(crate) fn two_producers(_: &Seen) {
    let queue = queue(Wire::new());
    let produce = |producer: u8| {
        let queue = queue.clone();
        move || {
            let tickets = [1, 2].map(|number| push(&queue, Message(producer, number)));
            for ticket in tickets {
                assert_eq!(ticket.wait(None), Some(Ok(())));
            }
        }
    };
    let other = thread::spawn(produce(1));
    produce(2)();
    other.join().expect("a producer");
    let records = queue.transport().records();
    assert_eq!(records.len(), 4);
    for producer in [1, 2] {
        let own =
            records.iter().filter(|record| matches!(record, Record::Whole(Message(p, _)) if *p == producer));
        assert!(own.eq(&[whole(producer, 1), whole(producer, 2)]), "out of order: {records:?}");
    }
    assert!(queue.is_empty());
    assert_eq!(queue.live_tickets(), 0);
}

/// One message each, over a wire that takes three bytes a call.
pub(crate) fn three_producers(_: &Seen) {
    let queue = queue(Wire::new().at_most(3));
    let produce = |producer: u8| {
        let queue = queue.clone();
        move || assert_eq!(push(&queue, Message(producer, 1)).wait(None), Some(Ok(())))
    };
    let others = [1, 2].map(|producer| thread::spawn(produce(producer)));
    produce(3)();
    for other in others {
        other.join().expect("a producer");
    }
    let mut records = queue.transport().records();
    records.sort_by_key(|record| format!("{record:?}"));
    assert_eq!(records, [whole(1, 1), whole(2, 1), whole(3, 1)]);
}

/// A message that is pushed while the flusher finds nothing more: one of the two sends it.
pub(crate) fn a_push_races_with_the_flusher_going_idle(_: &Seen) {
    let queue = left_to_others(Wire::new());
    let flusher = thread::spawn({
        let queue = queue.clone();
        move || queue.flush()
    });
    let ticket = push(&queue, Message(1, 1));
    if queue.flush() == Ok(Flushed::Busy) {
        // Then it is the other one's business.
        assert_eq!(ticket.wait(None), Some(Ok(())));
    }
    let _ = flusher.join().expect("a flusher").expect("a live stream");
    assert_eq!(ticket.result(), Some(Ok(())));
    assert_eq!(queue.transport().records(), [whole(1, 1)]);
}

/// Who is blocked goes its way; another thread, which waits for a message behind, finishes both.
pub(crate) fn blocked_half_way_and_resumed_elsewhere(_: &Seen) {
    let queue = queue(Wire::new().full_after(3));
    let first = push(&queue, Message(1, 1));
    assert_eq!(queue.transport().taken(), 3);
    let other = thread::spawn({
        let queue = queue.clone();
        move || {
            let second = push(&queue, Message(2, 1));
            assert_eq!(queue.wait(&second, None), Some(Ok(())));
        }
    });
    let opener = thread::spawn({
        let queue = queue.clone();
        move || queue.transport().open()
    });
    assert_eq!(first.wait(None), Some(Ok(())));
    other.join().expect("a producer");
    opener.join().expect("an opener");
    assert_eq!(queue.transport().records(), [whole(1, 1), whole(2, 1)]);
}

/// The transport panics in the middle of a message: whoever had pushed learns it, and so does whoever comes later.
pub(crate) fn a_flusher_panics_in_mid_message(seen: &Seen) {
    let queue = queue(Wire::new().panic_after(3));
    let produce = |producer: u8| {
        let (queue, seen) = (queue.clone(), seen.clone());
        move || match catch_unwind(AssertUnwindSafe(|| queue.push(Message(producer, 1)))) {
            Ok(Ok(ticket)) => {
                let error = ticket.wait(None).expect("no deadline").expect_err("a dead stream");
                assert_eq!((error.kind(), error.sent()), (SendErrorKind::ShutDown, 0));
                seen.note("failed");
            }
            Ok(Err(refused)) => {
                assert_eq!(refused.into_message(), Message(producer, 1));
                seen.note("refused");
            }
            Err(_) => {}
        }
    };
    let other = thread::spawn(produce(1));
    produce(2)();
    other.join().expect("a producer");
    assert!(queue.death().is_some());
    assert_eq!(queue.transport().records_and_rest(), (Vec::new(), 3));
    assert!(queue.is_empty());
    assert_eq!(queue.live_tickets(), 0);
}

/// The framer refuses one message and panics at the next: both tickets are told, and that behind them.
pub(crate) fn a_framer_refuses_then_panics(_: &Seen) {
    let queue = left_to_others(Wire::new());
    let tickets = [Message::REFUSED, Message::PANIC, 1].map(|number| push(&queue, Message(1, number)));
    let flusher = thread::spawn({
        let queue = queue.clone();
        move || assert!(catch_unwind(AssertUnwindSafe(|| queue.flush())).is_err())
    });
    for (ticket, kind) in
        tickets.iter().zip([SendErrorKind::NotFramed, SendErrorKind::ShutDown, SendErrorKind::ShutDown])
    {
        let error = ticket.wait(None).expect("no deadline").expect_err("a dead stream");
        assert_eq!((error.kind(), error.sent()), (kind, 0));
    }
    flusher.join().expect("a flusher");
    assert!(queue.is_empty());
}

/// The queue goes while a message is half-sent: its ticket is told how much has left, and so is one that is revoked.
pub(crate) fn the_last_handle_is_dropped_in_mid_message(_: &Seen) {
    let queue = queue(Wire::new().full_after(3));
    let tickets = [1, 2].map(|number| push(&queue, Message(1, number)));
    let holder = thread::spawn(move || {
        for (ticket, sent) in tickets.into_iter().zip([3, 0]) {
            let error = ticket.wait(None).expect("no deadline").expect_err("a queue that is gone");
            assert_eq!((error.kind(), error.sent()), (SendErrorKind::ShutDown, sent));
        }
    });
    let other = thread::spawn({
        let queue = queue.clone();
        move || drop(queue)
    });
    drop(queue);
    holder.join().expect("a holder");
    other.join().expect("another handle");
}

/// The thread that waits for the transport on behalf of all panics: another one takes its place.
pub(crate) fn who_polls_panics(_: &Seen) {
    let queue = queue(Wire::new().full_after(3).first_wait_panics());
    let tickets = [1, 2].map(|producer| push(&queue, Message(producer, 1)));
    queue.transport().open();
    let wait = |ticket: Ticket<Message>| {
        let queue = queue.clone();
        move || {
            // One of the two panics here, and leaves; the other one brings both messages on.
            if let Ok(result) = catch_unwind(AssertUnwindSafe(|| queue.wait(&ticket, None))) {
                assert_eq!(result, Some(Ok(())));
            }
        }
    };
    let [first, second] = tickets.map(wait);
    let other = thread::spawn(first);
    second();
    other.join().expect("a waiter");
    assert_eq!(queue.transport().records(), [whole(1, 1), whole(2, 1)]);
}

/// What was pushed before the queue was closed is sent before the thread that runs it ends.
pub(crate) fn close_races_with_a_push(seen: &Seen) {
    let queue = left_to_others(Wire::new());
    let runner = thread::spawn({
        let queue = queue.clone();
        move || assert_eq!(queue.run(), Ok(()))
    });
    let producer = thread::spawn({
        let queue = queue.clone();
        move || queue.push(Message(1, 1))
    });
    queue.close();
    let pushed = producer.join().expect("a producer");
    runner.join().expect("a runner");
    match pushed {
        Ok(ticket) => {
            assert_eq!(ticket.result(), Some(Ok(())), "a message that nobody will send");
            assert_eq!(queue.transport().records(), [whole(1, 1)]);
            seen.note("sent");
        }
        Err(refused) => {
            assert_eq!(refused.error().map(SendError::kind), Some(SendErrorKind::ShutDown));
            assert_eq!(queue.transport().taken(), 0);
            seen.note("refused");
        }
    }
}

/// Somebody else sends the rest of a revoked message, of which no ticket tells: whoever runs the closed queue ends.
pub(crate) fn a_closed_queue_ends_who_runs_it(_: &Seen) {
    let queue = left_to_others(Wire::new().full_after(3));
    let ticket = push(&queue, Message(1, 1));
    assert!(matches!(queue.flush(), Ok(Flushed::Blocked(_))));
    assert!(matches!(ticket.revoke(), Revocation::Aborted));
    queue.transport().open();
    let runner = thread::spawn({
        let queue = queue.clone();
        move || assert_eq!(queue.run(), Ok(()))
    });
    let flusher = thread::spawn({
        let queue = queue.clone();
        move || queue.flush()
    });
    queue.close();
    runner.join().expect("a runner");
    let _ = flusher.join().expect("a flusher").expect("a live stream");
    assert_eq!(queue.transport().records(), [Record::Aborted(Message(1, 1))]);
}

/// The connection is reset: every ticket fails, with the bytes of its own message that had left.
pub(crate) fn poison_races_with_a_push(seen: &Seen) {
    let queue = queue(Wire::new().reset_after(3));
    let produce = |producer: u8| {
        let (queue, seen) = (queue.clone(), seen.clone());
        move || match queue.push(Message(producer, 1)) {
            Ok(ticket) => {
                let error = ticket.wait(None).expect("no deadline").expect_err("a dead stream");
                assert_eq!(error.kind(), SendErrorKind::Io(std::io::ErrorKind::ConnectionReset));
                seen.note("failed");
                error.sent()
            }
            Err(refused) => {
                assert_eq!(refused.into_message(), Message(producer, 1));
                seen.note("refused");
                0
            }
        }
    };
    let other = thread::spawn(produce(1));
    let sent = produce(2)();
    let others = other.join().expect("a producer");
    assert_eq!(sent.max(others), 3, "no ticket knows of the bytes that had left");
    assert_eq!(sent.min(others), 0);
    assert!(queue.is_empty());
    assert_eq!(queue.live_tickets(), 0);
}

/// The queue is shut down while a turn ends that another thread waits for: every ticket is told.
pub(crate) fn shut_down_races_with_a_turn(_: &Seen) {
    let options = QueueOptions::new().turn_bytes(1).pushers_flush(false);
    let queue = Queue::with_options(Records::new(), Wire::new().at_most(3), options);
    let first = push(&queue, Message(1, 1));
    let second = push(&queue, Message(1, 2));
    let flusher = thread::spawn({
        let queue = queue.clone();
        move || queue.flush()
    });
    queue.shut_down();
    for ticket in [first, second] {
        assert!(ticket.wait(None).is_some());
    }
    let _ = flusher.join().expect("a flusher");
    assert!(queue.is_empty());
}

/// Who gets the rest of a turn goes on with it, even if its own message has left meanwhile.
pub(crate) fn a_turn_is_handed_over(_: &Seen) {
    let options = QueueOptions::new().turn_bytes(1).batch_bytes(1).pushers_flush(false);
    let queue = Queue::with_options(Records::new(), Wire::new(), options);
    let first = push(&queue, Message(1, 1));
    let second = push(&queue, Message(1, 2));
    let driver = thread::spawn({
        let queue = queue.clone();
        move || assert_eq!(queue.wait(&first, None), Some(Ok(())))
    });
    let flusher = thread::spawn({
        let queue = queue.clone();
        move || queue.flush()
    });
    assert_eq!(second.wait(None), Some(Ok(())));
    driver.join().expect("a driver");
    let _ = flusher.join().expect("a flusher").expect("a live stream");
    assert_eq!(queue.transport().records(), [whole(1, 1), whole(1, 2)]);
}

/// Turns of one byte: pushers relieve each other, and what they leave is sent.
pub(crate) fn pushers_relieve_each_other(_: &Seen) {
    let options = QueueOptions::new().turn_bytes(1);
    let queue = Queue::with_options(Records::new(), Wire::new().at_most(3), options);
    let produce = |producer: u8| {
        let queue = queue.clone();
        move || assert_eq!(push(&queue, Message(producer, 1)).wait(None), Some(Ok(())))
    };
    let other = thread::spawn(produce(1));
    produce(2)();
    other.join().expect("a producer");
    assert_eq!(queue.transport().records().len(), 2);
}

/// Pushes a message of its own when it is woken, in whatever thread that is.
struct Pushes(Queue, std::sync::Mutex<Option<Ticket<Message>>>);

impl Wake for Pushes {
    fn wake(self: Arc<Self>) {
        let ticket = push(&self.0, Message(3, 1));
        *self.1.lock().expect("no panic") = Some(ticket);
    }
}

/// A flusher whose turn is over wakes a task that pushes: it does not wait to be relieved, for it is the one.
pub(crate) fn a_waker_pushes_from_the_flusher(seen: &Seen) {
    let options = QueueOptions::new().turn_bytes(1).batch_bytes(1);
    let queue = Queue::with_options(Records::new(), Wire::new(), options);
    let other = thread::spawn({
        let queue = queue.clone();
        move || drop(push(&queue, Message(1, 1)))
    });
    let mut ticket = push(&queue, Message(2, 1));
    let pushes = Arc::new(Pushes(queue.clone(), std::sync::Mutex::new(None)));
    let waker = Waker::from(pushes.clone());
    if std::pin::Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker)).is_pending() {
        seen.note("woken");
        drop(push(&queue, Message(2, 2)));
        assert_eq!(ticket.wait(None), Some(Ok(())));
    }
    other.join().expect("a producer");
    drop(waker);
    let own = pushes.1.lock().expect("no panic").take();
    if let Some(ticket) = own {
        assert_eq!(ticket.wait(None), Some(Ok(())));
    }
    assert!(queue.is_empty());
}

/// Who would relieve a flusher does not wait for one whose stream has ended.
pub(crate) fn a_relief_races_with_the_end(_: &Seen) {
    let options = QueueOptions::new().turn_bytes(1);
    let queue = Queue::with_options(Records::new(), Wire::new().at_most(3).reset_after(3), options);
    let produce = |producer: u8| {
        let queue = queue.clone();
        move || match queue.push(Message(producer, 1)) {
            Ok(ticket) => assert!(matches!(ticket.wait(None), Some(Err(_)))),
            Err(refused) => assert_eq!(refused.into_message(), Message(producer, 1)),
        }
    };
    let other = thread::spawn(produce(1));
    produce(2)();
    other.join().expect("a producer");
    assert!(queue.is_empty());
}

/// A queue of one message: the second push waits until the first one has left.
pub(crate) fn a_push_waits_for_room(_: &Seen) {
    let queue = Queue::with_options(Records::new(), Wire::new(), QueueOptions::new().bounds(1 << 20, 1));
    let other = thread::spawn({
        let queue = queue.clone();
        move || assert_eq!(push(&queue, Message(1, 1)).wait(None), Some(Ok(())))
    });
    assert_eq!(push(&queue, Message(2, 1)).wait(None), Some(Ok(())));
    other.join().expect("a producer");
    assert_eq!(queue.transport().records().len(), 2);
    assert!(queue.is_empty());
}

/// A queue of one message: a task that waits for room gives up, maybe just when it gets it; who waits behind it gets it.
pub(crate) fn a_push_is_cancelled_while_it_gets_room(seen: &Seen) {
    let options = QueueOptions::new().bounds(1 << 20, 1).pushers_flush(false);
    let queue = Queue::with_options(Records::new(), Wire::new(), options);
    drop(push(&queue, Message(1, 1)));
    let mut cancelled = queue.push_async(Message(2, 1));
    assert!(poll_with(&mut cancelled, &Flag::new()).is_pending());
    let flusher = thread::spawn({
        let queue = queue.clone();
        move || queue.flush()
    });
    let behind = thread::spawn({
        let queue = queue.clone();
        move || drop(block_on(queue.push_async(Message(3, 1))).expect("an open queue"))
    });
    drop(cancelled);
    seen.note("cancelled");
    behind.join().expect("a task");
    let _ = flusher.join().expect("a flusher").expect("a live stream");
    let _ = queue.flush().expect("a live stream");
    assert_eq!(queue.transport().records(), [whole(1, 1), whole(3, 1)]);
    assert!(queue.is_empty());
}

/// A full queue in front of a full transport is closed: a task that waits for room gets its message back.
pub(crate) fn close_refuses_whoever_waits_for_room(_: &Seen) {
    let options = QueueOptions::new().bounds(1 << 20, 1);
    let queue = Queue::with_options(Records::new(), Wire::new().full_after(3), options);
    let ticket = push(&queue, Message(1, 1));
    let task = thread::spawn({
        let queue = queue.clone();
        move || {
            let refused = block_on(queue.push_async(Message(2, 1))).expect_err("a closed queue");
            assert_eq!(refused.into_message(), Message(2, 1));
        }
    });
    queue.close();
    task.join().expect("a task");
    assert_eq!(ticket.result(), None);
    queue.transport().open();
    assert_eq!(queue.wait(&ticket, None), Some(Ok(())));
}

/// A control message goes between two bulk ones, never inside one.
pub(crate) fn control_against_bulk(seen: &Seen) {
    let options = QueueOptions::new().batch_bytes(4).pushers_flush(false);
    let queue = Queue::with_options(Records::new(), Wire::new().at_most(3), options);
    let _bulk = [1, 2].map(|number| push(&queue, Message(1, number)));
    let flusher = thread::spawn({
        let queue = queue.clone();
        move || queue.flush()
    });
    let control = queue.push_control(Message(9, 1)).expect("an open queue");
    let _ = flusher.join().expect("a flusher").expect("a live stream");
    if control.result().is_none() {
        // It came when the flusher had gone.
        assert_eq!(queue.flush(), Ok(Flushed::Idle));
    }
    assert_eq!(control.result(), Some(Ok(())));
    let mut records = queue.transport().records();
    let place = records.iter().position(|record| *record == whole(9, 1)).expect("the control message");
    seen.note(["before", "between", "after"][place]);
    records.remove(place);
    assert_eq!(records, [whole(1, 1), whole(1, 2)]);
}

/// A pusher finds the transport full: the task that flushes learns it, and goes on when it is writable.
pub(crate) fn a_task_is_told_of_a_block(_: &Seen) {
    let queue = queue(Wire::new().full_after(3));
    let task = thread::spawn({
        let queue = queue.clone();
        move || {
            loop {
                if let Work::Wait(_) = block_on(poll_fn(|context| queue.poll_work(context))) {
                    assert!(queue.transport().wait(Interest::Writable, None).expect("a wire"));
                }
                match queue.flush() {
                    Ok(_) => {}
                    Err(death) => break assert_eq!(death.kind(), SendErrorKind::ShutDown),
                }
            }
        }
    });
    let opener = thread::spawn({
        let queue = queue.clone();
        move || queue.transport().open()
    });
    let ticket = push(&queue, Message(1, 1));
    assert_eq!(ticket.wait(None), Some(Ok(())));
    queue.shut_down();
    task.join().expect("a task");
    opener.join().expect("an opener");
}

/// The wire is ready while the flusher comes back from a call that found it full, and that is told only once.
pub(crate) fn readiness_races_with_a_block(seen: &Seen) {
    let queue = left_to_others(Wire::new().full_after(3));
    let ticket = push(&queue, Message(1, 1));
    let flusher = thread::spawn({
        let queue = queue.clone();
        move || queue.flush()
    });
    queue.transport().open();
    if queue.flush() == Ok(Flushed::Busy) {
        seen.note("busy");
    }
    let _ = flusher.join().expect("a flusher").expect("a live stream");
    assert_eq!(ticket.result(), Some(Ok(())));
}

/// A ticket is polled by one task, then by another: the second one is woken.
pub(crate) fn a_tickets_waker_is_replaced_while_parked(seen: &Seen) {
    let queue = left_to_others(Wire::new());
    let mut ticket = push(&queue, Message(1, 1));
    let flusher = thread::spawn({
        let queue = queue.clone();
        move || queue.flush()
    });
    let tasks: [Arc<Flag>; 2] = [Flag::new(), Flag::new()];
    if poll_with(&mut ticket, &tasks[0]).is_pending() && poll_with(&mut ticket, &tasks[1]).is_pending() {
        seen.note("replaced");
        tasks[1].wait();
    }
    assert_eq!(poll_with(&mut ticket, &tasks[1]), Poll::Ready(Ok(())));
    let _ = flusher.join().expect("a flusher").expect("a live stream");
}
