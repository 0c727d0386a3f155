#!/usr/bin/env python3
"""What of run_on_device does not need a GPU: on a machine without one, or without nvcc, it says so and ends well; what it makes of
the programs' outputs, which are canned here: its JSON, its exit code, its limits."""
import glob
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import tempfile
import unittest

FOLDER = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(FOLDER, "run_on_device")
BIN = os.path.dirname(os.path.dirname(FOLDER))  # of the built programs: the runfiles
BENCH, CONFORMANCE, PRIMITIVES = ("kernels/bench/gpu_bench", "kernels/conformance/cuda_conformance",
                                  "kernels/kx/device_conformance_test_program")
CARD = ('{"name": "Canned GPU 9000", "compute_capability": "9.0", "multiprocessors": 1, "memory_bytes": 5, "driver_cuda": "13.1", '
        '"runtime_cuda": "13.0"}')
SPEEDS = ('{"name": "add", "value": 3512, "unit": "GB/s", "ms": 0.3}\n'
          '{"name": "attention forward fa3", "value": 612.5, "unit": "TFLOP/s", "ms": 0.9}\n'
          '{"name": "attention cudnn", "skipped": "no libcudnn.so.9"}')
GOOD = {
    BENCH: f'if [ "$1" = --card ]; then echo \'{CARD}\'; else echo \'{SPEEDS}\'; fi',
    CONFORMANCE: 'echo "[  PASSED  ] 90 tests."; echo "[  SKIPPED ] 4 tests, listed below:"',
    PRIMITIVES: 'echo "PASSED mma"; echo "PASSED wgmma"',
    "client/strata": 'folder=$7; mkdir -p "$folder"; echo weights >"$folder/a.safetensors"\n'
                     'for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo "{\\"step\\": $i, \\"tokens_per_s\\": 1000, \\"step_ms\\": $i}"; done',
    "server/strata_server": "", "worker/strata_worker": "", "worker/strata_trainer": "", "offload/device/cuda/libstrata_cuda.so": "",
}


class RunOnDeviceTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.results = os.path.join(self.folder.name, "results")
        os.mkdir(self.results)

    def tearDown(self):
        self.folder.cleanup()

    def run_script(self, bin_folder, **environment):
        env = {name: value for name, value in os.environ.items() if name not in ("CUDA_HOME", "CUDA_PATH")}
        done = subprocess.run([SCRIPT, "--results", self.results, "--nvme", self.folder.name], capture_output=True, text=True, timeout=100,
                              env={**env, "STRATA_BIN": bin_folder, **environment}, check=False)
        return done.returncode, done.stdout, done.stderr

    def run_canned(self, sanitizer=None, **changed):
        """(exit code, what was printed, the JSON) with canned programs."""
        bin_folder = os.path.join(self.folder.name, "bin")
        programs = {**GOOD, **{name.replace("__", "/"): text for name, text in changed.items()}}
        if sanitizer is not None:
            programs["compute-sanitizer"] = sanitizer
        for name, text in programs.items():
            path = os.path.join(bin_folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="ascii") as file:
                file.write(f"#!/bin/bash\n{text}\n")
            os.chmod(path, 0o755)
        code, said, wrong = self.run_script(bin_folder, PATH=f"{bin_folder}:{os.environ['PATH']}")
        self.assertEqual(wrong, "")
        (path,) = glob.glob(f"{self.results}/*")
        self.assertRegex(os.path.basename(path), r"^canned-gpu-9000-\d{8}-([0-9a-f]{12}|unknown)\.json$")
        with open(path, encoding="ascii") as file:
            return code, said, json.load(file)

    def test_without_a_gpu_it_says_so_and_writes_nothing(self):
        if os.path.exists("/dev/nvidiactl"):
            self.skipTest("there is a GPU: tests/gpu/run_on_device runs on it")
        code, said, wrong = self.run_script(BIN)
        self.assertEqual((code, wrong), (0, ""))
        self.assertRegex(said, r"^SKIPPED: no (GPU: .*; nvidia-smi shows whether the driver works|nvcc on this machine: .*)\n$")
        self.assertEqual(os.listdir(self.results), [])
        print(said)

    def test_without_nvcc_it_says_so(self):
        code, said, wrong = self.run_script(self.folder.name, STRATA_CUDA="off")
        self.assertEqual((code, said, wrong), (0, "SKIPPED: no nvcc on this machine: there are no kernels to run\n", ""))

    def test_a_program_that_was_not_built_is_named(self):
        code, said, wrong = self.run_script(self.folder.name, STRATA_CUDA="auto", CUDA_HOME=self.make_nvcc())
        self.assertEqual((code, said), (2, ""))
        self.assertRegex(wrong, r"gpu_bench is not there: bazel build //kernels/bench:gpu_bench")

    def make_nvcc(self):
        os.makedirs(f"{self.folder.name}/cuda/bin")
        with open(f"{self.folder.name}/cuda/bin/nvcc", "w", encoding="ascii"):
            return f"{self.folder.name}/cuda"

    def test_what_passed_is_written_with_its_numbers(self):
        code, said, result = self.run_canned(sanitizer='echo "========= ERROR SUMMARY: 0 errors"; '
                                                       'echo "========= RACECHECK SUMMARY: 0 hazards displayed"')
        self.assertEqual(code, 0, said)
        self.assertEqual(result["card"]["name"], "Canned GPU 9000")
        self.assertEqual(result["cuda"], {"driver": "13.1", "runtime": "13.0"})
        self.assertIn("commit", result)
        self.assertIn("dirty", result)
        parts = result["parts"]
        self.assertEqual({name: part["result"] for name, part in parts.items()},
                         dict.fromkeys(("primitives", "parity", "memcheck", "racecheck", "main_job", "benches"), "passed"), said)
        self.assertEqual(parts["primitives"]["numbers"], {"checks_passed": 2})
        self.assertEqual(parts["parity"]["numbers"], {"tests_passed": 90, "tests_skipped": 4, "tests_failed": 0})
        self.assertEqual(parts["memcheck"]["numbers"], {"device_conformance_test_program_errors": 0, "cuda_conformance_errors": 0})
        self.assertEqual(parts["benches"]["numbers"]["add"], {"value": 3512, "unit": "GB/s", "ms": 0.3})
        self.assertEqual(parts["benches"]["numbers"]["attention cudnn"], {"skipped": "no libcudnn.so.9"})
        self.assertIn("attention cudnn: SKIPPED: no libcudnn.so.9\n", said)
        self.assertEqual(parts["main_job"]["numbers"]["NVMe: tokens_per_s"], 1000)
        self.assertRegex(parts["main_job"]["numbers"]["state_hash"], "^[0-9a-f]{16}$")
        self.assertTrue(said.endswith("6 passed, 0 failed, 0 skipped\n"), said)

    def test_what_failed_is_told_and_the_other_parts_run(self):
        code, said, result = self.run_canned(
            sanitizer='echo "========= ERROR SUMMARY: 3 errors"; echo "========= RACECHECK SUMMARY: 1 hazard displayed"; exit 9',
            **{CONFORMANCE.replace("/", "__"): 'echo "[  FAILED  ] Norms/CudaBf16, where"; echo "[  PASSED  ] 8 tests."; '
                                               'echo "[  FAILED  ] 1 test, listed below:"; exit 1',
               PRIMITIVES.replace("/", "__"): 'echo "PASSED mma"; echo "FAILED wgmma c[3] is 1, not 2"; exit 1',
               BENCH.replace("/", "__"): f"if [ \"$1\" = --card ]; then echo '{CARD}'; else echo '{SPEEDS}'; "
                                         "echo '{\"name\": \"rope\", \"error\": \"no memory\"}'; exit 1; fi",
               "client__strata": GOOD["client/strata"].replace("echo weights", "echo $folder")})
        self.assertEqual(code, 1, said)
        parts = result["parts"]
        self.assertEqual({part["result"] for part in parts.values()}, {"failed"}, said)
        for name, reason in (("primitives", "FAILED wgmma"), ("parity", "Norms/CudaBf16"), ("memcheck", "3 errors"), ("racecheck", "1 hazard"),
                             ("main_job", "placements give different states"), ("benches", "rope: no memory")):
            self.assertIn(reason, parts[name]["reason"], said)
        self.assertEqual(parts["benches"]["numbers"]["add"]["value"], 3512)

    def test_a_skip_has_its_reason_and_is_no_success_of_nothing(self):
        code, said, result = self.run_canned(
            sanitizer="echo 'SKIPPED: built for sm_90a'",
            **{PRIMITIVES.replace("/", "__"): 'echo "SKIPPED: these kernels are built for sm_90a"',
               CONFORMANCE.replace("/", "__"): 'echo "[  PASSED  ] 0 tests."'})
        self.assertEqual(code, 1, said)
        parts = result["parts"]
        self.assertEqual(parts["primitives"]["result"], "skipped")
        self.assertEqual(parts["primitives"]["reason"], "these kernels are built for sm_90a")
        self.assertEqual(parts["memcheck"]["result"], "skipped")
        self.assertIn("no test passed", parts["parity"]["reason"])

    def test_the_parts_fit_into_ten_minutes_and_what_hangs_is_ended_with_its_children(self):
        loader = importlib.machinery.SourceFileLoader("run_on_device", SCRIPT)
        script = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
        loader.exec_module(script)
        self.assertLess(sum(script.BUDGETS.values()), 600)
        with self.assertRaisesRegex(script.Failed, "bash was not done in 1 s; it ended with: begun"):
            script.output_of(["bash", "-c", "echo begun; sleep 99 & wait"], 1)  # the child holds the pipe, too


if __name__ == "__main__":
    unittest.main(verbosity=2)
