//! Reads a card's clock by recording CUDA events, and makes CUDA graphs of launches.

use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::time::Duration;

use cudarc::driver::sys::{CUevent, CUgraph, CUgraphExec, CUstream};

use super::DriverError;
use super::code::Code;
use super::functions::{Elapsed, Functions, Graphs, ok};
use super::timing::{GraphId, Stamp};

const EVENT_DEFAULT: c_uint = 0;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
const CAPTURE_THREAD_LOCAL: c_uint = 1;

/// The events of one stream. They are reused after `clear`.
#[derive(Default)]
pub(super) struct Stamps {
    events: Vec<CUevent>,
    used: usize,
}

impl Stamps {
    pub(super) fn record(&mut self, functions: &Functions, stream: CUstream) -> Result<Stamp, DriverError> {
        let event = match self.events.get(self.used) {
            Some(&event) => event,
            None => {
                let mut event = std::ptr::null_mut();
                // SAFETY: the event is written by the call.
                ok("cuEventCreate", unsafe { (functions.event)(&raw mut event, EVENT_DEFAULT) })?;
                self.events.push(event);
                event
            }
        };
        // SAFETY: an event and a stream of the same context.
        ok("cuEventRecord", unsafe { (functions.record)(event, stream) })?;
        let stamp = Stamp(self.used as u64);
        self.used += 1;
        Ok(stamp)
    }

    pub(super) fn between(&self, elapsed: Elapsed, from: Stamp, to: Stamp) -> Result<Duration, DriverError> {
        const CALL: &str = "cuEventElapsedTime";
        let event = |stamp: Stamp| {
            let at = usize::try_from(stamp.0).ok().filter(|&at| at < self.used);
            at.and_then(|at| self.events.get(at).copied()).ok_or(DriverError::new(CALL, Code::INVALID_HANDLE))
        };
        let mut ms = 0.0;
        // SAFETY: two recorded events; the time is written by the call.
        ok(CALL, unsafe { elapsed(&raw mut ms, event(from)?, event(to)?) })?;
        // If the events are in the wrong order, the driver may report a negative time, which counts as zero.
        Ok(Duration::try_from_secs_f64(f64::from(ms) / 1e3).unwrap_or_default())
    }

    pub(super) fn clear(&mut self) {
        self.used = 0;
    }
}

#[derive(Default)]
pub(super) struct MadeGraphs {
    made: BTreeMap<u64, (CUgraph, CUgraphExec)>,
    last_number: u64,
}

impl MadeGraphs {
    /// Makes a graph of the launches that `queue` puts on the stream.
    pub(super) fn record(
        &mut self,
        graphs: &Graphs,
        stream: CUstream,
        queue: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<GraphId, DriverError> {
        // SAFETY: a stream of this thread's context, on which nothing is being recorded.
        ok("cuStreamBeginCapture", unsafe { (graphs.begin)(stream, CAPTURE_THREAD_LOCAL) })?;
        let queued = queue();
        let mut graph = std::ptr::null_mut();
        // SAFETY: the recording that was begun above; the graph is written by the call.
        let ended = ok("cuStreamEndCapture", unsafe { (graphs.end)(stream, &raw mut graph) });
        if let Err(error) = queued {
            if ended.is_ok() {
                // SAFETY: nothing else uses the graph.
                let _ = unsafe { (graphs.drop)(graph) };
            }
            return Err(error);
        }
        ended?;
        let mut executable = std::ptr::null_mut();
        // SAFETY: the recorded graph; the executable one is written by the call.
        let code = unsafe { (graphs.instantiate)(&raw mut executable, graph, 0) };
        if let Err(error) = ok("cuGraphInstantiateWithFlags", code) {
            // SAFETY: nothing else uses the graph.
            let _ = unsafe { (graphs.drop)(graph) };
            return Err(error);
        }
        self.last_number += 1;
        self.made.insert(self.last_number, (graph, executable));
        Ok(GraphId(self.last_number))
    }

    pub(super) fn launch(
        &self,
        graphs: &Graphs,
        graph: GraphId,
        stream: CUstream,
    ) -> Result<(), DriverError> {
        let unknown = DriverError::new("cuGraphLaunch", Code::INVALID_HANDLE);
        let &(_, executable) = self.made.get(&graph.0).ok_or(unknown)?;
        // SAFETY: a graph that was made and not dropped, and a stream of its context.
        ok("cuGraphLaunch", unsafe { (graphs.launch)(executable, stream) })
    }

    pub(super) fn drop(&mut self, graphs: &Graphs, graph: GraphId) {
        if let Some((graph, executable)) = self.made.remove(&graph.0) {
            // An error means that the context has failed, which releases both. SAFETY: made once and dropped once.
            unsafe {
                let _ = (graphs.drop_executable)(executable);
                let _ = (graphs.drop)(graph);
            }
        }
    }
}
