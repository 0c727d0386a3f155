#include "client/cli/output.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "proto/strata/v1/jobs.pb.h"
#include "proto/strata/v1/logs.pb.h"
#include "yaml-cpp/yaml.h"

namespace strata {
namespace {

TEST(ToJsonTest, ShowsMessagesAsScriptsWantThem) {
  v1::Job job;
  job.set_name("projects/default/jobs/a");
  job.set_revision(int64_t{1} << 60);
  (*job.mutable_labels())["b"] = "2";
  (*job.mutable_labels())["a"] = "1";
  job.mutable_status()->set_state(v1::Job::RUNNING);
  job.mutable_status()->mutable_progress()->set_loss(std::numeric_limits<double>::quiet_NaN());
  job.mutable_status()->mutable_progress()->mutable_eta()->set_seconds(1);
  job.mutable_status()->mutable_progress()->mutable_eta()->set_nanos(500'000'000);
  job.mutable_create_time()->set_seconds(1'700'000'000);
  job.mutable_status()->add_tasks()->set_rank(0);
  EXPECT_EQ(ToLine(ToJson(job)),
            R"({"name":"projects/default/jobs/a","revision":1152921504606846976,"status":{"state":"RUNNING",)"
            R"("progress":{"loss":"NaN","eta":"1.5s"},"tasks":[{}]},"labels":{"a":"1","b":"2"},)"
            R"("create_time":"2023-11-14T22:13:20.000Z"})");
}

TEST(ToJsonTest, BytesAreBase64AndUnknownEnumsNumbers) {
  v1::LogChunk chunk;
  chunk.set_data(std::string("\xFF\0", 2));
  EXPECT_EQ(ToLine(ToJson(chunk)), R"({"data":"/wA="})");
  v1::JobEvent event;
  event.set_to(static_cast<v1::Job::State>(77));
  EXPECT_EQ(ToLine(ToJson(event)), R"({"to":77})");
}

TEST(JsonNumberTest, KeepsWhatANumberIs) {
  EXPECT_EQ(JsonNumber(8192).dump(), "8192");
  EXPECT_EQ(JsonNumber(0.1).dump(), "0.1");
  EXPECT_EQ(JsonNumber(-0.0).dump(), "-0.0");
  EXPECT_EQ(JsonNumber(1e300).dump(), "1e+300");
  EXPECT_EQ(JsonNumber(-INFINITY).dump(), "\"-Infinity\"");
}

TEST(MetricRowJsonTest, PutsTheStepFirstAndEveryKeyIn) {
  v1::MetricRow row;
  row.set_step(7);
  row.set_attempt(2);
  (*row.mutable_values())["zeta"] = 1.5;
  (*row.mutable_values())["loss"] = 2.25;
  (*row.mutable_values())["bytes.h2d"] = 4096;
  (*row.mutable_texts())["loss_bits"] = "40100000";
  (*row.mutable_texts())["state_hash"] = "ab";
  EXPECT_EQ(
      ToLine(MetricRowJson(row)),
      R"({"step":7,"attempt":2,"rank":0,"loss":2.25,"loss_bits":"40100000","bytes.h2d":4096,"zeta":1.5,)"
      R"("state_hash":"ab"})");
}

TEST(ToYamlTest, ReadsBackAsTheSameValues) {
  const Json json = Json::parse(
      R"({"text":"a: b #","empty":"","null_word":"null","number_text":"12","yes":"yes","list":[1,[2,3],{"a":{"b":[]}},"x y"],)"
      R"("map":{},"nested":{"t":true,"f":1.5},"line":"a\nb","unicode":"\u00e9"})");
  const std::string yaml = ToYaml(json);
  const YAML::Node node = YAML::Load(yaml);
  EXPECT_EQ(node["text"].as<std::string>(), "a: b #") << yaml;
  EXPECT_EQ(node["empty"].as<std::string>(), "");
  EXPECT_EQ(node["null_word"].as<std::string>(), "null");
  EXPECT_EQ(node["null_word"].Tag(), "!") << "quoted";
  EXPECT_EQ(node["number_text"].Tag(), "!");
  EXPECT_EQ(node["yes"].as<std::string>(), "yes");
  EXPECT_EQ(node["list"][1][1].as<int>(), 3);
  EXPECT_TRUE(node["list"][2]["a"]["b"].IsSequence());
  EXPECT_EQ(node["list"][3].as<std::string>(), "x y");
  EXPECT_TRUE(node["map"].IsMap());
  EXPECT_TRUE(node["nested"]["t"].as<bool>());
  EXPECT_EQ(node["line"].as<std::string>(), "a\nb");
  EXPECT_EQ(node["unicode"].as<std::string>(), "\xC3\xA9");
  EXPECT_EQ(ToYaml(Json::array()), "[]\n");
}

TEST(ToLineTest, BrokenUtf8IsReplaced) { EXPECT_EQ(ToLine(Json("a\xFF")), "\"a\xEF\xBF\xBD\""); }

TEST(TableTest, AlignsTextLeftAndNumbersRight) {
  Table table({"NAME", "STEP", "NOTE"});
  table.Add({"a", "7", "x"});
  table.Add({"\xC3\xA9t\xC3\xA9", "1234", ""});
  table.Add({"b", "-", "1"});
  EXPECT_EQ(table.Render(),
            "NAME  STEP  NOTE\n"
            "a        7  x\n"
            "\xC3\xA9t\xC3\xA9   1234\n"
            "b        -  1\n");
}

TEST(RenderTest, OneItemStandsAloneWhenAsked) {
  const std::vector<Json> items = {Json{{"a", 1}}};
  const auto table = [] { return std::string("table\n"); };
  EXPECT_EQ(Render(Format::kTable, items, true, table), "table\n");
  EXPECT_EQ(Render(Format::kJson, items, true, table), "{\n  \"a\": 1\n}\n");
  EXPECT_EQ(Render(Format::kYaml, items, false, table), "- a: 1\n");
  EXPECT_EQ(Render(Format::kJsonl, items, true, table), "{\"a\":1}\n");
  EXPECT_EQ(Render(Format::kJson, {}, true, table), "[]\n");
}

TEST(FormatTest, Counts) {
  EXPECT_EQ(FormatCount(950), "950");
  EXPECT_EQ(FormatCount(11'234), "11.2k");
  EXPECT_EQ(FormatCount(3.4e6), "3.4M");
  EXPECT_EQ(FormatCount(NAN), "-");
}

}  // namespace
}  // namespace strata
