//! The models. See `docs/loom.md`.
#![cfg(loom)]

mod queue;
mod revoke;
mod slab;
mod window;

use segchain_loom_tests::{Bound, Fault, explore, is_caught};

/// Every model: how far it is explored, what its executions have to come upon, and the faults that it has to catch.
macro_rules! models {
    ($($room:ident::$model:ident: $bound:ident, sees $seen:tt, catches [$($fault:literal),+];)+) => {
        $(
            #[test]
            fn $model() {
                explore(stringify!($model), Bound::$bound, &$seen, $room::$model);
            }
        )+

        const FAULTS: &[Fault] = &[$($(Fault::new(stringify!($model), $fault)),+),+];
    };
}

models! {
    queue::two_producers: Three, sees [], catches ["last come, first served"];
    queue::three_producers: Three, sees [], catches ["a pusher writes past the flusher"];
    queue::a_push_races_with_the_flusher_going_idle: None, sees [], catches ["idle without a look"];
    queue::blocked_half_way_and_resumed_elsewhere: Three, sees [],
        catches ["a half-sent message stays with its flusher"];
    queue::a_flusher_panics_in_mid_message: None, sees ["failed", "refused"], catches ["flusher leaves quietly"];
    queue::a_framer_refuses_then_panics: None, sees [], catches ["what was refused is forgotten"];
    queue::the_last_handle_is_dropped_in_mid_message: None, sees [], catches ["the last handle leaves quietly"];
    queue::who_polls_panics: None, sees [], catches ["who polls leaves quietly"];
    queue::close_races_with_a_push: None, sees ["sent", "refused"], catches ["a push looks before it locks"];
    queue::a_closed_queue_ends_who_runs_it: None, sees [], catches ["idle tells nobody"];
    queue::poison_races_with_a_push: None, sees ["failed", "refused"], catches ["poison leaves the waiting"];
    queue::shut_down_races_with_a_turn: None, sees [], catches ["a dead queue is handed over"];
    queue::a_turn_is_handed_over: Three, sees [], catches ["who was handed a turn leaves"];
    queue::pushers_relieve_each_other: None, sees [], catches ["who was handed a turn leaves"];
    queue::a_waker_pushes_from_the_flusher: None, sees ["woken"], catches ["a flusher waits for itself"];
    queue::a_relief_races_with_the_end: None, sees [], catches ["the end keeps its relief waiting"];
    queue::a_push_waits_for_room: None, sees [], catches ["room is given back quietly"];
    queue::a_push_is_cancelled_while_it_gets_room: None, sees ["cancelled"], catches ["who cancels wakes nobody"];
    queue::close_refuses_whoever_waits_for_room: None, sees [], catches ["close refuses no task"];
    queue::control_against_bulk: None, sees ["before", "between", "after"], catches ["a message goes inside another"];
    queue::a_task_is_told_of_a_block: Three, sees [], catches ["a task is not told of a block"];
    queue::readiness_races_with_a_block: None, sees ["busy"], catches ["readiness is lost"];
    queue::a_tickets_waker_is_replaced_while_parked: None, sees ["replaced"], catches ["old waker is kept"];
    revoke::of_a_waiting_message: None, sees ["waiting", "sent"],
        catches ["a revoked message keeps its place"];
    revoke::of_a_half_sent_message: None, sees ["waiting", "aborted", "sent"], catches ["revoke is not passed on"];
    revoke::of_a_framed_message_where_gaps_are_accepted: None, sees ["waiting", "dropped", "sent"],
        catches ["no gap is made"];
    revoke::of_a_message_that_is_blocked_half_way: None, sees ["aborted", "sent"],
        catches ["a revoked message goes on"];
    revoke::of_a_half_sent_message_that_cannot_be_aborted: None, sees ["waiting", "sent", "finishing", "failed"],
        catches ["what cannot be aborted goes on"];
    revoke::beside_a_task_that_flushes: None, sees ["aborted", "sent"], catches ["who revokes tells no task"];
    window::never_over_budget: Three, sees ["together"], catches ["a window looks, then takes"];
    window::a_small_waiter_behind_a_cancelled_large_one: Three, sees [], catches ["who cancels wakes nobody"];
    window::a_permit_given_while_its_waiter_leaves: None, sees [], catches ["who cancels wakes nobody"];
    window::a_waiters_waker_is_replaced_while_parked: None, sees ["replaced"], catches ["the first waker is kept"];
    window::waiting_for_all_with_an_error: Three, sees [], catches ["a request ends before its reply is there"];
    window::waiting_for_one_as_a_task: Three, sees [], catches ["the end of a request wakes no task"];
    slab::a_pool_keeps_what_it_may: None, sees ["recycled"], catches ["a pool looks, then keeps"];
}

/// A model that stays silent while the code is wrong proves nothing.
#[test]
fn each_model_catches_its_faults() {
    if std::env::var_os("SEGCHAIN_PLANTED_FAULT").is_some() {
        return;
    }
    let silent = FAULTS.iter().filter(|fault| !is_caught(**fault).expect("a model")).collect::<Vec<_>>();
    assert!(silent.is_empty(), "not caught: {silent:#?}");
}
