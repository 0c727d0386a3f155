#include "offload/engine/ladder.h"

#include <cstdio>

#include "common/fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

Ladder Best() {
  return LadderOf({.pages = PageKind::kHugeTlb, .locked = true},
                  {{.backend = "io_uring"}, {.backend = "io_uring"}}, {{.direct = true}, {.direct = true}},
                  {.gpu = "a GPU", .gpudirect = "nvidia-fs 2.19", .gpudirect_asked = true});
}

TEST(Ladder, FirstChoicesHaveNoReason) {
  const Ladder ladder = Best();
  ASSERT_EQ(ladder.size(), static_cast<size_t>(kFeatureCount));
  for (int i = 0; i < kFeatureCount; ++i) {
    EXPECT_EQ(ladder[i].feature, static_cast<Feature>(i));
    EXPECT_EQ(ladder[i].why, "");
  }
  EXPECT_EQ(ladder[0].chosen, "io_uring");
  EXPECT_EQ(ladder[1].chosen, "O_DIRECT");
  EXPECT_EQ(ladder[2].chosen, "registered");
  EXPECT_EQ(ladder[3].chosen, "locked");
  EXPECT_EQ(ladder[4].chosen, "hugetlb pages");
  EXPECT_EQ(ladder[5].chosen, "a GPU");
  EXPECT_EQ(ladder[6].chosen, "registered");
  EXPECT_EQ(ladder[7].chosen, "nvidia-fs 2.19");
}

TEST(Ladder, TellsOfTheLaneAndThePathThatAreWorstOff) {
  for (const bool first : {true, false}) {
    std::vector<IoEngineReport> engines(2, {.backend = "io_uring"});
    engines[first ? 0 : 1] = {
        .backend = "threads", .why_not_io_uring = "no ring", .why_not_registered = "no table"};
    std::vector<NvmePathReport> paths(2, {.direct = true});
    paths[first ? 1 : 0] = {.direct = false, .why_buffered = "tmpfs"};
    const Ladder ladder = LadderOf({.why_not_huge = "few", .why_not_locked = "limit"}, engines, paths,
                                   {.gpu = "a GPU", .why_not_registered = "refused"});
    EXPECT_EQ(ladder[0].chosen, "threads");
    EXPECT_EQ(ladder[0].why, "no ring");
    EXPECT_EQ(ladder[1].chosen, "buffered");
    EXPECT_EQ(ladder[1].why, "tmpfs");
    EXPECT_EQ(ladder[2].chosen, "plain");
    EXPECT_EQ(ladder[2].why, "no table");
    EXPECT_EQ(ladder[3].chosen, "pageable");
    EXPECT_EQ(ladder[3].why, "limit");
    EXPECT_EQ(ladder[4].chosen, "small pages");
    EXPECT_EQ(ladder[4].why, "few");
    EXPECT_EQ(ladder[6].chosen, "pageable");
    EXPECT_EQ(ladder[6].why, "refused");
  }
}

TEST(Ladder, WithoutNvmeAndGpuThereAreOnlyTheRungsOfMemoryAndWhyThereIsNoGpu) {
  const Ladder ladder = LadderOf({.locked = true}, {}, {}, {.why_not_gpu = "no driver"});
  ASSERT_EQ(ladder.size(), 3);
  EXPECT_EQ(ladder[0].feature, Feature::kLockedMemory);
  EXPECT_EQ(ladder[2].feature, Feature::kGpu);
  EXPECT_EQ(ladder[2].chosen, "cpu");
  EXPECT_EQ(ladder[2].why, "no driver");
  EXPECT_TRUE(CheckRequired(ladder, {Feature::kIoUring, Feature::kODirect}).ok());
}

TEST(Ladder, ARequiredFeatureThatIsMissingNamesTheReason) {
  EXPECT_TRUE(CheckRequired(Best(), {Feature::kIoUring, Feature::kODirect, Feature::kRegisteredBuffers,
                                     Feature::kLockedMemory, Feature::kHugePages, Feature::kGpu,
                                     Feature::kCudaHostRegister, Feature::kGpuDirect})
                  .ok());
  const Ladder poor = LadderOf({.why_not_huge = "few", .why_not_locked = "limit"},
                               {{.backend = "threads", .why_not_io_uring = "no ring"}},
                               {{.why_buffered = "tmpfs"}}, {.why_not_gpu = "no driver"});
  EXPECT_TRUE(CheckRequired(poor, {}).ok());
  const absl::Status status = CheckRequired(poor, {Feature::kODirect});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("memory.require: o_direct"));
  EXPECT_THAT(status.message(), HasSubstr("there is only buffered: tmpfs"));
  EXPECT_THAT(CheckRequired(poor, {Feature::kGpu}).message(), HasSubstr("only cpu: no driver"));
}

TEST(Ladder, GpuDirectIsForJobsThatAskAndRefusedWhereItCannotBeHad) {
  const auto rung = [](const DeviceReport& device, bool direct = true) {
    return LadderOf({}, {{.backend = "io_uring"}},
                    {{.direct = true}, {.folder = "/b", .direct = direct, .why_buffered = "tmpfs"}}, device)
        .back();
  };
  const Rung unasked = rung({.gpu = "a GPU", .gpudirect = "nvidia-fs 2.19"});
  EXPECT_EQ(unasked.feature, Feature::kGpuDirect);
  EXPECT_EQ(unasked.chosen, "host arena");
  EXPECT_EQ(unasked.why, "memory.require: [gpudirect] turns it on, by nvidia-fs 2.19");
  EXPECT_EQ(rung({.why_not_gpu = "no driver", .gpudirect_asked = true}).why, "there is no GPU");
  const DeviceReport asked = {.gpu = "a GPU", .gpudirect = "nvidia-fs 2.19", .gpudirect_asked = true};
  EXPECT_EQ(rung(asked, /*direct=*/false).why, "/b is not read by O_DIRECT: tmpfs");
  const Rung missing = rung({.gpu = "a GPU", .why_not_gpudirect = "no module", .gpudirect_asked = true});
  const absl::Status status = CheckRequired({missing}, {Feature::kGpuDirect});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(),
              HasSubstr("memory.require: gpudirect cannot be had, there is only host arena: no module; mend "
                        "that, or take it out of memory.require: the numbers stay the same"));
}

TEST(Ladder, AMachineOffersEveryRung) {
  const std::string path = ::testing::TempDir() + "/ladder";
  ASSERT_TRUE(MakeDirectories(path).ok());
  const auto offered = OfferedLadder({path}, {.why_not = "not asked for"});
  ASSERT_TRUE(offered.ok()) << offered.status();
  EXPECT_EQ(offered->size(), static_cast<size_t>(kFeatureCount) - 1);  // no GPU to register with
  for (const Rung& rung : *offered) {
    std::printf("%s: %s %s\n", FeatureName(rung.feature), rung.chosen.c_str(), rung.why.c_str());
    EXPECT_FALSE(rung.chosen.empty());
  }
  EXPECT_EQ(OfferedLadder({path + "/missing"}, {}).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace strata
