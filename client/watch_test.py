#!/usr/bin/python3
"""Streams of a coordinator that break: watch, logs, metrics; and submitting with --watch."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import fake_server  # pylint: disable=wrong-import-position
from cli_testing import JOB, STRATA, ServerTest  # pylint: disable=wrong-import-position
from fake_server import Refusal, job, row, stubs  # pylint: disable=wrong-import-position

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


class WatchTest(ServerTest):
    def watch(self, *arguments, **kwargs):
        return self.run_cli("watch", "austen-ab12", *arguments, **kwargs)

    def test_states_of_the_end_are_exit_codes(self):
        for state, code in (("SUCCEEDED", 0), ("FAILED", 1), ("CANCELLED", 7)):
            fake_server.run_to_end(self.server, state)
            done = self.watch()
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(state, done.stdout)
            self.assertIn(f"austen-ab12: {state}", done.stderr)

    def test_jsonl_has_one_object_per_step_across_a_lost_connection(self):
        fake_server.run_to_end(self.server, steps=5)
        whole = self.server.handlers["StreamMetrics"]

        def breaking(request):
            for response in whole(request):
                yield response
                if response.sequence == 2:
                    raise Refusal(UNAVAILABLE, "lost")
        self.server.handlers["StreamMetrics"] = breaking
        done = self.watch("-o", "jsonl")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([one["step"] for one in rows], [1, 2, 3, 4, 5])
        self.assertEqual(list(rows[0])[:6], ["step", "attempt", "rank", "loss", "loss_bits", "grad_norm"])
        self.assertEqual((rows[0]["loss"], rows[0]["loss_bits"], rows[0]["tokens"]), (5.25, "00000001", 4096))
        self.assertIs(rows[0]["skipped"], False)
        self.assertEqual(rows[0]["device_peak_bytes"], 1 << 20)
        self.assertEqual([request.after_sequence for request in self.server.requests("StreamMetrics")], [0, 2])

    def test_watch_resumes_from_its_revision(self):
        fake_server.run_to_end(self.server)
        whole = self.server.handlers["WatchJobs"]

        def breaking(request):
            for response in whole(request):
                yield response
                if response.HasField("bookmark"):
                    raise Refusal(UNAVAILABLE, "lost")
        self.server.handlers["WatchJobs"] = breaking
        self.assertEqual(self.watch().returncode, 0)
        self.assertEqual([request.from_revision for request in self.server.requests("WatchJobs")], [0, 1])

    def test_a_compacted_history_starts_afresh(self):
        fake_server.run_to_end(self.server)
        whole = self.server.handlers["WatchJobs"]
        calls = []

        def compacted(request):
            calls.append(request.from_revision)
            if len(calls) == 2:
                raise Refusal(grpc.StatusCode.OUT_OF_RANGE, "too old", "REVISION_COMPACTED")
            for response in whole(request):
                yield response
                if len(calls) == 1 and response.HasField("bookmark"):
                    raise Refusal(UNAVAILABLE, "lost")
        self.server.handlers["WatchJobs"] = compacted
        self.assertEqual(self.watch().returncode, 0)
        self.assertEqual(calls, [0, 1, 0])

    def test_no_such_job_is_3(self):
        def gone(request):
            raise Refusal(grpc.StatusCode.NOT_FOUND, "no such job", "NOT_FOUND")
            yield  # pylint: disable=unreachable
        self.server.handlers["WatchJobs"] = gone
        self.server.handlers["StreamMetrics"] = gone
        done = self.watch()
        self.assertEqual(done.returncode, 3, done.stderr)

    def endless(self):
        self.open = threading.Event()
        self.release = threading.Event()
        self.addCleanup(self.release.set)

        def watch(request):
            yield stubs.jobs.WatchJobsResponse(upsert=job(), revision=1)
            self.open.set()
            self.release.wait(60)

        def rows(request):
            yield stubs.metrics.StreamMetricsResponse(sequence=1, row=row(1))
            self.release.wait(60)
        self.server.handlers["WatchJobs"] = watch
        self.server.handlers["StreamMetrics"] = rows

    def test_ctrl_c_detaches(self):
        self.endless()
        process = subprocess.Popen([STRATA, "--server", self.server.address, "watch", "austen-ab12"], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.assertTrue(self.open.wait(30))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 0, err)
        self.assertIn(f"strata watch austen-ab12 --server {self.server.address}", err)
        self.assertEqual(out, "")
        self.assertFalse(self.server.requests("CancelJob"))

    def test_timeout_is_6(self):
        self.endless()
        done = self.watch("--timeout", "0.5")
        self.assertEqual(done.returncode, 6, done.stderr)

    def test_logs_resume_and_tell_gaps(self):
        def read(request):
            cursor = request.cursors[0].offset if request.cursors else 0
            at = stubs.logs.LogCursor(attempt=1, stream="stderr", offset=cursor)
            if cursor == 0:
                yield stubs.logs.ReadLogsResponse(chunk=stubs.logs.LogChunk(at=at, data=b"one\n"))
                raise Refusal(UNAVAILABLE, "lost")
            yield stubs.logs.ReadLogsResponse(gap=stubs.logs.LogGap(at=at, missing_bytes=9, why="quota"))
            at.offset += 9
            yield stubs.logs.ReadLogsResponse(chunk=stubs.logs.LogChunk(at=at, data=b"two\n"))
            yield stubs.logs.ReadLogsResponse(end=stubs.logs.LogEnd(state=7))
        self.server.handlers["ReadLogs"] = read
        done = self.run_cli("logs", "austen-ab12", "-f", "--tail", "5")
        self.assertEqual((done.returncode, done.stdout), (0, "one\ntwo\n"))
        self.assertIn("9 bytes missing: quota", done.stderr)
        requests = self.server.requests("ReadLogs")
        self.assertEqual([request.tail_lines for request in requests], [5, 0])
        self.assertEqual(requests[1].cursors[0].offset, 4)

    def test_submit_sends_labels_and_watches(self):
        fake_server.run_to_end(self.server)
        self.server.handlers["CreateJob"] = lambda request: job("QUEUED")
        folder = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        path = os.path.join(folder, "job.yaml")
        with open(path, "w", encoding="ascii") as file:
            file.write(JOB)
        done = self.run_cli("submit", path)
        self.assertEqual(done.returncode, 8, "the server is on this machine and the text is not there")
        with open(os.path.join(folder, "text.txt"), "w", encoding="ascii") as file:
            file.write("text " * 100)
        done = self.run_cli("submit", path, "--label", "a=b=c", "--state-hash", "--watch")
        self.assertEqual(done.returncode, 0, done.stderr)
        request = self.server.requests("CreateJob")[0]
        self.assertEqual(dict(request.labels), {"a": "b=c"})
        self.assertTrue(request.spec.training.report_state_hash)
        self.assertEqual(request.spec.training.micro_batch, 4, "defaults are applied")
        self.assertEqual(self.run_cli("submit", path).stdout, "austen-ab12\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
