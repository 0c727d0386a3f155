// Writer and reader together: what was committed reads back to the bit, and no failed or killed commit is
// ever taken for a checkpoint.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <map>
#include <span>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "common/fd.h"
#include "common/random.h"
#include "offload/checkpoint/checkpoint_reader.h"
#include "offload/checkpoint/checkpoint_writer.h"

namespace strata {
namespace {

// Fails the `fail_at`-th operation (from 1) and, if it is a crash, every one after it: a failed write leaves
// half of its bytes, a failed rename may have happened.
class FaultyFileOps : public FileOps {
 public:
  int fail_at = 0;
  bool crash = false;
  bool rename_happens = false;
  bool no_exchange = false;
  int count = 0;
  bool fired = false;
  bool fired_on_remove = false;

  absl::StatusOr<Fd> CreateFile(const std::string& path) override {
    if (Fails()) return absl::ResourceExhaustedError("injected");
    return real_.CreateFile(path);
  }
  absl::Status Write(const Fd& fd, absl::string_view data, const std::string& path) override {
    if (!Fails()) return real_.Write(fd, data, path);
    real_.Write(fd, data.substr(0, data.size() / 2), path).IgnoreError();
    return absl::ResourceExhaustedError("injected");
  }
  absl::Status Sync(const Fd& fd, const std::string& path) override {
    return Fails() ? absl::DataLossError("injected") : absl::OkStatus();
  }
  absl::Status Close(Fd fd, const std::string& path) override {
    return Fails() ? absl::DataLossError("injected") : real_.Close(std::move(fd), path);
  }
  absl::Status MakeDirectory(const std::string& path) override {
    return Fails() ? absl::ResourceExhaustedError("injected") : MakeDirectories(path);
  }
  absl::Status SyncDirectory(const std::string& path) override {
    return Fails() ? absl::DataLossError("injected") : absl::OkStatus();
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (!Fails()) return real_.Rename(from, to);
    if (rename_happens) real_.Rename(from, to).IgnoreError();
    return absl::DataLossError("injected");
  }
  absl::Status Exchange(const std::string& a, const std::string& b) override {
    if (no_exchange) return absl::UnimplementedError("not here");
    if (!Fails()) return real_.Exchange(a, b);
    if (rename_happens) real_.Exchange(a, b).IgnoreError();
    return absl::DataLossError("injected");
  }
  absl::Status RemoveTree(const std::string& path) override {
    if (!Fails()) return real_.RemoveTree(path);
    fired_on_remove = true;
    return absl::DataLossError("injected");
  }

 private:
  bool Fails() {
    ++count;
    const bool fails = fail_at > 0 && (crash ? count >= fail_at : count == fail_at);
    fired = fired || fails;
    return fails;
  }
  FileOps& real_ = FileOps::Real();
};

const std::vector<CheckpointTensor> kTensors = {{"wte.weight", {257, 33}},
                                                {"h.0.ln.weight", {33}},
                                                {"none", {0, 4}},
                                                {"scalar", {}},
                                                {"h.0.w", {129, 1024}}};

const std::vector<float>& Values(StateClass state, size_t tensor, uint64_t seed) {
  static auto* const cache = new std::map<std::tuple<StateClass, size_t, uint64_t>, std::vector<float>>;
  std::vector<float>& values = (*cache)[{state, tensor, seed}];
  if (!values.empty()) return values;
  values.resize(static_cast<size_t>(*ShapeElements(kTensors[tensor].shape)));
  const CounterRandom random(seed, static_cast<uint64_t>(state) << 32 | tensor);
  // All bit patterns, NaNs with payloads included: a checkpoint keeps bits, not numbers.
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = std::bit_cast<float>(static_cast<uint32_t>(random.Bits(i)));
  return values;
}

absl::StatusOr<WrittenCheckpoint> WriteCheckpoint(FileOps& ops, const std::string& dir, int64_t step,
                                                  int64_t attempt, uint64_t seed, int64_t piece = 10'000) {
  CheckpointDescription description;
  description.job_uid = "job";
  description.attempt = attempt;
  description.step = step;
  description.state.data_cursor = step * 32;
  auto writer = CheckpointWriter::Create(ops, dir, description, kTensors);
  if (!writer.ok()) return writer.status();
  // The classes advance in turns, the way chunks of {master, m, v} come by.
  for (size_t tensor = 0; tensor < kTensors.size(); ++tensor) {
    const int64_t elements = *ShapeElements(kTensors[tensor].shape);
    for (int64_t at = 0; at < elements; at += piece) {
      for (const StateClass state : kStateClasses) {
        const std::vector<float>& values = Values(state, tensor, seed);
        const auto n = static_cast<size_t>(std::min(piece, elements - at));
        const absl::Status status = (*writer)->Append(state, tensor, at, {values.data() + at, n});
        if (!status.ok()) return status;
      }
    }
  }
  return (*writer)->Commit();
}

// Not memcmp: the tensor without elements has no address. Not ==: some of the values are NaN.
bool SameBits(std::span<const float> a, std::span<const float> b) {
  return std::ranges::equal(a, b, {}, std::bit_cast<uint32_t, float>, std::bit_cast<uint32_t, float>);
}

std::string FreshDir(const std::string& name) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  EXPECT_TRUE(RemoveTree(path).ok());
  return path + "/job/checkpoints";
}

void ExpectHolds(const std::string& path, uint64_t seed) {
  const auto reader = CheckpointReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (size_t tensor = 0; tensor < kTensors.size(); ++tensor) {
    for (const StateClass state : kStateClasses) {
      const std::vector<float>& expected = Values(state, tensor, seed);
      std::vector<float> values(expected.size());
      ASSERT_TRUE((*reader)->ReadRange(state, kTensors[tensor].name, 0, values).ok());
      ASSERT_TRUE(SameBits(values, expected)) << kTensors[tensor].name;
    }
  }
}

std::vector<std::string> Names(const std::string& dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Checkpoint, ReadsBackToTheBitInAnyPieces) {
  const std::string dir = FreshDir("roundtrip");
  for (const int64_t piece : {1'000'000, 4096, 999}) {
    const auto written = WriteCheckpoint(FileOps::Real(), dir, 100, piece, 1, piece);
    if (piece != 1'000'000) {
      EXPECT_TRUE(absl::IsFailedPrecondition(written.status())) << "a smaller attempt is stale";
      continue;
    }
    ASSERT_TRUE(written.ok()) << written.status();
    EXPECT_EQ(written->path, dir + "/step-000000000100");
    ExpectHolds(written->path, 1);
    ASSERT_TRUE(VerifyCheckpoint(written->path, written->digest).ok());
    const auto reader = CheckpointReader::Open(written->path, written->digest);
    ASSERT_TRUE(reader.ok());
    EXPECT_EQ((*reader)->manifest().state.data_cursor, 3200);
    const auto tensors = (*reader)->Tensors(StateClass::kSecondMoment);
    ASSERT_EQ(tensors.size(), kTensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(tensors[i].name, kTensors[i].name);
      EXPECT_EQ(tensors[i].shape, kTensors[i].shape);
    }
    const CounterRandom random(3, 3);
    for (uint64_t i = 0; i < 100; ++i) {
      const std::vector<float>& all = Values(StateClass::kFirstMoment, 4, 1);
      const auto begin = random.Below(2 * i, all.size()), n = random.Below(2 * i + 1, all.size() - begin);
      std::vector<float> out(n);
      ASSERT_TRUE(
          (*reader)->ReadRange(StateClass::kFirstMoment, "h.0.w", static_cast<int64_t>(begin), out).ok());
      ASSERT_TRUE(SameBits(out, std::span(all).subspan(begin, n)));
    }
    std::vector<float> out(2);
    EXPECT_TRUE(absl::IsNotFound((*reader)->ReadRange(StateClass::kMaster, "x", 0, out)));
    EXPECT_TRUE(absl::IsInvalidArgument((*reader)->ReadRange(StateClass::kMaster, "scalar", 0, out)));
    EXPECT_TRUE(absl::IsInvalidArgument((*reader)->ReadRange(StateClass::kMaster, "h.0.ln.weight", -1, out)));
    EXPECT_TRUE(absl::IsDataLoss(CheckpointReader::Open(written->path, std::string(64, '0')).status()));
  }
  EXPECT_EQ(Names(dir), (std::vector<std::string>{"step-000000000100"}));
}

TEST(Checkpoint, EightBitStatesReadBackToTheBitAndInTheirTypes) {
  CheckpointDescription description{.job_uid = "job", .step = 3};
  description.state.moments = Moments::kCode8;
  const auto writer = CheckpointWriter::Create(FileOps::Real(), FreshDir("eight_bit"), description, kTensors);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_EQ((*writer)->classes().size(), 5u);
  // The bytes of every class and tensor.
  std::map<std::pair<StateClass, size_t>, std::vector<std::byte>> all;
  for (const StateClass state : (*writer)->classes()) {
    const StateItem item = StateItemOf(state, Moments::kCode8);
    for (size_t tensor = 0; tensor < kTensors.size(); ++tensor) {
      const int64_t items = item.Count(*ShapeElements(kTensors[tensor].shape));
      std::vector<std::byte>& bytes = all[{state, tensor}];
      bytes.resize(static_cast<size_t>(items * item.bytes()));
      const CounterRandom random(5, static_cast<uint64_t>(state) << 32 | tensor);
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(random.Below(i, 256));
      for (int64_t at = 0; at < items; at += 999) {
        const auto part = std::span<const std::byte>(bytes).subspan(
            static_cast<size_t>(at * item.bytes()),
            static_cast<size_t>(std::min<int64_t>(999, items - at) * item.bytes()));
        ASSERT_TRUE((*writer)->Append(state, tensor, at, part).ok());
      }
    }
  }
  const auto written = (*writer)->Commit();
  ASSERT_TRUE(written.ok()) << written.status();
  ASSERT_TRUE(VerifyCheckpoint(written->path, written->digest).ok());
  const auto reader = CheckpointReader::Open(written->path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  for (const auto& [place, bytes] : all) {
    const auto& [state, tensor] = place;
    std::vector<std::byte> read(bytes.size());
    ASSERT_TRUE((*reader)->ReadItems(state, kTensors[tensor].name, 0, read).ok());
    EXPECT_EQ(read, bytes) << StateClassName(state) << " of " << kTensors[tensor].name;
  }
  std::vector<std::byte> codes(7);
  ASSERT_TRUE((*reader)->ReadItems(StateClass::kFirstMoment, "h.0.w", 131, codes).ok());
  EXPECT_TRUE(
      std::ranges::equal(codes, std::span(all[{StateClass::kFirstMoment, 4}]).subspan(131, codes.size())));
  EXPECT_TRUE(absl::IsInvalidArgument((*reader)->ReadItems(StateClass::kFirstMoment, "scalar", 0, codes)));
  EXPECT_TRUE(absl::IsNotFound((*reader)->ReadItems(StateClass::kFirstMoment, "x", 0, codes)));
  // Codes are no numbers.
  std::vector<float> floats(3);
  EXPECT_TRUE(absl::IsInvalidArgument((*reader)->ReadRange(StateClass::kFirstMoment, "h.0.w", 0, floats)));
}

TEST(Checkpoint, EqualStateGivesEqualDigestsWhateverThePieces) {
  const auto a = WriteCheckpoint(FileOps::Real(), FreshDir("digest_a"), 100, 1, 1, 1'000'000);
  const auto b = WriteCheckpoint(FileOps::Real(), FreshDir("digest_b"), 100, 1, 1, 777);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->digest, b->digest);
}

TEST(Checkpoint, AFailureOfAnyOperationIsNeverASuccessAndNeverHarmsAnOlderCheckpoint) {
  struct Variant {
    const char* name;
    int64_t step;  // 200: beside the old checkpoint; 100: in its place.
    bool crash, rename_happens, no_exchange;
  };
  std::vector<Variant> variants;
  for (const bool crash : {false, true}) {
    for (const bool happens : {false, true}) {
      variants.push_back({"beside", 200, crash, happens, false});
      variants.push_back({"replace", 100, crash, happens, false});
    }
  }
  variants.push_back({"replace without exchange", 100, false, false, true});
  for (const Variant& variant : variants) {
    for (int n = 1;; ++n) {
      SCOPED_TRACE(absl::StrCat(variant.name, " crash ", variant.crash, " happens ", variant.rename_happens,
                                " operation ", n));
      const std::string dir = FreshDir("faults");
      FaultyFileOps sound;
      const auto old = WriteCheckpoint(sound, dir, 100, 1, 1);
      ASSERT_TRUE(old.ok()) << old.status();
      FaultyFileOps ops;
      ops.fail_at = n;
      ops.crash = variant.crash;
      ops.rename_happens = variant.rename_happens;
      ops.no_exchange = variant.no_exchange;
      const auto written = WriteCheckpoint(ops, dir, variant.step, 2, 2);
      if (written.ok()) {
        EXPECT_TRUE(!ops.fired || ops.fired_on_remove) << "a failed operation was swallowed";
        EXPECT_TRUE(VerifyCheckpoint(written->path, written->digest).ok());
        ExpectHolds(written->path, 2);
      } else {
        EXPECT_TRUE(ops.fired);
        EXPECT_NE(written.status().message().find("injected"), absl::string_view::npos) << written.status();
      }
      // Every name that looks like a checkpoint is one, and the old state or the new one is there.
      const auto list = ListCheckpoints(dir);
      ASSERT_TRUE(list.ok());
      ASSERT_FALSE(list->empty());
      EXPECT_EQ(list->back().step, 100);
      for (const CheckpointEntry& entry : *list) EXPECT_TRUE(VerifyCheckpoint(entry.path).ok()) << entry.path;
      if (variant.step == 200) {
        EXPECT_TRUE(VerifyCheckpoint(old->path, old->digest).ok());
      }
      // The next start cleans up and writes the step after all.
      ASSERT_TRUE(SweepTemporary(FileOps::Real(), dir).ok());
      for (const std::string& name : Names(dir)) EXPECT_EQ(name.rfind("step-", 0), 0) << name;
      ASSERT_TRUE(WriteCheckpoint(sound, dir, variant.step, 3, 3).ok());
      ExpectHolds(absl::StrCat(dir, "/", CheckpointFolderName(variant.step)), 3);
      if (!ops.fired) {
        EXPECT_GT(n, 20) << "the seam saw too few operations";
        break;
      }
    }
  }
}

TEST(Checkpoint, FsyncIsNotRetriedAndTheWriterStaysFailed) {
  const std::string dir = FreshDir("fsync");
  class FailingSync : public FaultyFileOps {
   public:
    int syncs = 0;
    absl::Status Sync(const Fd&, const std::string&) override {
      ++syncs;
      return absl::DataLossError("fsync failed");
    }
  } ops;
  auto writer = CheckpointWriter::Create(ops, dir, {.job_uid = "job", .step = 1}, {{"a", {1}}});
  ASSERT_TRUE(writer.ok());
  const float value = 1;
  for (const StateClass state : kStateClasses) ASSERT_TRUE((*writer)->Append(state, 0, 0, {&value, 1}).ok());
  EXPECT_TRUE(absl::IsDataLoss((*writer)->Commit().status()));
  EXPECT_TRUE(absl::IsDataLoss((*writer)->Commit().status()));
  EXPECT_TRUE(absl::IsDataLoss((*writer)->Append(StateClass::kMaster, 0, 0, {&value, 1})));
  EXPECT_EQ(ops.syncs, 1);
  writer->reset();
  EXPECT_TRUE(Names(dir).empty()) << "an abandoned writer leaves nothing";
}

TEST(Checkpoint, WhatTheDiskHasNoRoomForIsNotBegun) {
  const std::string dir = FreshDir("no_room");
  constexpr int64_t kElements = int64_t{1} << 46;  // 2^48 bytes of each class: more than any disk here has
  const auto writer =
      CheckpointWriter::Create(FileOps::Real(), dir, {.job_uid = "job", .step = 1}, {{"a", {kElements}}});
  EXPECT_TRUE(absl::IsResourceExhausted(writer.status())) << writer.status();
  const std::string message(writer.status().message());
  EXPECT_NE(message.find(dir), std::string::npos) << message;
  EXPECT_NE(message.find("needs 844424930"), std::string::npos) << message;
  EXPECT_NE(message.find("--checkpoint-root"), std::string::npos) << message;
  EXPECT_TRUE(Names(dir).empty());
}

TEST(Checkpoint, IncompleteIsNotCommitted) {
  const std::string dir = FreshDir("incomplete");
  auto writer = CheckpointWriter::Create(FileOps::Real(), dir, {.job_uid = "job", .step = 1}, {{"a", {2}}});
  ASSERT_TRUE(writer.ok());
  const float values[2] = {1, 2};
  ASSERT_TRUE((*writer)->Append(StateClass::kMaster, 0, 0, values).ok());
  ASSERT_TRUE((*writer)->Append(StateClass::kFirstMoment, 0, 0, values).ok());
  ASSERT_TRUE((*writer)->Append(StateClass::kSecondMoment, 0, 0, {values, 1}).ok());
  const auto status = (*writer)->Commit().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_TRUE(ListCheckpoints(dir)->empty());
}

TEST(Checkpoint, SweepLeavesLaterAttemptsAndCheckpointsAlone) {
  const std::string dir = FreshDir("sweep");
  EXPECT_TRUE(SweepTemporary(FileOps::Real(), dir).ok()) << "no folder, nothing to do";
  for (const char* name :
       {"tmp-5.1", "tmp-5.2", "tmp-5.3", "tmp-5.1.replaced", "tmp-removed-4", "step-000000000001", "notes"}) {
    ASSERT_TRUE(MakeDirectories(absl::StrCat(dir, "/", name, "/x")).ok());
  }
  ASSERT_TRUE(SweepTemporary(FileOps::Real(), dir, 2).ok());
  EXPECT_EQ(Names(dir), (std::vector<std::string>{"notes", "step-000000000001", "tmp-5.3"}));
}

TEST(Checkpoint, NoFlippedOrMissingByteGetsThrough) {
  const std::string dir = FreshDir("flips");
  const auto written = WriteCheckpoint(FileOps::Real(), dir, 100, 1, 1);
  ASSERT_TRUE(written.ok());
  std::vector<std::string> names = {kManifestName};
  for (const ManifestFile& file : written->manifest.files) names.push_back(file.name);
  const CounterRandom random(11, 11);
  for (size_t f = 0; f < names.size(); ++f) {
    const std::string path = written->path + "/" + names[f];
    const std::string good = *ReadFile(path, 1 << 24);
    const auto put = [&](const std::string& bytes) {
      const auto fd = OpenFile(path, O_WRONLY | O_TRUNC);
      ASSERT_TRUE(fd.ok() && WriteAll(*fd, bytes, path).ok());
    };
    for (uint64_t i = 0; i < 40; ++i) {
      std::string bad = good;
      // Half of the flips in the header, where they could do most.
      const uint64_t at =
          random.Below(f << 32 | i, i % 2 == 0 ? std::min<size_t>(good.size(), 700) : good.size());
      bad[at] = static_cast<char>(bad[at] ^ 1 << (i % 8));
      put(bad);
      const absl::Status status = VerifyCheckpoint(written->path, written->digest);
      ASSERT_TRUE(absl::IsDataLoss(status)) << names[f] << " byte " << at << ": " << status;
      EXPECT_NE(status.message().find(names[f]), absl::string_view::npos) << status;
    }
    for (const size_t n : {size_t{0}, size_t{7}, good.size() / 2, good.size() - 1}) {
      put(good.substr(0, n));
      ASSERT_TRUE(absl::IsDataLoss(VerifyCheckpoint(written->path, written->digest)))
          << names[f] << " cut at " << n;
    }
    put(good + '\0');
    ASSERT_TRUE(absl::IsDataLoss(VerifyCheckpoint(written->path, written->digest)));
    ASSERT_EQ(unlink(path.c_str()), 0);
    const absl::Status gone = VerifyCheckpoint(written->path);
    EXPECT_TRUE(names[f] == kManifestName ? absl::IsNotFound(gone) : absl::IsDataLoss(gone)) << gone;
    const auto fd = OpenFile(path, O_WRONLY | O_CREAT);
    ASSERT_TRUE(fd.ok());
    put(good);
    ASSERT_TRUE(VerifyCheckpoint(written->path, written->digest).ok());
  }
}

TEST(Checkpoint, AReadOfDamagedBytesFailsThoughTheCheckpointOpened) {
  const std::string dir = FreshDir("late");
  const auto written = WriteCheckpoint(FileOps::Real(), dir, 100, 1, 1);
  ASSERT_TRUE(written.ok());
  const auto reader = CheckpointReader::Open(written->path);
  ASSERT_TRUE(reader.ok());
  const std::string path = written->path + "/m.safetensors";
  const auto fd = OpenFile(path, O_WRONLY);
  ASSERT_EQ(pwrite(fd->get(), "x", 1, written->manifest.files[1].bytes - 1), 1);
  // The single block of this small file is cached since Open; Verify and another reader look at the disk.
  EXPECT_TRUE(absl::IsDataLoss((*reader)->Verify()));
  std::vector<float> out(1);
  EXPECT_TRUE(absl::IsDataLoss((*reader)->ReadRange(StateClass::kFirstMoment, "h.0.w", 0, out)));
  EXPECT_TRUE((*reader)->ReadRange(StateClass::kMaster, "h.0.w", 0, out).ok());
}

TEST(Checkpoint, FallsBackToThePreviousValidOneAndSaysSo) {
  const std::string dir = FreshDir("fallback");
  std::vector<CheckpointCandidate> candidates;
  for (const int64_t step : {300, 200, 100}) {
    const auto written = WriteCheckpoint(FileOps::Real(), dir, step, 1, static_cast<uint64_t>(step));
    ASSERT_TRUE(written.ok());
    candidates.push_back({written->path, written->digest});
  }
  auto opened = OpenNewestValid(candidates);
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ(opened->reader->manifest().step, 300);
  EXPECT_TRUE(opened->rejected.empty());
  ASSERT_EQ(truncate((candidates[0].path + "/v.safetensors").c_str(), 100), 0);
  candidates[1].digest[0] = candidates[1].digest[0] == '0' ? '1' : '0';
  opened = OpenNewestValid(candidates);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->reader->manifest().step, 100);
  ASSERT_EQ(opened->rejected.size(), 2);
  EXPECT_NE(opened->rejected[0].find("v.safetensors has 100 bytes"), std::string::npos)
      << opened->rejected[0];
  EXPECT_NE(opened->rejected[1].find("digest"), std::string::npos) << opened->rejected[1];
  candidates.pop_back();
  EXPECT_TRUE(absl::IsNotFound(OpenNewestValid(candidates).status()));
  EXPECT_TRUE(absl::IsNotFound(OpenNewestValid({}).status()));
}

TEST(Checkpoint, OnlyWhatIsNamedIsRemoved) {
  const std::string dir = FreshDir("retention");
  for (const int64_t step : {100, 200, 300, 400}) {
    ASSERT_TRUE(WriteCheckpoint(FileOps::Real(), dir, step, 1, 1).ok());
  }
  ASSERT_TRUE(RemoveCheckpoints(FileOps::Real(), dir, {100, 300, 999}).ok());
  EXPECT_EQ(Names(dir), (std::vector<std::string>{"step-000000000200", "step-000000000400"}));
  EXPECT_TRUE(RemoveCheckpoints(FileOps::Real(), dir, {}).ok());
  EXPECT_TRUE(RemoveCheckpoints(FileOps::Real(), dir + "/none", {100}).ok());
}

TEST(Checkpoint, RangesOfATensorInSeveralFilesAndTypesReadAsOne) {
  const std::string dir = FreshDir("ranges") + "/step-000000000001";
  ASSERT_TRUE(MakeDirectories(dir).ok());
  Manifest manifest;
  manifest.step = 1;
  manifest.model_json = "{}";
  manifest.block_bytes = 4096;
  const int64_t elements = 10'000;
  const auto value = [](int64_t i) { return static_cast<float>(i % 256); };
  for (const StateClass state : kStateClasses) {
    const bool narrow = state == StateClass::kMaster;
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 3333}, {3333, 3334}, {3334, elements}}) {
      const StoredType type = narrow ? StoredType::kBF16 : StoredType::kF32;
      const std::string name = absl::StrCat(StateClassName(state), "-", begin, ".safetensors");
      auto writer = SafetensorsWriter::Create(FileOps::Real(), dir + "/" + name, {{"t", type, {end - begin}}},
                                              {}, 4096);
      ASSERT_TRUE(writer.ok());
      std::string bytes;
      for (int64_t i = begin; i < end; ++i) {
        const float wide = value(i);
        const BFloat16 half = ToBFloat16(wide);
        narrow ? bytes.append(reinterpret_cast<const char*>(&half), 2)
               : bytes.append(reinterpret_cast<const char*>(&wide), 4);
      }
      ASSERT_TRUE((*writer)->Append(0, 0, bytes).ok());
      const auto finished = (*writer)->Finish();
      ASSERT_TRUE(finished.ok());
      manifest.files.push_back({name, finished->bytes, finished->crc32c, finished->block_crc32c});
      manifest.tensors.push_back(
          {state, "t", type, {100, 100}, elements, manifest.files.size() - 1, begin, end});
    }
  }
  const auto bytes = SerializeManifest(manifest);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  ASSERT_TRUE(WriteFileDurably(dir + "/manifest.json", *bytes).ok());
  const auto reader = CheckpointReader::Open(dir);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE((*reader)->Verify().ok());
  EXPECT_EQ((*reader)->Tensors(StateClass::kMaster).size(), 1);
  for (const StateClass state : kStateClasses) {
    for (const int64_t begin : {0, 3332, 3333, 3334, 9999, 10'000}) {
      std::vector<float> out(static_cast<size_t>(elements - begin));
      ASSERT_TRUE((*reader)->ReadRange(state, "t", begin, out).ok());
      for (int64_t i = begin; i < elements; ++i) ASSERT_EQ(out[static_cast<size_t>(i - begin)], value(i));
    }
  }
}

}  // namespace
}  // namespace strata
