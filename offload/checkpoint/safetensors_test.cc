#include "offload/checkpoint/safetensors.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "common/bfloat16.h"
#include "common/crc32c.h"
#include "common/random.h"

namespace strata {
namespace {

std::string FreshFolder(const std::string& name) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  EXPECT_TRUE(RemoveTree(path).ok());
  EXPECT_TRUE(MakeDirectories(path).ok());
  return path;
}

void WriteFile(const std::string& path, absl::string_view bytes) {
  const auto fd = OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC);
  ASSERT_TRUE(fd.ok()) << fd.status();
  ASSERT_TRUE(WriteAll(*fd, bytes, path).ok());
}

std::string File(absl::string_view header, size_t data_bytes) {
  const uint64_t n = header.size();
  std::string bytes(reinterpret_cast<const char*>(&n), sizeof(n));
  bytes.append(header.data(), header.size());
  bytes.append(data_bytes, '\0');
  return bytes;
}

absl::string_view Bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

TEST(SafetensorsHeader, AcceptsTensorsThatCoverTheData) {
  const auto header = ParseSafetensorsHeader(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"z":{"dtype":"I64","shape":[0,5],"data_offsets":[4,4]}}  )",
      16);
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->tensors.size(), 3);
  EXPECT_EQ(header->tensors[0].name, "a");
  EXPECT_EQ(header->tensors[0].elements, 1);
  EXPECT_EQ(header->tensors[1].name, "z");
  EXPECT_EQ(header->tensors[2].elements, 6);
  EXPECT_EQ(header->metadata.at("format"), "pt");
}

TEST(SafetensorsHeader, RefusesWhatDoesNotAddUp) {
  const struct {
    const char* text;
    int64_t bytes;
    const char* says;
  } cases[] = {
      {"", 0, "JSON"},
      {" {}", 0, "begin with"},
      {"{", 0, "JSON"},
      {"[]", 0, "'{'"},
      {"{}", 4, "file has 4"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       4, "twice"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
       6, "overlapping"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[5,9]}})",
       9, "hole"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})", 8, "do not fit"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4, "outside"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "outside"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})", 4, "pair"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})", 4, "outside"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "no size"},
      {R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", 4, "no size"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4, "2^60"},
      {R"({"a":{"dtype":"F32","shape":[1152921504606846976],"data_offsets":[0,0]}})", 0, "do not fit"},
      {R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", 4, "16"},
      {R"({"a":{"dtype":"F31","shape":[1],"data_offsets":[0,4]}})", 4, "F31"},
      {R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "missing"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4, "unknown"},
      {R"({"a":7})", 4, "object"},
      {R"({"__metadata__":{"a":1}})", 0, "not a string"},
      {"{\"a\xFF\":1}", 0, "JSON"},
  };
  for (const auto& c : cases) {
    const auto header = ParseSafetensorsHeader(c.text, c.bytes);
    EXPECT_EQ(header.status().code(), absl::StatusCode::kDataLoss) << c.text;
    EXPECT_NE(header.status().message().find(c.says), absl::string_view::npos) << c.text << "\n"
                                                                               << header.status();
  }
  EXPECT_FALSE(ParseSafetensorsHeader(std::string(1'000'000, '['), 0).ok());
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += R"({"a":)";
  EXPECT_FALSE(ParseSafetensorsHeader(deep, 0).ok());
}

TEST(SafetensorsReader, RefusesFilesThatAreNone) {
  const std::string path = FreshFolder("none") + "/f";
  EXPECT_TRUE(absl::IsNotFound(SafetensorsReader::Open(path).status()));
  const std::string good = File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  for (size_t n = 0; n < good.size(); ++n) {
    WriteFile(path, good.substr(0, n));
    EXPECT_TRUE(absl::IsDataLoss(SafetensorsReader::Open(path).status())) << n;
  }
  WriteFile(path, good + "x");
  EXPECT_TRUE(absl::IsDataLoss(SafetensorsReader::Open(path).status()));
  WriteFile(path, std::string(16, '\xFF'));
  const auto status = SafetensorsReader::Open(path).status();
  EXPECT_NE(status.message().find("18446744073709551615"), absl::string_view::npos) << status;
  WriteFile(path, good);
  EXPECT_TRUE(SafetensorsReader::Open(path).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(SafetensorsReader::Open(FreshFolder("none")).status()));
}

TEST(SafetensorsReader, NamesTheOffsetWhereAFileGotShorter) {
  const std::string path = FreshFolder("shorter") + "/f";
  WriteFile(path, File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
  const auto reader = SafetensorsReader::Open(path);
  ASSERT_TRUE(reader.ok());
  ASSERT_EQ(truncate(path.c_str(), reader->data_offset() + 4), 0);
  std::vector<float> out(2);
  const absl::Status status = reader->ReadFloats(reader->tensors()[0], 0, out);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_NE(status.message().find(absl::StrCat("offset ", reader->data_offset() + 4)),
            absl::string_view::npos)
      << status;
}

TEST(Safetensors, WhatIsWrittenInPiecesIsReadInOtherPieces) {
  const std::string path = FreshFolder("pieces") + "/f";
  const std::vector<SafetensorsDeclaration> declared = {{"w", StoredType::kF32, {700, 301}},
                                                        {"empty", StoredType::kF32, {0}},
                                                        {"b", StoredType::kBF16, {513}},
                                                        {"s", StoredType::kF32, {}}};
  std::vector<float> w(700 * 301);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(CounterRandom(1, 2).Normal(i));
  std::vector<BFloat16> b(513);
  for (size_t i = 0; i < b.size(); ++i) b[i] = ToBFloat16(static_cast<float>(i) / 7);
  auto writer = SafetensorsWriter::Create(FileOps::Real(), path, declared, {{"format", "pt"}}, 4096);
  ASSERT_TRUE(writer.ok()) << writer.status();
  const CounterRandom random(5, 6);
  for (size_t at = 0, i = 0; at < w.size(); ++i) {
    const size_t n = std::min<size_t>(w.size() - at, i == 3 ? 300'000 / 4 : random.Below(i, 20'000));
    ASSERT_TRUE(
        (*writer)->Append(0, static_cast<int64_t>(at), Bytes({w.begin() + at, w.begin() + at + n})).ok());
    at += n;
  }
  ASSERT_TRUE((*writer)->Append(2, 0, {reinterpret_cast<const char*>(b.data()), 1026}).ok());
  ASSERT_TRUE((*writer)->Append(3, 0, Bytes({2.5f})).ok());
  const auto finished = (*writer)->Finish();
  ASSERT_TRUE(finished.ok()) << finished.status();

  const auto bytes = ReadFile(path, 1 << 24);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(finished->bytes, bytes->size());
  EXPECT_EQ(finished->crc32c, Crc32c(bytes->data(), bytes->size()));
  ASSERT_EQ(finished->block_crc32c.size(), (bytes->size() + 4095) / 4096);
  for (size_t i = 0; i < finished->block_crc32c.size(); ++i) {
    const std::string block = bytes->substr(i * 4096, 4096);
    EXPECT_EQ(finished->block_crc32c[i], Crc32c(block.data(), block.size()));
  }
  const auto reader = SafetensorsReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->data_offset() % 8, 0);
  EXPECT_EQ(reader->metadata().at("format"), "pt");
  const SafetensorsTensor* tensor = reader->Find("w");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->shape, (std::vector<int64_t>{700, 301}));
  for (size_t i = 0; i < 50; ++i) {
    const size_t begin = random.Below(1000 + 2 * i, w.size()),
                 n = random.Below(1001 + 2 * i, w.size() - begin);
    std::vector<float> out(n);
    ASSERT_TRUE(reader->ReadFloats(*tensor, static_cast<int64_t>(begin), out).ok());
    EXPECT_EQ(std::memcmp(out.data(), w.data() + begin, 4 * n), 0);
  }
  std::vector<float> out(513);
  ASSERT_TRUE(reader->ReadFloats(*reader->Find("b"), 0, out).ok());
  for (size_t i = 0; i < 513; ++i) EXPECT_EQ(out[i], ToFloat(b[i]));
  EXPECT_EQ(reader->Find("nothing"), nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(reader->ReadFloats(*reader->Find("b"), 1, out)));
  EXPECT_TRUE(absl::IsInvalidArgument(reader->ReadFloats(*reader->Find("b"), -1, out)));
  EXPECT_TRUE(absl::IsInvalidArgument(
      reader->ReadFloats(*reader->Find("b"), std::numeric_limits<int64_t>::max(), out)));
}

TEST(SafetensorsWriter, RefusesElementsOutOfOrderAndStaysRefused) {
  const std::string folder = FreshFolder("order");
  const std::vector<SafetensorsDeclaration> declared = {{"a", StoredType::kF32, {4}},
                                                        {"b", StoredType::kF32, {2}}};
  const auto attempt = [&](size_t tensor, int64_t element, size_t bytes) {
    static int file = 0;
    auto writer =
        SafetensorsWriter::Create(FileOps::Real(), absl::StrCat(folder, "/", ++file), declared, {}, 4096);
    EXPECT_TRUE((*writer)->Append(0, 0, Bytes({1, 2})).ok());
    const absl::Status status = (*writer)->Append(tensor, element, std::string(bytes, 'x'));
    EXPECT_EQ((*writer)->Append(0, 2, Bytes({1, 2})).ok(), status.ok());
    EXPECT_FALSE((*writer)->Finish().ok());
    return status;
  };
  EXPECT_TRUE(absl::IsInvalidArgument(attempt(1, 0, 4)));   // Skips the rest of a.
  EXPECT_TRUE(absl::IsInvalidArgument(attempt(0, 1, 4)));   // Again.
  EXPECT_TRUE(absl::IsInvalidArgument(attempt(0, 3, 4)));   // Hole.
  EXPECT_TRUE(absl::IsInvalidArgument(attempt(0, 2, 12)));  // Over the end.
  EXPECT_TRUE(absl::IsInvalidArgument(attempt(0, 2, 3)));   // Part of an element.
}

TEST(SafetensorsWriter, RefusesBadDeclarations) {
  const std::string path = FreshFolder("declared") + "/f";
  const auto status = [&](const std::vector<SafetensorsDeclaration>& tensors) {
    return SafetensorsWriter::Create(FileOps::Real(), path, tensors, {}, 4096).status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(status({{"a", StoredType::kF32, {1}}, {"a", StoredType::kF32, {1}}})));
  EXPECT_TRUE(absl::IsInvalidArgument(status({{"", StoredType::kF32, {1}}})));
  EXPECT_TRUE(absl::IsInvalidArgument(status({{"__metadata__", StoredType::kF32, {1}}})));
  EXPECT_TRUE(absl::IsInvalidArgument(status({{"a\xFF", StoredType::kF32, {1}}})));
  EXPECT_TRUE(absl::IsInvalidArgument(status({{"a", StoredType::kF32, {-1}}})));
  EXPECT_TRUE(
      absl::IsInvalidArgument(status({{"a", StoredType::kF32, {int64_t{1} << 40, int64_t{1} << 40}}})));
  EXPECT_TRUE(absl::IsNotFound(ReadFile(path, 10).status())) << "nothing was created";
  EXPECT_TRUE(status({{"a", StoredType::kF32, {1}}}).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(status({{"a", StoredType::kF32, {1}}})));
}

TEST(ConvertToFloats, IsExactForEveryHalf) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    float value;
    ASSERT_TRUE(ConvertToFloats(StoredType::kF16, reinterpret_cast<const char*>(&half), {&value, 1}).ok());
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    EXPECT_EQ(std::signbit(value), (half >> 15) == 1);
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), mantissa != 0);
      EXPECT_EQ(std::isinf(value), mantissa == 0);
    } else {
      const double magnitude =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      ASSERT_EQ(std::fabs(value), magnitude) << bits;
    }
  }
  const double wide = 1.0 / 3;
  float value;
  ASSERT_TRUE(ConvertToFloats(StoredType::kF64, reinterpret_cast<const char*>(&wide), {&value, 1}).ok());
  EXPECT_EQ(value, 1.0f / 3);
  EXPECT_TRUE(absl::IsInvalidArgument(ConvertToFloats(StoredType::kI32, "1234", {&value, 1})));
}

TEST(SafetensorsModel, ReadsShardsAndTrustsNoIndex) {
  const std::string folder = FreshFolder("shards");
  EXPECT_TRUE(absl::IsNotFound(SafetensorsModel::Open(folder).status()));
  WriteFile(folder + "/one.safetensors",
            File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
  WriteFile(folder + "/two.safetensors",
            File(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4));
  const auto open = [&](absl::string_view index) {
    WriteFile(folder + "/model.safetensors.index.json", index);
    return SafetensorsModel::Open(folder);
  };
  const auto model =
      open(R"({"metadata":{"total_size":12},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->Names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(model->Find("a").tensor->elements, 2);
  EXPECT_EQ(model->Find("c").tensor, nullptr);
  EXPECT_TRUE(absl::IsDataLoss(open(R"({"weight_map":{"a":"two.safetensors"}})").status()));
  EXPECT_TRUE(absl::IsDataLoss(open(R"({"weight_map":{"a":"../shards/one.safetensors"}})").status()));
  EXPECT_TRUE(absl::IsDataLoss(open(R"({"weight_map":{"a":".."}})").status()));
  EXPECT_TRUE(absl::IsDataLoss(open(R"({"weight_map":{"a":1}})").status()));
  EXPECT_TRUE(absl::IsDataLoss(open(R"({"weight_map":[]})").status()));
  EXPECT_TRUE(absl::IsDataLoss(open(R"({})").status()));
  EXPECT_TRUE(absl::IsNotFound(open(R"({"weight_map":{"a":"three.safetensors"}})").status()));
}

}  // namespace
}  // namespace strata
