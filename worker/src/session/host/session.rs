//! A session on the CPU: sends commands to one runner, reads its outputs, and ends it.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use opt_shared::causes::chain;
use opt_shared::ids::LeaseId;
use opt_shared::units::Bytes;

use super::callable::Callable;
use super::clock::Stopwatch;
use super::death;
use super::error::RunnerError;
use super::evict::evict;
use super::outputs::{Outputs, Slots};
use super::placed::Placed;
use super::process::{Death, Response, Runner};
use super::variants::HostVariants;
use super::view::View;
use super::wire_call::wire_call;
use crate::judge::BytesSource;
use crate::link::Link;
use crate::runner::control::{FLAG_PLAN, FLAG_VERIFY};
use crate::sandbox::timeout::{self, StopScope};
use crate::session::{
    Answer, Called, Candidate, Clock, Ending, Loaded, Session, SessionError, StrayWrite, Varied, VariedInput,
};

pub(super) struct HostSession<'b> {
    pub(super) link: &'b Link,
    pub(super) callable: &'b Callable,
    pub(super) entries: &'b [Placed],
    pub(super) outputs: Vec<Outputs>,
    pub(super) runner: Runner,
    /// Present if the session is timed.
    pub(super) view: Option<View>,
    /// The file with the variants of the inputs, and its size.
    variants: Option<(OwnedFd, Bytes)>,
    /// For each entry, the varying inputs that its call changes.
    changed: Vec<Vec<VariedInput>>,
    /// True if the runner has stopped and has not been continued since.
    pub(super) stopped: bool,
    /// The entry that was called last.
    called: usize,
    pub(super) watch: Stopwatch,
}

impl<'b> HostSession<'b> {
    pub(super) fn start(
        link: &'b Link,
        lease: LeaseId,
        callable: &'b Callable,
        entries: &'b [Placed],
        slots: Slots,
        varied: Option<Varied<'_, HostVariants>>,
    ) -> Result<Self, SessionError> {
        let recorded: Vec<&[_]> = entries.iter().map(|entry| entry.as_ref().outputs.as_slice()).collect();
        let outputs = Outputs::create_shared(&recorded, slots)
            .map_err(|errno| outputs_error(entries, 0, errno.into()))?;
        let memory = outputs.first().map_or(Bytes::ZERO, Outputs::memfd_bytes);
        let view = match outputs.first().filter(|_| slots != Slots::AgainstGuards) {
            Some(first) => Some(
                View::of(first.descriptor(), memory)
                    .map_err(|errno| outputs_error(entries, 0, errno.into()))?,
            ),
            None => None,
        };
        let mut spec = callable.spec(lease, entries, memory);
        spec.of_worker += varied.map_or(Bytes::ZERO, |varied| varied.memory.bytes());
        let variants = varied
            .map(|varied| Ok((varied.memory.descriptor().try_clone_to_owned()?, varied.memory.bytes())))
            .transpose()
            .map_err(|source: std::io::Error| SessionError::Variants {
                entry: entries.first().map_or_else(String::new, |entry| entry.as_ref().name.clone()),
                source,
            })?;
        let changed = |number: usize| {
            let inputs =
                varied.and_then(|varied| varied.entries.get(number)).map_or(&[][..], |it| &it.inputs);
            inputs.iter().filter(|input| input.output.is_some()).copied().collect()
        };
        let runner = callable
            .process(link)
            .and_then(|process| Runner::start(link, process, &spec))
            .and_then(|runner| Self::announce_entries(runner, callable, entries, &outputs, varied))
            .map_err(|error| callable.error(error))?;
        for entry in entries {
            entry.set_runner(runner.pid());
        }
        let watch = Stopwatch::new(callable.leaves_a_cpu());
        Ok(Self {
            link,
            callable,
            entries,
            outputs,
            runner,
            view,
            variants,
            changed: (0..entries.len()).map(changed).collect(),
            stopped: false,
            called: 0,
            watch,
        })
    }

    fn announce_entries(
        runner: Runner,
        callable: &Callable,
        entries: &[Placed],
        outputs: &[Outputs],
        varied: Option<Varied<'_, HostVariants>>,
    ) -> Result<Runner, RunnerError> {
        for (number, (entry, outputs)) in entries.iter().zip(outputs).enumerate() {
            let mut setup = entry.setup(outputs.wire());
            if let Some(form) = callable.form() {
                let call =
                    wire_call(entry.as_ref(), &callable.callee.signature, form, callable.callee.launcher);
                setup.call = Some(call.map_err(|error| RunnerError::Setup { text: chain(&error) })?);
            }
            let mut descriptors = entry.descriptors(outputs.descriptor());
            if let Some(varied) = varied {
                setup.variants = entry.variant_ranges(&varied.entries[number]);
                descriptors.push(varied.memory.descriptor());
            }
            runner.add_entry(&setup, &descriptors)?;
        }
        Ok(runner)
    }

    /// Evicts inputs, variants and outputs from the caches of all CPUs, but not memory that the candidate has
    /// allocated.
    pub(super) fn evict(&self, entry: usize) -> rustix::io::Result<()> {
        self.entries[entry].evict()?;
        if let Some((variants, bytes)) = &self.variants {
            evict(variants.as_fd(), 0, bytes.get())?;
        }
        let outputs = &self.outputs[entry];
        evict(outputs.descriptor(), 0, outputs.memfd_bytes().get())
    }

    /// Has the supervisor kill the runner and record the time limit as the reason.
    pub(super) fn end_for<T>(&mut self, limit: Duration) -> Result<Answer<T>, RunnerError> {
        self.runner.end_for(self.link, timeout::reason(self.runner.pid(), limit, StopScope::Process))?;
        Ok(Answer::Died)
    }

    /// Stops the runner unless it is stopped already. Returns false if it is dead, or was killed because it did not
    /// stop.
    pub(super) fn ensure_stopped(&mut self) -> Result<bool, RunnerError> {
        if !self.stopped {
            self.stopped = self.runner.stop(self.link)?;
        }
        Ok(self.stopped)
    }

    pub(super) fn resume(&mut self) -> Result<(), RunnerError> {
        if std::mem::take(&mut self.stopped) {
            self.runner.resume()?;
        }
        Ok(())
    }

    /// Makes one call outside a block. Afterwards, the runner is stopped or dead.
    fn command(
        &mut self,
        entry: usize,
        slot: u32,
        flags: u32,
        limit: Duration,
    ) -> Result<Answer<Called>, RunnerError> {
        self.called = entry;
        self.resume()?;
        let started = Instant::now();
        self.runner.command(number(entry), 1, slot, flags, Duration::ZERO);
        match self.runner.wait_done(Duration::ZERO, limit)? {
            Response::Done(called) => {
                let called = Called { elapsed: started.elapsed(), ..called };
                // The runner must be stopped while its outputs are read.
                Ok(if self.ensure_stopped()? { Answer::Done(called) } else { Answer::Died })
            }
            Response::Died => Ok(Answer::Died),
            Response::TimedOut => self.end_for(limit),
        }
    }

    /// Fills outputs, and restores in these slots each argument that the call changes.
    fn refill(
        &self,
        entry: usize,
        slots: Range<u32>,
        fill: impl FnOnce(&Outputs) -> io::Result<()>,
    ) -> Result<(), SessionError> {
        let (outputs, recorded) = (&self.outputs[entry], self.entries[entry].as_ref());
        // An output that is not an argument has no value before the call, so nothing is restored for it.
        let restore = |(number, output)| {
            recorded.before(output, |at, bytes| outputs.write(number, slots.clone(), at, bytes))
        };
        fill(outputs)
            .and_then(|()| recorded.outputs.iter().enumerate().try_for_each(restore))
            .map_err(|source| outputs_error(self.entries, entry, source))
    }

    /// Fills the slots that a block of `calls` calls will write.
    pub(super) fn poison_slots(&self, entry: usize, calls: u32, poison: u8) -> Result<(), SessionError> {
        self.refill(entry, 0..calls, |outputs| outputs.poison_slots(calls, poison))
    }

    /// For each argument that the call changes, copies its variants into the slots of a block. The calls then change
    /// these copies.
    pub(super) fn start_from_variants(&self, entry: usize, calls: u32) -> Result<(), SessionError> {
        let Some((variants, _)) = &self.variants else { return Ok(()) };
        let outputs = &self.outputs[entry];
        let inputs = || self.changed[entry].iter().filter_map(|input| Some((input, input.output?)));
        inputs()
            .flat_map(|(input, output)| (0..calls).map(move |call| (input.at(call), output, call)))
            .try_for_each(|(at, output, call)| outputs.copy_from(variants.as_fd(), at, output, call))
            .map_err(|source| outputs_error(self.entries, entry, source))
    }

    /// Records that an entry is called. Returns its number in the runner.
    pub(super) fn set_called(&mut self, entry: usize) -> u32 {
        self.called = entry;
        number(entry)
    }
}

fn number(entry: usize) -> u32 {
    u32::try_from(entry).unwrap_or(u32::MAX)
}

fn outputs_error(entries: &[Placed], entry: usize, source: std::io::Error) -> SessionError {
    let entry = entries.get(entry).map_or_else(String::new, |entry| entry.as_ref().name.clone());
    SessionError::Outputs { entry, source }
}

impl Session for HostSession<'_> {
    fn load(&mut self, limit: Duration) -> Result<Answer<Loaded>, SessionError> {
        let callable = self.callable;
        let loaded = match self.runner.begin(self.link, limit).map_err(|e| callable.error(e))? {
            Response::Done(Loaded::Refused { text }) => {
                Ok(Answer::Done(Loaded::Refused { text: callable.refusal(&text) }))
            }
            Response::Done(ready) => Ok(if self.ensure_stopped().map_err(|e| callable.error(e))? {
                Answer::Done(ready)
            } else {
                Answer::Died
            }),
            Response::Died => Ok(Answer::Died),
            Response::TimedOut => self.end_for(limit),
        };
        loaded.map_err(|e| callable.error(e))
    }

    fn plan(&mut self, entry: usize, limit: Duration) -> Result<Answer<Called>, SessionError> {
        self.command(entry, 0, FLAG_PLAN | FLAG_VERIFY, limit).map_err(|e| self.callable.error(e))
    }

    fn call(
        &mut self,
        entry: usize,
        slot: u32,
        poison: u8,
        limit: Duration,
    ) -> Result<Answer<Called>, SessionError> {
        self.refill(entry, slot..slot + 1, |outputs| outputs.poison(poison))?;
        self.command(entry, slot, FLAG_VERIFY, limit).map_err(|e| self.callable.error(e))
    }

    fn slots(&self, entry: usize) -> u32 {
        self.outputs[entry].slots()
    }

    fn output(&self, entry: usize, output: usize, slot: u32) -> Box<dyn BytesSource + '_> {
        Box::new(self.outputs[entry].source(output, slot))
    }

    fn damage(&self, entry: usize, slot: u32, poison: u8) -> Result<Option<StrayWrite>, SessionError> {
        self.outputs[entry]
            .damaged_slack(slot, poison)
            .map_err(|source| outputs_error(self.entries, entry, source))
    }

    fn clock(&mut self) -> &mut dyn Clock {
        self
    }

    fn finish(self: Box<Self>) -> Result<Ending, SessionError> {
        for entry in self.entries {
            entry.stop_watching();
        }
        let Self { link, callable, entries, runner, called, .. } = *self;
        let facts = runner.finish(link).map_err(|e| callable.error(e))?;
        let verdict = death::verdict(&facts, entries.get(called));
        let Death { report, peak_owed, tasks_refused, .. } = facts;
        Ok(Ending { verdict, end: report, peak_owed, tasks_refused })
    }
}
