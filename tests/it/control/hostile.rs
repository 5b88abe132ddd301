//! Tests that hostile clients, and users without permission, do not affect the run.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use opt_tests::Scenario;
use opt_tests::users::{User, set_mode};
use opt_tests::waiting::until;
use serde_json::{Value, json};

use super::client::{Client, LiveRun};
use super::slow;
use crate::report::browser::skipped;

/// The target for the supervisor's memory (20 MiB, see docs/explanation/benchmarks.md). It does not include pages of
/// the executable, because their number depends on the machine.
const MAX_KIB: u64 = 20 << 10;
const POLL_INTERVAL: Duration = Duration::from_millis(2);
const LINES: usize = 10_000;
const HOSTILE_CLIENTS: u64 = 16;

/// A small random number generator with the same sequence on every machine.
struct RandomNumbers(u64);

impl RandomNumbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % limit
    }
}

/// Requests to mutate. No seed ends or changes the run, because a mutated request may still be valid.
const SEEDS: [&str; 6] = [
    r#"{"jsonrpc":"2.0","id":1,"method":"status"}"#,
    r#"{"jsonrpc":"2.0","id":"x","method":"workers","params":{}}"#,
    r#"{"jsonrpc":"2.0","id":2,"method":"why","params":{"worker":1}}"#,
    r#"{"jsonrpc":"2.0","id":3,"method":"result","params":{"candidate":"softmax/fast"}}"#,
    r#"{"jsonrpc":"2.0","id":4,"method":"cancel","params":{"job":"nothing","candidate":"x"}}"#,
    r#"[{"jsonrpc":"2.0","id":5,"method":"events"}]"#,
];

fn random_line(random: &mut RandomNumbers) -> Vec<u8> {
    let mut line = SEEDS[random.below(SEEDS.len())].as_bytes().to_vec();
    match random.below(6) {
        0 => {}
        1 => line.truncate(random.below(line.len())),
        2 => {
            for _ in 0..=random.below(8) {
                let at = random.below(line.len());
                line[at] = u8::try_from(random.below(256)).expect("a byte");
            }
        }
        3 => {
            line = (0..random.below(400)).map(|_| u8::try_from(random.below(256)).expect("a byte")).collect()
        }
        4 => line = "[".repeat(random.below(2_000)).into_bytes(),
        _ => {
            let at = random.below(line.len());
            let tail = line[random.below(line.len())..].to_vec();
            line.splice(at..at, tail);
        }
    }
    line.push(b'\n');
    line
}

#[test]
fn run_survives_ten_thousand_lines_and_two_hundred_clients() {
    let scenario = slow(&["fast"]);
    let run = LiveRun::start(&scenario, &["--quiet", "--keep-open"]);
    let socket = run.socket();
    // A client that subscribes to events and sends requests, but never reads the answers.
    let mut non_reader = Client::connect(&socket);
    non_reader.send(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"events\"}\n").expect("sent");
    let peak = std::thread::scope(|scope| {
        let (stop_sender, stop_receiver) = channel::<()>();
        let run = &run;
        let watch = scope.spawn(move || {
            let mut peak = 0;
            while stop_receiver.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                peak = run.kib(&["RssAnon:", "RssShmem:"]).max(peak);
            }
            peak
        });
        std::thread::scope(|scope| send_hostile_traffic(scope, &socket, &mut non_reader));
        connect_two_hundred_clients(run);
        drop(stop_sender);
        watch.join().expect("the watching thread ends without a panic")
    });
    // The run still serves a well-behaved client.
    until("a connection is free", || Client::connect(&socket).call("workers", &json!({})).is_ok());
    println!("VmHWM: {} KiB", run.kib(&["VmHWM:"]));
    run.ctl(&["result", "softmax/fast", "--wait"]).expect_exit(0).expect_stdout(&["PASSED"]);
    run.ctl(&["shutdown"]).expect_exit(0);
    let (outcome, summary) = run.finish(0);
    outcome.expect(0 < peak && peak < MAX_KIB, format_args!("the supervisor's peak is {peak} KiB"));
    outcome.expect_equal(summary.verdict("softmax", "naive"), (Some("PASSED"), None), "naive");
    outcome.expect_equal(summary.verdict("softmax", "fast"), (Some("PASSED"), None), "fast");
}

/// Starts clients that send random lines, and sends requests from the client that never reads its answers.
fn send_hostile_traffic<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    socket: &'scope Path,
    non_reader: &'scope mut Client,
) {
    scope.spawn(move || {
        let line = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"status\"}\n".repeat(500);
        // The loop ends when the server closes the connection.
        while non_reader.send(&line).is_ok() {}
    });
    for talker in 0..HOSTILE_CLIENTS {
        scope.spawn(move || {
            let mut random = RandomNumbers(0x5eed + talker);
            let mut client = Client::connect(socket);
            for _ in 0..LINES / usize::try_from(HOSTILE_CLIENTS).expect("a few") {
                let line = random_line(&mut random);
                // The server does not answer an empty line or a request without an id, so send a valid request after
                // it.
                let asked =
                    [&line[..], b"{\"jsonrpc\":\"2.0\",\"id\":\"end\",\"method\":\"workers\"}\n"].concat();
                if client.send(&asked).is_err() {
                    client = Client::connect(socket);
                    continue;
                }
                loop {
                    match client.line() {
                        Some(answer) if answer["id"] == "end" => break,
                        Some(answer) => assert_eq!(answer["jsonrpc"], "2.0", "{answer}"),
                        None => {
                            client = Client::connect(socket);
                            break;
                        }
                    }
                }
            }
        });
    }
}

/// Connects two hundred clients at once. The server serves 32, and tells the others that it is busy.
fn connect_two_hundred_clients(run: &LiveRun<'_>) {
    until("earlier connections are closed, and 32 are served", || {
        let mut all: Vec<Client> = (0..200).map(|_| run.client()).collect();
        let answers: Vec<Value> = all
            .iter_mut()
            .map(|client| {
                // A refused connection may be closed before its request is sent. The refusal can still be read.
                let _ = client.send(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"workers\"}\n");
                client.line().expect("every client gets an answer")
            })
            .collect();
        let served = answers.iter().filter(|answer| answer["result"].is_object()).count();
        let busy = answers.iter().filter(|answer| answer["error"]["data"]["code"] == "busy").count();
        assert_eq!(served + busy, 200, "{answers:?}");
        assert!(served <= 32, "{served} were served");
        served == 32
    });
}

#[test]
fn refused_client_gets_busy_error() {
    let scenario = slow(&[]);
    let run = LiveRun::start(&scenario, &["--quiet", "--keep-open"]);
    let mut idle_clients: Vec<Client> = (0..32)
        .map(|_| {
            let mut client = run.client();
            client.call("workers", &json!({})).expect("served");
            client
        })
        .collect();
    // The server closes a connection after a minute of silence. A request from every client restarts this minute, so
    // that all 32 connections are in use below.
    for client in &mut idle_clients {
        client.call("workers", &json!({})).expect("the connection is still open");
    }
    let mut late = run.client();
    let refusal = late.line().expect("a refusal");
    assert_eq!(refusal["error"]["data"]["code"], "busy", "{refusal}");
    assert!(late.line().is_none(), "the server must close the connection");
    run.ctl(&["status"]).expect_exit(3).expect_stderr(&["busy"]);
    drop(idle_clients);
    until("a connection is free", || run.ctl(&["status"]).code == Some(0));
    run.ctl(&["shutdown", "--mode", "now"]).expect_exit(0);
    run.finish_any();
}

/// Runs `ctl` as another user, with the socket's path.
fn run_ctl_as(scenario: &Scenario, other: User, socket: &str) -> opt_tests::Outcome {
    let program = scenario.path().join("opt-supervisor");
    if !program.exists() {
        std::fs::copy(opt_tests::binary(), &program).expect("a copy of the program");
    }
    let arguments = ["ctl", "--socket", socket, "status"];
    let mut command = scenario.command_of(&program, &arguments);
    other.apply_to(&mut command);
    let child = command.spawn().expect("the program starts");
    scenario.finish(child, &arguments)
}

fn another_user() -> Option<User> {
    let other = User::ordinary();
    if other.is_none() {
        skipped("the control socket was not tried as another user: only root can switch users");
    }
    other
}

/// Starts a run whose folders another user may enter, so that only the mode of the socket protects the run.
fn with_open_folders(scenario: &Scenario) -> LiveRun<'_> {
    set_mode(scenario.path(), 0o755);
    let run = LiveRun::start(scenario, &["--quiet", "--keep-open"]);
    set_mode(&scenario.runtime(), 0o755);
    set_mode(run.socket().parent().expect("a folder"), 0o755);
    run
}

/// Linux refuses the connection before the supervisor can check the peer's uid.
#[test]
fn another_user_is_refused_by_the_sockets_mode() {
    let Some(other) = another_user() else {
        return;
    };
    let scenario = slow(&[]);
    let run = with_open_folders(&scenario);
    let socket = run.socket();
    let (folder, name) = (socket.parent().expect("a folder"), socket.to_str().expect("UTF-8"));
    assert_eq!(std::fs::metadata(&socket).expect("the socket").permissions().mode() & 0o777, 0o600);
    run_ctl_as(&scenario, other, name).expect_exit(3).expect_stderr(&["connecting", "denied"]);
    // The normal mode of the folder keeps other users out as well.
    set_mode(folder, 0o700);
    set_mode(&socket, 0o666);
    run_ctl_as(&scenario, other, name).expect_exit(3).expect_stderr(&["connecting", "denied"]);
    run.ctl(&["shutdown", "--mode", "now"]).expect_exit(0);
    run.finish_any();
}

/// Even if the permissions let everybody connect, the supervisor refuses a peer with another uid.
#[test]
fn another_user_is_refused_by_the_peer_check() {
    let Some(other) = another_user() else {
        return;
    };
    let scenario = slow(&[]);
    let run = with_open_folders(&scenario);
    let socket = run.socket();
    set_mode(&socket, 0o666);
    let name = socket.to_str().expect("UTF-8");
    run_ctl_as(&scenario, other, name).expect_exit(3).expect_stderr(&["forbidden", "another user"]);
    run.ctl(&["status"]).expect_exit(0);
    run.ctl(&["shutdown", "--mode", "now"]).expect_exit(0);
    run.finish_any();
}

#[test]
fn silent_client_does_not_delay_the_end_of_the_run() {
    let scenario = slow(&[]);
    let run = LiveRun::start(&scenario, &["--quiet"]);
    let mut silent = run.client();
    silent.send(b"{\"jsonrpc\":").expect("sent");
    let (outcome, _) = run.finish(0);
    outcome.expect(outcome.in_time, "it ended");
    assert!(silent.line().is_none(), "the server must close the connection");
}
