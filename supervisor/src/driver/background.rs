//! Starts threads for operations that may hang, such as those on a disk, so that the main loop does not wait for them.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

/// The stack size of the thread, in bytes. Removing a folder recurses once for each level of folders in it.
const STACK: usize = 1 << 20;

/// The main loop's handle to a thread that carries out orders one after the other. Dropping the handle does not wait
/// for the thread.
pub(super) struct Background<Order, Outcome> {
    /// The channel for orders. `None` once the thread has been told to end.
    orders: Option<Sender<Order>>,
    outcomes: Receiver<Outcome>,
    /// Becomes readable when there is an outcome.
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl<Order: Send + 'static, Outcome: Send + 'static> Background<Order, Outcome> {
    /// Starts a thread that calls `carry_out` for each order. `carry_out` may return `None` if the order has no outcome
    /// that the loop needs. The thread also drops `carry_out`.
    pub(super) fn start(
        name: &str,
        mut carry_out: impl FnMut(Order) -> Option<Outcome> + Send + 'static,
    ) -> std::io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (orders, received) = channel();
        let (done, outcomes) = channel();
        let to_wake = Arc::clone(&wake);
        let thread =
            std::thread::Builder::new().name(name.to_owned()).stack_size(STACK).spawn(move || {
                while let Ok(order) = received.recv() {
                    if let Some(outcome) = carry_out(order) {
                        // Sending fails only if the loop has ended.
                        let _ = done.send(outcome);
                        let _ = rustix::io::write(&to_wake, &1_u64.to_ne_bytes());
                    }
                }
                drop(carry_out);
                // The channel is closed last, because a closed channel tells the loop that the thread has ended.
                drop(done);
            })?;
        Ok(Self { orders: Some(orders), outcomes, wake, thread: Some(thread) })
    }

    /// Gives the thread an order. Returns false if the thread has ended or been told to end.
    pub(super) fn order(&self, order: Order) -> bool {
        self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok())
    }

    /// Returns the outcomes since the last call.
    pub(super) fn outcomes(&self) -> Vec<Outcome> {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        self.outcomes.try_iter().collect()
    }

    /// Returns a descriptor that becomes readable when there is an outcome.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Returns true if the thread has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Tells the thread to end after its orders, and waits for it. Returns false if the thread takes longer than
    /// `timeout` or has panicked. Outcomes are dropped.
    pub(super) fn end(&mut self, timeout: Duration) -> bool {
        self.orders = None;
        let deadline = Instant::now() + timeout;
        while self.outcomes.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok() {}
        match self.thread.take() {
            Some(thread) if Instant::now() < deadline => thread.join().is_ok(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    #[test]
    fn orders_are_carried_out_in_sequence_and_wake_the_loop() {
        let mut sum = 0;
        let mut adder = Background::start("adder", move |number: u32| {
            sum += number;
            (number != 2).then_some(sum)
        })
        .expect("started");
        for number in [1, 2, 3] {
            assert!(adder.order(number));
        }
        let mut outcomes = Vec::new();
        while outcomes.len() < 2 {
            let woken = poll(&mut [PollFd::from_borrowed_fd(adder.descriptor(), PollFlags::IN)], None);
            assert_eq!(woken, Ok(1));
            outcomes.extend(adder.outcomes());
        }
        assert_eq!(outcomes, [1, 6]);
        assert!(adder.end(Duration::from_secs(60)));
        assert!(!adder.order(4), "the thread has ended");
    }

    #[test]
    fn thread_that_hangs_is_not_awaited_for_long() {
        let (release, released) = channel::<()>();
        let mut hung = Background::start("hung", move |(): ()| released.recv().ok()).expect("started");
        assert!(hung.order(()));
        assert!(!hung.end(Duration::from_millis(1)));
        drop(release);
    }
}
