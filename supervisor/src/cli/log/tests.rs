//! Tests the log with strings as outputs: lines are filtered and limited, and omitted lines are reported.

use serde_json::Value;

use super::*;

#[derive(Clone, Default)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl Text {
    fn sink(&self) -> Sink {
        let text = Arc::clone(&self.0);
        Sink(Arc::new(move |line| text.lock().expect("a text").extend_from_slice(line)))
    }

    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().expect("a text"))).expect("UTF-8")
    }
}

/// Runs `what`, and returns the lines of both outputs, including the reports of omitted lines.
fn logged(shown: &str, what: impl FnOnce()) -> (String, Vec<Value>) {
    let (stderr, file) = (Text::default(), Text::default());
    let log = Arc::new(Log::new(shown.parse().expect("a filter"), stderr.sink(), file.sink(), false));
    let subscriber = tracing_subscriber::registry().with(Shared(Arc::clone(&log)));
    tracing::subscriber::with_default(subscriber, what);
    log.report_omitted(None);
    let lines = file.take();
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")));
    (stderr.take(), lines.collect())
}

#[test]
fn repeated_line_is_limited_and_counted() {
    let (stderr, file) = logged("warn", || {
        for number in 0..5_000 {
            tracing::warn!(number, "a kernel did it again: \u{1b}[2J{number}");
        }
        tracing::warn!("something else");
    });
    let lines_with = |text: &str| stderr.lines().filter(|line| line.contains(text)).count();
    assert_eq!(lines_with("did it again") - lines_with("left out"), MAX_SHOWN as usize, "{stderr}");
    assert_eq!(lines_with("something else"), 1, "another call site has its own limit");
    let reported = stderr.lines().find(|line| line.contains("left out")).expect("a report");
    assert_eq!(
        reported,
        " WARN 4980 more lines like this were left out within 10 s: a kernel did it again:  [2J4999"
    );
    assert!(!stderr.contains('\u{1b}'), "control characters reach the terminal");
    assert_eq!(file.len(), MAX_KEPT as usize + 2);
    let reported = file.iter().find(|line| !line["fields"]["left_out"].is_null()).expect("a report");
    assert_eq!(reported["fields"]["left_out"], 4_000);
    assert_eq!(reported["level"], "WARN");
    assert_eq!(reported["target"], file[0]["target"]);
    assert!(reported["fields"]["site"].as_str().is_some_and(|site| site.contains("tests.rs:")), "{reported}");
    assert!(reported["timestamp"].is_string());
}

#[test]
fn each_output_has_its_filter() {
    let log_events = || {
        tracing::error!("an error");
        tracing::debug!(worker = 3, "a detail");
        tracing::trace!("a finer detail");
    };
    let (stderr, file) = logged("warn", log_events);
    assert_eq!(stderr, "ERROR an error\n");
    let messages: Vec<&Value> = file.iter().map(|line| &line["fields"]["message"]).collect();
    assert_eq!(messages, ["an error", "a detail"]);
    assert_eq!(file[1]["fields"]["worker"], 3);
    let (stderr, file) = logged("trace", log_events);
    assert_eq!(stderr.lines().count(), 3, "{stderr}");
    assert_eq!(file.len(), 2, "the filter of one output changed the other");
    assert_eq!(logged("off", log_events).0, "");
}
