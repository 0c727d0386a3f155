#include "server/transport/services.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "server/service/checkpoint_reader.h"

namespace strata::server {
namespace {

constexpr int64_t kLogChunkBytes = 64 << 10;
constexpr int kLogCursorsMax = 4096;
constexpr int64_t kTailLinesMax = 1'000'000;
constexpr int32_t kMetricBatch = 200;
constexpr auto kFollowEvery = std::chrono::milliseconds(500);

absl::Status Gone() { return absl::CancelledError("the client is gone"); }

// One ReadLogs call.
class LogFollower {
 public:
  LogFollower(Coordinator& coordinator, const v1::ReadLogsRequest& request, const CallContext& call,
              StreamRegistry::Ticket& ticket, grpc::ServerWriter<v1::ReadLogsResponse>& writer)
      : coordinator_(coordinator), request_(request), call_(call), ticket_(ticket), writer_(writer) {}

  absl::Status Run() {
    STRATA_RETURN_IF_ERROR(Check());
    while (true) {
      const int64_t generation = coordinator_.telemetry().Generation();
      STRATA_ASSIGN_OR_RETURN(const JobPtr job, coordinator_.FindJob(request_.name()));
      // Asked before reading: what arrived until then is sent.
      const bool last = !request_.follow() || coordinator_.IsDrained(*job);
      STRATA_RETURN_IF_ERROR(SendNew(*job));
      if (last) {
        v1::ReadLogsResponse response;
        response.mutable_end()->set_state(static_cast<v1::Job::State>(job->state));
        response.mutable_end()->set_reason(job->reason);
        return Send(response);
      }
      if (coordinator_.draining()) return ServerDraining();
      if (call_.cancelled()) return Gone();
      coordinator_.telemetry().WaitBeyond(generation, kFollowEvery);
    }
  }

 private:
  absl::Status Check() {
    if (request_.attempt() < 0) return InvalidField("attempt", "must not be negative");
    if (request_.tail_lines() < 0 || request_.tail_lines() > kTailLinesMax) {
      return InvalidField("tail_lines", absl::StrCat("must be 0 to ", kTailLinesMax));
    }
    if (request_.cursors_size() > kLogCursorsMax) {
      return InvalidField("cursors", absl::StrCat("must be at most ", kLogCursorsMax));
    }
    for (const v1::LogCursor& cursor : request_.cursors()) {
      if (cursor.offset() < 0) return InvalidField("cursors", "offsets must not be negative");
      cursors_[{cursor.attempt(), cursor.rank(), cursor.stream()}] = cursor.offset();
    }
    return absl::OkStatus();
  }

  absl::Status SendNew(const Job& job) {
    LogStore& logs = coordinator_.telemetry().logs();
    STRATA_ASSIGN_OR_RETURN(const std::vector<LogStreamInfo> streams, logs.Streams(job.uid));
    for (const LogStreamInfo& info : streams) {
      if (request_.attempt() != 0 && info.id.attempt != request_.attempt()) continue;
      auto cursor = cursors_.find(info.id);
      if (cursor == cursors_.end()) {
        int64_t start = 0;
        // Only for what was there at the beginning: later streams are new as a whole.
        if (first_ && request_.tail_lines() > 0) {
          STRATA_ASSIGN_OR_RETURN(start, logs.TailOffset(job.uid, info.id, request_.tail_lines()));
        }
        cursor = cursors_.emplace(info.id, start).first;
      }
      while (cursor->second < info.end) {
        STRATA_ASSIGN_OR_RETURN(const LogPiece piece,
                                logs.Read(job.uid, info.id, cursor->second, kLogChunkBytes));
        if (piece.data.empty()) break;
        STRATA_RETURN_IF_ERROR(SendPiece(piece, cursor->second));
        cursor->second = piece.offset + static_cast<int64_t>(piece.data.size());
      }
    }
    first_ = false;
    return absl::OkStatus();
  }

  absl::Status SendPiece(const LogPiece& piece, int64_t expected) {
    v1::LogCursor at;
    at.set_attempt(piece.id.attempt);
    at.set_rank(piece.id.rank);
    at.set_stream(piece.id.stream);
    v1::ReadLogsResponse response;
    if (piece.offset > expected) {
      at.set_offset(expected);
      *response.mutable_gap()->mutable_at() = at;
      response.mutable_gap()->set_missing_bytes(piece.offset - expected);
      response.mutable_gap()->set_why("not received, or beyond the log quota of the job");
      STRATA_RETURN_IF_ERROR(Send(response));
    }
    at.set_offset(piece.offset);
    *response.mutable_chunk()->mutable_at() = at;
    response.mutable_chunk()->set_data(piece.data);
    return Send(response);
  }

  absl::Status Send(const v1::ReadLogsResponse& response) {
    return ticket_.Write(writer_, response) ? absl::OkStatus() : Gone();
  }

  Coordinator& coordinator_;
  const v1::ReadLogsRequest& request_;
  const CallContext& call_;
  StreamRegistry::Ticket& ticket_;
  grpc::ServerWriter<v1::ReadLogsResponse>& writer_;
  std::map<LogStreamId, int64_t> cursors_;
  bool first_ = true;
};

absl::Status FollowMetrics(Coordinator& coordinator, const v1::StreamMetricsRequest& request,
                           const CallContext& call, StreamRegistry::Ticket& ticket,
                           grpc::ServerWriter<v1::StreamMetricsResponse>& writer) {
  if (request.after_sequence() < 0) return InvalidField("after_sequence", "must not be negative");
  int64_t sequence = request.after_sequence();
  while (true) {
    const int64_t generation = coordinator.telemetry().Generation();
    STRATA_ASSIGN_OR_RETURN(const JobPtr job, coordinator.FindJob(request.name()));
    const bool last = coordinator.IsDrained(*job);
    while (true) {
      STRATA_ASSIGN_OR_RETURN(std::vector<SequencedRow> rows,
                              coordinator.telemetry().metrics().ReadAfter(job->uid, sequence, kMetricBatch));
      for (SequencedRow& row : rows) {
        v1::StreamMetricsResponse response;
        response.set_sequence(row.sequence);
        *response.mutable_row() = std::move(row.row);
        if (!ticket.Write(writer, response)) return Gone();
        sequence = row.sequence;
      }
      if (rows.size() < kMetricBatch) break;
    }
    if (last) {
      v1::StreamMetricsResponse response;
      response.set_sequence(sequence);
      response.set_end(true);
      return ticket.Write(writer, response) ? absl::OkStatus() : Gone();
    }
    if (coordinator.draining()) return ServerDraining();
    if (call.cancelled()) return Gone();
    coordinator.telemetry().WaitBeyond(generation, kFollowEvery);
  }
}

}  // namespace

// --- jobs ---

grpc::Status JobServiceImpl::CreateJob(grpc::ServerContext* context, const v1::CreateJobRequest* request,
                                       v1::Job* job) {
  return RunUnary(transport_, context, "CreateJob", job,
                  [&](const CallContext& call) { return transport_.coordinator.CreateJob(*request, call); });
}

grpc::Status JobServiceImpl::PlanJob(grpc::ServerContext* context, const v1::PlanJobRequest* request,
                                     v1::JobPlan* plan) {
  return RunUnary(transport_, context, "PlanJob", plan,
                  [&](const CallContext&) { return transport_.coordinator.PlanJob(*request); });
}

grpc::Status JobServiceImpl::GetJob(grpc::ServerContext* context, const v1::GetJobRequest* request,
                                    v1::Job* job) {
  return RunUnary(transport_, context, "GetJob", job,
                  [&](const CallContext& call) { return transport_.coordinator.GetJob(request->name()); });
}

grpc::Status JobServiceImpl::ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                                      v1::ListJobsResponse* response) {
  return RunUnary(transport_, context, "ListJobs", response,
                  [&](const CallContext&) { return transport_.coordinator.ListJobs(*request); });
}

grpc::Status JobServiceImpl::CancelJob(grpc::ServerContext* context, const v1::CancelJobRequest* request,
                                       v1::Job* job) {
  return RunUnary(transport_, context, "CancelJob", job,
                  [&](const CallContext& call) { return transport_.coordinator.CancelJob(*request, call); });
}

grpc::Status JobServiceImpl::ListJobEvents(grpc::ServerContext* context,
                                           const v1::ListJobEventsRequest* request,
                                           v1::ListJobEventsResponse* response) {
  return RunUnary(transport_, context, "ListJobEvents", response,
                  [&](const CallContext& call) { return transport_.coordinator.ListJobEvents(*request); });
}

grpc::Status JobServiceImpl::WatchJobs(grpc::ServerContext* context, const v1::WatchJobsRequest* request,
                                       grpc::ServerWriter<v1::WatchJobsResponse>* writer) {
  return RunStream(transport_, context, "WatchJobs", false,
                   [&](const CallContext& call, StreamRegistry::Ticket& ticket) -> absl::Status {
                     STRATA_ASSIGN_OR_RETURN(Coordinator::Watch watch,
                                             transport_.coordinator.StartWatch(*request));
                     while (true) {
                       std::vector<v1::WatchJobsResponse> batch;
                       STRATA_RETURN_IF_ERROR(transport_.coordinator.NextWatch(watch, call, batch));
                       for (const v1::WatchJobsResponse& response : batch) {
                         if (!ticket.Write(*writer, response)) return Gone();
                       }
                     }
                   });
}

// --- logs, metrics, checkpoints ---

grpc::Status LogServiceImpl::ReadLogs(grpc::ServerContext* context, const v1::ReadLogsRequest* request,
                                      grpc::ServerWriter<v1::ReadLogsResponse>* writer) {
  return RunStream(transport_, context, "ReadLogs", false,
                   [&](const CallContext& call, StreamRegistry::Ticket& ticket) {
                     return LogFollower(transport_.coordinator, *request, call, ticket, *writer).Run();
                   });
}

grpc::Status MetricServiceImpl::QueryMetrics(grpc::ServerContext* context,
                                             const v1::QueryMetricsRequest* request,
                                             v1::QueryMetricsResponse* response) {
  return RunUnary(transport_, context, "QueryMetrics", response,
                  [&](const CallContext& call) { return transport_.coordinator.QueryMetrics(*request); });
}

grpc::Status MetricServiceImpl::StreamMetrics(grpc::ServerContext* context,
                                              const v1::StreamMetricsRequest* request,
                                              grpc::ServerWriter<v1::StreamMetricsResponse>* writer) {
  return RunStream(transport_, context, "StreamMetrics", false,
                   [&](const CallContext& call, StreamRegistry::Ticket& ticket) {
                     return FollowMetrics(transport_.coordinator, *request, call, ticket, *writer);
                   });
}

grpc::Status CheckpointServiceImpl::ListCheckpoints(grpc::ServerContext* context,
                                                    const v1::ListCheckpointsRequest* request,
                                                    v1::ListCheckpointsResponse* response) {
  return RunUnary(transport_, context, "ListCheckpoints", response,
                  [&](const CallContext& call) { return transport_.coordinator.ListCheckpoints(*request); });
}

grpc::Status CheckpointServiceImpl::GetCheckpoint(grpc::ServerContext* context,
                                                  const v1::GetCheckpointRequest* request,
                                                  v1::Checkpoint* checkpoint) {
  return RunUnary(transport_, context, "GetCheckpoint", checkpoint, [&](const CallContext& call) {
    return transport_.coordinator.GetCheckpoint(request->name());
  });
}

grpc::Status CheckpointServiceImpl::ReadCheckpointFile(grpc::ServerContext* context,
                                                       const v1::ReadCheckpointFileRequest* request,
                                                       grpc::ServerWriter<v1::FileChunk>* writer) {
  return RunStream(transport_, context, "ReadCheckpointFile", false,
                   [&](const CallContext& call, StreamRegistry::Ticket& ticket) -> absl::Status {
                     STRATA_ASSIGN_OR_RETURN(const v1::Checkpoint checkpoint,
                                             transport_.coordinator.GetCheckpoint(request->name()));
                     STRATA_ASSIGN_OR_RETURN(
                         CheckpointReader reader,
                         CheckpointReader::Open(checkpoint, request->path(), request->offset()));
                     bool first = true;
                     while (true) {
                       if (transport_.coordinator.draining()) return ServerDraining();
                       STRATA_ASSIGN_OR_RETURN(const v1::FileChunk chunk, reader.Next());
                       // An empty file is one empty chunk: the client learns its size.
                       if (chunk.data().empty() && !first) return absl::OkStatus();
                       if (!ticket.Write(*writer, chunk)) return Gone();
                       first = false;
                     }
                   });
}

// --- fleet ---

grpc::Status FleetServiceImpl::ListWorkers(grpc::ServerContext* context,
                                           const v1::ListWorkersRequest* request,
                                           v1::ListWorkersResponse* response) {
  return RunUnary(transport_, context, "ListWorkers", response,
                  [&](const CallContext&) { return transport_.coordinator.ListWorkers(*request); });
}

grpc::Status FleetServiceImpl::GetWorker(grpc::ServerContext* context, const v1::GetWorkerRequest* request,
                                         v1::Worker* worker) {
  return RunUnary(transport_, context, "GetWorker", worker,
                  [&](const CallContext&) { return transport_.coordinator.GetWorker(*request); });
}

grpc::Status FleetServiceImpl::GetServerInfo(grpc::ServerContext* context, const v1::GetServerInfoRequest*,
                                             v1::ServerInfo* info) {
  return RunUnary(transport_, context, "GetServerInfo", info, [&](const CallContext&) {
    return absl::StatusOr<v1::ServerInfo>(transport_.coordinator.GetServerInfo());
  });
}

// --- worker plane ---

// Long polls hold a thread each: beyond kHeldMax of them they are answered at once.
template <typename Request, typename Handler>
static auto Hold(std::atomic<int>& held, const Request& request, Handler handler) {
  const bool may_hold = ++held <= WorkerServiceImpl::kHeldMax;
  Request brief;
  if (!may_hold) {
    brief = request;
    brief.clear_max_wait();
  }
  auto result = handler(may_hold ? request : brief);
  --held;
  return result;
}

grpc::Status WorkerServiceImpl::Register(grpc::ServerContext* context, const v1::RegisterRequest* request,
                                         v1::RegisterResponse* response) {
  return RunUnary(transport_, context, "Register", response,
                  [&](const CallContext& call) { return transport_.coordinator.Register(*request, call); });
}

grpc::Status WorkerServiceImpl::Sync(grpc::ServerContext* context, const v1::SyncRequest* request,
                                     v1::SyncResponse* response) {
  return RunUnary(transport_, context, "Sync", response, [&](const CallContext& call) {
    return Hold(held_syncs_, *request,
                [&](const v1::SyncRequest& held) { return transport_.coordinator.Sync(held, call); });
  });
}

grpc::Status WorkerServiceImpl::PushTelemetry(
    grpc::ServerContext* context, grpc::ServerReaderWriter<v1::TelemetryAck, v1::TelemetryBatch>* stream) {
  return RunStream(transport_, context, "PushTelemetry", true,
                   [&](const CallContext&, StreamRegistry::Ticket& ticket) -> absl::Status {
                     v1::TelemetryBatch batch;
                     while (!transport_.coordinator.draining() && stream->Read(&batch)) {
                       STRATA_RETURN_IF_ERROR(transport_.coordinator.PushTelemetry(batch));
                       v1::TelemetryAck ack;
                       ack.set_sequence(batch.sequence());
                       if (!ticket.Write(*stream, ack)) return Gone();
                     }
                     return transport_.coordinator.draining() ? ServerDraining() : absl::OkStatus();
                   });
}

grpc::Status WorkerServiceImpl::CommitCheckpoint(grpc::ServerContext* context,
                                                 const v1::CommitCheckpointRequest* request,
                                                 v1::Checkpoint* checkpoint) {
  return RunUnary(transport_, context, "CommitCheckpoint", checkpoint, [&](const CallContext& call) {
    return transport_.coordinator.CommitCheckpoint(*request, call);
  });
}

grpc::Status WorkerServiceImpl::Rendezvous(grpc::ServerContext* context, const v1::RendezvousRequest* request,
                                           v1::RendezvousResponse* response) {
  return RunUnary(transport_, context, "Rendezvous", response, [&](const CallContext& call) {
    return Hold(held_rendezvous_, *request, [&](const v1::RendezvousRequest& held) {
      return transport_.coordinator.Rendezvous(held, call);
    });
  });
}

}  // namespace strata::server
