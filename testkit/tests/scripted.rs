//! The scripted transports see every broken rule: a rule that cannot be broken is no test.

use std::io::{IoSlice, IoSliceMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use segchain::transport::{MAX_BYTES, MAX_SLICES, SendFlags, VectoredRecv, VectoredSend};
use segchain_testkit::scripted::{RecvStep, ScriptedRecv, ScriptedSend, SendStep, Shape};

const PLAIN: SendFlags = SendFlags::DONT_WAIT;

fn flags(more: bool) -> SendFlags {
    let flags = PLAIN | SendFlags::NO_SIGNAL;
    if more { flags | SendFlags::MORE } else { flags }
}

/// One call that offers slices of these lengths.
fn call(script: &ScriptedSend, lens: &[usize], flags: SendFlags) {
    let memory = vec![7; lens.iter().copied().max().unwrap_or(0)];
    let slices: Vec<IoSlice<'_>> = lens.iter().map(|len| IoSlice::new(&memory[..*len])).collect();
    let _ = script.send_vectored(&slices, flags);
}

/// What the transport complains of.
fn complaint(f: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).expect_err("nobody complained");
    panic
        .downcast::<String>()
        .map_or_else(|other| (*other.downcast::<&str>().expect("a text")).to_owned(), |text| *text)
}

#[test]
fn calls_beyond_their_limits_are_seen() {
    let new = || ScriptedSend::new([]);
    call(&new(), &vec![1; MAX_SLICES], flags(false));
    assert!(complaint(|| call(&new(), &vec![1; MAX_SLICES + 1], flags(false))).contains("1025 slices"));
    assert!(complaint(|| call(&new().caps(2, 100), &[1; 3], flags(false))).contains("3 slices"));
    assert!(complaint(|| call(&new().caps(9, 100), &[50, 51], flags(false))).contains("101 bytes"));
    let half = MAX_BYTES as usize / 2;
    call(&new().counting_only(), &[half, half], flags(false));
    assert!(
        complaint(|| call(&new().counting_only(), &[half, half, 1], flags(false))).contains("bytes, the cap")
    );
    assert!(complaint(|| call(&new(), &[], flags(false))).contains("offers nothing"));
    assert!(complaint(|| call(&new(), &[1, 0, 1], flags(false))).contains("an empty slice"));
}

#[test]
fn calls_that_may_block_or_signal_are_seen() {
    let script = ScriptedSend::new([]);
    assert!(complaint(|| call(&script, &[1], SendFlags::NO_SIGNAL)).contains("may block"));
    let script = ScriptedSend::new([]);
    assert!(complaint(|| call(&script, &[1], PLAIN)).contains("SIGPIPE"));
}

#[test]
fn a_call_after_a_fatal_error_is_seen_and_after_others_is_not() {
    for step in [SendStep::Errno(libc::EPIPE), SendStep::Zero, SendStep::Claim(9)] {
        let script = ScriptedSend::new([step]);
        call(&script, &[1], flags(false));
        assert!(complaint(|| call(&script, &[1], flags(false))).contains("after a fatal"), "{step:?}");
    }
    for step in [
        SendStep::Again,
        SendStep::Interrupted,
        SendStep::Errno(libc::ENOBUFS),
        SendStep::Errno(libc::ENOMEM),
    ] {
        let script = ScriptedSend::new([step]);
        call(&script, &[1], flags(false));
        call(&script, &[1], flags(false));
    }
    let script = ScriptedRecv::new(b"x", [RecvStep::Errno(libc::ECONNRESET)]);
    let mut byte = [0];
    let _ = script.recv_vectored(&mut [IoSliceMut::new(&mut byte)]);
    assert!(
        complaint(|| _ = script.recv_vectored(&mut [IoSliceMut::new(&mut [0])])).contains("after a fatal")
    );
}

#[test]
fn more_that_is_not_true_is_seen() {
    let flush = |bytes| {
        let script = ScriptedSend::new([]);
        script.expect_flush(bytes);
        script
    };
    call(&flush(10), &[4, 6], flags(false));
    call(&flush(11), &[4, 6], flags(true));
    assert!(complaint(|| call(&flush(11), &[4, 6], flags(false))).contains("MSG_MORE"));
    assert!(complaint(|| call(&flush(10), &[4, 6], flags(true))).contains("MSG_MORE"));
    assert!(complaint(|| call(&flush(9), &[4, 6], flags(false))).contains("only 9 left"));
    let script = ScriptedSend::new([]);
    call(&script, &[1], flags(true));
    assert!(complaint(|| script.assert_uncorked()).contains("more would follow"));
    let script = ScriptedSend::new([SendStep::Again]);
    call(&script, &[1], flags(true));
    script.assert_uncorked();
}

#[test]
fn a_bare_header_or_trailer_is_seen_unless_a_short_write_was_before_it() {
    let frames = || {
        let script = ScriptedSend::new([]);
        script.expect_frames(&[Shape::new(4, 10, 4), Shape::new(4, 0, 0), Shape::new(2, 3, 2)]);
        script
    };
    assert!(complaint(|| call(&frames(), &[4], flags(true))).contains("a bare header"));
    assert!(complaint(|| call(&frames(), &[2], flags(true))).contains("a bare header"));
    let script = frames();
    call(&script, &[4, 10], flags(true));
    assert!(complaint(|| call(&script, &[4], flags(true))).contains("a bare trailer"));
    // The end of one with the beginning of the next is in company.
    let script = frames();
    call(&script, &[4, 10], flags(true));
    call(&script, &[4, 4], flags(true));
    // A message that is only a header may come alone; the one behind it may not.
    assert!(complaint(|| call(&script, &[2], flags(true))).contains("a bare header"));
    let script = frames();
    script.fault_at(0, SendStep::Accept(3));
    call(&script, &[4, 10, 4], flags(false));
    call(&script, &[1], flags(true)); // goes on after a short write
    call(&script, &[10], flags(true));
    assert!(complaint(|| call(&script, &[4], flags(true))).contains("a bare trailer"));
}

#[test]
fn two_calls_at_once_are_seen() {
    let script = ScriptedSend::new([SendStep::Slow(Duration::from_secs(2))]);
    thread::scope(|scope| {
        let first = scope.spawn(|| call(&script, &[1], flags(false)));
        // Nothing can be asked during the call; whoever does is the second one.
        let second = complaint(|| {
            while !first.is_finished() {
                thread::sleep(Duration::from_millis(1));
                let _ = script.taken();
            }
        });
        assert!(second.contains("two calls at once"));
    });
    assert_eq!(script.taken(), 1);
    // A transport whose rule was broken is of no use any more, even if the panic was caught.
    assert!(complaint(|| call(&script, &[1, 0], flags(false))).contains("an empty slice"));
    assert!(complaint(|| call(&script, &[1], flags(false))).contains("after a broken rule"));
}

#[test]
fn bytes_are_taken_and_given_as_the_script_says() {
    let script = ScriptedSend::new([SendStep::Accept(3), SendStep::FirstSlice, SendStep::Again]);
    for _ in 0..4 {
        call(&script, &[2, 2, 2], flags(false));
    }
    let results: Vec<_> = script.calls().iter().map(|call| call.result).collect();
    assert_eq!(results, [Ok(3), Ok(2), Err(libc::EAGAIN), Ok(6)]);
    script.reset(&[]);
    script.stop_at(0b1010);
    for _ in 0..3 {
        call(&script, &[20], flags(false));
    }
    let taken: Vec<_> = script.calls().iter().map(|call| call.result).collect();
    assert_eq!(taken, [Ok(1), Ok(2), Ok(20)]);

    let script = ScriptedRecv::new(b"0123456789", [RecvStep::Give(4), RecvStep::Again]);
    script.stop_at(&[6, 7], true);
    let mut got = Vec::new();
    for _ in 0..8 {
        let mut memory = [0; 8];
        let (a, b) = memory.split_at_mut(3);
        let result = script.recv_vectored(&mut [IoSliceMut::new(a), IoSliceMut::new(b)]);
        got.push(result.map(|n| memory[..n].to_vec()).map_err(|error| error.raw_os_error()));
    }
    let again = || Err(Some(libc::EAGAIN));
    let expected = [
        Ok(b"0123".to_vec()),
        again(),
        Ok(b"45".to_vec()),
        again(),
        Ok(b"6".to_vec()),
        again(),
        Ok(b"789".to_vec()),
        Ok(Vec::new()),
    ];
    assert_eq!(got, expected);
}
