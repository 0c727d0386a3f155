// Layout, folder and histogram of the NVMe store.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/store/latency_histogram.h"
#include "offload/store/store_folder.h"
#include "offload/store/store_layout.h"
#include "offload/store/striper.h"

namespace strata {
namespace {

using ::testing::HasSubstr;

std::string Folder(const std::string& name) {
  const std::string path = ::testing::TempDir() + "/store_parts_" + name;
  EXPECT_TRUE(RemoveTree(path).ok());
  EXPECT_TRUE(MakeDirectories(path).ok());
  return path;
}

TEST(CapacityBytes, IsTheDocumentedFormula) {
  EXPECT_EQ(*CapacityBytes({}), 0);
  EXPECT_EQ(*CapacityBytes({.items = {{ItemId{1}, 1}}}), 3 * 4096);
  EXPECT_EQ(*CapacityBytes({.items = {{ItemId{1}, 4096, ItemKind::kScratch}}}), 4096);
  // Three of 8192, one of 4096, one scratch of 8192.
  StoreLayout layout{.items = {{ItemId{1}, 8192},
                               {ItemId{2}, 4097},
                               {ItemId{9}, 4096},
                               {ItemId{4}, 8191},
                               {ItemId{5}, 8000, ItemKind::kScratch}}};
  EXPECT_EQ(*CapacityBytes(layout), 8192 * 9 + 4096 * 3 + 8192);
  layout.write_ahead_items = 2;
  EXPECT_EQ(*CapacityBytes(layout), 8192 * (6 + 2) + 4096 * 3 + 8192);
  layout.write_ahead_items = 0;
  EXPECT_EQ(*CapacityBytes(layout), 8192 * 6 + 4096 * 2 + 8192);
}

TEST(CapacityBytes, RefusesWhatCannotBe) {
  EXPECT_TRUE(absl::IsInvalidArgument(CapacityBytes({.items = {{ItemId{1}, 0}}}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(CapacityBytes({.items = {{ItemId{1}, 5}, {ItemId{1}, 6}}}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(CapacityBytes({.items = {{ItemId{1}, UINT64_MAX}}}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(CapacityBytes({.items = {{ItemId{1}, uint64_t{1} << 62}}}).status()));
}

TEST(Striper, OnePathGetsExtentsWhole) {
  Striper striper({0.3}, 1 << 20);
  const auto pieces = striper.Next(uint64_t{100} << 20);
  ASSERT_EQ(pieces.size(), 1);
  EXPECT_EQ(pieces[0].bytes, uint64_t{100} << 20);
}

TEST(Striper, EachExtentAndEachRoundOfItIsSharedByWeight) {
  const std::vector<double> weights = {5, 1, 2.3};
  Striper striper(weights, 1 << 20);
  std::vector<uint64_t> total(3, 0);
  uint64_t all = 0;
  for (uint64_t i = 1; i < 60; ++i) {
    const uint64_t bytes = 4096 * (i * i * i % 20011 + 33);
    std::vector<uint64_t> sum(3, 0);
    uint32_t in_flight[3] = {};
    for (const StripePiece& piece : striper.Next(bytes)) {
      ASSERT_GT(piece.bytes, 0);
      ASSERT_EQ(piece.bytes % 4096, 0);
      sum[piece.path] += piece.bytes;
      ++in_flight[piece.path];
    }
    ASSERT_EQ(sum[0] + sum[1] + sum[2], bytes);
    all += bytes;
    for (int path = 0; path < 3; ++path) {
      total[path] += sum[path];
      EXPECT_NEAR(static_cast<double>(sum[path]), static_cast<double>(bytes) * weights[path] / 8.3, 3 * 4096);
      EXPECT_NEAR(static_cast<double>(total[path]), static_cast<double>(all) * weights[path] / 8.3, 2 * 4096);
      EXPECT_LE(in_flight[path], bytes / (3 << 20) + 1);
    }
  }
}

TEST(Striper, SmallExtentsLieOnOnePathAndAreSpread) {
  Striper striper({1, 3}, 1 << 20);
  uint64_t bytes[2] = {};
  for (int i = 0; i < 400; ++i) {
    const auto pieces = striper.Next(64 << 10);
    ASSERT_EQ(pieces.size(), 1);
    bytes[pieces[0].path] += pieces[0].bytes;
  }
  EXPECT_EQ(bytes[0] * 3, bytes[1]);
}

TEST(LatencyHistogram, QuantilesAreAtMostOneBucketHigh) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.QuantileNanos(0.5), 0);
  for (int64_t i = 1; i <= 10000; ++i) histogram.Record(i * 10'000);  // 10 us to 100 ms.
  EXPECT_EQ(histogram.count(), 10000);
  for (const double fraction : {0.01, 0.5, 0.9, 0.99, 1.0}) {
    const double exact = fraction * 10000 * 10'000;
    EXPECT_GE(static_cast<double>(histogram.QuantileNanos(fraction)), exact) << fraction;
    EXPECT_LE(static_cast<double>(histogram.QuantileNanos(fraction)), exact * 1.25 + 1) << fraction;
  }
}

TEST(LatencyHistogram, ExtremesHaveABucket) {
  LatencyHistogram histogram;
  histogram.Record(-5);
  histogram.Record(0);
  EXPECT_EQ(histogram.QuantileNanos(1), 1000);
  histogram.Record(INT64_MAX);
  EXPECT_GT(histogram.QuantileNanos(1), int64_t{1'000'000'000} * 3600);
}

TEST(StoreFolder, SecondOwnerOfTheSameNameIsRefusedAndOthersAreNot) {
  const std::string path = Folder("lock");
  auto first = StoreFolder::Lock(path, "job-1.r0");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->name(), path + "/strata-job-1.r0");
  const absl::Status second = StoreFolder::Lock(path, "job-1.r0").status();
  EXPECT_TRUE(absl::IsAlreadyExists(second)) << second;
  EXPECT_THAT(second.message(), HasSubstr(first->name()));
  EXPECT_TRUE(StoreFolder::Lock(path, "job-1.r1").ok());
  EXPECT_TRUE(first->Remove().ok());
  EXPECT_TRUE(first->Remove().ok());
  EXPECT_TRUE(StoreFolder::Lock(path, "job-1.r0").ok());
  EXPECT_TRUE(std::filesystem::is_empty(path));
}

TEST(StoreFolder, OwnersThatAreNoNamesAreRefused) {
  const std::string path = Folder("owner");
  for (const std::string& owner : {std::string(), std::string(".."), std::string("a/b"), std::string(".x"),
                                   std::string("a\0b", 3), std::string(201, 'a')}) {
    EXPECT_TRUE(absl::IsInvalidArgument(StoreFolder::Lock(path, owner).status())) << owner;
  }
  EXPECT_TRUE(std::filesystem::is_empty(path));
}

TEST(StoreFolder, FilesHaveNoName) {
  const std::string path = Folder("unnamed");
  auto folder = StoreFolder::Lock(path, "job");
  ASSERT_TRUE(folder.ok());
  auto file = folder->MakeUnnamedFile(0);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(std::filesystem::is_empty(folder->name()));
  EXPECT_EQ(pwrite(file->fd.get(), "x", 1, 0), 1);
}

TEST(SweepStaleStores, RemovesTheDeadAndSparesTheLivingAndTheForeign) {
  const std::string path = Folder("sweep");
  auto living = StoreFolder::Lock(path, "living");
  ASSERT_TRUE(living.ok());
  ASSERT_TRUE(MakeDirectories(path + "/strata-dead").ok());
  ASSERT_TRUE(MakeDirectories(path + "/strata-named").ok());
  ASSERT_TRUE(OpenFile(path + "/strata-named/extents", O_CREAT | O_RDWR).ok());
  ASSERT_TRUE(OpenFile(path + "/strata-probe-abc123", O_CREAT | O_RDWR).ok());
  ASSERT_TRUE(MakeDirectories(path + "/strata-foreign").ok());
  ASSERT_TRUE(OpenFile(path + "/strata-foreign/thesis.txt", O_CREAT | O_RDWR).ok());
  ASSERT_TRUE(MakeDirectories(path + "/photos").ok());
  ASSERT_TRUE(OpenFile(path + "/strata-notes", O_CREAT | O_RDWR).ok());
  ASSERT_EQ(symlink((path + "/photos").c_str(), (path + "/strata-link").c_str()), 0);
  auto swept = SweepStaleStores(path);
  ASSERT_TRUE(swept.ok()) << swept.status();
  EXPECT_EQ(*swept, 2);
  for (const char* gone : {"/strata-dead", "/strata-named", "/strata-probe-abc123"}) {
    EXPECT_FALSE(std::filesystem::exists(path + gone)) << gone;
  }
  for (const char* kept :
       {"/strata-living", "/strata-foreign/thesis.txt", "/photos", "/strata-notes", "/strata-link"}) {
    EXPECT_TRUE(std::filesystem::exists(path + kept)) << kept;
  }
  EXPECT_EQ(*SweepStaleStores(path), 0);
}

TEST(SweepStaleStores, MissingPathIsAnError) {
  EXPECT_TRUE(absl::IsNotFound(SweepStaleStores(Folder("missing") + "/nothing").status()));
}

}  // namespace
}  // namespace strata
