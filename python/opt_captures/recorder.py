"""The recorder: observes calls while a block runs, chooses which to keep, and passes them to a sink."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from .effects import Treatment, Watch, treat
from .errors import NotRecordable, RecordError
from .names import AUTO, RECORDED, Names, OpName, Patch, in_place_name, patches, selected
from .op import OpRecord, Slot
from .signatures import OUT, signature_for
from .sinks import FileSink, Sink
from .store import StoreSink
from .summary import Summary
from .surroundings import install_workarounds
from .values import Holder, check, span_bytes, storage_key, tensors

DEFAULT_PER_OP = 64
DEFAULT_PER_CLASS = 4
DEFAULT_MAX_BYTES = 4 << 30
#: Functions that format a tensor as text. The calls that they make are not part of the model, so they are not recorded.
PRINTING_FUNCTIONS = (torch.Tensor.__repr__, torch.Tensor.__format__)


class record(TorchFunctionMode):  # noqa: N801 - read as a verb: `with record(...)`
    """Records calls of PyTorch functions as capture files while a block runs.

    Each op, or form of an op, gets a folder below `folder`. ``recorded.json`` says what was seen and what was left out.

    Args:
        folder: the folder for captures, which must be new or empty.
        ops: names (``torch.linalg.norm``, ``torch.nn.functional.softmax`` or just ``softmax``), or ``"auto"`` for all
            functions that are called with a tensor.
        per_class: how many calls with the same shapes, strides, dtypes and plain values are kept, chosen at random.
        per_op: how many calls are kept in one folder.
        max_bytes: the limit of the bytes that are written in total. A call whose inputs no longer fit is counted but
            not kept. The last call that is kept may exceed the limit. With `store`, calls are kept until the limit is
            reached, because the store may have their inputs already.
        seed: decides which calls of a class are kept.
        in_place: True to record in-place calls as such: under names that end with an underscore, or with
            ``inplace=True``. Captures contain the changed argument before and after the call. Otherwise, and for calls
            with ``out``, they are recorded as the same call out of place.
        store: True to write a capture store, which has each repeated tensor once. This needs the program
            ``opt-supervisor``.

    Raises:
        RecordError: at once, if an op is not known or a limit is less than 1; on entering, if the folder is not empty,
            another recorder is running, or `store` is set and the program is not found; in the block, if it uses
            ``torch.nn.DataParallel``; on leaving, if captures could not be written and the block raised nothing.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with record(folder, ops=["torch.nn.functional.gelu"]) as recorder:
    ...     y = torch.nn.functional.gelu(torch.ones(3))
    >>> [(op.name, op.calls, op.kept) for op in recorder.summary.ops]
    [('torch.nn.functional.gelu', 1, 1)]
    """

    #: The recorder whose block is running.
    _current: ClassVar[record | None] = None

    def __init__(
        self,
        folder: str | Path,
        ops: Iterable[str] | str = AUTO,
        *,
        per_class: int = DEFAULT_PER_CLASS,
        per_op: int = DEFAULT_PER_OP,
        max_bytes: int = DEFAULT_MAX_BYTES,
        seed: int = 0,
        in_place: bool = False,
        store: bool = False,
    ) -> None:
        super().__init__()
        if min(per_class, per_op, max_bytes) < 1:
            raise RecordError("setting up a recorder: `per_class`, `per_op` and `max_bytes` must be at least 1")
        self._wanted = selected(ops)
        self._per_class, self._per_op, self._seed, self._in_place = per_class, per_op, seed, in_place
        self._bytes_left = max_bytes
        self._names = Names()
        self._ops: dict[str, list[OpRecord]] = {}
        self._notes: list[str] = []
        self._patches: list[Patch] = []
        self._running: list[tuple[OpName, Any]] = []
        self._thread: int | None = None
        self._workarounds = ExitStack()
        self._calls_in_other_threads = 0
        self._in_own_code = False
        self._failure: Exception | None = None
        self._sink: Sink = StoreSink(Path(folder)) if store else FileSink(Path(folder))
        self.summary = self._summary()

    def __enter__(self) -> record:
        if record._current is not None:
            raise RecordError("starting to record: another recorder is running (leave its block first)")
        self._sink.open()
        record._current = self
        self._thread = threading.get_ident()
        self._patches = patches(self._names, self._wanted)
        self._install_wrappers()
        install_workarounds(self._workarounds, self._unpatched)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._thread = record._current = None
        self._workarounds.close()
        self._remove_wrappers()
        if self._calls_in_other_threads:
            self._notes.append(f"calls from other threads, which were not recorded: {self._calls_in_other_threads}")
        self.summary = self._summary()
        self._sink.close(self.summary)
        if self._failure is not None and kind is None:
            raise RecordError(
                f"writing captures to {self._sink.folder}: {self._failure} (if the disk is full, make room or lower "
                "`max_bytes`; all calls recorded before are complete)"
            ) from self._failure

    def _summary(self) -> Summary:
        ops = [form for forms in self._ops.values() for form in forms]
        return Summary(self._sink.folder, self._sink.place, self._seed, ops, self._notes)

    def _install_wrappers(self) -> None:
        for patch in self._patches:
            setattr(patch.owner, patch.attribute, self._wrapper(patch))

    def _remove_wrappers(self) -> None:
        for patch in self._patches:
            if patch.owner is torch.Tensor:
                delattr(patch.owner, patch.attribute)
            else:
                setattr(patch.owner, patch.attribute, patch.original)

    @contextmanager
    def _unpatched(self) -> Iterator[None]:
        """Restores PyTorch's own functions while a block runs, for code that inspects them."""
        if self._in_own_code:  # The wrappers have been removed already, or do nothing.
            yield
            return
        self._remove_wrappers()
        try:
            with self._recording_nothing():
                yield
        finally:
            self._install_wrappers()

    def _wrapper(self, patch: Patch) -> Callable[..., Any]:
        @functools.wraps(patch.original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            return self._handle_call(patch.op, patch.original, args, kwargs)

        setattr(recorded, RECORDED, patch.original)
        return recorded

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A composite function looks itself up by name and passes what it finds, which may be our wrapper.
        func = getattr(func, RECORDED, func)
        if func in PRINTING_FUNCTIONS:
            with self._recording_nothing():
                return func(*args, **(kwargs or {}))
        op = self._names.of(func)
        if op is None or (self._wanted is not None and op.name not in self._wanted):
            return func(*args, **(kwargs or {}))
        return self._handle_call(op, func, args, kwargs or {})

    def _handle_call(self, op: OpName, func: Any, args: Any, kwargs: Any) -> Any:
        """Makes a call, and records it.

        Calls by the recorder itself and by other threads are not recorded. If a recorded call directly makes another
        one of the same function, or of a function with the same last name, only the outer call is recorded.
        """
        if self._in_own_code or self._thread is None:
            return func(*args, **kwargs)
        if self._thread != threading.get_ident():
            self._calls_in_other_threads += 1
            return func(*args, **kwargs)
        if self._running:
            outer, outer_func = self._running[-1]
            # The same call is seen twice if one function only calls another, as `F.relu` calls `torch.relu`.
            if outer_func is func or outer.last == op.last:
                return func(*args, **kwargs)
        self._running.append((op, func))
        try:
            return self._call(op, func, args, kwargs)
        finally:
            self._running.pop()

    def _call(self, op: OpName, func: Any, args: Any, kwargs: Any) -> Any:
        kept: _Kept | None = self._run_own_code(op, lambda: self._before(op, args, kwargs))
        watch = Watch(kept.treatment.given) if kept is not None else None
        with watch or nullcontext():
            result = func(*args, **kwargs)
        if kept is not None and watch is not None:
            self._run_own_code(op, lambda: self._after(kept, watch, result))
        return result

    def _run_own_code(self, op: OpName, work: Callable[[], Any]) -> Any:
        """Runs the recorder's own code. Its calls are not recorded. Errors of the types below do not stop the model."""
        try:
            with self._recording_nothing(), torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
                return work()
        except OSError as error:
            self._failure = self._failure or error
        except (RuntimeError, TypeError, ValueError) as error:
            self._notes.append(f"recording a call of {op.name} failed: {type(error).__name__}: {error}")
        return None

    @contextmanager
    def _recording_nothing(self) -> Iterator[None]:
        """Prevents calls from being recorded while a block runs."""
        before, self._in_own_code = self._in_own_code, True
        try:
            yield
        finally:
            self._in_own_code = before

    def _before(self, op: OpName, args: Any, kwargs: Any) -> _Kept | None:
        """Counts the call and, if it is to be kept, holds its arguments.

        Arguments that the call will change are copied.
        """
        if self._wanted is None and next(tensors([*args, *kwargs.values()]), None) is None:
            return None  # A function that only creates tensors is not recorded.
        out = kwargs.get(OUT)
        named = {name: value for name, value in kwargs.items() if name != OUT}
        record_of_op = self._form(op, args, named)
        record_of_op.calls += 1
        try:
            given = record_of_op.bind(args, named)
            for name, value in given.items():
                check(value, name)
            if next(tensors(list(given.values())), None) is None:
                raise NotRecordable("it was not given a tensor")
            slot = record_of_op.offer(given)
            if slot is None or self._failure is not None:
                return None
            treatment = treat(op, given, out, in_place=self._in_place)
            if self._bytes_left < self._sink.min_bytes(
                [span_bytes(tensor) for tensor in tensors(list(given.values()))]
            ):
                raise NotRecordable("`max_bytes` is used up")
            return _Kept(record_of_op, slot, treatment, Holder(treatment.written).hold(list(treatment.given.values())))
        except NotRecordable as reason:
            record_of_op.leave_out(str(reason))
            return None

    def _form(self, op: OpName, args: Any, kwargs: Any) -> OpRecord:
        """Returns the record of the function's form that fits the call. The first call of a form creates its record."""
        name = in_place_name(op) if self._in_place and op.in_place else op.name
        forms = self._ops.setdefault(name, [])
        found = next((form for form in forms if form.fits(args, kwargs)), None)
        if found is not None:
            return found
        signature = signature_for(op, args, kwargs)
        if signature is None and forms:
            return forms[0]
        found = OpRecord(OpName(name, form=len(forms) + 1), signature, self._per_class, self._per_op, self._seed)
        forms.append(found)
        return found

    def _after(self, kept: _Kept, watch: Watch, result: Any) -> None:
        """Writes the call, unless its effects or its result cannot be recorded."""
        try:
            watch.judge(kept.treatment)
            check(result, "output")
            outputs = list(tensors(result))
            mutates = {name: kept.treatment.given[name] for name in kept.treatment.mutates}
            if not outputs and not mutates:
                raise NotRecordable("it did not return a tensor")
            given = {storage_key(it) for it in tensors(list(kept.treatment.given.values())) if span_bytes(it)}
            if any(storage_key(it) in given for it in outputs if span_bytes(it)) and not kept.treatment.written:
                raise NotRecordable("it returned its input or a view of it, so there is nothing to compute")
            values = dict(zip(kept.treatment.given, kept.held, strict=True))
            # Functions and methods whose names end with an underscore take their tensor by position.
            first = [values.pop(next(iter(values)))] if kept.op.op.last.endswith("_") else []
            # Kernels change such an argument in place and do not return it as well.
            returned = None if any(result is value for value in mutates.values()) else result
            after = Holder()
            capture = {
                "function_name": kept.op.name,
                "args": first,
                "kwargs": values,
                "output": after.hold(returned),
                "signature": kept.op.signature_as_capture(),
            }
            if mutates:
                capture["mutates"] = {name: after.hold(value) for name, value in mutates.items()}
            added = self._sink.write(kept.op.op.folder, f"entry_{kept.slot.entry:06}.pt", capture)
            self._bytes_left -= added
            kept.op.keep(kept.slot, added, kept.treatment.note)
        except NotRecordable as reason:
            kept.op.leave_out(str(reason))


class _Kept:
    """A call that is to be kept, between its start and its end."""

    def __init__(self, op: OpRecord, slot: Slot, treatment: Treatment, held: list[Any]) -> None:
        self.op, self.slot, self.treatment, self.held = op, slot, treatment, held
