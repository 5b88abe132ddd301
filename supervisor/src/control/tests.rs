//! Tests the server over real sockets, without a run: admission, limits, and malformed lines.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use opt_shared::message::Role;
use opt_shared::mode::Mode;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::connection::{IDLE_TIME, LINE_TIME, MAX_QUEUED};
use super::message::{self, Notification};
use super::socket::RunSocket;
use super::{Code, MAX_LINE, Request, Server, Token};

/// A server whose run has an empty folder.
struct Bench {
    server: Server,
    now: Instant,
    _folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = RunSocket::take(folder.path()).expect("a socket path");
        Self { server: Server::open(socket).expect("a server"), now: Instant::now(), _folder: folder }
    }

    fn connect(&self) -> UnixStream {
        let socket = UnixStream::connect(self.server.path()).expect("a connection");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
        socket
    }

    /// Serves until a step returns no request, and answers each request with its `Debug` text. The step that accepts a
    /// connection does not read from it, so the lines of a new connection are served by a second call.
    fn serve(&mut self) -> Vec<Request> {
        let mut all = Vec::new();
        loop {
            let requests = self.server.serve(self.now);
            if requests.is_empty() {
                return all;
            }
            for (token, request) in requests {
                self.server.answer(&token, &Ok(json!(format!("{request:?}"))), self.now);
                all.push(request);
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }
}

fn send(socket: &mut UnixStream, line: &str) {
    socket.write_all(line.as_bytes()).expect("written");
}

fn receive(socket: &UnixStream) -> Value {
    let mut line = String::new();
    BufReader::with_capacity(1, socket).read_line(&mut line).expect("an answer");
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
}

/// Skips everything that the other end has sent, and returns whether it has closed the connection.
fn is_closed(mut socket: &UnixStream) -> bool {
    let mut rest = Vec::new();
    match socket.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

fn code(answer: &Value) -> &str {
    answer["error"]["data"]["code"].as_str().unwrap_or_else(|| panic!("no error: {answer}"))
}

#[test]
fn requests_are_typed_and_answered_by_their_id() {
    let mut bench = Bench::new();
    let mut socket = bench.connect();
    send(&mut socket, "{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"status\"}\n");
    send(
        &mut socket,
        "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"restart\",\"params\":{\"role\":\"verifier\",\"mode\":\"now\"}}\r\n\n",
    );
    bench.serve();
    assert_eq!(bench.serve().len(), 2, "an empty line is ignored");
    assert_eq!(receive(&socket), json!({ "jsonrpc": "2.0", "id": "a", "result": "Status" }));
    let answer = receive(&socket);
    assert_eq!(answer["id"], 2);
    let text = answer["result"].as_str().expect("a text");
    assert!(
        text.contains(&format!("{:?}", Some(Role::Verifier))) && text.contains(&format!("{:?}", Mode::Now))
    );
}

#[test]
fn malformed_line_is_answered_with_its_error() {
    let table: [(&str, &str); 14] = [
        ("nonsense", "parse_error"),
        ("{", "parse_error"),
        ("[]", "batch_refused"),
        ("  [{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"status\"}]", "batch_refused"),
        ("1", "invalid_request"),
        ("{\"id\":1,\"method\":\"status\"}", "invalid_request"),
        ("{\"jsonrpc\":\"2.0\",\"id\":1}", "invalid_request"),
        ("{\"jsonrpc\":\"2.0\",\"id\":[1],\"method\":\"status\"}", "invalid_request"),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"explode\"}", "unknown_method"),
        ("{\"jsonrpc\":\"2.0\",\"method\":\"explode\"}", "unknown_method"),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"recycle\"}", "invalid_params"),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"pause\",\"params\":[1]}", "invalid_params"),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"shutdown\",\"params\":{\"mod\":\"now\"}}",
            "invalid_params",
        ),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"submit\",\"params\":{\"text\":\"\",\"sources\":[\"a\"]}}",
            "invalid_params",
        ),
    ];
    for (line, expected) in table {
        let parsed = message::parse(line.as_bytes());
        let refusal = parsed.request.expect_err(line);
        let word = serde_json::to_value(refusal.code).expect("a word");
        assert_eq!(word, expected, "{line}: {}", refusal.message);
        let answer: Value = serde_json::from_slice(&message::format_answer(
            parsed.id.as_deref().unwrap_or("null"),
            &Err(refusal),
        ))
        .expect("JSON");
        assert_eq!(code(&answer), expected);
    }
    // A request without an id gets no answer if it succeeds.
    assert!(message::parse(b"{\"jsonrpc\":\"2.0\",\"method\":\"pause\"}").id.is_none());
    let null = message::parse(b"{\"jsonrpc\":\"2.0\",\"id\":null,\"method\":\"pause\"}");
    assert_eq!(null.id.as_deref(), Some("null"));
}

proptest! {
    #[test]
    fn any_line_gets_an_answer_in_json(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let parsed = message::parse(&bytes);
        let id = parsed.id.unwrap_or_else(|| "null".into());
        let answer = message::format_answer(&id, &parsed.request.map(|_| Value::Null));
        prop_assert!(serde_json::from_slice::<Value>(&answer).is_ok());
    }

    #[test]
    fn mutated_request_gives_a_request_or_an_error(at in 0usize..80, byte in any::<u8>(), cut in 0usize..100) {
        let mut line =
            b"{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"cancel\",\"params\":{\"job\":\"j\",\"candidate\":\"c\"}}".to_vec();
        if at < line.len() {
            line[at] = byte;
        }
        line.truncate(100 - cut);
        let parsed = message::parse(&line);
        let id = parsed.id.unwrap_or_else(|| "null".into());
        let answer: Value = serde_json::from_slice(&message::format_answer(&id, &parsed.request.map(|_| Value::Null)))?;
        prop_assert_eq!(&answer["jsonrpc"], "2.0");
    }
}

#[test]
fn thirty_third_connection_is_refused_as_busy() {
    let mut bench = Bench::new();
    let mut sockets: Vec<UnixStream> = (0..200)
        .map(|_| {
            let socket = bench.connect();
            bench.server.serve(bench.now);
            socket
        })
        .collect();
    for socket in &sockets[32..] {
        assert_eq!(code(&receive(socket)), "busy");
        assert!(is_closed(socket));
    }
    for socket in &mut sockets[..32] {
        send(socket, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"workers\"}\n");
    }
    bench.serve();
    for socket in &sockets[..32] {
        assert_eq!(receive(socket)["result"], "Workers");
    }
    // Once clients have left, another can connect.
    drop(sockets);
    bench.serve();
    let mut late = bench.connect();
    send(&mut late, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"status\"}\n");
    bench.serve();
    bench.serve();
    assert_eq!(receive(&late)["result"], "Status");
}

#[test]
fn too_long_line_closes_the_connection() {
    let mut bench = Bench::new();
    let mut socket = bench.connect();
    socket.set_nonblocking(true).expect("set");
    let chunk = [b'x'; 4096];
    let mut sent = 0;
    while sent <= MAX_LINE {
        sent += socket.write(&chunk).unwrap_or(0);
        bench.serve();
    }
    bench.serve();
    socket.set_nonblocking(false).expect("set");
    assert_eq!(code(&receive(&socket)), "line_too_long");
    assert!(is_closed(&socket));
    assert!(bench.server.next_moment().is_none(), "no connection is left");
}

#[test]
fn slow_or_silent_client_is_closed() {
    let mut bench = Bench::new();
    let (mut slow, silent, mut listener) = (bench.connect(), bench.connect(), bench.connect());
    bench.serve();
    send(&mut slow, "{\"jsonrpc\"");
    send(&mut listener, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"events\"}\n");
    bench.serve();
    assert!(bench.server.has_listeners());
    bench.pass(LINE_TIME);
    bench.serve();
    assert!(is_closed(&slow));
    bench.pass(IDLE_TIME);
    bench.serve();
    assert!(is_closed(&silent));
    assert!(bench.server.has_listeners(), "an event stream has no idle timeout");
    assert_eq!(receive(&listener)["result"]["outcome"], "done");
    bench.server.broadcast(&Notification(json!({ "kind": "policy" })), bench.now);
    assert_eq!(receive(&listener)["params"]["kind"], "policy");
}

#[test]
fn client_that_never_reads_is_closed_at_the_limit_of_its_queue() {
    let mut bench = Bench::new();
    let mut socket = bench.connect();
    send(&mut socket, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"events\"}\n");
    bench.serve();
    bench.serve();
    let event = Notification(json!({ "kind": "policy", "reason": "x".repeat(10_000) }));
    let mut sent = 0;
    while bench.server.has_listeners() {
        bench.server.broadcast(&event, bench.now);
        sent += 1;
        assert!(sent < 1_000, "the connection is still open");
    }
    assert!(MAX_QUEUED / 10_000 < sent, "closed before its queue was full: {sent}");
}

#[test]
fn busy_client_does_not_crowd_out_the_others() {
    let mut bench = Bench::new();
    let (mut loud, mut quiet) = (bench.connect(), bench.connect());
    bench.serve();
    send(&mut loud, &"{\"jsonrpc\":\"2.0\",\"method\":\"status\"}\n".repeat(1_000));
    send(&mut quiet, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"workers\"}\n");
    let served = bench.serve();
    assert!(
        served.contains(&Request::Workers),
        "the other client's request is missing among {}",
        served.len()
    );
    assert!(served.len() < 300, "the rate limit was exceeded: {}", served.len());
    let before = served.len();
    assert!(bench.server.next_moment().is_some_and(|at| at < bench.now + Duration::from_secs(1)));
    bench.pass(Duration::from_secs(1));
    assert!(!bench.serve().is_empty(), "the requests after the first {before} were not served");
}

#[test]
fn requests_of_a_client_that_left_are_carried_out() {
    let mut bench = Bench::new();
    let mut socket = bench.connect();
    send(&mut socket, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"pause\"}\n");
    drop(socket);
    let mut served = bench.server.serve(bench.now);
    served.extend(bench.server.serve(bench.now));
    let (token, request): (Token, Request) = served.pop().expect("the request");
    assert_eq!(request, Request::Pause);
    bench.server.serve(bench.now);
    assert!(!bench.server.is_connected(&token));
    bench.server.answer(&token, &Ok(Value::Null), bench.now);
    assert!(bench.server.next_moment().is_none());
}

/// The client behaves like `echo … | socat - UNIX-CONNECT:…`.
#[test]
fn client_that_stopped_writing_still_gets_its_answers() {
    let mut bench = Bench::new();
    let mut socket = bench.connect();
    send(&mut socket, "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"status\"}\n");
    socket.shutdown(std::net::Shutdown::Write).expect("half closed");
    bench.server.serve(bench.now);
    let mut served = bench.server.serve(bench.now);
    let (token, _) = served.pop().expect("the request");
    // The client waits for a slow result.
    bench.pass(IDLE_TIME * 2);
    bench.serve();
    bench.server.answer(&token, &Ok(json!("late")), bench.now);
    assert_eq!(receive(&socket)["result"], "late");
    bench.serve();
    assert!(is_closed(&socket) && bench.server.next_moment().is_none());
}

#[test]
fn socket_folder_is_private_and_cleared() {
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::open(RunSocket::take(folder.path()).expect("a socket path")).expect("a server");
    let path = server.path().to_owned();
    let socket = std::fs::metadata(&path).expect("the socket");
    assert!(socket.file_type().is_socket());
    assert_eq!(socket.mode() & 0o777, 0o600);
    let parent = std::fs::metadata(path.parent().expect("a folder")).expect("the folder");
    assert_eq!(parent.mode() & 0o777, 0o700);
    assert_eq!(std::fs::read_link(folder.path().join("control.sock")).expect("a link"), path);
    let ours = |run: &Path| super::socket::runs().into_iter().find(|found| found.run == run);
    assert_eq!(ours(folder.path()).expect("it is found").socket, path);
    drop(server);
    assert!(!path.exists() && ours(folder.path()).is_none());
    assert!(std::fs::symlink_metadata(folder.path().join("control.sock")).is_err());
    // A new server replaces the socket that a killed supervisor left.
    std::mem::forget(Server::open(RunSocket::take(folder.path()).expect("a socket path")).expect("a server"));
    assert!(path.exists());
    drop(Server::open(RunSocket::take(folder.path()).expect("a socket path")).expect("a server"));
    assert!(!path.exists());
}

#[test]
fn peer_has_to_be_the_runs_user_or_root() {
    use rustix::process::Uid;
    for (peer, own, expected) in [(1000, 1000, true), (0, 1000, true), (1001, 1000, false), (1000, 0, false)]
    {
        let admitted = super::server::is_admitted(Uid::from_raw(peer), Uid::from_raw(own));
        assert_eq!(admitted, expected, "{peer} at the run of {own}");
    }
}

#[test]
fn codes_are_stable_words() {
    for (code, word) in [
        (Code::ParseError, "parse_error"),
        (Code::Refused, "refused"),
        (Code::NotFound, "not_found"),
        (Code::Busy, "busy"),
        (Code::Forbidden, "forbidden"),
    ] {
        assert_eq!(serde_json::to_value(code).expect("a word"), word);
    }
}
