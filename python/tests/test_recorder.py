"""Tests that the recorder keeps arguments and results of calls, and does not affect the model."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings

import torch
from torch.nn import functional

from opt_captures import RecordError, record
from opt_captures.effects import Watch, treat
from opt_captures.errors import NotRecordable
from opt_captures.names import OpName

from .places import ROOT
from .recording import RecordingTest


def encoder() -> torch.nn.Module:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


class KeptCalls(RecordingTest):
    def test_capture_contains_the_call(self) -> None:
        x = torch.randn(4, 8)
        with self.record(["torch.nn.functional.softmax"]):
            y = functional.softmax(x, dim=1)
        entry = self.entry("softmax")
        self.assertEqual(entry["function_name"], "torch.nn.functional.softmax")
        self.assertEqual(entry["signature"]["params"], ["input", "dim", "dtype"])
        self.assertTrue(torch.equal(entry["kwargs"]["input"], x) and torch.equal(entry["output"], y))

    def test_function_in_c_has_the_names_of_its_operator(self) -> None:
        with self.record(["linear", "torch.nn.functional.gelu"]):
            functional.gelu(functional.linear(torch.ones(2, 3), torch.ones(4, 3)), approximate="tanh")
        self.assertEqual(list(self.entry("linear")["kwargs"]), ["input", "weight", "bias"])
        gelu = self.entry("gelu")
        self.assertEqual(gelu["kwargs"]["approximate"], "tanh")
        self.assertEqual(gelu["signature"]["kinds"]["approximate"], "KEYWORD_ONLY")

    def test_operator_method_and_function_are_one_op(self) -> None:
        x = torch.randn(3, 3)
        with self.record(["torch.matmul"]):
            _ = (x @ x, x.matmul(x), torch.matmul(x, x))
        self.assertEqual(self.index()["torch_matmul"]["calls"], 3)

    def test_forms_of_a_function_have_separate_folders(self) -> None:
        x = torch.randn(3, 3)
        with self.record(["torch.max"]):
            _ = (x.max(), x.max(dim=1), x.max(1), torch.max(x, x))
        calls = {folder: op["calls"] for folder, op in self.index().items()}
        self.assertEqual(calls, {"torch_max": 1, "torch_max_2": 2, "torch_max_3": 1})

    def test_calls_inside_composite_functions_are_seen(self) -> None:
        model, x = encoder(), torch.randn(2, 5, 32)
        with torch.no_grad(), self.record(["linear", "scaled_dot_product_attention"]):
            model(x)
        # Each of the two layers calls `linear` four times: to project the input and the output, and twice in its
        # feed-forward part.
        self.assertEqual(self.index()["linear"]["calls"], 8)
        self.assertEqual(self.index()["scaled_dot_product_attention"]["kept"], 2)

    def test_view_is_saved_alone_and_keeps_its_strides(self) -> None:
        table = torch.randn(1000, 64)
        part = table[10:14].t()
        with self.record(["relu"]):
            functional.relu(part)
        entry = self.entry("relu")["kwargs"]["input"]
        self.assertTrue(torch.equal(entry, part))
        self.assertEqual(entry.stride(), part.stride())
        self.assertEqual(entry.untyped_storage().nbytes(), 4 * 64 * 4)

    def test_parameter_stays_a_parameter(self) -> None:
        with self.record(["linear"]):
            torch.nn.Linear(3, 2)(torch.ones(1, 3))
        kwargs = self.entry("linear")["kwargs"]
        self.assertIsInstance(kwargs["weight"], torch.nn.Parameter)
        self.assertNotIsInstance(kwargs["input"], torch.nn.Parameter)

    def test_tensors_of_one_storage_still_share_it(self) -> None:
        x = torch.randn(64, 64)
        with self.record(["torch.add"]):
            torch.add(x, x.t())
        kwargs = self.entry("torch_add")["kwargs"]
        pointers = {kwargs[name].untyped_storage().data_ptr() for name in ("input", "other")}
        self.assertEqual(len(pointers), 1)

    def test_class_is_bounded_and_its_calls_are_counted(self) -> None:
        with self.record(["relu"], per_class=3):
            for number in range(20):
                functional.relu(torch.full((4,), float(number)))
        op = self.index()["relu"]
        self.assertEqual((op["calls"], op["kept"], op["classes"][0]["calls"]), (20, 3, 20))
        kept = {entry["kwargs"]["input"][0].item() for entry in self.entries("relu")}
        self.assertEqual(len(kept), 3)
        self.assertGreater(max(kept), 2, "the sample is not just the first calls")

    def test_same_seed_keeps_the_same_calls(self) -> None:
        def kept(name: str, seed: int) -> list[float]:
            self.captures = self.folder / name
            with self.record(["relu"], seed=seed):
                for number in range(50):
                    functional.relu(torch.full((4,), float(number)))
            return [entry["kwargs"]["input"][0].item() for entry in self.entries("relu")]

        self.assertEqual(kept("a", 7), kept("b", 7))
        self.assertNotEqual(kept("c", 8), kept("d", 9))

    def test_bytes_are_bounded(self) -> None:
        with self.record(["relu"], per_class=100, max_bytes=100_000):
            for _ in range(20):
                functional.relu(torch.randn(2000))
        op = self.index()["relu"]
        self.assertLess(sum(file.stat().st_size for file in self.captures.rglob("*.pt")), 110_000)
        self.assertEqual(op["left_out"], [{"reason": "`max_bytes` is used up", "calls": 20 - op["kept"]}])

    def test_autocast_records_the_arguments_before_casting(self) -> None:
        with self.record(["linear"]), torch.autocast("cpu", dtype=torch.bfloat16):
            torch.nn.Linear(3, 2)(torch.ones(1, 3))
        entry = self.entry("linear")
        self.assertEqual((entry["kwargs"]["input"].dtype, entry["output"].dtype), (torch.float32, torch.bfloat16))

    def test_inference_mode_is_recorded(self) -> None:
        with self.record(["relu"]), torch.inference_mode():
            functional.relu(torch.ones(3))
        self.assertEqual(self.index()["relu"]["kept"], 1)

    def test_printing_is_not_recorded(self) -> None:
        with self.record():
            str(torch.ones(3))
        self.assertEqual(self.index(), {})


class Effects(RecordingTest):
    def test_in_place_call_is_recorded_as_it_was_before(self) -> None:
        x = torch.tensor([-1.0, 2.0])
        with self.record(["relu", "torch.add"]):
            functional.relu(x, inplace=True)
            x.add_(1)
        relu, add = self.entry("relu"), self.entry("torch_add")
        self.assertEqual(relu["kwargs"]["input"].tolist(), [-1.0, 2.0])
        self.assertIs(relu["kwargs"]["inplace"], False)
        self.assertEqual(add["kwargs"]["input"].tolist(), [0.0, 2.0])
        self.assertEqual(add["output"].tolist(), [1.0, 3.0])
        self.assertIn("copied before", self.index()["torch_add"]["notes"][0])

    def test_out_argument_over_an_input_is_recorded_as_it_was_before(self) -> None:
        x = torch.ones(4)
        with self.record(["torch.add"]):
            torch.add(x, x, out=x)
        entry = self.entry("torch_add")
        self.assertEqual((entry["kwargs"]["input"][0].item(), entry["output"][0].item()), (1.0, 2.0))
        self.assertNotIn("out", entry["kwargs"])

    def test_running_statistics_are_recorded_before_and_after_the_call(self) -> None:
        norm = torch.nn.BatchNorm1d(3)
        with self.record(["batch_norm"]):
            norm(torch.randn(4, 3))
        entry = self.entry("batch_norm")
        self.assertEqual(list(entry["mutates"]), ["running_mean", "running_var"])
        self.assertEqual(entry["kwargs"]["running_mean"].tolist(), [0.0, 0.0, 0.0])
        assert norm.running_mean is not None
        self.assertTrue(torch.equal(entry["mutates"]["running_mean"], norm.running_mean))
        self.assertFalse(torch.equal(entry["kwargs"]["running_var"], entry["mutates"]["running_var"]))
        self.assertIn("running_mean, running_var", self.index()["batch_norm"]["notes"][0])

    def test_in_place_call_is_recorded_in_place_on_request(self) -> None:
        x, y = torch.tensor([-1.0, 2.0]), torch.ones(2)
        with self.record(in_place=True):
            functional.relu(x, inplace=True)
            x.add_(y, alpha=2)
        relu, add = self.entry("relu"), self.entry("torch_Tensor_add_")
        self.assertIs(relu["kwargs"]["inplace"], True)
        self.assertEqual(relu["kwargs"]["input"].tolist(), [-1.0, 2.0])
        self.assertEqual(relu["mutates"]["input"].tolist(), [0.0, 2.0])
        self.assertEqual((add["function_name"], add["output"]), ("torch.Tensor.add_", None))
        self.assertEqual(add["args"][0].tolist(), [0.0, 2.0])
        self.assertEqual(add["mutates"]["input"].tolist(), [2.0, 4.0])
        self.assertEqual(add["kwargs"]["alpha"], 2)

    def test_changed_argument_that_shares_memory_with_another_is_refused(self) -> None:
        x = torch.ones(4)
        norm = OpName("torch.nn.functional.batch_norm")
        given = {"running_mean": x[1:], "running_var": x[:3], "training": True}
        with self.assertRaisesRegex(NotRecordable, "`running_mean`, which shares memory with another argument"):
            treat(norm, given, None)
        self.assertEqual(treat(norm, {**given, "running_var": x[:1]}, None).mutates, ("running_mean", "running_var"))

    def test_evaluated_batch_norm_is_recorded(self) -> None:
        with self.record(["batch_norm"]):
            torch.nn.BatchNorm1d(3).eval()(torch.randn(4, 3))
        self.assertEqual(self.index()["batch_norm"]["kept"], 1)

    def test_renormalised_table_is_recorded_before_and_after_the_call(self) -> None:
        table = torch.nn.Embedding(10, 4, max_norm=0.1)
        with self.record(["embedding"]):
            table(torch.tensor([1]))
        entry = self.entry("embedding")
        self.assertTrue(torch.equal(entry["mutates"]["weight"], table.weight))
        self.assertGreater(float(entry["kwargs"]["weight"][1].detach().norm()), 0.11)

    def test_undeclared_write_to_an_input_is_refused(self) -> None:
        x = torch.ones(4)
        treatment = treat(OpName("torch.nn.functional.relu"), {"input": x}, None)
        with Watch(treatment.given) as watch:
            x[1:].mul_(2)
        with self.assertRaisesRegex(NotRecordable, "it wrote to its input `input`"):
            watch.judge(treatment)

    def test_function_that_calls_a_random_one_is_refused(self) -> None:
        with self.record(["gumbel_softmax"]):
            functional.gumbel_softmax(torch.randn(3))
        self.assertIn("it is random", self.left_out("gumbel_softmax"))

    def test_random_call_is_refused(self) -> None:
        with self.record(["dropout"]):
            functional.dropout(torch.ones(8))
        self.assertIn("it is random", self.left_out("dropout"))

    def test_view_of_an_input_is_refused(self) -> None:
        with self.record(["dropout"]):
            functional.dropout(torch.ones(8), training=False)
        self.assertIn("nothing to compute", self.left_out("dropout"))

    def test_value_that_a_capture_cannot_contain_is_named(self) -> None:
        with self.record(["torch.add"]):
            torch.add(torch.ones(2), 2j)
        self.assertIn("`other` is a complex", self.left_out("torch_add"))


class ModelBehaviour(RecordingTest):
    def test_outputs_are_bit_identical(self) -> None:
        model, x = encoder(), torch.randn(2, 5, 32)
        torch.backends.mha.set_fastpath_enabled(False)
        self.addCleanup(torch.backends.mha.set_fastpath_enabled, True)
        with torch.no_grad():
            before = model(x)
            with self.record():
                during = model(x)
            after = model(x)
        self.assertTrue(torch.equal(before, during) and torch.equal(before, after))

    def test_random_numbers_and_gradients_are_unchanged_by_the_recorder(self) -> None:
        def step() -> tuple[torch.Tensor, torch.Tensor]:
            torch.manual_seed(3)
            model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
            loss = model(torch.randn(4, 8)).square().mean()
            loss.backward()
            gradient = next(model.parameters()).grad
            assert gradient is not None
            return loss.detach(), gradient.detach()

        plain = step()
        with self.record():
            recorded = step()
        self.assertTrue(all(torch.equal(a, b) for a, b in zip(plain, recorded, strict=True)))

    def test_patched_functions_are_restored(self) -> None:
        before = (functional.relu, torch.matmul, torch.Tensor.matmul, torch.nn.DataParallel.forward)
        with self.assertRaises(ZeroDivisionError), self.record(["relu", "torch.matmul"]):
            self.assertIsNot(functional.relu, before[0])
            raise ZeroDivisionError
        self.assertEqual(before, (functional.relu, torch.matmul, torch.Tensor.matmul, torch.nn.DataParallel.forward))
        self.assertNotIn("matmul", vars(torch.Tensor))
        self.assertTrue((self.captures / "recorded.json").is_file(), "calls seen before the error are reported")

    def test_error_of_the_model_is_passed_on(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "shapes cannot be multiplied"), self.record(["linear"]):
            functional.linear(torch.ones(2, 3), torch.ones(4, 5))

    def test_compiled_function_runs_as_it_was_written(self) -> None:
        compiled = torch.compile(lambda x: functional.softmax(x @ x, dim=-1), backend="eager", fullgraph=True)
        with self.record(["softmax", "torch.matmul"]):
            compiled(torch.randn(3, 3))
        self.assertEqual(
            {name: op["kept"] for name, op in self.index().items()},
            {"torch_matmul": 1, "softmax": 1},
        )

    def test_function_compiled_while_recording_runs_as_it_was_written(self) -> None:
        # This needs a separate process, because torch._dynamo may already be imported in this one.
        script = (
            "import sys, torch\nfrom opt_captures import record\n"
            "with record(sys.argv[1], ['softmax']) as recorder:\n"
            "    torch.nn.functional.softmax(torch.ones(4), dim=0)\n"
            "    assert 'torch._dynamo' not in sys.modules\n"
            "    torch.compile(torch.nn.functional.softmax, backend='eager')(torch.ones(3), dim=0)\n"
            "assert torch.compile.__module__ == 'torch' and recorder.summary.ops[0].kept == 2\n"
        )
        subprocess.run([sys.executable, "-c", script, self.captures], cwd=ROOT / "python", timeout=300, check=True)

    def test_torch_script_compiles_the_original_functions(self) -> None:
        def double(x: torch.Tensor) -> torch.Tensor:
            return functional.relu(torch.matmul(x, x))

        x = torch.randn(3, 3)
        with warnings.catch_warnings(), self.record():
            warnings.simplefilter("ignore")
            scripted, traced = torch.jit.script(double), torch.jit.trace(double, x)  # type: ignore[no-untyped-call]
            self.assertTrue(torch.equal(scripted(x), double(x)) and torch.equal(traced(x), double(x)))
        self.assertEqual(self.index()["torch_matmul"]["calls"], 2, "two calls of the function itself")

    def test_data_parallel_is_refused(self) -> None:
        model = torch.nn.DataParallel(torch.nn.Linear(2, 2))
        with self.assertRaisesRegex(RecordError, "DataParallel.*model.module"), self.record():
            model(torch.ones(1, 2))

    def test_calls_of_other_threads_are_counted(self) -> None:
        with self.record(["linear"]) as recorder:
            other = threading.Thread(target=torch.nn.Linear(2, 2), args=(torch.ones(1, 2),))
            other.start()
            other.join()
        self.assertEqual(list(recorder.summary.notes), ["calls from other threads, which were not recorded: 1"])


class Mistakes(RecordingTest):
    def test_unknown_op_is_refused(self) -> None:
        with self.assertRaisesRegex(RecordError, "`torch.nn.functional.sofmax` is not a function"):
            self.record(["torch.nn.functional.sofmax"])

    def test_existing_files_are_not_overwritten(self) -> None:
        self.captures.mkdir()
        (self.captures / "mine").write_text("x")
        with self.assertRaisesRegex(RecordError, "it is not an empty folder"), self.record(["relu"]):
            pass
        self.assertEqual((self.captures / "mine").read_text(), "x")

    def test_nested_recorder_is_refused(self) -> None:
        other = record(self.folder / "other", ["relu"])
        with self.record(["relu"]), self.assertRaisesRegex(RecordError, "another recorder"), other:
            pass

    def test_full_disk_is_reported_at_the_end(self) -> None:
        recorder = self.record(["relu"])
        with self.assertRaisesRegex(RecordError, "writing captures to .*make room"), recorder:
            (self.captures / "relu").write_text("a file in place of the folder")
            functional.relu(torch.ones(3))
