// The service from outside, over real channels: a client, a worker played by the test, hostile requests.
#include "server/transport/server.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/crc32c.h"
#include "common/fd.h"
#include "proto/google/rpc/error_details.pb.h"
#include "server/service/budget_planner.h"
#include "server/store/sqlite_state_store.h"
#include "server/transport/self_check.h"

namespace strata::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kStreamsMax = 12;

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() {
    static std::atomic<int> counter = 0;
    folder_ = absl::StrCat(::testing::TempDir(), "/server", getpid(), ".", ++counter);
    EXPECT_TRUE(MakeDirectories(folder_ + "/ckpt").ok());
    store_ = *SqliteStateStore::Open(folder_ + "/state.db", Clock::Real());
    telemetry_ = *Telemetry::Open(folder_ + "/telemetry", 4 << 20);
    CoordinatorOptions options;
    options.checkpoint_root = folder_ + "/ckpt";
    coordinator_ = *Coordinator::Create(options, Clock::Real(), *store_, *telemetry_, PlanByBudget,
                                        [](v1::JobSpec& spec) {
                                          std::vector<SpecProblem> problems;
                                          if (spec.training().steps() <= 0)
                                            problems.push_back({"training.steps", "must be above 0"});
                                          return problems;
                                        });
    ServerOptions server_options;
    server_options.streams_max = kStreamsMax;
    server_ = *Server::Start(server_options, *coordinator_);
    channel_ =
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()), grpc::InsecureChannelCredentials());
    jobs_ = v1::JobService::NewStub(channel_);
    workers_ = v1::WorkerService::NewStub(channel_);
  }
  ~ServerTest() override {
    server_->Shutdown(milliseconds(2000));
    server_.reset();
    coordinator_.reset();
  }

  template <typename Stub, typename Request, typename Response>
  grpc::Status Call(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response, milliseconds timeout = seconds(20)) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    return (stub.*method)(&context, request, response);
  }

  v1::Job Create(const std::string& id) {
    v1::CreateJobRequest request;
    request.set_job_id(id);
    request.mutable_spec()->mutable_training()->set_steps(20);
    request.mutable_spec()->mutable_memory()->set_device(10);
    request.mutable_spec()->mutable_memory()->set_host(10);
    request.mutable_spec()->mutable_memory()->set_nvme(10);
    v1::Job job;
    grpc::ClientContext context;
    const grpc::Status status = jobs_->CreateJob(&context, request, &job);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return job;
  }
  v1::Job Get(const std::string& id) {
    v1::GetJobRequest request;
    request.set_name(id);
    v1::Job job;
    grpc::ClientContext context;
    EXPECT_TRUE(jobs_->GetJob(&context, request, &job).ok());
    return job;
  }
  void Register() {
    v1::RegisterRequest request;
    request.set_worker_id("w1");
    request.set_incarnation(1);
    request.mutable_capacity()->set_device_bytes(100);
    request.mutable_capacity()->set_host_bytes(100);
    request.mutable_capacity()->add_nvme()->set_bytes(100);
    request.set_checkpoint_root(folder_ + "/ckpt");
    v1::RegisterResponse response;
    grpc::ClientContext context;
    const grpc::Status status = workers_->Register(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  v1::SyncResponse Sync(const std::vector<v1::TaskReport>& tasks, seconds max_wait = seconds(0)) {
    v1::SyncRequest request;
    request.set_worker("w1");
    request.set_incarnation(1);
    request.mutable_max_wait()->set_seconds(max_wait.count());
    for (const v1::TaskReport& task : tasks) *request.add_tasks() = task;
    v1::SyncResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(workers_->Sync(&context, request, &response).ok());
    return response;
  }
  // Any method by name with raw bytes; at most one answer is read.
  grpc::Status CallRaw(const std::string& method, const std::string& bytes, std::string* answer,
                       milliseconds timeout) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    grpc::CompletionQueue queue;
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::Status status;
    const auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
    call->StartCall();
    call->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    std::vector<grpc::Slice> slices;
    if (answer != nullptr && response.Dump(&slices).ok()) {
      answer->clear();
      for (const grpc::Slice& part : slices)
        answer->append(reinterpret_cast<const char*>(part.begin()), part.size());
    }
    return status;
  }

  std::string folder_;
  std::unique_ptr<SqliteStateStore> store_;
  std::unique_ptr<Telemetry> telemetry_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::WorkerService::Stub> workers_;
};

v1::TaskReport ReportOf(const v1::DesiredTask& task, const std::string& phase, int64_t step) {
  v1::TaskReport report;
  report.set_job_uid(task.job_uid());
  report.set_attempt(task.attempt());
  report.set_phase(phase);
  report.set_step(step);
  return report;
}

TEST_F(ServerTest, AJobGoesThroughWithItsLogsMetricsAndCheckpoints) {
  Register();
  // A long poll is answered as soon as there is work.
  v1::SyncResponse sync;
  std::thread poll([&] { sync = Sync({}, seconds(10)); });
  const auto start = std::chrono::steady_clock::now();
  const v1::Job job = Create("whole");
  poll.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(3));
  ASSERT_EQ(sync.desired_size(), 1);
  const v1::DesiredTask task = sync.desired(0);
  Sync({ReportOf(task, "STEPPING", 1)});

  std::vector<double> losses;
  bool metrics_ended = false;
  std::thread metrics([&] {
    grpc::ClientContext context;
    v1::StreamMetricsRequest request;
    request.set_name(job.name());
    const auto reader = v1::MetricService::NewStub(channel_)->StreamMetrics(&context, request);
    v1::StreamMetricsResponse response;
    while (reader->Read(&response)) {
      if (response.end()) {
        metrics_ended = true;
      } else {
        losses.push_back(response.row().values().at("loss"));
      }
    }
    EXPECT_TRUE(reader->Finish().ok());
  });
  std::string log;
  v1::LogEnd log_end;
  std::thread logs([&] {
    grpc::ClientContext context;
    v1::ReadLogsRequest request;
    request.set_name(job.name());
    request.set_follow(true);
    const auto reader = v1::LogService::NewStub(channel_)->ReadLogs(&context, request);
    v1::ReadLogsResponse response;
    while (reader->Read(&response)) {
      if (response.has_chunk()) log += response.chunk().data();
      if (response.has_end()) log_end = response.end();
    }
    EXPECT_TRUE(reader->Finish().ok());
  });

  grpc::ClientContext push_context;
  const auto push = workers_->PushTelemetry(&push_context);
  v1::TelemetryAck ack;
  for (int step = 1; step <= 20; ++step) {
    v1::TelemetryBatch batch;
    batch.set_sequence(step);
    v1::MetricRow& row = *batch.add_metrics();
    row.set_job_uid(task.job_uid());
    row.set_attempt(1);
    row.set_step(step);
    (*row.mutable_values())["loss"] = 5.0 - 0.1 * step;
    v1::LogChunk& chunk = *batch.add_logs();
    chunk.set_job_uid(task.job_uid());
    chunk.mutable_at()->set_attempt(1);
    chunk.mutable_at()->set_stream("stdout");
    chunk.mutable_at()->set_offset((step - 1) * 8);
    chunk.set_data(absl::StrCat("step ", step < 10 ? "0" : "", step, "\n"));
    // Twice, as after a lost acknowledgement.
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(push->Write(batch));
      ASSERT_TRUE(push->Read(&ack));
      EXPECT_EQ(ack.sequence(), step);
    }
  }

  const std::string checkpoint_folder = absl::StrCat(folder_, "/ckpt/", task.job_uid(), "/20");
  ASSERT_TRUE(MakeDirectories(checkpoint_folder + "/rank0").ok());
  std::string bytes(2'500'000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 + i / 1000);
  ASSERT_TRUE(WriteFileDurably(checkpoint_folder + "/rank0/weights.bin", bytes).ok());
  v1::CommitCheckpointRequest commit;
  commit.set_job_uid(task.job_uid());
  commit.set_attempt(1);
  commit.set_step(20);
  commit.set_digest("abc");
  commit.set_path(checkpoint_folder);
  v1::CheckpointFile& file = *commit.add_files();
  file.set_path("rank0/weights.bin");
  file.set_bytes(bytes.size());
  file.set_crc32c(Crc32c(bytes.data(), bytes.size()));
  v1::Checkpoint checkpoint;
  ASSERT_TRUE(Call(*workers_, &v1::WorkerService::Stub::CommitCheckpoint, commit, &checkpoint).ok());
  EXPECT_EQ(checkpoint.name(), job.name() + "/checkpoints/20");

  v1::TaskReport done = ReportOf(task, "STOPPED", 20);
  done.set_processes_gone(true);
  done.set_scratch_removed(true);
  done.set_finished(true);
  EXPECT_EQ(Sync({done}).forget_size(), 1);
  metrics.join();
  logs.join();
  EXPECT_EQ(losses.size(), 20u);
  EXPECT_TRUE(metrics_ended);
  EXPECT_EQ(log.size(), 160u);
  EXPECT_EQ(log.substr(0, 16), "step 01\nstep 02\n");
  EXPECT_EQ(log_end.state(), v1::Job::SUCCEEDED);
  push->WritesDone();
  EXPECT_TRUE(push->Finish().ok());
  EXPECT_EQ(Get("whole").status().latest_checkpoint_step(), 20);

  const auto read_file = [&](const std::string& path, int64_t offset, std::string* data) {
    v1::ReadCheckpointFileRequest request;
    request.set_name(checkpoint.name());
    request.set_path(path);
    request.set_offset(offset);
    grpc::ClientContext context;
    const auto reader = v1::CheckpointService::NewStub(channel_)->ReadCheckpointFile(&context, request);
    v1::FileChunk chunk;
    while (reader->Read(&chunk)) {
      EXPECT_EQ(chunk.offset(), offset + static_cast<int64_t>(data->size()));
      EXPECT_EQ(chunk.crc32c(), Crc32c(chunk.data().data(), chunk.data().size()));
      EXPECT_LE(chunk.data().size(), 1u << 20);
      *data += chunk.data();
    }
    return reader->Finish();
  };
  std::string got;
  EXPECT_TRUE(read_file("rank0/weights.bin", 0, &got).ok());
  EXPECT_EQ(got, bytes);
  got.clear();
  EXPECT_TRUE(read_file("rank0/weights.bin", 2'000'000, &got).ok());
  EXPECT_EQ(got, bytes.substr(2'000'000));
  got.clear();
  EXPECT_EQ(read_file("../20/rank0/weights.bin", 0, &got).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(read_file("rank0/weights.bin", -1, &got).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  bytes[1'000'000] ^= 1;
  ASSERT_TRUE(WriteFileDurably(checkpoint_folder + "/rank0/weights.bin", bytes).ok());
  EXPECT_EQ(read_file("rank0/weights.bin", 0, &got).error_code(), grpc::StatusCode::DATA_LOSS);
  got.clear();
  ASSERT_EQ(unlink((checkpoint_folder + "/rank0/weights.bin").c_str()), 0);
  ASSERT_EQ(symlink("/etc/passwd", (checkpoint_folder + "/rank0/weights.bin").c_str()), 0);
  EXPECT_EQ(read_file("rank0/weights.bin", 0, &got).error_code(), grpc::StatusCode::DATA_LOSS);
}

TEST_F(ServerTest, ErrorsCarryTheirDetailsInTheTrailer) {
  v1::CreateJobRequest request;
  request.mutable_spec()->set_name("x");
  v1::Job job;
  const grpc::Status status = Call(*jobs_, &v1::JobService::Stub::CreateJob, request, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  ASSERT_EQ(details.details_size(), 2);
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "INVALID_SPEC");
  EXPECT_EQ(info.domain(), "strata");
  google::rpc::BadRequest bad;
  ASSERT_TRUE(details.details(1).UnpackTo(&bad));
  EXPECT_EQ(bad.field_violations(0).field(), "training.steps");
}

TEST_F(ServerTest, HealthAndReflectionAnswer) {
  std::string answer;
  ASSERT_TRUE(CallRaw("/grpc.health.v1.Health/Check", "", &answer, seconds(5)).ok());
  EXPECT_EQ(answer, std::string("\x08\x01")) << "SERVING";
  // ServerReflectionRequest{list_services: "*"}
  ASSERT_TRUE(CallRaw("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "\x3a\x01*", &answer,
                      seconds(5))
                  .ok());
  EXPECT_NE(answer.find("strata.v1.JobService"), std::string::npos);
}

TEST_F(ServerTest, TheSelfCheckNoticesWhenThePortNoLongerAnswers) {
  const std::string address = LocalAddress("0.0.0.0:0", server_->port());
  EXPECT_TRUE(IsServing(address, seconds(5)));
  std::atomic<int> failed = 0;
  SelfCheck check(address, milliseconds(10), 2, [&] { ++failed; });
  server_->Shutdown(seconds(5));
  for (int i = 0; i < 1000 && failed == 0; ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(failed, 1);
}

TEST_F(ServerTest, StreamsAreBoundedAndUnaryCallsGoOn) {
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::WatchJobsResponse>>> readers;
  v1::WatchJobsResponse response;
  for (int i = 0; i < kStreamsMax; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(jobs_->WatchJobs(contexts.back().get(), {}));
    ASSERT_TRUE(readers.back()->Read(&response));
  }
  grpc::ClientContext context;
  const auto refused = jobs_->WatchJobs(&context, {});
  EXPECT_FALSE(refused->Read(&response));
  EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  for (int i = 0; i < 20; ++i) Create(absl::StrCat("j", i));
  for (const auto& reader : readers) {
    int upserts = 0;
    while (upserts < 20 && reader->Read(&response)) upserts += response.has_upsert();
    EXPECT_EQ(upserts, 20);
  }
  // Shutdown ends them, and says why.
  std::thread shutdown([&] { server_->Shutdown(seconds(5)); });
  for (const auto& reader : readers) {
    while (reader->Read(&response)) {
    }
    const grpc::Status status = reader->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_NE(status.error_details().find("SERVER_DRAINING"), std::string::npos);
  }
  shutdown.join();
}

TEST_F(ServerTest, ShutdownDoesNotWaitForAPeerThatSaysNothing) {
  grpc::ClientContext context;
  const auto push = workers_->PushTelemetry(&context);
  ASSERT_TRUE(push->Write({}));
  v1::TelemetryAck ack;
  ASSERT_TRUE(push->Read(&ack));
  const auto start = std::chrono::steady_clock::now();
  server_->Shutdown(seconds(5));
  EXPECT_LT(std::chrono::steady_clock::now() - start, seconds(4));
}

// Random but well-typed: extreme numbers, huge and ill-formed strings, deep repetition.
class Scrambler {
 public:
  explicit Scrambler(uint64_t seed) : random_(seed) {}
  int Below(int n) { return static_cast<int>(random_() % n); }

  void Fill(google::protobuf::Message* message, int depth) {
    const auto* descriptor = message->GetDescriptor();
    const auto* reflection = message->GetReflection();
    for (int i = 0; i < descriptor->field_count(); ++i) {
      const auto* field = descriptor->field(i);
      if (Below(3) == 0 || field->is_map()) continue;
      for (int n = field->is_repeated() ? Below(4) : 1; n > 0; --n) Set(message, reflection, field, depth);
    }
  }

  std::string Text() {
    switch (Below(8)) {
      case 0:
        return "";
      case 1:
        return std::string(1 + Below(5000), 'n');
      case 2:
        return "projects/default/jobs/known";
      case 3:
        return "projects/../jobs/x";
      case 4:
        return std::string(
            "\xff\xfe\x00"
            "bad",
            6);
      case 5:
        return "known";
      case 6:
        return "w1";
      default:
        return "\xc3\xa9\xe2\x82\xac%s%n'; DROP TABLE jobs;--";
    }
  }

 private:
  int64_t Number() {
    constexpr int64_t kNumbers[] = {0, 1, 2, -1, 20, INT64_MAX, INT64_MIN, INT32_MAX, INT32_MIN, 1LL << 60};
    return kNumbers[Below(std::size(kNumbers))];
  }
  void Set(google::protobuf::Message* message, const google::protobuf::Reflection* reflection,
           const google::protobuf::FieldDescriptor* field, int depth) {
    using Field = google::protobuf::FieldDescriptor;
    const bool many = field->is_repeated();
    switch (field->cpp_type()) {
#define STRATA_SET(type, Name, value)                                                                   \
  case Field::type:                                                                                     \
    many ? reflection->Add##Name(message, field, value) : reflection->Set##Name(message, field, value); \
    break
      STRATA_SET(CPPTYPE_INT32, Int32, static_cast<int32_t>(Number()));
      STRATA_SET(CPPTYPE_INT64, Int64, Number());
      STRATA_SET(CPPTYPE_UINT32, UInt32, static_cast<uint32_t>(Number()));
      STRATA_SET(CPPTYPE_UINT64, UInt64, static_cast<uint64_t>(Number()));
      STRATA_SET(CPPTYPE_DOUBLE, Double, Below(2) ? std::numeric_limits<double>::quiet_NaN() : -1e308);
      STRATA_SET(CPPTYPE_FLOAT, Float, 1e30f);
      STRATA_SET(CPPTYPE_BOOL, Bool, Below(2) == 0);
      STRATA_SET(CPPTYPE_ENUM, EnumValue, Below(2) ? Below(30) : -1);
      STRATA_SET(CPPTYPE_STRING, String, Text());
#undef STRATA_SET
      case Field::CPPTYPE_MESSAGE:
        if (depth > 5) return;
        Fill(many ? reflection->AddMessage(message, field) : reflection->MutableMessage(message, field),
             depth + 1);
        break;
    }
  }
  std::mt19937_64 random_;
};

TEST_F(ServerTest, EveryMethodSurvivesHostileRequests) {
  const uint64_t seed = std::random_device()();
  printf("seed %lu\n", static_cast<unsigned long>(seed));
  Scrambler scrambler(seed);
  Register();
  Create("known");
  const v1::SyncResponse sync = Sync({});
  ASSERT_EQ(sync.desired_size(), 1);
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  int methods = 0;
  for (const char* name :
       {"JobService", "LogService", "MetricService", "CheckpointService", "FleetService", "WorkerService"}) {
    const auto* service = pool->FindServiceByName(absl::StrCat("strata.v1.", name));
    ASSERT_NE(service, nullptr);
    for (int i = 0; i < service->method_count(); ++i, ++methods) {
      const auto* method = service->method(i);
      const std::string path = absl::StrCat("/", service->full_name(), "/", method->name());
      const bool follows = method->server_streaming() || method->name() == "Sync";
      for (int round = 0; round < (follows ? 12 : 40); ++round) {
        const std::unique_ptr<google::protobuf::Message> request(
            google::protobuf::MessageFactory::generated_factory()->GetPrototype(method->input_type())->New());
        std::string bytes;
        if (round == 1) {
          bytes = std::string(1 + scrambler.Below(200), static_cast<char>(scrambler.Below(256)));
        } else if (round > 1) {
          scrambler.Fill(request.get(), 0);
          // Half of the worker plane's requests name the live attempt.
          if (scrambler.Below(2) == 0) {
            const auto* uid = method->input_type()->FindFieldByName("job_uid");
            if (uid != nullptr)
              request->GetReflection()->SetString(request.get(), uid, sync.desired(0).job_uid());
            const auto* attempt = method->input_type()->FindFieldByName("attempt");
            if (attempt != nullptr) request->GetReflection()->SetInt32(request.get(), attempt, 1);
          }
          bytes = request->SerializePartialAsString();
        }
        const grpc::Status status =
            CallRaw(path, bytes, nullptr, follows ? milliseconds(60) : milliseconds(10'000));
        ASSERT_NE(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << path;
        if (!follows) {
          ASSERT_NE(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << path;
        }
      }
      ASSERT_TRUE(coordinator_->CheckInvariants().ok()) << path << ": " << coordinator_->CheckInvariants();
    }
  }
  EXPECT_EQ(methods, 21) << "a new method needs no line here, only this number";
  EXPECT_EQ(Get("known").uid(), sync.desired(0).job_uid());
}

}  // namespace
}  // namespace strata::server
