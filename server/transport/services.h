// The gRPC services of strata.v1: adapters from calls to the Coordinator, nothing else.
#ifndef SERVER_TRANSPORT_SERVICES_H_
#define SERVER_TRANSPORT_SERVICES_H_

#include <grpcpp/grpcpp.h>

#include "proto/strata/v1/checkpoints.grpc.pb.h"
#include "proto/strata/v1/fleet.grpc.pb.h"
#include "proto/strata/v1/jobs.grpc.pb.h"
#include "proto/strata/v1/logs.grpc.pb.h"
#include "proto/strata/v1/metrics.grpc.pb.h"
#include "proto/strata/v1/worker.grpc.pb.h"
#include "server/transport/call.h"

namespace strata::server {

class JobServiceImpl final : public v1::JobService::Service {
 public:
  explicit JobServiceImpl(Transport& transport) : transport_(transport) {}
  grpc::Status CreateJob(grpc::ServerContext* context, const v1::CreateJobRequest* request,
                         v1::Job* job) override;
  grpc::Status PlanJob(grpc::ServerContext* context, const v1::PlanJobRequest* request,
                       v1::JobPlan* plan) override;
  grpc::Status GetJob(grpc::ServerContext* context, const v1::GetJobRequest* request, v1::Job* job) override;
  grpc::Status ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override;
  grpc::Status CancelJob(grpc::ServerContext* context, const v1::CancelJobRequest* request,
                         v1::Job* job) override;
  grpc::Status WatchJobs(grpc::ServerContext* context, const v1::WatchJobsRequest* request,
                         grpc::ServerWriter<v1::WatchJobsResponse>* writer) override;
  grpc::Status ListJobEvents(grpc::ServerContext* context, const v1::ListJobEventsRequest* request,
                             v1::ListJobEventsResponse* response) override;

 private:
  Transport& transport_;
};

class LogServiceImpl final : public v1::LogService::Service {
 public:
  explicit LogServiceImpl(Transport& transport) : transport_(transport) {}
  grpc::Status ReadLogs(grpc::ServerContext* context, const v1::ReadLogsRequest* request,
                        grpc::ServerWriter<v1::ReadLogsResponse>* writer) override;

 private:
  Transport& transport_;
};

class MetricServiceImpl final : public v1::MetricService::Service {
 public:
  explicit MetricServiceImpl(Transport& transport) : transport_(transport) {}
  grpc::Status QueryMetrics(grpc::ServerContext* context, const v1::QueryMetricsRequest* request,
                            v1::QueryMetricsResponse* response) override;
  grpc::Status StreamMetrics(grpc::ServerContext* context, const v1::StreamMetricsRequest* request,
                             grpc::ServerWriter<v1::StreamMetricsResponse>* writer) override;

 private:
  Transport& transport_;
};

class CheckpointServiceImpl final : public v1::CheckpointService::Service {
 public:
  explicit CheckpointServiceImpl(Transport& transport) : transport_(transport) {}
  grpc::Status ListCheckpoints(grpc::ServerContext* context, const v1::ListCheckpointsRequest* request,
                               v1::ListCheckpointsResponse* response) override;
  grpc::Status GetCheckpoint(grpc::ServerContext* context, const v1::GetCheckpointRequest* request,
                             v1::Checkpoint* checkpoint) override;
  grpc::Status ReadCheckpointFile(grpc::ServerContext* context, const v1::ReadCheckpointFileRequest* request,
                                  grpc::ServerWriter<v1::FileChunk>* writer) override;

 private:
  Transport& transport_;
};

class FleetServiceImpl final : public v1::FleetService::Service {
 public:
  explicit FleetServiceImpl(Transport& transport) : transport_(transport) {}
  grpc::Status ListWorkers(grpc::ServerContext* context, const v1::ListWorkersRequest* request,
                           v1::ListWorkersResponse* response) override;
  grpc::Status GetWorker(grpc::ServerContext* context, const v1::GetWorkerRequest* request,
                         v1::Worker* worker) override;
  grpc::Status GetServerInfo(grpc::ServerContext* context, const v1::GetServerInfoRequest* request,
                             v1::ServerInfo* info) override;

 private:
  Transport& transport_;
};

class WorkerServiceImpl final : public v1::WorkerService::Service {
 public:
  explicit WorkerServiceImpl(Transport& transport) : transport_(transport) {}
  grpc::Status Register(grpc::ServerContext* context, const v1::RegisterRequest* request,
                        v1::RegisterResponse* response) override;
  grpc::Status Sync(grpc::ServerContext* context, const v1::SyncRequest* request,
                    v1::SyncResponse* response) override;
  grpc::Status PushTelemetry(grpc::ServerContext* context,
                             grpc::ServerReaderWriter<v1::TelemetryAck, v1::TelemetryBatch>* stream) override;
  grpc::Status CommitCheckpoint(grpc::ServerContext* context, const v1::CommitCheckpointRequest* request,
                                v1::Checkpoint* checkpoint) override;
  grpc::Status Rendezvous(grpc::ServerContext* context, const v1::RendezvousRequest* request,
                          v1::RendezvousResponse* response) override;

  // Long polls of each kind that may be held at a time.
  static constexpr int kHeldMax = 256;

 private:
  Transport& transport_;
  std::atomic<int> held_syncs_ = 0;
  std::atomic<int> held_rendezvous_ = 0;
};

}  // namespace strata::server

#endif  // SERVER_TRANSPORT_SERVICES_H_
