// A rank of rendezvous_test: a process that an agent's Task starts as its trainer, with a communicator over
// FakeNccl. The job's name says what it does: "folder=F,size=N,steps=S,die_at=K" (rank 1 kills itself when
// the others are in all-reduce K).
#include <signal.h>
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/fd.h"
#include "common/thread.h"
#include "offload/comm/fake_nccl.h"
#include "offload/comm/nccl_communicator.h"
#include "offload/device/fake_cuda.h"
#include "proto/strata/v1/trainer.pb.h"
#include "tests/shared_nccl_world.h"
#include "worker/trainer/channel_rendezvous.h"
#include "worker/trainer_channel/trainer_channel.h"

namespace strata {
namespace {

absl::Status Communicate(int rank, std::map<std::string, std::string>& what, ChannelRendezvous& meeting) {
  int size = 0, steps = 0, die_at = 0;
  (void)(absl::SimpleAtoi(what["size"], &size) && absl::SimpleAtoi(what["steps"], &steps));
  (void)absl::SimpleAtoi(what["die_at"], &die_at);
  SharedNcclWorld world(what["folder"]);
  std::unique_ptr<FakeNccl> nccl;  // outlives the streams, which run its work
  FakeCuda cuda;
  nccl = std::make_unique<FakeNccl>(world, cuda);
  Stream* stream = nullptr;
  (void)cuda.StreamCreate(&stream);
  auto ranks = CreateNcclCommunicator(*nccl, cuda, &meeting,
                                      {.rank = rank, .size = size, .timeout = absl::Minutes(5)});
  if (!ranks.ok()) return ranks.status();
  absl::Status status;
  for (int step = 1; status.ok() && step <= steps; ++step) {
    if (rank == 1 && step == die_at) {
      world.AwaitOthers(step);
      raise(SIGKILL);
    }
    float value = static_cast<float>(step * (rank + 1));
    status = (*ranks)->AllReduce(stream, DType::kF32, &value, &value, 1);
    if (status.ok()) status = (*ranks)->Await();
    if (status.ok() && value != static_cast<float>(step * size * (size + 1) / 2))
      status = absl::InternalError(absl::StrCat("a wrong sum of step ", step, ": ", value));
  }
  return status;
}

int Run() {
  TrainerChannel channel((Fd(kTrainerAgentFd)));
  v1::AgentMessage first;
  if (!channel.Receive(&first).ok() || !first.has_task()) return 3;
  std::map<std::string, std::string> what;
  for (absl::string_view entry : absl::StrSplit(first.task().job_name(), ',')) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(entry, absl::MaxSplits('=', 1));
    what[pair.first] = pair.second;
  }
  ChannelRendezvous meeting([&](const v1::TrainerMessage& message) { return channel.Send(message); });
  Thread receiver("receiver", [&] {
    v1::AgentMessage message;
    while (channel.Receive(&message).ok()) meeting.Take(message.rendezvous());
  });
  const absl::Status status = Communicate(first.task().rank(), what, meeting);
  v1::TrainerMessage last;
  last.mutable_done()->set_finished(status.ok());
  if (!status.ok()) {
    last.mutable_done()->mutable_failure()->set_cause(v1::WORKER_LOST);
    last.mutable_done()->mutable_failure()->set_message(std::string(status.message()));
  }
  (void)channel.Send(last);
  channel.Shutdown();
  receiver.Join();
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace strata

int main() { return strata::Run(); }
