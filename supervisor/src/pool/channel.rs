//! Exchanges messages with a worker over an ipc-channel, in two threads for each worker. Threads are necessary because
//! sending, receiving and accepting could block the main loop.
//!
//! The thread that reads also does the handshake. `IpcOneShotServer::accept` has no timeout and would hang if the
//! worker died before connecting, so `Channel::close` connects to the server itself, with an empty nonce.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use ipc_channel::ipc::{self, IpcOneShotServer, IpcReceiver, IpcSender};
use opt_shared::ids::WorkerId;
use opt_shared::message::{FromWorker, Hello, PROTOCOL_VERSION, ToWorker};

use super::PoolEvent;

/// The stack size of the threads, in bytes. A small stack is enough, because the threads only move messages.
const STACK: usize = 256 * 1024;

/// The supervisor's end of the channel to one worker.
pub(super) struct Channel {
    outbox: Sender<ToWorker>,
    server_name: String,
    /// Whether `accept` has returned, with a connection or an error.
    accept_returned: Arc<AtomicBool>,
}

/// Passes events to the main loop, and wakes the loop through an eventfd.
#[derive(Clone)]
struct EventSender {
    events: Sender<PoolEvent>,
    wake: Arc<OwnedFd>,
}

impl EventSender {
    fn send(&self, event: PoolEvent) {
        if self.events.send(event).is_ok() {
            let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        }
    }
}

impl Channel {
    pub(super) fn open(
        worker: WorkerId,
        pid: u32,
        (server, server_name): (IpcOneShotServer<Hello>, String),
        nonce: String,
        events: Sender<PoolEvent>,
        wake: Arc<OwnedFd>,
    ) -> Self {
        let (outbox, to_write) = unbounded();
        let (give_sender, take_sender) = bounded(1);
        let accept_returned = Arc::new(AtomicBool::new(false));
        let events = EventSender { events, wake };
        let returned = Arc::clone(&accept_returned);
        let reader_events = events.clone();
        let reader =
            std::thread::Builder::new().name(format!("{worker}-reader")).stack_size(STACK).spawn(move || {
                let accepted = server.accept();
                returned.store(true, Ordering::SeqCst);
                match accepted
                    .map_err(|error| format!("accepting the worker's connection failed: {error}"))
                    .and_then(|(_, hello)| check_hello(hello, pid, &nonce))
                {
                    Ok((sender, receiver)) => {
                        let _ = give_sender.send(sender);
                        reader_events.send(PoolEvent::Ready { worker, pid });
                        read(worker, &receiver, &reader_events);
                    }
                    Err(why) => reader_events.send(PoolEvent::NotReady { worker, why }),
                }
            });
        let writer = std::thread::Builder::new()
            .name(format!("{worker}-writer"))
            .stack_size(STACK)
            .spawn(move || write(&take_sender, &to_write));
        if let Err(error) = reader.map(drop).and(writer.map(drop)) {
            events.send(PoolEvent::NotReady {
                worker,
                why: format!("the supervisor could not start the threads of the worker's channel: {error}"),
            });
        }
        Self { outbox, server_name, accept_returned }
    }

    /// Sends a message. Never blocks.
    pub(super) fn send(&self, message: ToWorker) {
        // This fails if the writing thread has ended, because the worker is dead or its handshake failed.
        let _ = self.outbox.send(message);
    }

    /// Ends the two threads after the worker has died. If `accept` is still waiting for the worker, the supervisor
    /// connects in the worker's place, so that `accept` returns.
    pub(super) fn close(self) {
        if self.accept_returned.load(Ordering::SeqCst) {
            return;
        }
        let connected: Result<IpcSender<Hello>, _> = IpcSender::connect(self.server_name);
        let Ok(waker) = connected else { return };
        let (Ok((to_worker, _)), Ok((_, from_worker))) = (ipc::channel(), ipc::channel()) else { return };
        let _ = waker.send(Hello {
            version: PROTOCOL_VERSION,
            nonce: String::new(),
            pid: 0,
            to_worker,
            from_worker,
        });
    }
}

type Accepted = (IpcSender<ToWorker>, IpcReceiver<FromWorker>);

fn check_hello(hello: Hello, pid: u32, nonce: &str) -> Result<Accepted, String> {
    if hello.nonce.is_empty() {
        return Err("the worker died before the handshake".to_owned());
    }
    if hello.nonce != nonce || hello.pid != pid {
        return Err("another process connected instead of the worker".to_owned());
    }
    if hello.version != PROTOCOL_VERSION {
        return Err(format!(
            "the worker speaks protocol {}, and this supervisor speaks {PROTOCOL_VERSION} (was the program's file \
             replaced?)",
            hello.version
        ));
    }
    Ok((hello.to_worker, hello.from_worker))
}

fn read(worker: WorkerId, receiver: &IpcReceiver<FromWorker>, events: &EventSender) {
    // The end of the channel is not reported, because it does not prove that the worker is dead. Only the pidfd shows
    // that.
    while let Ok(message) = receiver.recv() {
        events.send(PoolEvent::Message { worker, message });
    }
}

fn write(sender: &Receiver<IpcSender<ToWorker>>, messages: &Receiver<ToWorker>) {
    let Ok(sender) = sender.recv() else { return };
    while let Ok(message) = messages.recv() {
        if sender.send(message).is_err() {
            return;
        }
    }
}
