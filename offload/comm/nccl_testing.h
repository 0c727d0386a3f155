// A rank of tests: a GPU, a library and a stream of its own, all fake.
#ifndef OFFLOAD_COMM_NCCL_TESTING_H_
#define OFFLOAD_COMM_NCCL_TESTING_H_

#include <memory>

#include "gtest/gtest.h"
#include "offload/comm/communicator.h"
#include "offload/comm/fake_nccl.h"
#include "offload/device/fake_cuda.h"

namespace strata {

// The library outlives the streams, which run its work.
struct NcclRank {
  NcclRank(FakeNcclWorld& world, int rank) : cuda({.seed = static_cast<uint64_t>(rank) + 1}) {
    nccl = std::make_unique<FakeNccl>(world, cuda);
    EXPECT_EQ(cuda.StreamCreate(&stream), 0);
  }
  ~NcclRank() {
    communicator.reset();
    EXPECT_EQ(nccl->communicators, 0);
  }

  std::unique_ptr<FakeNccl> nccl;
  FakeCuda cuda;
  std::unique_ptr<Communicator> communicator;
  Stream* stream = nullptr;
};

}  // namespace strata

#endif  // OFFLOAD_COMM_NCCL_TESTING_H_
