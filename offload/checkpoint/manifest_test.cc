#include "offload/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/random.h"

namespace strata {
namespace {

using nlohmann::json;

// Two tensors; the master of the first lies in two files.
Manifest Example() {
  Manifest manifest;
  manifest.job_uid = "job-1";
  manifest.attempt = 3;
  manifest.step = 200;
  manifest.model_json = R"({"layers":2})";
  manifest.state.optimizer_step = 199;
  manifest.state.data_cursor = 6400;
  manifest.state.seed = ~uint64_t{0};
  manifest.state.loss_scale = 0.1;
  manifest.state.skipped_steps = 1;
  manifest.state.tokens = int64_t{1} << 53 | 1;
  manifest.state.extra_json = R"({"schedule":"cosine"})";
  manifest.block_bytes = 4096;
  manifest.files = {{"one.safetensors", 4097, 1, {0xFF, 0xABCDEF01}}, {"two.safetensors", 400, 2, {7}}};
  manifest.tensors = {
      {StateClass::kMaster, "a", StoredType::kBF16, {10, 4}, 40, 0, 0, 30},
      {StateClass::kMaster, "a", StoredType::kBF16, {10, 4}, 40, 1, 30, 40},
      {StateClass::kFirstMoment, "b", StoredType::kF32, {3}, 3, 0, 0, 3},
  };
  for (const StateClass state : kStateClasses) {
    manifest.files.push_back({absl::StrCat(StateClassName(state), ".x"), 4096, 9, {9}});
    const size_t file = manifest.files.size() - 1;
    if (state != StateClass::kMaster) {
      manifest.tensors.push_back({state, "a", StoredType::kF32, {10, 4}, 40, file, 0, 40});
    }
    if (state != StateClass::kFirstMoment) {
      manifest.tensors.push_back({state, "b", StoredType::kF32, {3}, 3, file, 0, 3});
    }
  }
  return manifest;
}

TEST(Manifest, SurvivesTheRoundTripToTheBit) {
  const auto bytes = SerializeManifest(Example());
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const auto parsed = ParseManifest(*bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  const auto again = SerializeManifest(*parsed);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, *bytes);
  EXPECT_EQ(parsed->state.seed, ~uint64_t{0});
  EXPECT_EQ(parsed->state.loss_scale, 0.1);
  EXPECT_EQ(parsed->state.tokens, int64_t{1} << 53 | 1);
  EXPECT_EQ(parsed->state.extra_json, R"({"schedule":"cosine"})");
  EXPECT_EQ(parsed->model_json, R"({"layers":2})");
  EXPECT_EQ(parsed->files[0].block_crc32c, (std::vector<uint32_t>{0xFF, 0xABCDEF01}));
  EXPECT_EQ(parsed->tensors[1].begin, 30);
  EXPECT_EQ(parsed->tensors[1].file, 1);
}

// The same with m and v in eight bits.
Manifest EightBitExample() {
  Manifest manifest = Example();
  manifest.state.moments = Moments::kCode8;
  for (ManifestTensor& tensor : manifest.tensors) {
    if (tensor.state != StateClass::kMaster) tensor.dtype = StoredType::kU8;
  }
  for (const StateClass scale : {StateClass::kFirstMomentScale, StateClass::kSecondMomentScale}) {
    manifest.files.push_back({absl::StrCat(StateClassName(scale), ".x"), 4096, 9, {9}});
    for (const char* name : {"a", "b"})
      manifest.tensors.push_back({scale, name, StoredType::kF32, {1}, 1, manifest.files.size() - 1, 0, 1});
  }
  return manifest;
}

TEST(Manifest, KnowsTheOptimizer) {
  // Manifests of adamw say nothing of it: they are what they were.
  EXPECT_EQ(SerializeManifest(Example())->find("optimizer\":"), std::string::npos);
  const auto bytes = SerializeManifest(EightBitExample());
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const auto parsed = ParseManifest(*bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->state.moments, Moments::kCode8);
  EXPECT_EQ(*SerializeManifest(*parsed), *bytes);
  const struct {
    std::function<void(json&)> change;
    const char* says;
  } cases[] = {
      {[](json& j) { j["state"]["optimizer"] = "adamw"; }, "not adamw8bit"},
      {[](json& j) { j["state"]["optimizer"] = 8; }, "optimizer"},
      {[](json& j) { j["state"].erase("optimizer"); }, "has m_scale but the optimizer is adamw"},
      {[](json& j) { j["tensors"].erase(j["tensors"].size() - 1); }, "tensor b has no v_scale"},
      {[](json& j) { j["tensors"][2]["dtype"] = "F32"; }, "m of tensor b is F32, not the U8 of adamw8bit"},
      {[](json& j) {
         j["tensors"].back()["shape"] = {2};
         j["tensors"].back()["elements"] = {0, 2};
       },
       "tensor b has two shapes"},
  };
  for (const auto& c : cases) {
    json changed = json::parse(*bytes);
    c.change(changed);
    const auto refused = ParseManifest(changed.dump());
    EXPECT_TRUE(absl::IsDataLoss(refused.status())) << c.says << ": " << refused.status();
    EXPECT_NE(refused.status().message().find(c.says), absl::string_view::npos)
        << c.says << ": " << refused.status();
  }
}

TEST(Manifest, DigestIsSha256) {
  // The one-block example of FIPS 180-4.
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Manifest, EveryInconsistencyIsRefusedAndNamed) {
  const std::string good = *SerializeManifest(Example());
  const struct {
    std::function<void(json&)> change;
    const char* says;
  } cases[] = {
      {[](json& j) { j["format"] = "zip"; }, "format"},
      {[](json& j) { j["version"] = 2; }, "version"},
      {[](json& j) { j.erase("step"); }, "10"},
      {[](json& j) { j["new"] = 1; }, "11 members"},
      {[](json& j) { j["step"] = -1; }, "step"},
      {[](json& j) { j["step"] = 1.5; }, "step"},
      {[](json& j) { j["step"] = 18446744073709551615u; }, "step"},
      {[](json& j) { j["job_uid"] = 7; }, "job_uid"},
      {[](json& j) { j["model"] = "x"; }, "model"},
      {[](json& j) { j["state"]["seed"] = -1; }, "seed"},
      {[](json& j) { j["state"]["loss_scale"] = 0; }, "loss_scale"},
      {[](json& j) { j["state"]["loss_scale"] = "1"; }, "loss_scale"},
      {[](json& j) { j["state"]["data_cursor"] = -5; }, "data_cursor"},
      {[](json& j) { j["state"].erase("extra"); }, "state"},
      {[](json& j) { j["block_bytes"] = 0; }, "block_bytes"},
      {[](json& j) { j["block_bytes"] = 5000; }, "block_bytes"},
      {[](json& j) { j["block_bytes"] = int64_t{1} << 40; }, "block_bytes"},
      {[](json& j) { j["files"] = json::object(); }, "files"},
      {[](json& j) { j["files"][0]["name"] = "../x"; }, "not among files"},
      {[](json& j) {
         j["files"].push_back(j["files"][0]);
         j["files"].back()["name"] = "..";
       },
       "plain file name"},
      {[](json& j) {
         j["files"].push_back(j["files"][0]);
         j["files"].back()["name"] = "a/b";
       },
       "plain file name"},
      {[](json& j) {
         j["files"].push_back(j["files"][0]);
         j["files"].back()["name"] = "manifest.json";
       },
       "plain"},
      {[](json& j) { j["files"].push_back(j["files"][0]); }, "not unique"},
      {[](json& j) { j["files"][0]["bytes"] = 0; }, "bytes"},
      {[](json& j) { j["files"][0]["bytes"] = 8193; }, "block checksums"},
      {[](json& j) { j["files"][0]["bytes"] = std::numeric_limits<int64_t>::max(); }, "bytes"},
      {[](json& j) { j["files"][0]["crc32c"] = "1234567"; }, "crc32c"},
      {[](json& j) { j["files"][0]["crc32c"] = "1234567G"; }, "crc32c"},
      {[](json& j) { j["files"][0]["block_crc32c"] = "123"; }, "block_crc32c"},
      {[](json& j) { j["tensors"] = json::array(); }, "tensors"},
      {[](json& j) { j["tensors"][0]["class"] = "w"; }, "class"},
      {[](json& j) { j["tensors"][0]["name"] = ""; }, "name"},
      {[](json& j) { j["tensors"][0]["dtype"] = "F1"; }, "F1"},
      {[](json& j) { j["tensors"][0]["dtype"] = "F32"; }, "two types"},
      {[](json& j) {
         j["tensors"][0]["shape"] = {4, 10};
       },
       "two shapes"},
      {[](json& j) {
         j["tensors"][0]["shape"] = {int64_t{1} << 40, int64_t{1} << 40};
       },
       "2^60"},
      {[](json& j) { j["tensors"][0]["shape"] = json::array({-1}); }, "shape"},
      {[](json& j) { j["tensors"][0]["file"] = "none"; }, "not among files"},
      {[](json& j) {
         j["tensors"][0]["elements"] = {0, 29};
       },
       "comes next"},
      {[](json& j) {
         j["tensors"][0]["elements"] = {0, 31};
       },
       "comes next"},
      {[](json& j) {
         j["tensors"][0]["elements"] = {0, 41};
       },
       "not inside"},
      {[](json& j) {
         j["tensors"][0]["elements"] = {5, 5};
       },
       "not inside"},
      {[](json& j) {
         j["tensors"][0]["elements"] = {0, -1};
       },
       "pair"},
      {[](json& j) {
         j["tensors"][1]["elements"] = {30, 39};
       },
       "ends at element 39"},
      {[](json& j) { j["tensors"].erase(1); }, "ends at element 30"},
      {[](json& j) { j["tensors"].push_back(j["tensors"][0]); }, "twice"},
      {[](json& j) { j["tensors"].erase(2); }, "has no m"},
  };
  for (const auto& c : cases) {
    json changed = json::parse(good);
    c.change(changed);
    const auto parsed = ParseManifest(changed.dump());
    EXPECT_TRUE(absl::IsDataLoss(parsed.status())) << c.says << ": " << parsed.status();
    EXPECT_NE(parsed.status().message().find(c.says), absl::string_view::npos)
        << c.says << ": " << parsed.status();
  }
}

TEST(Manifest, NoCutAndNoFlippedByteIsAccepted) {
  const std::string good = *SerializeManifest(Example());
  for (size_t n = 0; n + 1 < good.size(); ++n) EXPECT_FALSE(ParseManifest(good.substr(0, n)).ok()) << n;
  // A flip may still give a valid manifest (another checksum, another step): the digest is what tells them
  // apart. Here the parser must only survive.
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1 << CounterRandom(7, 7).Below(i, 8));
    ParseManifest(bad).status().IgnoreError();
    EXPECT_NE(Sha256Hex(bad), Sha256Hex(good));
  }
}

TEST(Manifest, SerializeRefusesWhatParseWould) {
  Manifest manifest = Example();
  manifest.tensors[0].end = 29;
  EXPECT_TRUE(absl::IsInvalidArgument(SerializeManifest(manifest).status()));
  manifest = Example();
  manifest.state.extra_json = "[1]";
  EXPECT_TRUE(absl::IsInvalidArgument(SerializeManifest(manifest).status()));
  manifest.state.extra_json = R"({"a":1,"a":2})";
  EXPECT_TRUE(absl::IsInvalidArgument(SerializeManifest(manifest).status()));
  manifest = Example();
  manifest.job_uid = "\xFF";
  EXPECT_TRUE(absl::IsInvalidArgument(SerializeManifest(manifest).status()));
}

}  // namespace
}  // namespace strata
