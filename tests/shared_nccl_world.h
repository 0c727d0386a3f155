// FakeNccl among processes of one machine: ranks meet in a file that all of them map. An all-reduce of up to
// kValuesMax floats is all that they can do, and nobody hears of a rank that is gone: as a kernel of NCCL
// does, they wait until they are aborted.
#ifndef TESTS_SHARED_NCCL_WORLD_H_
#define TESTS_SHARED_NCCL_WORLD_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/fd.h"
#include "offload/comm/fake_nccl.h"

namespace strata {

class SharedNcclWorld : public FakeNcclWorld {
 public:
  explicit SharedNcclWorld(std::string folder) : folder_(std::move(folder)) {}

  nccl::UniqueId NewId() override {
    nccl::UniqueId id = {};
    const std::string text = absl::StrCat("meeting-", getpid(), "-", ++ids_);
    std::memcpy(id.internal, text.data(), text.size());
    return id;
  }
  std::unique_ptr<Communicator> Join(const nccl::UniqueId& id, int ranks, int rank) override {
    auto joined = std::make_unique<Rank>(absl::StrCat(folder_, "/", id.internal), ranks, rank);
    last_ = joined.get();
    return joined;
  }
  // Until all but this rank, the last to have joined, are in operation `round` (from 1).
  void AwaitOthers(int64_t round) { last_->AwaitPosts(round, last_->rank()); }

 private:
  static constexpr int kRanksMax = 8, kValuesMax = 256;

  struct Shared {  // all zero at first
    std::atomic<int64_t> posted[kRanksMax];
    float values[2][kRanksMax][kValuesMax];  // by the parity of the round
  };

  class Rank : public Communicator {
   public:
    Rank(const std::string& file, int ranks, int rank) : ranks_(ranks), rank_(rank) {
      STRATA_CHECK(ranks <= kRanksMax);
      const absl::StatusOr<Fd> fd = OpenFile(file, O_RDWR | O_CREAT);
      STRATA_CHECK(fd.ok() && ftruncate(fd->get(), sizeof(Shared)) == 0);
      void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0);
      STRATA_CHECK(memory != MAP_FAILED);
      shared_ = static_cast<Shared*>(memory);
    }
    ~Rank() override { munmap(shared_, sizeof(Shared)); }

    int rank() const override { return rank_; }
    int size() const override { return ranks_; }

    absl::Status AllReduce(Stream*, DType type, const void* send, void* receive, int64_t count) override {
      if (type != DType::kF32 || count > kValuesMax) return absl::UnimplementedError("");
      const int64_t round = ++round_;
      auto& values = shared_->values[round % 2];
      // The round before the last is over for everybody: all have posted the last one.
      std::memcpy(values[rank_], send, static_cast<size_t>(count) * sizeof(float));
      shared_->posted[rank_].store(round);
      if (!AwaitPosts(round, -1)) return absl::UnavailableError("aborted");
      for (int64_t i = 0; i < count; ++i) {
        float sum = 0;
        for (int r = 0; r < ranks_; ++r) sum += values[r][i];
        static_cast<float*>(receive)[i] = sum;
      }
      return absl::OkStatus();
    }
    absl::Status AllGather(Stream*, DType, const void*, void*, int64_t) override { return None(); }
    absl::Status ReduceScatter(Stream*, DType, const void*, void*, int64_t) override { return None(); }
    absl::Status Broadcast(Stream*, DType, void*, int64_t, int) override { return None(); }
    absl::Status Send(Stream*, DType, const void*, int64_t, int) override { return None(); }
    absl::Status Receive(Stream*, DType, void*, int64_t, int) override { return None(); }
    absl::Status Await() override { return absl::OkStatus(); }
    void Abort(const std::string&) override { aborted_ = true; }

    // False when this rank was aborted meanwhile.
    bool AwaitPosts(int64_t round, int but) {
      for (int r = 0; r < ranks_; ++r) {
        while (r != but && shared_->posted[r].load() < round) {
          if (aborted_.load()) return false;
          usleep(200);
        }
      }
      return true;
    }

   private:
    static absl::Status None() { return absl::UnimplementedError("only all-reduce"); }

    const int ranks_, rank_;
    int64_t round_ = 0;
    std::atomic<bool> aborted_ = false;
    Shared* shared_ = nullptr;
  };

  const std::string folder_;
  int ids_ = 0;
  Rank* last_ = nullptr;
};

}  // namespace strata

#endif  // TESTS_SHARED_NCCL_WORLD_H_
