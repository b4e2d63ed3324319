//! The window, and the requests in it.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use loom::thread;
use segchain::window::{Failure, InFlight, Window};
use segchain_loom_tests::{Flag, Seen, block_on, poll_with};

/// Three requests for a window of two bytes.
pub(crate) fn never_over_budget(seen: &Seen) {
    let window = Window::new(2, 2);
    // What is really held; std's, for it orders nothing.
    let held = Arc::new(AtomicU64::new(0));
    let hold = |bytes: u64| {
        let (window, held, seen) = (window.clone(), held.clone(), seen.clone());
        move |waits: bool| {
            let permit = if waits { Some(window.acquire(bytes)) } else { window.try_acquire(bytes) };
            let Some(permit) = permit else { return };
            assert_eq!(permit.bytes(), bytes);
            assert!(held.fetch_add(bytes, Ordering::Relaxed) + bytes <= 2, "over budget");
            assert!(window.bytes_in_flight() <= 2, "over budget, and it knows");
            if window.requests_in_flight() == 2 {
                seen.note("together");
            }
            held.fetch_sub(bytes, Ordering::Relaxed);
        }
    };
    let large = hold(2);
    let small = hold(1);
    let others = [thread::spawn(move || large(true)), thread::spawn(move || small(false))];
    hold(1)(true);
    for other in others {
        other.join().expect("a request");
    }
    assert_eq!((window.bytes_in_flight(), window.requests_in_flight()), (0, 0));
}

/// A large request waits in front of a small one that would fit, and gives up: the small one is served.
pub(crate) fn a_small_waiter_behind_a_cancelled_large_one(_: &Seen) {
    let window = Window::new(2, 9);
    let held = window.acquire(1);
    let mut large = window.acquire_async(2);
    assert!(poll_with(&mut large, &Flag::new()).is_pending());
    let small = thread::spawn({
        let window = window.clone();
        move || drop(window.acquire(1))
    });
    let task = thread::spawn({
        let window = window.clone();
        move || drop(block_on(window.acquire_async(1)))
    });
    drop(large);
    small.join().expect("a small request");
    task.join().expect("a task");
    drop(held);
    assert_eq!(window.bytes_in_flight(), 0);
}

/// A large request gives up just when its permit is given: it is given back, and who waits behind gets it.
pub(crate) fn a_permit_given_while_its_waiter_leaves(_: &Seen) {
    let window = Window::new(2, 9);
    let held = window.acquire(1);
    let mut large = window.acquire_async(2);
    assert!(poll_with(&mut large, &Flag::new()).is_pending());
    let small = thread::spawn({
        let window = window.clone();
        move || drop(window.acquire(1))
    });
    let other = thread::spawn(move || drop(held));
    drop(large);
    small.join().expect("a small request");
    other.join().expect("a request");
    assert_eq!((window.bytes_in_flight(), window.requests_in_flight()), (0, 0));
}

/// A waiting request is polled by one task, then by another: the second one is woken.
pub(crate) fn a_waiters_waker_is_replaced_while_parked(seen: &Seen) {
    let window = Window::new(1, 1);
    let held = window.acquire(1);
    let mut waiter = window.acquire_async(1);
    let tasks = [Flag::new(), Flag::new()];
    let other = thread::spawn(move || drop(held));
    let mut polled = poll_with(&mut waiter, &tasks[0]);
    if polled.is_pending() {
        polled = poll_with(&mut waiter, &tasks[1]);
    }
    if polled.is_pending() {
        seen.note("replaced");
        tasks[1].wait();
        polled = poll_with(&mut waiter, &tasks[1]);
    }
    assert!(matches!(polled, Poll::Ready(_)));
    other.join().expect("a request");
}

/// One request succeeds, one fails, one is abandoned: all are waited for, each is told of once.
pub(crate) fn waiting_for_all_with_an_error(_: &Seen) {
    let requests = InFlight::<u8, u8, &str>::new(Window::new(8, 3));
    let [first, second, third] = [1, 2, 3].map(|value| requests.start(1, value));
    let others = [
        thread::spawn(move || first.complete(Ok(10))),
        thread::spawn(move || {
            second.complete(Err("refused"));
            drop(third);
        }),
    ];
    let partial = requests.wait_all().expect_err("an error");
    assert_eq!(partial.failed, [(2, Failure::Failed("refused")), (3, Failure::Abandoned)]);
    assert_eq!(partial.done, [(1, 10)]);
    assert_eq!((requests.in_flight(), requests.window().requests_in_flight()), (0, 0));
    for other in others {
        other.join().expect("a receiver");
    }
}

/// The same for a task, one at a time.
pub(crate) fn waiting_for_one_as_a_task(_: &Seen) {
    let requests = InFlight::<u8, u8, &str>::new(Window::new(8, 2));
    let [first, second] = [1, 2].map(|value| requests.start(1, value));
    let others =
        [thread::spawn(move || first.complete(Ok(10))), thread::spawn(move || second.complete(Ok(20)))];
    let mut done = Vec::new();
    while let Some((value, reply)) = block_on(poll_fn(|context| requests.poll_one(context))) {
        done.push((value, reply));
    }
    done.sort_by_key(|(value, _)| *value);
    assert_eq!(done, [(1, Ok(10)), (2, Ok(20))]);
    for other in others {
        other.join().expect("a receiver");
    }
}
