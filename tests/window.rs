//! Requests in flight: first come first served, nothing lost by a cancel, every request waited for.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use segchain::window::{Acquire, Failure, InFlight, Permit, Request, Window};
use segchain_testkit::naive::{Random, seed};

/// Nothing here takes so long.
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(30);

/// Runs a test in a thread of its own, and fails it if it hangs.
fn within<R: Send + 'static>(test: impl FnOnce() -> R + Send + 'static) -> R {
    let (done, result) = channel();
    let thread = thread::spawn(move || {
        let _ = done.send(test());
    });
    match result.recv_timeout(LONG) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => panic!("it hangs"),
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("it sends before it ends"),
        },
    }
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Woken {
    fn new() -> (Arc<Self>, Waker) {
        let woken = Arc::new(Self::default());
        (woken.clone(), woken.into())
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn poll(acquire: &mut Acquire, waker: &Waker) -> Option<Permit> {
    match Pin::new(acquire).poll(&mut Context::from_waker(waker)) {
        Poll::Ready(permit) => Some(permit),
        Poll::Pending => None,
    }
}

fn in_flight(window: &Window) -> (u64, usize) {
    (window.bytes_in_flight(), window.requests_in_flight())
}

// ---- window

#[test]
fn the_limit_follows_from_the_size_of_an_object() {
    const MIB: u64 = 1 << 20;
    let table = [
        // object, times, requests
        (0, 1, 256),
        (1, 1, 256),
        (4096, 1, 256),
        (MIB / 4, 1, 256),
        (MIB / 4 + 1, 1, 255),
        (MIB, 1, 64),
        (4 * MIB, 1, 16),
        (5 * MIB, 1, 12),
        (33 * MIB, 1, 1),
        (64 * MIB, 1, 1),
        (65 * MIB, 1, 1),
        (u64::MAX, 1, 1),
        (4 * MIB, 2, 32),
        (4 * MIB, 4, 64),
        (MIB, 4, 256),
        (128 * MIB, 4, 2),
        // c is 1 to 4.
        (4 * MIB, 0, 16),
        (4 * MIB, 5, 64),
        (4 * MIB, u64::MAX, 64),
    ];
    for (object, times, requests) in table {
        let window = Window::for_object_size_times(object, times);
        assert_eq!(window.max_requests(), requests, "{object} bytes, {times}");
        assert_eq!(window.capacity(), 64 * MIB * times.clamp(1, 4));
        if times == 1 {
            assert_eq!(Window::for_object_size(object).max_requests(), requests);
        }
        // As many as it admits really fit.
        let permits: Vec<_> = (0..requests).map(|_| window.try_acquire(object).expect("room")).collect();
        assert!(window.try_acquire(object).is_none());
        drop(permits);
        assert_eq!(in_flight(&window), (0, 0));
    }
}

/// h2 584, 627, 628: a big message above the limit neither hangs nor gets nothing.
#[test]
fn a_request_above_the_window_counts_as_the_window_and_a_window_is_never_empty() {
    let window = Window::new(100, 3);
    let permit = window.try_acquire(u64::MAX).expect("the window is free");
    assert_eq!((permit.bytes(), in_flight(&window)), (100, (100, 1)));
    assert!(window.try_acquire(1).is_none());
    // A request of no bytes is still a request.
    let nothing = window.try_acquire(0).expect("no bytes");
    assert_eq!((nothing.bytes(), in_flight(&window)), (0, (100, 2)));
    drop((permit, nothing));
    let window = Window::new(0, 0);
    assert_eq!((window.capacity(), window.max_requests()), (1, 1));
    assert!(window.try_acquire(5).is_some());
}

#[test]
fn a_window_without_a_bound_in_bytes_does_not_overflow() {
    let window = Window::new(u64::MAX, 3);
    let all = window.try_acquire(u64::MAX).expect("room");
    assert!(window.try_acquire(1).is_none());
    drop(all);
    let (_a, _b) = (window.try_acquire(u64::MAX - 1).expect("room"), window.try_acquire(1).expect("room"));
    assert!(window.try_acquire(1).is_none());
}

#[test]
fn who_comes_first_is_served_first_and_nobody_overtakes_a_large_one() {
    let window = Window::new(10, 10);
    let (_, waker) = Woken::new();
    let held = window.try_acquire(6).expect("room");
    let mut large = window.acquire_async(8);
    let mut small = window.acquire_async(1);
    // The place in the line is that of the first poll.
    assert!(poll(&mut large, &waker).is_none());
    assert!(poll(&mut small, &waker).is_none());
    assert!(window.try_acquire(1).is_none(), "4 bytes are free, but others wait");
    assert!(window.acquire_until(1, Some(Instant::now() + SHORT / 3)).is_none());
    drop(held);
    let small = poll(&mut small, &waker).expect("both fit");
    assert!(window.try_acquire(1).is_some_and(|permit| permit.bytes() == 1));
    assert!(window.try_acquire(2).is_none(), "8 are granted, if not taken yet");
    let large = poll(&mut large, &waker).expect("granted");
    assert_eq!(in_flight(&window), (9, 2));
    drop((small, large));
    assert_eq!(in_flight(&window), (0, 0));
}

/// embassy 6964, tokio 8075: permits suffice, and the waiter sleeps on.
#[test]
fn room_is_not_kept_from_a_newcomer_by_one_who_was_granted_and_has_not_looked() {
    let window = Window::new(10, 2);
    let (_, waker) = Woken::new();
    let (first, second) = (window.try_acquire(1).expect("room"), window.try_acquire(1).expect("room"));
    let mut waiter = window.acquire_async(1);
    assert!(poll(&mut waiter, &waker).is_none());
    drop((first, second));
    // One place is granted, the other free.
    let mut newcomer = window.acquire_async(1);
    assert!(poll(&mut newcomer, &waker).is_some());
    assert!(window.try_acquire(1).is_some() || window.requests_in_flight() == 1);
    assert!(poll(&mut waiter, &waker).is_some());
    assert_eq!(in_flight(&window), (0, 0));
}

/// embassy 6964.
#[test]
fn a_cancelled_large_one_lets_the_small_ones_behind_it_through() {
    for polled_after_grant in [false, true] {
        let window = Window::new(10, 10);
        let held = window.try_acquire(5).expect("room");
        let (_, nobody) = Woken::new();
        let mut large = window.acquire_async(9);
        assert!(poll(&mut large, &nobody).is_none());
        let mut small: Vec<_> = (0..3)
            .map(|_| {
                let (woken, waker) = Woken::new();
                let mut acquire = window.acquire_async(2);
                assert!(poll(&mut acquire, &waker).is_none());
                (acquire, woken, waker)
            })
            .collect();
        if polled_after_grant {
            drop(held);
            // It was granted, and is dropped before it looks: all it had comes back.
            drop(large);
            assert_eq!(small.iter().filter(|(_, woken, _)| woken.count() == 1).count(), 3);
        } else {
            drop(large);
            let woken: Vec<_> = small.iter().map(|(_, woken, _)| woken.count()).collect();
            assert_eq!(woken, [1, 1, 0], "5 bytes are free");
            drop(held);
            assert_eq!(small[2].1.count(), 1);
        }
        let permits: Vec<_> =
            small.iter_mut().map(|(a, _, waker)| poll(a, waker).expect("granted")).collect();
        assert_eq!(in_flight(&window), (6, 3));
        drop(permits);
        assert_eq!(in_flight(&window), (0, 0));
    }
}

/// What a window should do, the plain way.
struct Model {
    capacity: u64,
    max: usize,
    /// Bytes of the requests that hold a permit or were granted one.
    held: Vec<(usize, u64)>,
    /// Who waits, in order of the first poll.
    line: VecDeque<(usize, u64)>,
}

impl Model {
    fn bytes(&self) -> u64 {
        self.held.iter().map(|(_, bytes)| bytes).sum()
    }

    fn grant(&mut self) -> Vec<usize> {
        let mut granted = Vec::new();
        while let Some((id, bytes)) = self.line.front().copied() {
            if self.held.len() == self.max || self.bytes() + bytes > self.capacity {
                break;
            }
            self.held.push((id, bytes));
            self.line.pop_front();
            granted.push(id);
        }
        granted
    }

    fn remove(&mut self, id: usize) {
        self.held.retain(|(other, _)| *other != id);
        self.line.retain(|(other, _)| *other != id);
    }
}

struct Waiting {
    id: usize,
    bytes: u64,
    acquire: Acquire,
    polled: bool,
    waker: Option<(Arc<Woken>, Waker)>,
    permit: Option<Permit>,
}

/// tokio 904, 2325, cats-effect 403: permits lost by a cancelled acquire.
#[test]
fn cancelled_at_any_poll_nothing_is_lost_and_the_next_is_woken() {
    let seed = seed("cancelled_at_any_poll");
    for case in 0..5000 {
        let mut random = Random::new(seed + case);
        let capacity = 1 + random.below(20) as u64;
        let max = 1 + random.below(5);
        let window = Window::new(capacity, max);
        let mut model = Model { capacity, max, held: Vec::new(), line: VecDeque::new() };
        let mut all: Vec<Waiting> = Vec::new();
        for id in 0..50 {
            let context = || format!("seed {}, step {id}", seed + case);
            let index = random.below(all.len());
            let mut granted = Vec::new();
            match random.below(8) {
                0 | 1 => {
                    let bytes = random.below(25) as u64;
                    let acquire = window.acquire_async(bytes);
                    let bytes = bytes.min(capacity);
                    all.push(Waiting { id, bytes, acquire, polled: false, waker: None, permit: None });
                }
                // Drops whatever it is: not polled, waiting, granted or held.
                2 | 3 if !all.is_empty() => {
                    let gone = all.swap_remove(index);
                    model.remove(gone.id);
                    drop(gone);
                    granted = model.grant();
                }
                4 => {
                    let permit = window.try_acquire(3);
                    let bytes = 3.min(capacity);
                    let fits = model.held.len() < max && model.bytes() + bytes <= capacity;
                    assert_eq!(permit.is_some(), model.line.is_empty() && fits, "{}", context());
                }
                _ if !all.is_empty() => {
                    let one = &mut all[index];
                    if one.permit.is_some() {
                        continue;
                    }
                    if !std::mem::replace(&mut one.polled, true) {
                        model.line.push_back((one.id, one.bytes));
                        model.grant();
                    }
                    // A new waker each time: only the last one may be woken.
                    let old = one.waker.replace(Woken::new());
                    let woken_before = old.as_ref().map(|(woken, _)| woken.count());
                    one.permit = poll(&mut one.acquire, &one.waker.as_ref().expect("just made").1);
                    let expected = model.held.iter().any(|(id, _)| *id == one.id);
                    assert_eq!(one.permit.is_some(), expected, "{}", context());
                    assert_eq!(woken_before, old.map(|(woken, _)| woken.count()), "{}", context());
                }
                _ => {}
            }
            for one in &all {
                let Some((woken, _)) = &one.waker else { continue };
                if granted.contains(&one.id) {
                    assert_eq!(woken.count(), 1, "{}: granted, and not woken", context());
                } else if model.line.iter().any(|(id, _)| *id == one.id) {
                    assert_eq!(woken.count(), 0, "{}: woken for nothing", context());
                }
            }
            assert_eq!(in_flight(&window), (model.bytes(), model.held.len()), "{}", context());
        }
        drop(all);
        assert_eq!(in_flight(&window), (0, 0), "seed {}", seed + case);
        assert!(window.try_acquire(u64::MAX).is_some());
    }
}

#[test]
fn only_the_latest_waker_is_woken() {
    let window = Window::new(1, 1);
    let held = window.try_acquire(1).expect("room");
    let mut acquire = window.acquire_async(1);
    let (old, old_waker) = Woken::new();
    let (new, new_waker) = Woken::new();
    assert!(poll(&mut acquire, &old_waker).is_none());
    assert!(poll(&mut acquire, &new_waker).is_none());
    drop(held);
    assert_eq!((old.count(), new.count()), (0, 1));
    assert!(poll(&mut acquire, &old_waker).is_some());
}

#[test]
fn a_waker_that_asks_the_window_when_it_is_woken_or_dropped_does_not_deadlock() {
    struct Busy(Window, InFlight<u8, u8, u8>);
    impl Busy {
        fn ask(&self) {
            drop(self.0.try_acquire(1));
            let _ = (self.0.bytes_in_flight(), format!("{:?}", self.1));
        }
    }
    impl Wake for Busy {
        fn wake(self: Arc<Self>) {
            self.ask();
        }
    }
    impl Drop for Busy {
        fn drop(&mut self) {
            self.ask();
        }
    }
    within(|| {
        let window = Window::new(4, 1);
        let requests = || InFlight::new(window.clone());
        let busy = || Waker::from(Arc::new(Busy(window.clone(), requests())));
        let held = window.try_acquire(1).expect("room");
        let mut acquire = window.acquire_async(1);
        for _ in 0..3 {
            assert!(poll(&mut acquire, &busy()).is_none());
        }
        let mut cancelled = window.acquire_async(1);
        assert!(poll(&mut cancelled, &busy()).is_none());
        drop(cancelled);
        drop(held);
        let permit = poll(&mut acquire, &busy()).expect("granted");
        // Requests in flight that are asked for by several tasks, one after the other.
        let of_interest: Arc<InFlight<u8, u8, u8>> = Arc::new(requests());
        struct Asks(Arc<InFlight<u8, u8, u8>>);
        impl Wake for Asks {
            fn wake(self: Arc<Self>) {}
        }
        impl Drop for Asks {
            fn drop(&mut self) {
                let _ = self.0.in_flight();
            }
        }
        let request = of_interest.start_with(permit, 7);
        for _ in 0..3 {
            let waker = Waker::from(Arc::new(Asks(of_interest.clone())));
            assert!(of_interest.poll_one(&mut Context::from_waker(&waker)).is_pending());
        }
        request.complete(Ok(1));
        assert_eq!(of_interest.wait_one(None), Some((7, Ok(1))));
    });
}

#[test]
fn many_threads_are_never_above_the_window_and_all_of_them_get_through() {
    within(|| {
        let window = Window::new(1000, 6);
        let bytes = Arc::new(AtomicU64::new(0));
        let requests = Arc::new(AtomicUsize::new(0));
        let seed = seed("many_threads_are_never_above_the_window");
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let (window, bytes, requests) = (window.clone(), bytes.clone(), requests.clone());
                thread::spawn(move || {
                    let mut random = Random::new(seed + thread);
                    let mut timed_out = 0;
                    for _ in 0..2000 {
                        let want = 1 + random.below(1500) as u64;
                        let permit = match random.below(4) {
                            0 => window.acquire_until(want, Some(Instant::now() + Duration::from_micros(50))),
                            1 => window.try_acquire(want),
                            _ => Some(window.acquire(want)),
                        };
                        let Some(permit) = permit else {
                            timed_out += 1;
                            continue;
                        };
                        let held = bytes.fetch_add(permit.bytes(), Ordering::SeqCst) + permit.bytes();
                        let count = requests.fetch_add(1, Ordering::SeqCst) + 1;
                        assert!(held <= 1000 && count <= 6, "{held} bytes, {count} requests");
                        if random.below(50) == 0 {
                            thread::yield_now();
                        }
                        bytes.fetch_sub(permit.bytes(), Ordering::SeqCst);
                        requests.fetch_sub(1, Ordering::SeqCst);
                    }
                    timed_out
                })
            })
            .collect();
        let timed_out: i32 = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
        println!("{timed_out} of 16000 found no room in time");
        assert_eq!(in_flight(&window), (0, 0));
    });
}

#[test]
fn a_thread_that_waited_in_vain_leaves_nothing_behind() {
    within(|| {
        let window = Window::new(10, 10);
        let held = window.try_acquire(5).expect("room");
        let waiter = thread::spawn({
            let window = window.clone();
            move || window.acquire_until(9, Some(Instant::now() + SHORT)).is_none()
        });
        thread::sleep(SHORT / 3);
        // Behind it; let through when it gives up.
        let small = window.acquire_until(5, Some(Instant::now() + LONG / 3));
        assert!(small.is_some());
        assert!(waiter.join().expect("no panic"));
        drop((held, small));
        assert_eq!(in_flight(&window), (0, 0));
    });
}

// ---- in flight

#[derive(Debug, PartialEq)]
struct Value(Box<str>);

type Requests = InFlight<Value, u32, &'static str>;

fn value(text: &str) -> Value {
    Value(text.into())
}

fn requests(window: usize) -> Requests {
    InFlight::new(Window::new(1 << 20, window))
}

#[test]
fn a_value_comes_back_untouched_with_what_became_of_its_request() {
    let requests = requests(8);
    let words = ["a", "b", "c", "d"];
    let addresses: Vec<_> = words
        .iter()
        .map(|word| {
            let value = value(word);
            let address = value.0.as_ptr() as usize;
            (address, requests.start(10, value))
        })
        .collect();
    let (addresses, mut started): (Vec<_>, Vec<_>) = addresses.into_iter().unzip();
    assert_eq!((requests.in_flight(), requests.window().bytes_in_flight()), (4, 40));
    assert_eq!(started[2].value(), Some(&value("c")));
    // Out of order, as nfs-ganesha answers.
    started.pop().expect("four").complete(Ok(4));
    started.remove(0).complete(Err("no"));
    drop(started.pop());
    started.pop().expect("one").complete(Ok(2));
    let mut ends = Vec::new();
    while let Some((value, result)) = requests.wait_one(None) {
        ends.push((addresses.iter().position(|a| *a == value.0.as_ptr() as usize), result));
    }
    assert_eq!(
        ends,
        [
            (Some(3), Ok(4)),
            (Some(0), Err(Failure::Failed("no"))),
            (Some(2), Err(Failure::Abandoned)),
            (Some(1), Ok(2)),
        ]
    );
    assert_eq!(in_flight(requests.window()), (0, 0));
}

#[test]
fn the_place_in_the_window_is_free_before_anybody_learns_of_the_end() {
    within(|| {
        let requests = Arc::new(requests(1));
        for round in 0..500 {
            let request = requests.start(1, value("x"));
            let replier = thread::spawn(move || request.complete(Ok(round)));
            assert!(requests.wait_one(None).is_some());
            assert!(requests.window().try_acquire(1).is_some());
            replier.join().expect("no panic");
        }
    });
}

#[test]
fn waiting_for_one_ends_at_its_deadline_or_when_none_is_left() {
    within(|| {
        let requests = requests(2);
        assert_eq!(requests.wait_one(None), None);
        let request = requests.start(1, value("x"));
        assert_eq!(requests.wait_one(Some(Instant::now() + SHORT)), None);
        request.complete(Ok(1));
        assert_eq!(requests.wait_one(Some(Instant::now())), Some((value("x"), Ok(1))));
        assert_eq!(requests.wait_one(None), None);
    });
}

#[test]
fn waiting_for_all_waits_for_every_one_and_tells_the_first_error_and_what_was_done() {
    within(|| {
        let requests = Arc::new(requests(16));
        let ended = Arc::new(AtomicUsize::new(0));
        let turn = Arc::new(AtomicUsize::new(0));
        let repliers: Vec<_> = (0..8)
            .map(|index| {
                let request = requests.start(1, value(&index.to_string()));
                let (ended, turn) = (ended.clone(), turn.clone());
                thread::spawn(move || {
                    while turn.load(Ordering::SeqCst) < index {
                        thread::yield_now();
                    }
                    thread::sleep(Duration::from_millis(5));
                    ended.fetch_add(1, Ordering::SeqCst);
                    match index {
                        2 => request.complete(Err("second")),
                        5 => request.complete(Err("fifth")),
                        6 => drop(request),
                        _ => request.complete(Ok(index as u32)),
                    }
                    turn.fetch_add(1, Ordering::SeqCst);
                })
            })
            .collect();
        let partial = requests.wait_all().expect_err("three failed");
        assert_eq!(ended.load(Ordering::SeqCst), 8, "it waits for the last one");
        assert_eq!(partial.failed[0], (value("2"), Failure::Failed("second")));
        let mut failed: Vec<_> = partial.failed.iter().map(|(value, _)| &*value.0).collect();
        failed.sort_unstable();
        assert_eq!(failed, ["2", "5", "6"]);
        assert!(partial.failed.contains(&(value("6"), Failure::Abandoned)));
        assert_eq!((partial.done.len(), partial.start_error), (5, None));
        for replier in repliers {
            replier.join().expect("no panic");
        }
        assert_eq!(requests.wait_all().expect("none is left"), []);
    });
}

#[test]
fn an_error_while_starting_waits_for_those_that_were_started_and_starts_no_more() {
    within(|| {
        let requests = requests(16);
        let mut repliers = Vec::new();
        let mut begun = 0;
        let ended = Arc::new(AtomicUsize::new(0));
        let items = (0..10).map(|index| (1, value(&index.to_string())));
        let partial = requests
            .run(items, |request| {
                begun += 1;
                if begun == 5 {
                    return Err("no more");
                }
                let ended = ended.clone();
                repliers.push(thread::spawn(move || {
                    thread::sleep(SHORT);
                    ended.fetch_add(1, Ordering::SeqCst);
                    request.complete(Ok(1));
                }));
                Ok(())
            })
            .expect_err("a start failed");
        assert_eq!((begun, ended.load(Ordering::SeqCst)), (5, 4));
        assert_eq!((partial.done.len(), partial.start_error), (4, Some("no more")));
        // The one that did not start comes back with its value, too.
        assert_eq!(partial.failed, [(value("4"), Failure::Abandoned)]);
        assert_eq!((in_flight(requests.window()), requests.in_flight()), ((0, 0), 0));
        for replier in repliers {
            replier.join().expect("no panic");
        }
    });
}

/// nfs-ganesha 583: a client that hangs for ever because whoever had its reply went away.
#[test]
fn a_receiver_that_panics_abandons_its_requests_and_nobody_hangs() {
    within(|| {
        let requests = requests(4);
        let pending: Vec<_> = (0..4).map(|_| requests.start(1, value("x"))).collect();
        let receiver = thread::spawn(move || {
            let _pending = pending;
            panic!("a receiver that panics");
        });
        assert!(receiver.join().is_err());
        let partial = requests.wait_all().expect_err("abandoned");
        assert_eq!(partial.failed.len(), 4);
        assert!(partial.failed.iter().all(|(_, failure)| *failure == Failure::Abandoned));
        assert_eq!(in_flight(requests.window()), (0, 0));
    });
}

#[test]
fn a_task_is_woken_by_its_latest_waker_and_told_when_none_is_left() {
    let requests = requests(4);
    let (old, old_waker) = Woken::new();
    let (new, new_waker) = Woken::new();
    let poll = |waker: &Waker| requests.poll_one(&mut Context::from_waker(waker));
    assert_eq!(poll(&old_waker), Poll::Ready(None));
    let request = requests.start(1, value("x"));
    assert!(poll(&old_waker).is_pending());
    assert!(poll(&new_waker).is_pending());
    request.complete(Ok(3));
    assert_eq!((old.count(), new.count()), (0, 1));
    assert_eq!(poll(&new_waker), Poll::Ready(Some((value("x"), Ok(3)))));
    assert_eq!(poll(&new_waker), Poll::Ready(None));
}

#[test]
fn several_threads_share_the_ends_among_them() {
    within(|| {
        let requests = Arc::new(requests(64));
        let pending: Vec<_> = (0..64).map(|i| requests.start(1, value(&i.to_string()))).collect();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let waiters: Vec<_> = (0..4)
            .map(|_| {
                let (requests, seen) = (requests.clone(), seen.clone());
                thread::spawn(move || {
                    while let Some((value, _)) = requests.wait_one(None) {
                        seen.lock().expect("no panic").push(value.0);
                    }
                })
            })
            .collect();
        for request in pending {
            request.complete(Ok(1));
        }
        for waiter in waiters {
            waiter.join().expect("no panic");
        }
        let mut seen = std::mem::take(&mut *seen.lock().expect("no panic"));
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 64, "each once");
    });
}

/// A peer that answers after a time, on a clock that only moves when it is waited for.
struct Peer {
    now: u64,
    pending: Vec<(u64, Request<u64, u64, ()>)>,
}

impl Peer {
    fn answer_next(&mut self) {
        let next = (0..self.pending.len()).min_by_key(|index| self.pending[*index].0).expect("a request");
        let (due, request) = self.pending.swap_remove(next);
        self.now = self.now.max(due);
        request.complete(Ok(due));
    }
}

/// How long 200 requests take, in microseconds, `limit` at a time; `batches` waits for all before it starts more.
fn virtual_time(limit: usize, batches: bool, service: impl Fn(u64) -> u64) -> u64 {
    let requests: InFlight<u64, u64, ()> = InFlight::new(Window::new(1 << 30, limit));
    let mut peer = Peer { now: 0, pending: Vec::new() };
    let mut done = 0;
    let mut next = 0;
    while done < 200 {
        let may_start = !batches || requests.in_flight() == 0;
        while may_start && next < 200 {
            let Some(permit) = requests.window().try_acquire(4096) else { break };
            peer.pending.push((peer.now + service(next), requests.start_with(permit, next)));
            next += 1;
        }
        let rounds = if batches { peer.pending.len() } else { 1 };
        for _ in 0..rounds {
            peer.answer_next();
            assert!(requests.wait_one(None).is_some());
            done += 1;
        }
    }
    assert!(next == 200 && requests.in_flight() == 0);
    peer.now
}

/// The copy-from lesson: a window that slides, not batches; 20 in flight take at most 9 % of one by one.
#[test]
fn twenty_in_flight_take_a_twentieth_of_one_by_one_and_a_sliding_window_beats_batches() {
    let even = |_| 2000;
    let one_by_one = virtual_time(1, false, even);
    assert_eq!(one_by_one, 400_000);
    for (limit, percent) in [(5, 20), (10, 10), (20, 5), (200, 1)] {
        let time = virtual_time(limit, false, even);
        assert!(time * 100 <= one_by_one * percent, "{limit} in flight: {time} of {one_by_one} us");
    }
    // A peer that now and then takes ten times as long: batches wait for the slowest of each.
    let uneven = |n: u64| if n.is_multiple_of(17) { 20_000 } else { 2000 };
    let (sliding, batches) = (virtual_time(20, false, uneven), virtual_time(20, true, uneven));
    let alone = virtual_time(1, false, uneven);
    assert!(sliding * 100 <= alone * 9, "{sliding} of {alone} us");
    assert!(batches >= 2 * sliding, "sliding {sliding}, batches {batches} us");
}
