//! Writes to an output that may block (a stopped terminal, a pipe without a reader, a frozen disk). Each such output
//! has its own thread and a bounded queue. Items that do not fit into the queue are dropped and counted, so adding an
//! item never waits.
//!
//! This file decides when an item is dropped. The caller decides what is written, and how a loss is reported.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

/// The stack size of the threads, in bytes. They only format and write.
const STACK: usize = 256 * 1024;

/// The limits of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    pub items: usize,
    /// The maximum total weight of the items that are waiting or being written. The caller gives the weight of each
    /// item.
    pub weight: usize,
}

enum Message<T> {
    Item(T, usize),
    /// A request that is acknowledged once all earlier items have been written.
    Flush(Sender<()>),
}

/// Writes the items, and reports dropped ones.
pub trait ItemWriter<T>: Send {
    fn write(&mut self, item: T);

    /// Reports that this many items were dropped since the last report.
    fn lost(&mut self, items: u64);
}

/// An output with a queue and a thread. When the `Outlet` is dropped, the thread writes all waiting items, and then
/// ends.
pub struct Outlet<T> {
    queue: Sender<Message<T>>,
    waiting: Arc<AtomicUsize>,
    dropped: Arc<AtomicU64>,
    max_weight: usize,
}

impl<T: Send + 'static> Outlet<T> {
    pub fn open(name: &str, limits: QueueLimits, writer: impl ItemWriter<T> + 'static) -> io::Result<Self> {
        let (queue, messages) = bounded(limits.items);
        let waiting = Arc::new(AtomicUsize::new(0));
        let dropped = Arc::new(AtomicU64::new(0));
        let (still_waiting, lost) = (Arc::clone(&waiting), Arc::clone(&dropped));
        std::thread::Builder::new()
            .name(name.to_owned())
            .stack_size(STACK)
            .spawn(move || write(&messages, writer, &still_waiting, &lost))?;
        Ok(Self { queue, waiting, dropped, max_weight: limits.weight })
    }

    /// Queues an item. Returns false if the item was dropped.
    pub fn put(&self, item: T, weight: usize) -> bool {
        let fits = self.waiting.fetch_add(weight, Ordering::Relaxed) + weight <= self.max_weight;
        if fits && self.queue.try_send(Message::Item(item, weight)).is_ok() {
            return true;
        }
        self.waiting.fetch_sub(weight, Ordering::Relaxed);
        self.dropped.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Waits until all items that are now queued have been written, and losses have been reported. Returns false if
    /// this takes longer than `timeout`.
    pub fn flush(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        let (done, written) = bounded(1);
        self.queue.send_deadline(Message::Flush(done), deadline).is_ok()
            && written.recv_deadline(deadline).is_ok()
    }
}

fn write<T>(
    messages: &Receiver<Message<T>>,
    mut writer: impl ItemWriter<T>,
    waiting: &AtomicUsize,
    dropped: &AtomicU64,
) {
    let report_losses = |writer: &mut dyn ItemWriter<T>| match dropped.swap(0, Ordering::Relaxed) {
        0 => {}
        lost => writer.lost(lost),
    };
    while let Ok(message) = messages.recv() {
        match message {
            Message::Item(item, weight) => {
                writer.write(item);
                waiting.fetch_sub(weight, Ordering::Relaxed);
                // The items that were dropped are newer than those in the queue, so the loss is reported after the
                // queue is empty.
                if messages.is_empty() {
                    report_losses(&mut writer);
                }
            }
            Message::Flush(done) => {
                report_losses(&mut writer);
                let _ = done.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    /// Writes one item for each message on `permits`. Once that channel is closed, writes without waiting.
    struct GatedWriter {
        permits: Receiver<()>,
        seen: Arc<Mutex<Vec<String>>>,
    }

    impl ItemWriter<u32> for GatedWriter {
        fn write(&mut self, item: u32) {
            let _ = self.permits.recv();
            self.seen.lock().expect("a list").push(item.to_string());
        }

        fn lost(&mut self, items: u64) {
            self.seen.lock().expect("a list").push(format!("{items} lost"));
        }
    }

    fn outlet(limits: QueueLimits) -> (Outlet<u32>, Sender<()>, Arc<Mutex<Vec<String>>>) {
        let (permit, permits) = bounded(1000);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let writer = GatedWriter { permits, seen: Arc::clone(&seen) };
        (Outlet::open("test", limits, writer).expect("a thread"), permit, seen)
    }

    #[test]
    fn blocked_output_drops_what_does_not_fit_without_waiting() {
        let (outlet, permit, seen) = outlet(QueueLimits { items: 4, weight: 100 });
        let taken = (0..50).filter(|&number| outlet.put(number, 1)).count();
        // The writer may already have taken one item out of the queue.
        assert!((4..=5).contains(&taken), "{taken}");
        assert!(!outlet.flush(Duration::from_millis(1)), "the writer is blocked");
        drop(permit);
        assert!(outlet.flush(SOON));
        let seen = seen.lock().expect("a list");
        let lost: Vec<&String> = seen.iter().filter(|line| line.ends_with("lost")).collect();
        assert_eq!(lost, [&format!("{} lost", 50 - taken)], "{seen:?}");
        assert_eq!(seen.len(), taken + 1);
    }

    #[test]
    fn heavy_items_are_dropped_before_the_queue_is_full() {
        let (outlet, permit, seen) = outlet(QueueLimits { items: 100, weight: 10 });
        let taken: Vec<bool> = (0..3).map(|number| outlet.put(number, 6)).collect();
        assert_eq!(taken, [true, false, false]);
        drop(permit);
        assert!(outlet.flush(SOON));
        assert!(outlet.put(7, 6), "the queue has space again");
        assert!(outlet.flush(SOON));
        assert_eq!(*seen.lock().expect("a list"), ["0", "2 lost", "7"]);
    }
}
