//! A session on the device: loads one candidate, makes calls by launching its kernels, and checks every call.
//!
//! ```text
//! start:  inputs uploaded ──▶ outputs, workspaces allocated ──▶ digests of inputs
//! load:   module loaded ──▶ kernels found, their parameters compared
//! call:   outputs, workspaces filled ──▶ launches, each waited for ──▶ bands checked ──▶ digests of inputs compared
//! finish: all released but the inputs, which the next session may use
//! ```

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use opt_shared::launch::ResolvedLaunch;
use opt_shared::outcome::{MemoryPoint, RunnerEnd, Status};
use opt_shared::units::Bytes;

use super::CudaBackend;
use super::buffers::{BAND_BYTE, Bands, DeviceBuffer, OutputSource};
use super::candidate::DeviceCode;
use super::digest::SUM_BYTES;
use super::driver::SharedDriver;
use super::driver::{DriverError, Launch, ModuleId, Queue};
use super::entry_call::{EntryCall, Outputs, WantedBuffer, misfit, outputs_of, params};
use super::fault::{self, During};
use super::launched::Launched;
use super::memory::wait_for;
use super::placed::{Key, OnDevice};
use crate::judge::BytesSource;
use crate::residency::device::{Buffer, DeviceError};
use crate::residency::ledger::Kind;
use crate::residency::load::{Load, Origin};
use crate::residency::staging::StagingError;
use crate::session::{
    Answer, Called, Clock, Ending, KernelLaunch, Loaded, Session, SessionError, StrayWrite, Verdict,
    describe_stray_write,
};

pub(super) struct DeviceSession<'b> {
    pub(super) backend: &'b CudaBackend<'b>,
    pub(super) candidate: &'b DeviceCode,
    pub(super) entries: &'b [OnDevice],
    pub(super) calls: Vec<EntryCall>,
    /// Buffers that only this session uses.
    allocated: Vec<(Kind, Buffer)>,
    launched: Launched,
    /// The address of the device memory for the digests of one entry's inputs.
    sums: u64,
    /// The loaded modules, by the index of their image.
    modules: BTreeMap<usize, ModuleId>,
    /// The reason why the candidate cannot be launched; `None` if it can.
    refusal: Option<String>,
    /// The verdict that ended the session; `None` while the candidate can be called.
    pub(super) ended: Option<Verdict>,
    /// Set if the context cannot be used any more.
    pub(super) context_failed: bool,
    /// Set if all memory on the device must be dropped, for example because inputs may have changed.
    pub(super) spoiled: bool,
}

impl<'b> DeviceSession<'b> {
    pub(super) fn start(
        backend: &'b CudaBackend<'b>,
        candidate: &'b DeviceCode,
        entries: &'b [OnDevice],
        outputs: Outputs,
    ) -> Result<Self, SessionError> {
        let mut session = Self {
            backend,
            candidate,
            entries,
            calls: Vec::with_capacity(entries.len()),
            allocated: Vec::new(),
            launched: Launched::default(),
            sums: 0,
            modules: BTreeMap::new(),
            refusal: None,
            ended: None,
            context_failed: false,
            spoiled: false,
        };
        backend.note_memory(MemoryPoint::Start);
        session.place_inputs_and_outputs(outputs)?;
        backend.note_memory(MemoryPoint::BeforeWorkspace);
        session.place_workspaces()?;
        if session.ended.is_none() {
            session.note_digests()?;
        }
        Ok(session)
    }

    pub(super) fn driver(&self) -> &'b SharedDriver {
        self.backend.driver()
    }

    fn place_inputs_and_outputs(&mut self, outputs: Outputs) -> Result<(), SessionError> {
        let card = self.driver().lock().card().clone();
        let origins: Vec<_> = self.entries.iter().flat_map(|entry| entry.origins()).collect();
        let storages: Vec<(Key, &dyn Origin)> =
            origins.iter().map(|(key, origin)| (key.clone(), origin as &dyn Origin)).collect();
        let tensors: Vec<usize> = (0..storages.len()).collect();
        let outputs: Vec<Vec<WantedBuffer>> = match outputs {
            Outputs::OfOneCall => self.entries.iter().map(|entry| outputs_of(entry, &card)).collect(),
            Outputs::Elsewhere => self.entries.iter().map(|_| Vec::new()).collect(),
        };
        let most_inputs = self.entries.iter().map(|entry| entry.inputs.len()).max().unwrap_or(0);
        let sums = Bytes::from(most_inputs).saturating_mul(SUM_BYTES);
        let mut after: Vec<(Kind, Bytes)> =
            outputs.iter().flatten().map(|it| (Kind::Output, it.bands.allocated())).collect();
        after.push((Kind::Workspace, sums));
        let mut state = self.backend.state.borrow_mut();
        let former = std::mem::take(&mut state.uses);
        let keys: Vec<Key> = storages.iter().map(|(key, _)| key.clone()).collect();
        // The digest of a constant is kept, because the constant has the same contents whenever it is in the pool.
        state.digests.retain(|key, _| matches!(key, Key::Constant(_)) || keys.contains(key));
        let residency = state.residency(self.backend);
        let load = Load { storages: &storages, tensors: &tensors, after: &after, instead_of: &former };
        let placed = match residency.load(&load) {
            Ok(placed) => placed,
            Err(error) => {
                drop(state);
                return Err(self.not_placed(error));
            }
        };
        let mut calls = Vec::with_capacity(self.entries.len());
        let mut addresses = placed.iter().map(Buffer::address);
        for (entry, outputs) in self.entries.iter().zip(outputs) {
            let inputs = entry.inputs.iter().filter_map(|input| {
                let start = match input.pool_address() {
                    Some(address) => address,
                    None => residency.buffer(&input.key)?.address(),
                };
                Some(DeviceBuffer::in_allocation(input.name.clone(), start, input.bands))
            });
            let inputs = inputs.collect();
            let outputs = outputs
                .into_iter()
                .map(|it| DeviceBuffer::in_allocation(it.name, addresses.next().unwrap_or(0), it.bands))
                .collect();
            calls.push(EntryCall {
                resolved: ResolvedLaunch { steps: Vec::new(), workspaces: Vec::new() },
                inputs,
                outputs,
                workspaces: Vec::new(),
                functions: Vec::new(),
            });
        }
        state.uses = keys;
        drop(state);
        self.sums = addresses.next().unwrap_or(0);
        self.calls = calls;
        self.allocated = after.iter().map(|(kind, _)| *kind).zip(placed).collect();
        Ok(())
    }

    /// Evaluates the launches of each entry and allocates their workspaces. If the workspaces do not fit, the candidate
    /// is to blame.
    fn place_workspaces(&mut self) -> Result<(), SessionError> {
        let card = self.driver().lock().card().clone();
        let launch = &self.candidate.callee.launch;
        for (entry, call) in self.entries.iter().zip(&mut self.calls) {
            let recorded = entry.as_ref();
            match self.candidate.resolve(recorded) {
                Ok(resolved) => call.resolved = resolved,
                Err(why) => {
                    self.refusal = Some(why);
                    return Ok(());
                }
            }
            let name = |number: usize| match launch.workspaces.get(number) {
                Some(workspace) => format!("the workspace `{}`", workspace.name),
                None => format!("the memory that its allocation {} returned", number + 1),
            };
            let wanted = call.resolved.workspaces.iter().enumerate();
            let wanted = wanted
                .map(|(number, bytes)| (name(number), bytes))
                .map(|(name, bytes)| WantedBuffer { name, bands: Bands::of(&card, bytes.get(), 0) });
            let wanted: Vec<WantedBuffer> = wanted.collect();
            let after: Vec<(Kind, Bytes)> =
                wanted.iter().map(|it| (Kind::Workspace, it.bands.allocated())).collect();
            let mut state = self.backend.state.borrow_mut();
            let residency = state.residency(self.backend);
            let load = Load { storages: &[], tensors: &[], after: &after, instead_of: &[] };
            match residency.load(&load) {
                Ok(placed) => {
                    let buffers = wanted.into_iter().zip(&placed);
                    call.workspaces.extend(buffers.map(|(it, buffer)| {
                        DeviceBuffer::in_allocation(it.name, buffer.address(), it.bands)
                    }));
                    self.allocated.extend(placed.into_iter().map(|buffer| (Kind::Workspace, buffer)));
                }
                Err(StagingError::Device(error @ DeviceError::NoRoom { .. })) => {
                    let asked: Bytes = call.resolved.workspaces.iter().copied().sum();
                    self.ended = Some(Verdict {
                        status: Status::DeviceMemoryLimit,
                        detail: format!(
                            "its workspaces take {asked}, which is more than limits.memory allows: {error}"
                        ),
                    });
                    // Only the residency engine has a record of the workspaces that were allocated before the error, so
                    // the engine is dropped together with them.
                    self.spoiled = true;
                    return Ok(());
                }
                Err(error) => {
                    drop(state);
                    return Err(self.not_placed(error));
                }
            }
        }
        Ok(())
    }

    fn note_digests(&mut self) -> Result<(), SessionError> {
        for (entry, call) in self.entries.iter().zip(&self.calls) {
            let altered = {
                let mut state = self.backend.state.borrow_mut();
                state.note_digests(self.driver(), self.backend.seed, (entry, call), self.sums)
            };
            match altered {
                Ok(None) => {}
                Ok(Some(input)) => self.ended = Some(fault::changed_in_pool(&input)),
                Err(error) => {
                    let during = During::Ours("computing digests of the inputs");
                    let _: Answer<()> = self.fail(&error, &during, &[]);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    pub(super) fn not_placed(&mut self, error: StagingError) -> SessionError {
        self.spoiled = true;
        SessionError::Inputs { candidate: self.candidate.callee.candidate.clone(), source: error.into() }
    }

    pub(super) fn end<T>(&mut self, verdict: Verdict) -> Answer<T> {
        self.ended.get_or_insert(verdict);
        Answer::Died
    }

    pub(super) fn fail<T>(
        &mut self,
        error: &DriverError,
        during: &During,
        buffers: &[DeviceBuffer],
    ) -> Answer<T> {
        self.context_failed |= error.code.ends_the_context();
        self.end(fault::of_error(error, during, buffers))
    }

    /// Loads the module and finds its kernels. Returns a reason to refuse the candidate if the plan's arguments do not
    /// match a kernel's parameters.
    fn load_module(&mut self) -> Result<Option<String>, DriverError> {
        let mut driver = self.backend.device.driver.lock();
        for call in &mut self.calls {
            for (number, step) in (1..).zip(&call.resolved.steps) {
                let module = match self.modules.get(&step.module) {
                    Some(module) => *module,
                    None => {
                        let image = self.candidate.images.get(step.module).map_or(&[][..], Vec::as_slice);
                        let module = driver.load(image)?;
                        self.modules.insert(step.module, module);
                        module
                    }
                };
                let function = driver.function(module, &step.symbol)?;
                self.launched.note_symbol(function, &step.symbol);
                let takes = driver.parameters(function)?;
                let why = misfit(number, step, takes.as_deref());
                if why.is_some() {
                    return Ok(why);
                }
                call.functions.push(function);
            }
        }
        Ok(None)
    }

    /// Fills the outputs and makes the launches of one call. Returns the duration of the launches; `None` if the
    /// session ended.
    fn launch_all(&mut self, entry: usize, poison: u8, limit: Duration) -> Option<Duration> {
        if let Err(error) = self.poison_all(entry, poison) {
            let _: Answer<()> = self.fail(&error, &During::Ours("filling the candidate's outputs"), &[]);
            return None;
        }
        let started = Instant::now();
        self.launched.clear();
        let call = &self.calls[entry];
        let steps = call.resolved.steps.iter().zip(&call.functions).enumerate();
        for (number, (step, &function)) in steps.filter(|(_, (step, _))| !step.is_empty()) {
            let during = During::Launch { number: number + 1, symbol: step.symbol.clone() };
            let left = limit.saturating_sub(started.elapsed());
            let launch = Launch {
                function,
                grid: step.grid,
                block: step.block,
                shared_bytes: step.shared_mem,
                params: params(step, |pointer| call.address(&self.entries[entry], pointer)),
                limit: left,
            };
            let launched = self.driver().lock().launch(&launch);
            self.launched.push(launch);
            let over = launched
                .and_then(|()| self.driver().lock().mark(Queue::Calls))
                .and_then(|mark| wait_for(self.driver(), mark, left));
            match over {
                Ok(true) => {}
                Ok(false) => {
                    // A kernel can be stopped only by ending its context.
                    self.context_failed = true;
                    let _: Answer<()> = self.end(fault::overdue(&during, limit));
                    return None;
                }
                Err(error) => {
                    let buffers: Vec<DeviceBuffer> = call.buffers().cloned().collect();
                    let _: Answer<()> = self.fail(&error, &during, &buffers);
                    return None;
                }
            }
        }
        Some(started.elapsed())
    }

    pub(super) fn poison_all(&self, entry: usize, poison: u8) -> Result<(), DriverError> {
        let call = &self.calls[entry];
        let mut driver = self.driver().lock();
        for (at, bytes) in call.poisoned(&self.entries[entry]) {
            driver.fill(Queue::Calls, at, poison, bytes)?;
            driver.forget(at, bytes)?;
        }
        Ok(())
    }

    fn restore(&self, entry: usize) -> Result<(), SessionError> {
        let restored = self.calls[entry].restore(&self.entries[entry], self.driver());
        let name = || self.entries[entry].as_ref().name.clone();
        restored.map_err(|source| SessionError::Outputs { entry: name(), source })
    }

    /// Checks the bands beside inputs and workspaces, and the digests of the inputs. Returns a verdict if a call
    /// changed any of them.
    pub(super) fn check_bands_and_inputs(
        &self,
        entry: usize,
        poison: u8,
    ) -> Result<Option<Verdict>, DriverError> {
        let call = &self.calls[entry];
        let bands = call.inputs.iter().map(|it| (it, BAND_BYTE));
        let bands = bands.chain(call.workspaces.iter().map(|it| (it, poison)));
        for (buffer, expected) in bands {
            if let Some(past) = buffer.damage(&mut **self.driver().lock(), expected)? {
                return Ok(Some(Verdict {
                    status: Status::OutOfBounds,
                    detail: describe_stray_write(&buffer.name, past),
                }));
            }
        }
        let mut state = self.backend.state.borrow_mut();
        let now = state.digests_of(self.driver(), self.backend.seed, call, self.sums)?;
        let inputs = &self.entries[entry].inputs;
        let changed = inputs.iter().zip(now).find(|(input, now)| state.digests.get(&input.key) != Some(now));
        Ok(changed.map(|(input, _)| Verdict {
            status: Status::InputMutated,
            detail: format!("stored into {}: its digest changed during the call", input.name),
        }))
    }

    pub(super) fn outputs_error(&self, entry: usize, error: DriverError) -> SessionError {
        let entry = self.entries[entry].as_ref().name.clone();
        SessionError::Outputs { entry, source: io::Error::other(error) }
    }

    fn release(&mut self) {
        if std::mem::take(&mut self.context_failed) {
            self.allocated.clear();
            self.modules.clear();
            return self.backend.replace_context();
        }
        for module in std::mem::take(&mut self.modules).into_values() {
            let _ = self.driver().lock().unload(module);
        }
        if !self.spoiled {
            let mut state = self.backend.state.borrow_mut();
            let residency = state.residency(self.backend);
            let released =
                self.allocated.drain(..).try_for_each(|(kind, buffer)| residency.release(kind, buffer));
            self.spoiled = released.is_err();
        }
        if std::mem::take(&mut self.spoiled) {
            self.allocated.clear();
            self.backend.clear();
        }
        self.backend.note_memory(MemoryPoint::Released);
    }
}

impl Drop for DeviceSession<'_> {
    fn drop(&mut self) {
        self.release();
    }
}

impl Session for DeviceSession<'_> {
    fn load(&mut self, _: Duration) -> Result<Answer<Loaded>, SessionError> {
        if self.ended.is_some() {
            return Ok(Answer::Died);
        }
        let refused = match self.refusal.take() {
            Some(text) => Some(text),
            None => match self.load_module() {
                Ok(refused) => refused,
                Err(error) => return Ok(self.fail(&error, &During::Load, &[])),
            },
        };
        Ok(Answer::Done(match refused {
            Some(text) => Loaded::Refused { text },
            None => Loaded::Ready { has_plan: false, returned: false },
        }))
    }

    fn plan(&mut self, _: usize, _: Duration) -> Result<Answer<Called>, SessionError> {
        Ok(Answer::Done(Called { calls_done: 1, ..Called::default() }))
    }

    fn call(
        &mut self,
        entry: usize,
        _: u32,
        poison: u8,
        limit: Duration,
    ) -> Result<Answer<Called>, SessionError> {
        self.restore(entry)?;
        let Some(elapsed) = self.launch_all(entry, poison, limit) else { return Ok(Answer::Died) };
        self.backend.note_memory(MemoryPoint::Called);
        let verdict = match self.check_bands_and_inputs(entry, poison) {
            Ok(None) => {
                return Ok(Answer::Done(Called {
                    calls_done: 1,
                    claimed: elapsed,
                    elapsed,
                    ..Called::default()
                }));
            }
            Ok(Some(verdict)) => verdict,
            Err(error) => {
                return Ok(self.fail(&error, &During::Ours("checking the candidate's inputs"), &[]));
            }
        };
        self.spoiled = true;
        Ok(self.end(verdict))
    }

    /// One slot is enough, because it has bands on both sides, or the device checks every access.
    fn slots(&self, _: usize) -> u32 {
        1
    }

    fn output(&self, entry: usize, output: usize, _: u32) -> Box<dyn BytesSource + '_> {
        let output = &self.calls[entry].outputs[output];
        Box::new(OutputSource { driver: self.driver(), address: output.address, bytes: output.bands.bytes })
    }

    fn damage(&self, entry: usize, _: u32, poison: u8) -> Result<Option<StrayWrite>, SessionError> {
        for (output, buffer) in self.calls[entry].outputs.iter().enumerate() {
            let past = buffer.damage(&mut **self.driver().lock(), poison);
            if let Some(past) = past.map_err(|error| self.outputs_error(entry, error))? {
                return Ok(Some(StrayWrite { output, past }));
            }
        }
        Ok(None)
    }

    fn launched(&self, entry: usize) -> Vec<KernelLaunch> {
        self.launched.of(&self.entries[entry])
    }

    fn clock(&mut self) -> &mut dyn Clock {
        self
    }

    fn finish(mut self: Box<Self>) -> Result<Ending, SessionError> {
        self.release();
        let stderr_tail = self.driver().lock().printed();
        let nothing = Verdict { status: Status::Passed, detail: String::new() };
        let verdict = self.ended.take().unwrap_or(nothing);
        let end = RunnerEnd { stderr_tail, ..RunnerEnd::default() };
        Ok(Ending { verdict, end, peak_owed: Bytes::ZERO, tasks_refused: false })
    }
}
