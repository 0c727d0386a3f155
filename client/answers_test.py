#!/usr/bin/python3
"""What the CLI makes of a coordinator's answers: exit codes, error texts, formats."""
import json
import os
import sys
import unittest

import grpc

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cli_testing import ServerTest, strata, write_job  # pylint: disable=wrong-import-position
from fake_server import NAME, Refusal, job, stubs  # pylint: disable=wrong-import-position

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


class ErrorTest(ServerTest):
    def test_exit_codes(self):
        code = grpc.StatusCode
        for status, reason, expected in (
                (code.NOT_FOUND, "NOT_FOUND", 3), (code.UNAUTHENTICATED, "", 4), (code.PERMISSION_DENIED, "", 4),
                (code.DEADLINE_EXCEEDED, "", 6), (code.CANCELLED, "", 7), (code.INVALID_ARGUMENT, "INVALID_SPEC", 8),
                (code.FAILED_PRECONDITION, "UNSATISFIABLE", 8), (code.RESOURCE_EXHAUSTED, "QUEUE_FULL", 8),
                (code.INVALID_ARGUMENT, "INVALID_REQUEST", 2), (code.INVALID_ARGUMENT, "REQUEST_ID_REUSED", 9), (code.FAILED_PRECONDITION, "BAD_TRANSITION", 9),
                (code.ALREADY_EXISTS, "JOB_ID_TAKEN", 9), (code.ABORTED, "ETAG_MISMATCH", 9), (code.DATA_LOSS, "", 1),
                (code.INTERNAL, "", 1)):
            self.answer("GetJob", Refusal(status, f"because of {reason}", reason))
            done = self.run_cli("get", "austen-ab12")
            self.assertEqual(done.returncode, expected, (status, done.stderr))
            self.assertIn(f"because of {reason}", done.stderr)
            self.assertEqual(done.stdout, "")

    def test_get_shows_which_ranks_a_group_waits_for(self):
        states = stubs.rendezvous.GroupState.State
        forming = stubs.rendezvous.GroupStatus(group="world", generation=2, size=4, state=states.Value("FORMING"), missing=[1, 3])
        failed = stubs.rendezvous.GroupStatus(group="tp.0", generation=1, size=2, state=states.Value("FAILED"), message="rank 1: gone")
        self.answer("GetJob", job("STARTING", groups=[forming, failed]))
        done = self.run_cli("get", "austen-ab12")
        self.assertIn("world of 4 ranks, generation 2: FORMING, waits for 1, 3", done.stdout)
        self.assertIn("tp.0 of 2 ranks, generation 1: FAILED, rank 1: gone", done.stdout)
        self.answer("GetJob", job("STARTING", groups=[forming]))
        self.assertIn('"missing"', self.run_cli("get", "austen-ab12", "-o", "json").stdout)

    def test_text_of_others_does_not_steer_the_terminal(self):
        evil = "gone\x1b[2J\nstate        SUCCEEDED \u009b1A"
        shown = "gone\\x1b[2J\\nstate        SUCCEEDED \\xc2\\x9b1A"
        failed = stubs.rendezvous.GroupStatus(group="tp.0", generation=1, size=2,
                                              state=stubs.rendezvous.GroupState.State.Value("FAILED"), message=evil)
        failure = stubs.jobs.Failure(cause="USER_ERROR", message=evil, log_tail="one\r\ntwo\x1b[A\n")
        self.answer("GetJob", job("FAILED", groups=[failed], last_failure=failure))
        lines = self.run_cli("get", "austen-ab12").stdout.splitlines()
        self.assertIn(f"group        tp.0 of 2 ranks, generation 1: FAILED, {shown}", lines)
        self.assertIn(f"why          {shown}", lines)
        self.assertEqual(lines[-4:], ["log tail:", "one", "two\\x1b[A", ""])
        event = stubs.jobs.JobEvent(message=evil, to="FAILED")
        self.answer("ListJobEvents", stubs.jobs.ListJobEventsResponse(events=[event]))
        self.assertTrue(self.run_cli("events", "austen-ab12").stdout.splitlines()[1].endswith(shown))
        worker = stubs.fleet.Worker(name="w1", state="QUARANTINED", reason=evil)
        self.answer("GetWorker", worker)
        self.assertIn(f"QUARANTINED ({shown})", self.run_cli("worker", "describe", "w1").stdout)
        self.answer("GetJob", Refusal(grpc.StatusCode.INTERNAL, evil, "INTERNAL"))
        self.assertEqual(self.run_cli("get", "austen-ab12").stderr.splitlines()[0], "error: gone\\x1b[2J")

    def test_where_nobody_answers_the_address_and_the_remedy_are_told(self):
        self.server.stop()
        done = self.run_cli("get", "austen-ab12")
        self.assertEqual(done.returncode, 5)
        told = done.stderr.replace(" (Connection refused)", "")  # gRPC does not always keep it
        self.assertEqual(told, f"error: nobody answers at {self.server.address}: start strata_server there, "
                         "or name the coordinator's address with --server or STRATA_SERVER\n")

    def test_details_are_told(self):
        violation = stubs.rpc.BadRequest.FieldViolation(field="memory.device", description="must be above 7 bytes")
        quota = stubs.rpc.QuotaFailure.Violation(subject="queue:default", description="is full")
        self.answer("CancelJob", Refusal(grpc.StatusCode.INVALID_ARGUMENT, "the spec is invalid", "INVALID_SPEC",
                                         [stubs.rpc.BadRequest(field_violations=[violation]), stubs.rpc.QuotaFailure(violations=[quota])],
                                         {"limit": "7"}))
        done = self.run_cli("cancel", "austen-ab12")
        for text in ("the spec is invalid", "memory.device: must be above 7 bytes", "queue:default: is full", "INVALID_SPEC", "limit: 7"):
            self.assertIn(text, done.stderr)

    def test_details_that_the_message_has_are_not_told_again(self):
        self.answer("GetJob", Refusal(grpc.StatusCode.FAILED_PRECONDITION, "nvme needs 300 bytes, there are 77: lower memory.nvme", "UNSATISFIABLE",
                                      [], {"resource": "nvme", "requested": "300", "total": "77", "free": "7", "remedy": "lower memory.nvme"}))
        done = self.run_cli("get", "austen-ab12")
        self.assertEqual(done.stderr, "error: nvme needs 300 bytes, there are 77: lower memory.nvme\n  reason: UNSATISFIABLE\n  free: 7\n")

    def test_what_the_server_refuses_in_a_job_file_is_told_once_with_its_place(self):
        violation = stubs.rpc.BadRequest.FieldViolation(field="training.steps", description="must be at most 2")
        refusal = Refusal(grpc.StatusCode.INVALID_ARGUMENT, "the job is not valid: training.steps: must be at most 2", "INVALID_SPEC",
                          [stubs.rpc.BadRequest(field_violations=[violation])])
        path = os.path.join(write_job(), "job.yaml")
        for command, method in (("submit", "CreateJob"), ("plan", "PlanJob")):
            self.answer(method, refusal)
            done = self.run_cli(command, path)
            self.assertEqual((done.returncode, done.stderr), (8, f"error: {path}:8:10: training.steps: must be at most 2\n"))

    def test_broken_details_are_dropped(self):
        refusal = Refusal(grpc.StatusCode.NOT_FOUND, "gone")
        refusal.status = type("Broken", (), {"SerializeToString": staticmethod(lambda: b"\xff\xff\xff")})
        self.answer("GetJob", refusal)
        done = self.run_cli("get", "austen-ab12")
        self.assertEqual((done.returncode, done.stderr), (3, "error: gone\n"))

    def test_the_beginning_of_a_name_will_do_where_only_one_job_has_it(self):
        def one(make):
            def handle(request):
                if request.name != NAME:
                    raise Refusal(grpc.StatusCode.NOT_FOUND, f"there is no job {request.name}", "NOT_FOUND")
                return make()
            return handle
        self.server.handlers.update({"GetJob": one(lambda: job("RUNNING", 2)), "CancelJob": one(lambda: job("CANCELLED")),
                                     "ListJobEvents": one(stubs.jobs.ListJobEventsResponse)})
        page = stubs.jobs.ListJobsResponse
        self.answer("ListJobs", page(jobs=[job(name=NAME), job(name=NAME.replace("austen", "bronte"))]))
        for command in ("get", "cancel", "events"):
            done = self.run_cli(command, "aust")
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([request.name for request in self.server.requests("CancelJob")], [NAME.replace("austen-ab12", "aust"), NAME])
        self.answer("ListJobs", page(jobs=[job(name=NAME), job(name=NAME + "x")]))
        done = self.run_cli("cancel", "aust")
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertIn("the names of 2 begin so: austen-ab12, austen-ab12x", done.stderr)
        done = self.run_cli("get", "dickens")
        self.assertEqual(done.returncode, 3)
        self.assertIn("there is no job", done.stderr)

    def test_a_beginning_that_ends_in_a_dash_is_one(self):
        def whole(request):
            # As the coordinator does: no job's name ends so.
            if request.name.endswith("-"):
                raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, "name: must be of [a-z0-9-]", "INVALID_REQUEST")
            return job(name=request.name)
        self.server.handlers["GetJob"] = whole
        page = stubs.jobs.ListJobsResponse
        self.answer("ListJobs", page(jobs=[job(name=NAME), job(name=NAME.replace("austen", "bronte"))]))
        for beginning in ("austen-", "projects/default/jobs/austen-"):
            done = self.run_cli("-o", "json", "get", beginning)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["name"], NAME)
        done = self.run_cli("get", "dickens-")
        self.assertEqual((done.returncode, done.stderr), (3, "error: no job's name begins with dickens-\n"))
        self.answer("ListJobs", Refusal(grpc.StatusCode.PERMISSION_DENIED, "not yours", "DENIED"))
        done = self.run_cli("get", "austen-")
        self.assertEqual(done.returncode, 4)
        self.assertIn("not yours", done.stderr)

    def test_a_change_that_is_confirmed_late_is_no_failure(self):
        late = Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        self.answer("CancelJob", late, late, job("CANCELLED"))
        done = self.run_cli("cancel", "austen-ab12")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("CANCELLED", done.stdout)
        self.assertIn("asking again", done.stderr)
        self.assertEqual(len({request.request_id for request in self.server.requests("CancelJob")}), 1)
        self.answer("CancelJob", late)
        done = self.run_cli("--timeout", "1", "cancel", "austen-ab12")
        self.assertEqual(done.returncode, 6, done.stderr)
        self.assertIn("which may still happen", done.stderr)

    def test_unavailable_is_tried_again_with_the_same_request_id(self):
        self.answer("CancelJob", Refusal(UNAVAILABLE), Refusal(UNAVAILABLE), job("CANCELLED"))
        done = self.run_cli("cancel", "austen-ab12")
        self.assertEqual(done.returncode, 0, done.stderr)
        requests = self.server.requests("CancelJob")
        self.assertEqual(len(requests), 3)
        self.assertEqual(len({request.request_id for request in requests}), 1)
        self.assertEqual(len(requests[0].request_id), 32)
        self.assertEqual(requests[0].name, NAME)


class FormatTest(ServerTest):
    def setUp(self):
        super().setUp()
        page = stubs.jobs.ListJobsResponse
        self.pages = {"": page(jobs=[job("RUNNING", 2)], next_page_token="n"), "n": page(jobs=[job("FAILED", name=NAME + "x")])}
        self.server.handlers["ListJobs"] = lambda request: self.pages[request.page_token]

    def test_table(self):
        lines = self.run_cli("ls").stdout.splitlines()
        self.assertEqual(lines[0].split()[:3], ["NAME", "STATE", "STEP"])
        self.assertEqual(lines[1].split()[:3], ["austen-ab12", "RUNNING", "2/3"])
        self.assertEqual(len(lines), 3)

    def test_json_and_jsonl(self):
        listed = json.loads(self.run_cli("-o", "json", "ls").stdout)
        self.assertEqual([one["status"]["state"] for one in listed], ["RUNNING", "FAILED"])
        self.assertEqual(listed[0]["status"]["progress"]["step"], 2)
        lines = self.run_cli("ls", "-o", "jsonl").stdout.splitlines()
        self.assertEqual([json.loads(line) for line in lines], listed)

    def test_yaml(self):
        text = self.run_cli("-o", "yaml", "ls", "--limit", "1").stdout
        self.assertTrue(text.startswith(f"- name: {NAME}\n  uid: u-1\n"), text)
        self.assertIn("    progress:\n      step: 2\n", text)

    def test_state_filter(self):
        self.run_cli("ls", "--state", "running")
        self.assertEqual(self.server.requests("ListJobs")[-1].state, "RUNNING")

    def test_plan_that_does_not_fit_is_8_with_numbers(self):
        short = stubs.plan.Shortfall(resource="device", requested=50 << 20, free=48 << 20, total=48 << 20, remedy="set memory.device to 50MiB")
        self.answer("PlanJob", stubs.plan.JobPlan(fits=False, shortfalls=[short]))
        folder = write_job()
        done = self.run_cli("plan", os.path.join(folder, "job.yaml"))
        self.assertEqual(done.returncode, 8)
        for text in ("does not fit", "50 MiB", str(50 << 20), str(48 << 20), "set memory.device to 50MiB"):
            self.assertIn(text, done.stdout)
        sent = self.server.requests("PlanJob")[0].spec
        self.assertEqual(sent.data.train[0], os.path.join(os.path.realpath(folder), "text.txt"))

    def test_workers_events_checkpoints(self):
        self.answer("ListWorkers", stubs.fleet.ListWorkersResponse(workers=[stubs.fleet.Worker(name="workers/w1", state=1)]))
        self.assertIn("READY", self.run_cli("worker", "list").stdout)
        capacity = stubs.fleet.Capacity(
            cpus=7, nvme=[stubs.fleet.NvmeVolume(path="/mnt/a", bytes=3 << 30, fs_type="xfs")],
            ladder=[stubs.fleet.Rung(rung="io_uring", chosen="threads", why="seccomp says no")])
        self.answer("GetWorker", stubs.fleet.Worker(name="workers/w1", state=1, capacity=capacity))
        text = self.run_cli("worker", "describe", "w1").stdout
        for part in ("3 GiB for jobs", "/mnt/a (xfs", "io_uring: threads, because: seccomp says no"):
            self.assertIn(part, text)
        self.assertEqual(self.server.requests("GetWorker")[0].name, "w1")
        self.answer("ListJobEvents", stubs.jobs.ListJobEventsResponse(events=[stubs.jobs.JobEvent(to=1, reason="CREATED")]))
        self.assertIn("CREATED", self.run_cli("events", "austen-ab12").stdout)
        checkpoint = stubs.checkpoints.Checkpoint(name=NAME + "/checkpoints/300", step=300, bytes=5 << 20)
        self.answer("ListCheckpoints", stubs.checkpoints.ListCheckpointsResponse(checkpoints=[checkpoint]))
        done = self.run_cli("checkpoint", "list", "austen-ab12")
        self.assertIn("austen-ab12/300", done.stdout)
        self.assertIn("5 MiB", done.stdout)

    def test_worker_describe_says_how_fast_it_is(self):
        speeds = stubs.machine.MachineProfile(source="measured: a CPU", h2d_bytes_per_second=7.5e9)
        speeds.bf16.forward_flops.append(123e9)
        worker = stubs.fleet.Worker(name="workers/w1", state=1, capacity=stubs.fleet.Capacity(cpus=2, machine=speeds))
        self.answer("GetWorker", worker)
        done = self.run_cli("worker", "describe", "w1")
        self.assertEqual(done.returncode, 0, done.stderr)
        for text in ("READY", "measured: a CPU", "123.0 GFLOP/s", "7.5 GB/s"):
            self.assertIn(text, done.stdout)
        self.assertEqual(self.server.requests("GetWorker")[0].name, "w1")
        self.answer("GetWorker", stubs.fleet.Worker(name="workers/w1", state=1))
        self.assertIn("not measured", self.run_cli("worker", "describe", "w1").stdout)

    def test_plan_for_a_worker_and_for_a_machine_that_is_not_here(self):
        folder = write_job()
        job, machine = os.path.join(folder, "job.yaml"), os.path.join(folder, "machine.yaml")
        with open(machine, "w", encoding="ascii") as file:
            file.write("name: far away\ndevice: 24GiB\nhost: 64GiB\nnvme: 1TiB\nspeeds:\n  bf16: {forward_flops: 100e12, "
                       "elementwise_bytes_per_second: 800e9}\n  h2d_bytes_per_second: 24e9\n"
                       "  nvme_read_bytes_per_second: 7e9\n  dram_bytes_per_second: 150e9\n")
        self.answer("PlanJob", stubs.plan.JobPlan(fits=True))
        self.assertEqual(self.run_cli("plan", job, "--worker", "w1").returncode, 0)
        self.assertEqual(self.server.requests("PlanJob")[-1].worker, "w1")
        done = strata("plan", job, "--machine", machine, "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        plan = json.loads(done.stdout)
        self.assertEqual(plan["machine"]["source"], "far away")
        self.assertEqual(int(plan["tiers"][0]["budget_bytes"]), 24 << 30)
        self.assertGreater(plan["bound_ms"], 0)
        for path, told in ((job, "speeds"), ("/dev/null", "/dev/null is empty"), ("/no/such/file", "--machine")):
            done = strata("plan", job, "--machine", path)
            self.assertEqual(done.returncode, 2)
            self.assertIn(told, done.stderr)

    def test_metrics_table_fits_a_terminal_and_names_the_rest(self):
        names = ["loss", "step_ms", "rss_bytes"] + [f"stall_ms.cause_number_{i}" for i in range(20)]
        series = [stubs.metrics.Series(name=name, points=[stubs.metrics.Point(step=step, value=1e6 / 3) for step in (1, 2)]) for name in sorted(names)]
        self.answer("QueryMetrics", stubs.metrics.QueryMetricsResponse(series=series))
        lines = self.run_cli("metrics", "austen-ab12").stdout.splitlines()
        self.assertEqual(lines[0].split()[:3], ["STEP", "loss", "step_ms"])
        self.assertLessEqual(max(map(len, lines)), 120)
        told = " ".join(lines[3:]).replace(",", " ").split()
        self.assertEqual(sorted(set(names)), sorted(set(lines[0].split()[1:]) | (set(told) & set(names))))
        self.assertFalse(set(lines[0].split()) & set(told) & set(names), "shown and left out")
        whole = self.run_cli("metrics", "austen-ab12", "--series", ",".join(names)).stdout.splitlines()
        self.assertEqual(len(whole[0].split()), 1 + len(names))

    def test_metrics_table(self):
        point = stubs.metrics.Point(step=1, value=5.25)
        self.answer("QueryMetrics", stubs.metrics.QueryMetricsResponse(series=[stubs.metrics.Series(name="loss", points=[point])]))
        done = self.run_cli("metrics", "austen-ab12", "--series", "loss,lr")
        self.assertEqual([line.split() for line in done.stdout.splitlines()], [["STEP", "loss"], ["1", "5.25"]])
        self.assertIn("austen-ab12 has no lr", done.stderr)
        self.assertEqual(list(self.server.requests("QueryMetrics")[0].series), ["loss", "lr"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
