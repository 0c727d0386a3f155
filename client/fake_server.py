"""A coordinator in Python whose every answer a test sets, for testing the CLI from outside."""
import concurrent.futures
import os
import sys
import threading

import grpc

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests"))
import strata_stubs as stubs  # pylint: disable=wrong-import-position

NAME = "projects/default/jobs/austen-ab12"


class Refusal(Exception):
    """Raised by a handler: ends the call with a code and google.rpc details."""

    def __init__(self, code, message="refused", reason="", details=(), metadata=None):
        super().__init__(message)
        self.code = code
        self.status = stubs.rpc.Status(code=code.value[0], message=message)
        if reason:
            self.status.details.add().Pack(stubs.rpc.ErrorInfo(reason=reason, domain="strata", metadata=metadata or {}))
        for detail in details:
            self.status.details.add().Pack(detail)


class FakeServer(grpc.GenericRpcHandler):
    """handlers["CreateJob"] is a function of the request: a response, or an iterable of them, or a Refusal."""

    def __init__(self, port=0):
        self.handlers = {"GetServerInfo": lambda request: stubs.fleet.ServerInfo(version="fake", store="memory"),
                         "GetJob": lambda request: job(name=request.name)}
        self.calls = []
        self._methods = {path.rsplit("/", 1)[1]: kinds for path, kinds in stubs.methods().items()}
        self._lock = threading.Lock()
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(16), handlers=[self])
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.address = f"127.0.0.1:{self.port}"
        self._server.start()

    def stop(self):
        self._server.stop(None).wait()

    def requests(self, name):
        with self._lock:
            return [request for method, request in self.calls if method == name]

    def service(self, details):
        name = details.method.rsplit("/", 1)[1]
        if name not in self.handlers:
            return None
        request_class, response_class, streams = self._methods[name]
        make = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
        return make(self._stream(name) if streams else self._unary(name), request_deserializer=request_class.FromString,
                    response_serializer=response_class.SerializeToString)

    def _record(self, name, request):
        with self._lock:
            self.calls.append((name, request))

    @staticmethod
    def _refuse(context, refusal):
        context.set_trailing_metadata([("grpc-status-details-bin", refusal.status.SerializeToString())])
        context.abort(refusal.code, str(refusal))

    def _unary(self, name):
        def handle(request, context):
            self._record(name, request)
            try:
                return self.handlers[name](request)
            except Refusal as refusal:
                return self._refuse(context, refusal)
        return handle

    def _stream(self, name):
        def handle(request, context):
            self._record(name, request)
            try:
                yield from self.handlers[name](request)
            except Refusal as refusal:
                self._refuse(context, refusal)
        return handle


def job(state="RUNNING", step=0, total=3, revision=1, name=NAME, **status):
    made = stubs.jobs.Job(name=name, uid="u-1", revision=revision)
    made.spec.name = "austen"
    made.spec.training.steps = total
    made.status.CopyFrom(stubs.jobs.JobStatus(state=stubs.jobs.Job.State.Value(state), attempt=1, **status))
    made.status.progress.step = step
    made.status.progress.total_steps = total
    return made


def row(step, attempt=1):
    return stubs.metrics.MetricRow(
        attempt=attempt, step=step, texts={"loss_bits": f"{step:08x}"},
        values={"loss": 5.5 - step / 4, "grad_norm": 1.0, "lr": 1e-3, "tokens": 4096, "step_ms": 20.5, "tokens_per_s": 2e5,
                "skipped": 0, "device_peak_bytes": 1 << 20, "host_peak_bytes": 2 << 20, "nvme_peak_bytes": 0})


def run_to_end(server, state="SUCCEEDED", steps=3):
    """Handlers of a job that runs through `steps` rows and ends in `state`."""
    def watch(request):
        if request.from_revision == 0:
            yield stubs.jobs.WatchJobsResponse(upsert=job("RUNNING", 0, steps, 1), revision=1)
            yield stubs.jobs.WatchJobsResponse(bookmark=stubs.jobs.Bookmark(snapshot_complete=True), revision=1)
        ended = job(state, steps, steps, 2)
        if state == "SUCCEEDED":
            ended.status.result.CopyFrom(stubs.jobs.RunResult(train_loss=2.5, eval_loss=2.6, eval_perplexity=13.46,
                                                              trace_path="/t.json", checkpoint_path="/c/step-3"))
        yield stubs.jobs.WatchJobsResponse(upsert=ended, revision=2)

    def rows(request):
        for step in range(request.after_sequence + 1, steps + 1):
            yield stubs.metrics.StreamMetricsResponse(sequence=step, row=row(step))
        yield stubs.metrics.StreamMetricsResponse(sequence=steps, end=True)

    server.handlers["WatchJobs"] = watch
    server.handlers["StreamMetrics"] = rows
    return server
