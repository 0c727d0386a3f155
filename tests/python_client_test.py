#!/usr/bin/python3
"""A client that nobody here wrote: python3-grpcio with stubs from protoc submits, watches and cancels a job at a
real coordinator. No worker: the job waits, and says for what."""
import os
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import strata_stubs as stubs  # pylint: disable=wrong-import-position

SERVER = os.path.join(os.environ.get("STRATA_BIN") or os.path.join(os.environ.get("TEST_SRCDIR", ""), "strata"), "server/strata_server")
State = stubs.jobs.Job.State


def spec():
    made = stubs.spec.JobSpec(name="python")
    config = made.model.config
    config.architecture, config.layers, config.hidden, config.heads, config.max_seq = stubs.spec.ARCHITECTURE_GPT2, 2, 32, 4, 16
    made.data.train.append("/data/text.txt")
    made.data.seq_len = 16
    made.training.steps, made.training.global_batch = 3, 4
    made.training.optimizer.lr = 1e-3
    made.memory.device, made.memory.host, made.memory.nvme = 8 << 20, 32 << 20, 64 << 20
    return made


def details(error):
    """{type name: message} of the google.rpc details of a failed call."""
    found = {}
    for key, value in error.trailing_metadata():
        if key == "grpc-status-details-bin":
            for any_message in stubs.rpc.Status.FromString(value).details:
                name = any_message.type_url.rsplit(".", 1)[1]
                message = getattr(stubs.rpc, name)()
                any_message.Unpack(message)
                found[name] = message
    return found


class PythonClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.mkdtemp(prefix="python_client_", dir=os.environ.get("TEST_TMPDIR"))
        port_file = os.path.join(folder, "port")
        cls.server = subprocess.Popen([SERVER, "--listen", "127.0.0.1:0", "--port-file", port_file, "--data-dir", os.path.join(folder, "data"),
                                       "--checkpoint-root", os.path.join(folder, "checkpoints"), "--lease-ttl", "5s"])
        deadline = time.monotonic() + 60
        while not (os.path.exists(port_file) and os.path.getsize(port_file)):
            assert cls.server.poll() is None and time.monotonic() < deadline, "the server did not start"
            time.sleep(0.02)
        with open(port_file, encoding="ascii") as file:
            cls.stub = stubs.Stub("127.0.0.1:" + file.read().strip().rsplit(":", 1)[-1])

    @classmethod
    def tearDownClass(cls):
        cls.server.terminate()
        assert cls.server.wait(30) == 0, "an orderly end"

    def refused(self, call, request):
        with self.assertRaises(grpc.RpcError) as caught:
            call(request, timeout=20)
        return caught.exception

    def test_submits_watches_and_cancels(self):
        create = stubs.jobs.CreateJobRequest(spec=spec(), request_id=str(uuid.uuid4()), labels={"by": "python"})
        job = self.stub.CreateJob(create, timeout=20)
        self.assertRegex(job.name, r"^projects/default/jobs/python-\w+$")
        self.assertEqual(job.status.state, State.Value("QUEUED"))
        self.assertEqual(self.stub.CreateJob(create, timeout=20).uid, job.uid, "a replay returns the same job")

        changed = stubs.jobs.CreateJobRequest()
        changed.CopyFrom(create)
        changed.spec.training.steps = 4
        error = self.refused(self.stub.CreateJob, changed)
        self.assertEqual((error.code(), details(error)["ErrorInfo"].reason), (grpc.StatusCode.INVALID_ARGUMENT, "REQUEST_ID_REUSED"))

        watch = self.stub.WatchJobs(stubs.jobs.WatchJobsRequest(name=job.name), timeout=60)
        seen = []
        for response in watch:
            if response.WhichOneof("event") != "upsert":
                continue
            seen.append((response.revision, State.Name(response.upsert.status.state), response.upsert.status.waiting.code))
            if seen[-1][1] == "QUEUED" and seen[-1][2] == "NO_WORKERS":
                self.stub.CancelJob(stubs.jobs.CancelJobRequest(name=job.name, request_id=str(uuid.uuid4())), timeout=20)
            if seen[-1][1] == "CANCELLED":
                watch.cancel()
                break
        self.assertEqual(seen[-1][1], "CANCELLED", seen)
        self.assertIn("NO_WORKERS", [code for _, _, code in seen])
        self.assertEqual([revision for revision, _, _ in seen], sorted({revision for revision, _, _ in seen}), "revisions grow")

        again = self.stub.CancelJob(stubs.jobs.CancelJobRequest(name=job.name, request_id=str(uuid.uuid4())), timeout=20)
        self.assertEqual(again.status.state, State.Value("CANCELLED"), "a second cancel changes nothing")
        self.assertEqual(again.revision, seen[-1][0])
        listed = self.stub.ListJobs(stubs.jobs.ListJobsRequest(parent="projects/default", page_size=10), timeout=20)
        self.assertIn(job.name, [one.name for one in listed.jobs])
        events = self.stub.ListJobEvents(stubs.jobs.ListJobEventsRequest(name=job.name), timeout=20).events
        self.assertEqual(State.Name(events[-1].to), "CANCELLED")

    def test_a_bad_spec_names_its_field(self):
        bad = spec()
        bad.model.config.heads = 5
        error = self.refused(self.stub.CreateJob, stubs.jobs.CreateJobRequest(spec=bad, request_id=str(uuid.uuid4())))
        self.assertEqual(error.code(), grpc.StatusCode.INVALID_ARGUMENT)
        found = details(error)
        self.assertEqual((found["ErrorInfo"].reason, found["ErrorInfo"].domain), ("INVALID_SPEC", "strata"))
        self.assertEqual([violation.field for violation in found["BadRequest"].field_violations], ["model.config.heads"])

    def test_an_unknown_job_is_not_found(self):
        error = self.refused(self.stub.GetJob, stubs.jobs.GetJobRequest(name="projects/default/jobs/none"))
        self.assertEqual((error.code(), details(error)["ErrorInfo"].reason), (grpc.StatusCode.NOT_FOUND, "NOT_FOUND"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
